//go:build amd64 || arm64

package kvindex

// fetch lets the processor bring a word's cache line, without waiting for it. An instruction for that is all that
// assembly is used for here: a load does the same, but what follows cannot be completed before it, so that a
// processor which has some under way does nothing else. A writer of a million blocks takes 0.85 of the time that it
// takes with loads.
//
//go:noescape
func fetch(word *uint64)
