// Package peers has ports of other projects' policies: of SMG and the SGLang router, vLLM's routers, llm-d, Dynamo,
// Ray Serve and published papers. Each type names its source.
//
// A port keeps its source's formula, names of parameters and defaults, also where we would choose others: an operator
// who comes from that project finds the same behaviour. Where a port differs, its type says how and why. The rules
// that all policies share, such as which holders can be used at all, are in package policy.
//
// [Mix] is not a port: with it an operator composes filters, scorers and a picker, of package policy and of this one.
//
//	router, err := warmpath.New(warmpath.Options{Fleet: workers, Policy: peers.DefaultKV().Spec("kv")})
package peers
