// Package placement remembers which holder was sent which prompt. Where engines publish no events, a router estimates
// from it which holder's cache has a prompt's beginning.
//
//	store := placement.New(placement.Config{Keys: placement.Text, Bytes: 64 << 20})
//	store.Learn(placement.First, 7, []byte("You are a helpful assistant. Hello"), now)
//	store.Match(placement.First, []byte("You are a helpful assistant. Bye"), now, &matches)
//	matches.Of(7) // 29
//
// One type, [Store], serves all sources of keys: a prompt's text, its token ids, or the chained keys of its blocks
// ([Keys]). Lengths are counted in units: bytes, tokens or blocks. Its eviction is a setting too ([Config]): by memory,
// by units of a holder, by units of all holders, by time, in whole runs or to the unit. [Sessions] remembers which
// holder was sent which session. Two sessions' keys share no beginning, so it is a table, which takes a quarter of the
// memory of a tree.
//
// # How a store works
//
// A store is one tree of the keys' common beginnings. A node is a run of a key, and lists the holders that have it. A
// holder that has a run has all runs before it. Each holder has a list of its runs by recency, in which a run is always
// more recent than the runs that continue it. So the last run of the list is the deepest run of the holder's least
// recent prompt, and evicting it takes one step. The SGLang router [sgl-model-gateway/src/policies/tree.rs] and Ray
// Serve search for the oldest leaf by timestamps; they evict the same leaf.
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
