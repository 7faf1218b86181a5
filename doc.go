// Package warmpath sends each LLM request to the worker whose KV cache is warm for it.
//
// A request's tokens become blocks, the blocks are matched in an index of what each worker's cache holds, a policy
// weighs the match against the fleet's load, and [Router.Route] returns a [Decision]. The package does no I/O, starts
// no goroutine and reads no clock: callers bring workers in through a [fleet.Fleet], KV events through [Router.Store]
// and its companions, and time and randomness with each [Request]. The gateway of this module is one caller, the
// simulator another.
//
//	now := func() int64 { return time.Now().UnixNano() }
//	d, err := router.Route(ctx, &warmpath.Request{Model: "llama", Tokens: tokens, Now: now(), Random: rand.Uint64()})
//	if err != nil {
//		return err
//	}
//	defer d.Recycle()
//	err = send(request, d.Worker.URL, func() { d.FirstToken(now()) }) // calls it when the first token comes
//	d.Done(outcomeOf(err), now())                                     // the time at which the answer ended
//
// # Lifecycles
//
// A request's load: Route reserves it on the chosen holder. [Decision.FirstToken] takes the prompt off what the holder
// has to compute, [Decision.Tokens] adds the answer as it grows, and [Decision.Done] gives all of it back. Call Done on
// every path, errors and panics included. Only its first call counts.
//
// A lost request: a caller that never calls Done leaves its load on the holder. Call [fleet.Fleet.Expire] about twice
// a minute: it gives back the load of requests without a sign of life for [fleet.Config.Expiry], and counts them as
// leaks. A late Done is safe.
//
// A decision's memory: [Decision.Recycle] makes the decision's memory the next one's, so that deciding allocates
// nothing. Call it last, after Done and when no goroutine uses the decision or its candidates any more. Without it the
// garbage collector does the work. [Record.Clone] copies what is to live longer.
//
// A request that is decided more than once, for instance before and after it waited: see [Router.Prepare].
//
// What is expected in a cache: Route expects the prompt in the chosen holder's cache before any event confirms it.
// That ends after [Options.SpeculativeTTL], or with [Decision.Unsent] when nothing of the request was sent.
//
// A holder's id: a holder that leaves the fleet keeps its id for an hour, so that it finds its history when it comes
// back. Call [Router.Reclaim] every ten minutes: it frees the ids to which nothing refers any more. Without it a fleet
// has 2^20 ids, and holders beyond are not indexed.
package warmpath
