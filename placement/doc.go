// Package placement remembers which holder was sent which prompt. Routers guess from it whose cache has a prompt's
// beginning where engines publish no events.
//
//	store := placement.New(placement.Config{Keys: placement.Text, Bytes: 64 << 20})
//	store.Learn(placement.First, 7, []byte("You are a helpful assistant. Hello"), now)
//	store.Match(placement.First, []byte("You are a helpful assistant. Bye"), &matches)
//	matches.Of(7) // 29
//
// A [Store] is one for all sources of keys: a prompt's text, its token ids, or the chained keys of its blocks
// ([Keys]). Lengths are counted in units: bytes, tokens or blocks. Its eviction is a setting too ([Config]): by
// memory, by units of a holder, by units of all holders, by time, in whole runs or to the unit. [Sessions] is the
// same for requests that name a session: its key has no beginning that others share, so a table takes a quarter of
// the memory of a tree.
//
// # How a store works
//
// A store is one tree of the keys' common beginnings. A node is a run of a key, and lists the holders that have it.
// What a holder has is closed: with a run it has all runs before it. Each holder has a list of its runs by recency,
// in which a run is always more recent than the runs that continue it. So the end of the list is the holder's deepest
// run of its least recent prompt, and evicting it takes one step. The SGLang router
// [sgl-model-gateway/src/policies/tree.rs] and Ray Serve search for the oldest leaf by timestamps; the same leaf goes
// first.
//
// # What it refuses to know
//
// Load, models (keys of different models have different roots), and what engines evict. It has no clock: time is an
// argument. A match is a guess: an engine that evicts earlier than assumed has less than the store says.
//
// # Concurrency
//
// All methods are safe for concurrent use. Match waits only while another goroutine changes the store, and allocates
// nothing once its Matches has grown to the number of holders.
package placement
