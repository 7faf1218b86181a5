// Package placement remembers which prompts were sent to which holder. Without the engines' events, a router estimates
// with a [Store] which holder's cache has the beginning of a prompt.
//
//	store := placement.New(placement.Config{Keys: placement.Text, Bytes: 64 << 20})
//	store.Learn(placement.First, 7, []byte("You are a helpful assistant. Hello"), now)
//	store.Match(placement.First, []byte("You are a helpful assistant. Bye"), now, &matches)
//	matches.Of(7) // 29
//
// The key of a prompt in a [Store] is its text, its token ids, or the chained keys of its blocks ([Keys]). Lengths are
// counted in units: bytes, tokens or blocks. The settings ([Config]) say when the store evicts: by memory, by units of
// one holder, by units of all holders, or by time.
//
// [Sessions] remembers which holder each session was sent to. The keys of two sessions share no beginning, so Sessions
// is a table and not a tree. The table takes a quarter of the memory of a tree.
//
// # How a store works
//
// A store is a radix tree of keys. A node of the tree is a run: a part of a key. The path from the root to the node is
// the beginning of all keys below it. Each node lists the holders to which this beginning was sent. A holder that is in
// a node is also in all nodes on the path to it.
//
// A placement is a pair of a holder and a run. Each holder has a list of its placements by recency. In this list a run
// is always more recent than the runs that continue it. So the last run of the list is the deepest run of the holder's
// least recently used prompt. To evict this run takes one step. The SGLang router
// [sgl-model-gateway/src/policies/tree.rs] and Ray Serve search for the oldest leaf by timestamps, and so evict the
// same leaf.
//
// # What it refuses to know
//
// The package does not know the load of holders, or what engines evict. It does not know models: the caller gives each
// model a store or a root of its own. It has no clock: the caller passes the time. A match is a guess: if an engine
// evicts earlier than assumed, its cache has less than the store says.
//
// # Concurrency
//
// All methods are safe for concurrent use. Match waits only while another goroutine changes the store, and allocates
// nothing once its Matches has grown to the number of holders.
package placement
