// Package mockengine imitates an inference engine for routers. It puts the HTTP API of vLLM or SGLang, and their KV
// events over ZMQ, in front of the model of an engine in internal/engine. The mock engine has a working prefix cache,
// correct cached_tokens, and faults on demand. Tests, demos and `warmpath mock` use it. It needs no accelerator and no
// download.
//
// It has the parts of an engine that a router uses: completions (streamed or not), models, tokenize, render, metrics,
// event sources, data-parallel ranks, LoRA names, cache_salt, and a CPU tier. It knows nothing about language: an
// answer depends only on the prompt, the choice and the seed.
//
//	s, err := mockengine.New(mockengine.DefaultConfig())
//	go s.Run(ctx)
//	<-s.Ready()
//	http.Get(s.URL() + "/v1/models")
package mockengine
