//go:build !race

package kvindex

// store writes a word that readers may be reading. An atomic store would drain the processor's store buffer, some 10 ns a
// word, for an order among all processors that nobody needs here: on amd64 plain stores become visible in the order in
// which they are written, and the compiler keeps stores to different words in order.
func store(word *uint64, v uint64) { *word = v }
