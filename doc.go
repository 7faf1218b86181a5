// Package warmpath sends each LLM request to the worker whose KV cache is warm for it.
//
// A request's tokens become blocks, the blocks are matched in an index of what each worker's cache holds, a policy
// weighs the match against the fleet's load, and [Router.Route] returns a [Decision]. The package does no I/O, starts
// no goroutine and reads no clock: callers bring workers in through a [fleet.Fleet], KV events through package kvfeed,
// and time and randomness with each [Request]. The gateway of this module is one caller, the simulator another. The
// folder examples has programs to copy.
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
// # A worker
//
// The program says which workers there are. It may do so from any goroutine.
//
//  1. [fleet.Fleet.Put] adds a worker that the program has probed. The worker has a holder for each data-parallel rank
//     that is used. Another Put with the same URL replaces the facts and keeps the holders.
//  2. [fleet.Fleet.SetHealth] and [fleet.Fleet.SetDraining] say whether it gets requests.
//  3. [fleet.Fleet.Remove] takes it out. Its requests that are under way end as all others do, with [Decision.Done].
//     What it had in its cache must be forgotten: the feed does that. A program without a feed calls [Router.Forget]
//     for each of the worker's holders.
//
// A holder that leaves keeps its id for an hour, so that it finds its history when it comes back. Call
// [Router.Reclaim] every ten minutes, from any goroutine: it frees the ids to which nothing refers any more. Without
// it a fleet has 2^20 ids, and holders beyond are not indexed.
//
// # A request
//
//  1. [Router.Route] decides, and reserves the request's load on the chosen holder. On an error there is no decision,
//     and nothing to end. A request that is tried again on another worker is routed again: each decision ends by
//     itself.
//  2. [Decision.FirstToken], when the first token comes, takes the prompt off what the holder has to compute.
//  3. [Decision.Tokens] adds the answer as it grows.
//  4. [Decision.Unsent] comes before Done, and only when nothing of the request was sent.
//  5. [Decision.Done] gives all of the load back. Call it on every path, errors included. Only its first call counts.
//  6. [Decision.Recycle] makes the decision's memory the next one's, so that deciding allocates nothing. Call it
//     exactly once, last, when no goroutine uses the decision or its candidates any more. After it, the same memory
//     may be another request's decision. If Done was not called, Recycle calls it, with an unknown outcome. Without
//     Recycle the garbage collector does the work. [Record.Clone] copies what is to live longer.
//
// FirstToken, Tokens and Done may be called from any goroutine, at the same time. The fields of the [Record] may be
// read from any goroutine until Recycle. Unsent and Recycle are for one goroutine.
//
// A request that is decided more than once, for instance before and after it waited, begins with [Router.Prepare] and
// ends with [Prepared.Recycle]. A [Prepared] belongs to one goroutine at a time. Its decisions may outlive it.
// [Router.Explain] reserves nothing: of its decisions only the memory is given back, with Recycle.
//
// A decision that is never ended leaves its load on the holder. Call [fleet.Fleet.Expire] about twice a minute, from
// any goroutine: it gives back the load of requests without a sign of life for [fleet.Config.Expiry], and counts them
// as leaks. Signs of life are Route, FirstToken and Tokens, so Expiry must be longer than any answer that comes in one
// piece. A late Done is safe. If Done never comes, the policy does not learn of the end, and the holder's id is never
// used again.
//
// Route expects the prompt in the chosen holder's cache before any event confirms it. That ends after
// [Options.SpeculativeTTL], or after [Options.ApproximateTTL] where the holder publishes no events, or with Unsent.
//
// # Events
//
// Package kvfeed follows the engines' KV events. One goroutine calls Run of its Feed, which ends with its context. A
// router has one Feed; it serves all workers that come and go. If requests carry a salt or an extra key, call the
// Feed's Scoped between Route and the sending of the request. A program that calls [Router.Store], [Router.Remove] and
// [Router.Clear] by itself must keep the rules that the documentation of kvfeed lists.
//
// # Order
//
// Make the fleet, then the router, then the feed. Run the feed, put workers, and route. Which of these three comes
// first does not matter: without workers Route returns [ErrUnknownModel], and without events it decides by load and by
// what it sent where. To stop, end the requests, cancel the feed's context, and wait for its Run. Fleet and router
// need no end: they have no goroutine and no connection.
//
// # What is stable
//
// All packages outside the folders internal, test, examples and bench are public. The version is v0: a version v0.x
// may change any exported name, and the CHANGELOG names each such change under "Library". A version v0.x.y changes
// none. Block keys may differ between versions: do not store them. Texts for people may change at any time: errors
// (compare them with [errors.Is]), reasons, [Record.String] and log messages.
package warmpath
