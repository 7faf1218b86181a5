// Package memory is the storage of the index. It allocates a few large pieces, mostly without pointers: the garbage
// collector has little to scan, and each byte can be counted.
//
//   - [Table] maps a hash of 64 bits to a number.
//   - [Arena] allocates elements of one type by index.
//   - [Slab] allocates runs of words of any length.
//   - [Log] appends pairs of words to runs, and moves runs when much of the log is garbage.
//
// Readers may read all four while one writer writes. The package knows no holders, blocks or budgets: package kvindex
// adds up the bytes and decides what to evict.
package memory
