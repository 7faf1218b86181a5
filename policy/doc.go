// Package policy chooses a holder for a request: filter, then score, then pick.
//
// It knows candidates: holders, each with its match of the prompt, its load, and whether it can be used. It does not
// know where these facts come from. A policy is data ([Spec]): filters, and the names of weighted scorers and one
// picker. A policy that has to remember something, or that these parts cannot express, is a [Chooser] in Go. [Own]
// returns our kinds of policies with their [Parameters]; package peers has the kinds of other projects. [Kinds.Parse]
// makes a policy from a line of text.
//
//	spec, err := policy.Own().Parse("kv_aware:imbalance_tokens=2048")
//	p, err := policy.Build(spec)
//	choice := p.Choose(&query, candidates) // candidates[choice.Index] is the one
//	p.Routed(&query, &candidates[choice.Index])
//
// Choosing allocates nothing. What a policy remembers belongs to the Policy, not to its Spec, and is bounded. Many
// goroutines may use one policy at once. Its locks belong to a session, a model or the policy, and are held around
// memory only.
//
// # What load means
//
// Requests are not counted: one request may be a hundred times as much work as another. The load of a holder is the
// work that a new request waits for or shares the machine with, in prompt tokens:
//
//	work = uncached prompt tokens dispatched and without a first token + context tokens resident / 4
//
// The first term is a queue: all of it is computed before the new prompt. The second term slows every decode step.
// With the time model of fleet.DefaultTiming (36 µs for a prefill token, 0.049 µs a step for a context token) and
// an answer of 200 tokens (the mean of the public trace Azure LLM inference 2023, conversation, is 211), a context
// token costs a quarter of a prefill token. Where candidates with different matches are compared, the request's own
// uncached tokens are added: by the balanced filter, and among equals.
//
// Ties go by (work, turns, requests so far, hash). The holder that was sent fewer requests so far goes first, so that
// an idle fleet is used in turn. The hash is of the holder and the request's random number, so that many routers do
// not all choose the same first worker. Only round robin depends on the order of candidates.
//
// # Longest match, and how far to follow it
//
// kv_aware follows the longest match: load decides only among equals. This rule alone fails in one case: when all
// requests share their first block (a system prompt), its first holder attracts every new conversation, however busy it
// is. [Spec].ImbalanceTokens bounds this: a candidate is considered only while its work, plus the request's uncached
// tokens there, exceeds the least such sum by no more than this number. So a long match may wait longer than a short
// one, an idle fleet follows every match, and a busy holder of a tiny match loses. The default is 0, no bound.
// [DefaultImbalanceTokens] suits a fleet with shared system prompts.
package policy
