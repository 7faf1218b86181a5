// Package warmpath sends each LLM request to the worker whose KV cache is warm for it.
//
// A request's tokens become blocks, the blocks are matched in an index of what each worker's cache holds, the match and
// the fleet's load are weighed by a policy, and [Router.Route] returns a [Decision]. The package does no I/O, starts no
// goroutine and reads no clock: callers bring workers in through a [fleet.Fleet], KV events through [Router.Store] and
// its companions, and time and randomness with each [Request]. The gateway of this module is one caller, the simulator
// another.
//
//	d, err := router.Route(ctx, &warmpath.Request{Model: "llama", Tokens: tokens, Rank: -1, Now: now, Random: rand.Uint64()})
//	if err != nil {
//		return err
//	}
//	defer d.Recycle()
//	outcome := send(request, d.Worker.URL) // calls d.FirstToken when the first token comes
//	d.Done(outcome, now)
package warmpath
