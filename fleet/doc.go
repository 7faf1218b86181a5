// Package fleet knows the workers and their present state: which models they serve, whether they answer, how far the
// index can believe their cache entries, and how much work is on them.
//
// It does no I/O. Discovery stores what a probe learned ([Fleet.Put], [Fleet.SetHealth]), kvfeed how complete a
// holder's event stream is ([Fleet.SetTrust]), and the router each dispatched request and its end ([Fleet.Reserve],
// [Fleet.Observe]). Engines' reports add the work of other routers ([Fleet.Report]), KV events the pressure of a
// cache ([Fleet.Cached]). Requests that are never released expire ([Fleet.Expire]). From first tokens and growing
// answers the fleet learns how long a holder's passes take ([Timing]), and so how much of its work is left at a
// moment ([Snapshot.LoadAt]). A holder's [Standing] says whether it gets a request, and which share: it follows from
// the breakers, one for everything and one for each [Scope], from the pause after a 429, from the suspicion that the
// worker is frozen, and from slow start. Readers take a [Snapshot]: immutable, whole, and reached without a lock.
// Facts that change with every request (load, breaker) or event stream (trust) are read live through the snapshot,
// from atomics.
//
//	f := fleet.New(fleet.Config{})
//	id := f.Put("http://10.0.0.7:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
//	pool, ok := f.Snapshot().Pool("llama")
package fleet
