// Package fleet knows the workers and all we know of them now: what they serve, whether they answer, how far the index
// can believe their cache entries, and how much work is on them.
//
// It does no I/O. Discovery tells it what a probe learned ([Fleet.Put], [Fleet.SetHealth]), ingest how complete a
// holder's event stream is ([Fleet.SetTrust]), and the router what it dispatched and how that ended ([Fleet.Reserve],
// [Fleet.Observe]). Engines' own reports add what other routers put there ([Fleet.Report]), KV events how full a
// cache is ([Fleet.Cached]); requests that nobody ends expire ([Fleet.Expire]). From first tokens and growing answers
// it learns what a holder's passes take ([Timing]), and so how much of its work is left at a moment
// ([Snapshot.LoadAt]). Whether a holder gets a request, and how many, is its [Standing]: breakers for all it serves
// and for each [Scope], the pause after its 429, the suspicion that it is frozen, and the slow start of one
// that returned. Readers take a [Snapshot]: immutable, whole, and reached without a lock. What changes with every
// request (load, breaker) or with every event stream (trust) is read live through the snapshot, from atomics.
//
//	f := fleet.New(fleet.Config{})
//	id := f.Put("http://10.0.0.7:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
//	pool, ok := f.Snapshot().Pool("llama")
package fleet
