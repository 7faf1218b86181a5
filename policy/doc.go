// Package policy chooses a holder for a request: filter, then score, then pick.
//
// It knows candidates: what a holder has of the prompt, what is on it, whether it can be used. It does not know where
// that comes from. A policy is data ([Spec]): names of filters, weighted scorers and one picker, or a [Chooser] in Go for what
// these cannot say or have to remember. [Own] returns our ready-made kinds with their [Parameters], package peers those of
// other projects; [Kinds.Parse] makes a policy from a line of text.
//
//	spec, err := policy.Own().Parse("kv_aware:imbalance_tokens=2048")
//	p, err := policy.Build(spec)
//	choice := p.Choose(&query, candidates) // candidates[choice.Index] is the one
//	p.Routed(&query, &candidates[choice.Index])
//
// Choosing allocates nothing. What a policy remembers belongs to the Policy, not to its Spec, and is bounded; many goroutines
// may use it, with locks that are a session's, a model's or a policy's, held around memory only.
//
// # What load means
//
// Requests are not counted: one may be a hundred times another. The load of a holder is the work a new request has to
// wait for or share the machine with, in prompt tokens:
//
//	work = uncached prompt tokens dispatched and without a first token + context tokens resident / 4
//
// The first term is a queue: all of it is computed before a newcomer's own prompt. The second slows every decode step.
// With the time model of facts/routing.md §4 (36 µs for a prefill token, 0.049 µs a step for a context token) and an
// answer of 200 tokens (the mean of the public conversation trace azure2023_conv is 211), a context token costs a quarter
// of a prefill token. What a request itself would add, its uncached tokens there, is added where candidates with different matches
// are compared: by the balanced filter, and among equals.
//
// Ties go by (work, processed, hash): the holder that was sent fewer requests so far, so that an idle fleet is used in
// turn, then by a hash of the holder and the request's random number, so that many routers do not agree on the same
// first worker. No choice but round robin's depends on the order of candidates.
//
// # Longest match, and how far to follow it
//
// kv_aware follows the longest match as its definition says: load only decides among equals. Taken literally that has a
// trap: when all requests share their first block (a system prompt), the first holder of it attracts every conversation
// that starts, however busy it is. [Spec].ImbalanceTokens bounds this: a candidate is only considered while
// its work plus the request's uncached tokens there is within so many tokens of the least such sum. A long match
// therefore earns its holder more patience than a short one, an idle fleet follows every match, and a busy holder of a
// tiny match loses. 0, the definition, is the default; [DefaultImbalanceTokens] is what a fleet with shared system
// prompts wants.
package policy
