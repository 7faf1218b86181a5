// Package mockengine imitates an inference engine for routers. It serves the HTTP API and the KV events (over ZMQ) of
// vLLM or SGLang, and uses the engine model of internal/engine behind them. The mock engine has a working prefix cache,
// reports correct cached_tokens, and has faults on demand. Tests, demos and `warmpath mock` use the mock engine. It
// needs no accelerator and no download.
//
// The mock engine has the parts of an engine that a router uses: completions (streamed or not), models, tokenize,
// render, metrics, event sources, data-parallel ranks, LoRA names, cache_salt, and a CPU tier. Messages, responses
// (which it keeps) and SGLang's generate are chats and completions in another form. Embeddings, scores, sound and
// images are answered at once, with made-up values. With Config.Transfer it is a prefill or a decode worker: other mock
// engines, in this process or in another one, read its blocks over HTTP, with the parameters of a real connector. The
// mock engine knows nothing about language: the words of an answer are random, but the same prompt, choice number and
// seed give the same answer.
//
//	s, err := mockengine.New(mockengine.DefaultConfig())
//	go s.Run(ctx)
//	<-s.Ready()
//	http.Get(s.URL() + "/v1/models")
package mockengine
