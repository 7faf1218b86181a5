// Package engine is a model of one data-parallel rank of an inference engine: continuous batching over a paged KV pool with
// prefix caching, as vLLM's V1 scheduler and BlockPool do it, with the KV events they announce and the time each step takes.
// An engine with several ranks is several Engines.
//
// It is pure: no I/O, no goroutine, no clock, no randomness. The simulator steps it in virtual time, the mock engine behind
// real sockets. What a request answers is part of the request; the model decides when each token comes and what is cached.
//
//	e, err := engine.New(engine.DefaultConfig())
//	err = e.Submit(&engine.Request{Prompt: prompt, Output: answer})
//	for e.Step(&step) {
//		now += step.Duration // step.Events and step.Outputs become visible now
//	}
//
// How long a pass takes is a [Timing]: coefficients, a roofline or a table, which a [Profile] names together with the rank's
// limits. A caller that does not care for single tokens makes passes that only add a token to each request at once: see Steady.
//
// Followed in vLLM: v1/core/block_pool.py (free order, one removal an eviction, duplicates of a hash are copies of their own),
// v1/core/sched/scheduler.py (running requests first, then waiting ones; the newest is preempted, loses its blocks and goes
// to the front of the queue), v1/core/kv_cache_manager.py (at most (n-1)/block_size blocks of a prompt are hits; a block is cached
// when the step that fills it is scheduled, so a later request of the same step can use it). Left out: several cache groups,
// speculative decoding, asynchronous loads (a load from the CPU tier lengthens the step that needs it).
package engine
