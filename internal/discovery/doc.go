// Package discovery finds out what workers are and whether they answer. It asks each worker's own HTTP surface (engine
// and version, models and adapters, block size, cache capacity, data-parallel ranks, where its KV events are published)
// and keeps the fleet told, so that `--worker URL` is all a router needs.
//
// It refuses to know what events mean or how requests are routed: it only fills [fleet.Facts] and health.
//
//	s := discovery.NewStatic(f, []discovery.Target{{URL: "http://10.0.0.7:8000"}}, discovery.Config{}, logger)
//	err := s.Run(ctx)
//
// What the engines answer was read from running servers: vLLM 0.32 and SGLang 0.5.23; older versions from their
// sources.
package discovery
