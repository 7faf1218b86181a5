// Package kvfeed keeps a router's index up to date. A [Feed] follows one ordered stream of KV events for each holder of
// the router's fleet, and applies the events to the index. It also sets the trust of the holder: how far the holder's
// entries in the index can be believed, and why.
//
// The one call:
//
//	feed := kvfeed.New(router, kvfeed.Config{}, logger)
//	err := feed.Run(ctx) // until ctx ends; in a goroutine of its own
//
// The feed follows each worker whose [fleet.Facts] have an event source ([fleet.EventSource]), from [fleet.Fleet.Put]
// to [fleet.Fleet.Remove]. It dials the engine's sockets and requests a replay of earlier events. One more call is
// needed if requests carry a cache_salt or an extra_key: [Feed.Scoped], before such a request is sent. [Feed.Ready]
// waits until the feed has read what the engines have cached.
//
// [Feed.Checkpoint] returns what the feed knows of a holder, and [Feed.Offer] lets another feed continue from that.
//
// A program with an index of its own uses a [Subscriber] and package kvevent instead.
//
// The package knows what gaps of a stream and missing fields of an event mean for the claims of the index. It does not
// know the encoding of events (kvevent), the ZeroMQ protocol, where workers come from, or how requests are routed.
//
// Sources: vLLM `vllm/distributed/kv_events.py` (ZmqEventPublisher), SGLang `srt/disaggregation/kv_events.py`.
//
// # What it guarantees
//
//   - The index may know too little. Then requests miss a warm cache, which costs time. While the trust is exact, the
//     index claims no block that the holder has dropped, except while the event of the removal is under way. With less
//     trust it may: after a lost connection, on a tier that announces no removals, or if messages have no sequence
//     numbers. If the cache_salt, extra_key or LoRA name of a block matters and is unknown, the block matches no
//     request by its tokens: it may belong to another request.
//   - The trust reflects the worst loss or doubt since the holder's cache was last known to be empty.
//   - When a holder leaves, restarts, or loses a part of its history, its blocks are forgotten.
//
// # Without this package
//
// A program that calls [warmpath.Router.Store], Remove and Clear by itself must keep the same rules. Otherwise the
// index claims blocks that are gone, and requests wait for prompts that have to be computed again.
//
//   - Order: one goroutine applies the events of a holder, in the order of their sequence numbers.
//   - Loss: after a gap that no replay fills, after a message that cannot be decoded, and after a batch with
//     [kvevent.Batch.Incomplete], call [warmpath.Router.Forget]. The lost events may have removed blocks.
//   - Restart: when an engine's sequence begins again, call [warmpath.Router.Forget] before the first new event.
//   - Other requests' blocks: do not store an event with keys that cannot be read ([kvevent.Event.Unread]). Do not
//     store an event whose format has no field for a key that requests use ([kvevent.Event.Hidden]). If only the
//     beginning of the chain is in doubt, set [kvindex.Stored.RootUnknown].
//   - Tiers: a removal counts for one tier only. A reset of vLLM also counts for one tier, a reset of other engines for
//     all tiers. If a tier announces no removals, its blocks need a time limit.
//   - New index: each index has a generation number. Store returns the number, and so does
//     [warmpath.Router.Generation], which shows a new index after a change of the fleet. When the number changes,
//     forget the holder and replay its history.
//   - Leaving: after [fleet.Fleet.Remove], stop the holder's stream first, then call [warmpath.Router.Forget]. Another
//     holder may get the same id later.
//   - Trust: call [fleet.Fleet.SetTrust] with [fleet.TrustExact] only when the history is complete since the holder's
//     cache was empty.
package kvfeed
