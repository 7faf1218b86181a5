// Package peers has ports of other projects' policies: of SMG and the SGLang router, vLLM's routers, llm-d, Dynamo,
// Ray Serve and published papers. Each type names its source.
//
// A port keeps the formula, the names of parameters and the defaults of its source, even where we would choose other
// values. So an operator who comes from that project finds the same behaviour. If a port differs from its source, the
// comments of the port's type and fields say how. The rules that all policies share, such as which holders can be used
// at all, are in package policy.
//
// [Mix] is not a port: with Mix an operator composes filters, scorers and a picker of both packages.
//
//	router, err := warmpath.New(warmpath.Options{Fleet: workers, Policy: peers.DefaultKV().Spec("kv")})
package peers
