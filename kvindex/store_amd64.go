//go:build !race

package kvindex

// store and store32 write what readers may be reading. An atomic store would drain the processor's store buffer, some
// 10 ns a word, for an order among all processors that nobody needs here: on amd64 plain stores become visible in the
// order in which they are written, and the compiler keeps stores to different words in order. Of two stores to one
// word without a call between it may leave out the first: see turn.
func store(word *uint64, v uint64) { *word = v }

func store32(word *uint32, v uint32) { *word = v }
