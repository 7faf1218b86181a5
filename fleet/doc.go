// Package fleet knows the workers and their present state: which models they serve, whether they answer, how far the
// index's entries about their caches can be believed, and how much work is on them. A holder is one data-parallel rank
// of a worker: it has a cache and a load of its own.
//
// The package does no I/O. Other parts of the router store facts in a [Fleet]:
//
//   - Discovery stores the results of probes: [Fleet.Put], [Fleet.SetHealth].
//   - Package kvfeed stores how complete a holder's event stream is ([Fleet.SetTrust]), and how many blocks the events
//     added and removed ([Fleet.Cached]).
//   - The router stores each dispatched request and its end: [Fleet.Reserve], [Fleet.Observe]. A request that is never
//     released expires: [Fleet.Expire].
//   - Reports of engines add the work of other routers: [Fleet.Report].
//
// From first tokens and growing answers the fleet learns how long the passes (forward steps) of a holder's engine take:
// [Timing]. So it can predict how much of a holder's work is left at a moment: [Snapshot.LoadAt].
//
// The [Standing] of a holder says whether it gets a request now, and which share of its usual requests. The standing
// follows from the holder's breaker and the breaker of the request's [Scope], from the pause after a 429, from the
// suspicion that the worker is frozen, and from slow start.
//
// Readers take a [Snapshot], which is immutable and needs no lock. Facts that change with every request (load, breaker)
// or with an event stream (trust) are atomics that readers read live through the snapshot.
//
//	f := fleet.New(fleet.Config{})
//	id := f.Put("http://10.0.0.7:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
//	pool, ok := f.Snapshot().Pool("llama")
package fleet
