// Package warmpath decides to which worker each LLM request goes. It prefers a worker whose KV cache already holds the
// beginning of the request's prompt.
//
// [Router.Route] decides in three steps. It cuts the request's tokens into blocks. It looks up in an index how many of
// these blocks each worker's cache holds. Then a policy weighs these matches against the load of the fleet. The result
// is a [Decision].
//
// The package does no I/O, starts no goroutine and reads no clock. The caller adds workers to a [fleet.Fleet], passes
// KV events through package kvfeed, and gives the time and a random number with each [Request]. The gateway of this
// module is one caller, and the simulator is another. The lines below are the core of such a caller. The example
// examples/embed embeds the router in 40 lines of code (embed.go).
//
//	now := func() int64 { return time.Now().UnixNano() }
//	d, err := router.Route(ctx, &warmpath.Request{Model: "llama", Tokens: tokens, Now: now(), Random: rand.Uint64()})
//	if err != nil {
//		return err
//	}
//	defer d.Recycle()
//	err = send(request, d.Worker.URL, func() { d.FirstToken(now()) }) // send calls the function at the first token
//	d.Done(outcomeOf(err), now())                                     // the time at which the answer ended
//
// # A worker
//
// The program says which workers there are. These calls may come from any goroutine.
//
//  1. [fleet.Fleet.Put] adds a worker that the program has probed. Each data-parallel rank of the worker that is used
//     becomes a holder: it has a KV cache of its own. Another Put with the same URL replaces the facts and keeps the
//     holders.
//  2. [fleet.Fleet.SetHealth] and [fleet.Fleet.SetDraining] say whether the worker gets requests.
//  3. [fleet.Fleet.Remove] removes the worker. Requests under way at the worker still end with [Decision.Done]. The
//     router must then forget the worker's cache. The feed does that; a program without a feed calls [Router.Forget]
//     for each of the worker's holders.
//
// A worker that is put at the URL of a removed worker is a new worker, with holders of its own. A removed holder keeps
// its id for at least an hour. Call [Router.Reclaim] at least every ten minutes, from any goroutine. Reclaim frees the
// ids to which nothing refers any more. More frequent calls do no harm. A fleet has 2^20 ids. If Reclaim is never
// called and the ids run out, further holders are not indexed. Reclaim also drops the indexes of models that no worker
// has served for an hour.
//
// # A request
//
//  1. [Router.Route] decides, and reserves the request's load on the chosen holder. If it returns an error, there is no
//     decision and nothing to end. To retry a request on another worker, call Route again. The two decisions are
//     independent, and each of them needs a Done of its own.
//  2. Call [Decision.FirstToken] when the first token comes. The prompt then no longer counts as work of the holder.
//  3. Call [Decision.Tokens] while the answer grows.
//  4. If nothing of the request was sent, call [Decision.Unsent] before Done.
//  5. [Decision.Done] releases all of the load. Call it on every path, errors included. Only its first call counts.
//  6. [Decision.Recycle] gives the decision's memory to a later decision, so that deciding allocates nothing. Call it
//     exactly once, as the last call, when no goroutine uses the decision or its candidates any more. If Done was not
//     called, Recycle calls it with an unknown outcome. Recycle is optional: without it, the garbage collector frees
//     the memory. To keep a decision's facts for longer, copy them with [Record.Clone] before.
//
// FirstToken, Tokens and Done may be called from any goroutine, at the same time. The fields of the [Record] may be
// read from any goroutine until Recycle. Unsent and Recycle are for one goroutine.
//
// If one request needs several decisions, for instance before and after a wait, begin with [Router.Prepare] and end
// with [Prepared.Recycle]. A [Prepared] belongs to one goroutine at a time. Its decisions may live longer than the
// Prepared. [Router.Explain] reserves nothing: its decisions need no Done, and no Recycle.
//
// If Done is never called, the load of the decision stays on the holder. So call [fleet.Fleet.Expire] about twice a
// minute, from any goroutine: it releases the load of requests without a sign of life for [fleet.Config.Expiry], and
// counts these requests as leaks. Signs of life are Route, FirstToken and Tokens. An answer that comes in one piece
// gives no sign of life before its end, so Expiry must be longer than such an answer takes. A Done after the expiry is
// safe. If Done never comes, the policy does not learn that the request ended, and the holder's id is never used for
// another holder.
//
// After Route, the router expects the prompt in the chosen holder's cache before any event confirms it. This
// expectation ends after [Options.SpeculativeTTL], or with Unsent. It ends after [Options.ApproximateTTL] if the
// holder's trust is approximate, as without events, or if the prompt was matched by its text. If the holder's trust is
// none, the router expects nothing.
//
// # Events
//
// Package kvfeed follows the engines' KV events. One goroutine calls Run of a Feed; Run returns when its context is
// cancelled. A router needs one Feed for all of its workers. If requests carry a salt or an extra key, call the Feed's
// Scoped between Route and the sending of the request. A program that calls [Router.Store], [Router.Remove] and
// [Router.Clear] by itself must keep the rules that the documentation of kvfeed lists.
//
// # Order
//
// Make the fleet, then the router, then the feed. Then run the feed, put workers into the fleet, and route requests.
// The order of the last three steps does not matter. Without workers, Route returns [ErrUnknownModel]. Without events,
// Route decides by load and by the prompts that were sent before. To stop, end the requests, cancel the feed's context,
// and wait until its Run returns. Fleet and router need no shutdown, because they have no goroutine and no connection.
//
// # What is stable
//
// All packages outside the folders internal, test, examples and bench are public. There is no release yet. The first
// releases will be v0: a version v0.x may change any exported name, and the CHANGELOG names each such change under
// "Library". A patch version v0.x.y changes no exported name. Block keys may differ between versions: do not store
// them. Texts for people may change at any time: errors (compare them with [errors.Is]), reasons, [Record.String] and
// log messages.
package warmpath
