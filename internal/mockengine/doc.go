// Package mockengine is an inference engine that routers cannot tell from a real one: the model of internal/engine behind
// vLLM's or SGLang's HTTP surface and their KV events over ZMQ, with a prefix cache that works, cached_tokens that are true,
// and faults on demand. Tests, demos and `warmpath mock` run against it; it needs no accelerator and no download.
//
// It knows what a router uses of an engine: completions (streaming and not), models, tokenize, render, metrics, event sources,
// data-parallel ranks, LoRA names, cache_salt, a CPU tier. It refuses to know anything about language: its answers are
// a fixed function of the prompt, the choice and the seed.
//
//	s, err := mockengine.New(mockengine.DefaultConfig())
//	go s.Run(ctx)
//	<-s.Ready()
//	http.Get(s.URL() + "/v1/models")
package mockengine
