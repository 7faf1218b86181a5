// Package placement remembers which holders were given which prompts, as one tree of their common prefixes: text or tokens.
// It is how routers guess, from requests alone, whose cache is warm for a prompt.
//
//	tree := placement.NewText(64 << 20)
//	root := tree.Plant()
//	tree.Insert(root, 7, []byte("You are a helpful assistant. Hello"))
//	tree.Match(root, []byte("You are a helpful assistant. Bye"), &matches)
//	matches.Of(7) // 29
//
// Prompts under different roots, such as those of different models, share nothing but the tree's bounds.
//
// A holder is a small dense number, such as a fleet.Holder. Keys are bytes; lengths are told in units, which are bytes of
// a text or tokens ([TokenBytes]). Text may part anywhere, tokens part at pages of 16, as the engines' caches do.
//
// What a holder has is a set of prefixes. The nodes it was given are in one list by recency, and a prefix always stands
// before what continues it: so the end of the list is a leaf of that holder, and forgetting the least recent takes one
// step, with no clock and no heap. Two peers do this with timestamps and a search for the oldest leaf (SMG
// model_gateway/src/policies/tree.rs; Ray Serve's prefix tree); what goes first is the same.
//
// It refuses to know time, load, and which engine evicts what: it is a guess. Memory is bounded twice: by the units that
// [Tree.Trim] leaves each holder, as its caller's policy says, and at every moment by the bytes given to the constructor.
//
// All methods are safe for concurrent use. Match waits only while another goroutine changes the tree, and allocates
// nothing once its Matches has grown to the number of holders.
package placement
