// Package engine is a model of one data-parallel rank of an inference engine. It models three things: continuous
// batching over a paged KV pool with prefix caching, as in vLLM's V1 scheduler and BlockPool; the KV events; and the
// time of each step. For an engine with several ranks, use an Engine for each rank.
//
// The package has no I/O, no goroutine, no clock and no randomness. The simulator calls its steps in virtual time, and
// the mock engine calls them behind real sockets. A request contains its answer; the model decides when each token is
// generated, and which blocks are cached.
//
//	e, err := engine.New(engine.DefaultConfig())
//	err = e.Submit(&engine.Request{Prompt: prompt, Output: answer})
//	for e.Step(&step) {
//		now += step.Duration // step.Events and step.Outputs become visible now
//	}
//
// A [Timing] gives the time of a pass: coefficients, a roofline or a table. A [Profile] has a timing and the rank's
// limits. A pass is one step of the scheduler. A caller that does not need the time of single tokens can make several
// decode passes with one call: see Steady.
//
// The model follows vLLM:
//
//   - v1/core/block_pool.py: the order of free blocks, one removal for each eviction, several blocks with one hash.
//   - v1/core/sched/scheduler.py: running requests come before waiting requests. The newest running request
//     is preempted: it loses its blocks and goes to the front of the queue.
//   - v1/core/kv_cache_manager.py: at most (n-1)/block_size blocks of a prompt are hits. A block is cached when the
//     step that fills it is scheduled, so a later request of the same step can use it.
//
// The model has no cache groups, no speculative decoding and no asynchronous loads. A step that needs blocks from the
// CPU tier takes longer by the time of the load.
package engine
