// Package policy chooses a holder for a request: filter, then score, then pick.
//
// The package knows candidates. A candidate is a holder with facts: its match of the prompt, its load, and whether it
// can be used. The package does not know where these facts come from. A policy is data ([Spec]): filters, and the names
// of weighted scorers and of one picker. If a policy has to remember something, or if these parts cannot express it, it
// is a [Chooser] in Go.
//
// [Own] returns the kinds of policies of this package with their [Parameters]. Package peers has the kinds of other
// projects. [Kinds.Parse] makes a policy from a line of text.
//
//	spec, err := policy.Own().Parse("kv_aware:imbalance_tokens=2048")
//	p, err := policy.Build(spec)
//	choice := p.Choose(&query, candidates) // candidates[choice.Index] is the chosen one
//	p.Routed(&query, &candidates[choice.Index])
//
// Choosing allocates nothing. The memory of a policy belongs to the [Policy] and not to its Spec, and it is bounded.
// Many goroutines may use one policy at the same time. A policy holds no lock during I/O or while it waits.
//
// # What load means
//
// Load is not the number of requests, because one request may be a hundred times as much work as another. The load of a
// holder is its work, in prompt tokens:
//
//	work = uncached prompt tokens dispatched and without a first token + context tokens resident / 4
//
// The first term is a queue: these tokens are computed before the new prompt. The second term makes every decode step
// slower. The divisor 4 follows from fleet.DefaultTiming: a prefill token takes 36 µs, and a context token takes 0.049
// µs in each step. So in an answer of 200 tokens, a context token takes about a quarter of the time of a prefill token.
// (211 is the mean answer of the public trace Azure LLM inference 2023, conversation.) The balanced filter and the rule
// for ties add the request's own uncached tokens to the work, because they compare candidates with different matches.
//
// If two candidates have the same score, a rule for ties decides ([Tie]). The rule of most policies compares these
// figures in this order: work, turns, requests so far, hash. The turns of a holder grow with each request, for a slow
// holder more than for a fast one. Because of turns and requests so far, an idle fleet's holders are used one after the
// other. The hash covers the holder and the request's random number, so that many routers do not all choose the same
// worker. Only round robin, and policies that draw a position, depend on the order of candidates.
//
// # Longest match, and how far to follow it
//
// kv_aware follows the longest match: load decides only among equal matches. This rule alone fails if all requests
// share their first block, such as a system prompt: the first holder of this block attracts every new conversation,
// even if it is busy.
//
// [Spec].ImbalanceTokens bounds how far a match is followed. For each candidate, the balanced filter adds the
// candidate's work and the request's uncached tokens there. It leaves out a candidate whose sum exceeds the least sum
// of all candidates by more than ImbalanceTokens. So a request may wait longer for a long match than for a short one,
// an idle fleet follows every match, and a busy holder with a tiny match is left out. The default 0 is no bound.
// [DefaultImbalanceTokens] suits a fleet with shared system prompts.
package policy
