// Package discovery finds out what workers are and whether they answer. It asks each worker over HTTP for its engine
// and version, models and adapters, block size, cache capacity, data-parallel ranks and the endpoints of its KV events.
// It puts the answers into the fleet, so that `--worker URL` is all that a router needs.
//
// It does not know what events mean or how requests are routed: it only sets [fleet.Facts], health and load, and
// reports restarted and frozen workers.
//
//	s, err := discovery.NewWatcher(f, []discovery.Target{{URL: "http://10.0.0.7:8000"}}, discovery.Config{}, nil, logger)
//	err = s.Run(ctx)
//
// [LMCache] asks the HTTP controller of an LMCache deployment (lmcache_controller, 0.5) which tokens its workers have
// cached. LMCache asks on behalf of policies, because policies do no I/O. A lookup never fails a request, and never
// delays a request for long: a lookup takes at most 200 ms, and after a failed lookup there is no other lookup for a
// second.
//
// The code follows the answers of running servers, vLLM 0.32 and SGLang 0.5.23, and the sources of older versions.
package discovery
