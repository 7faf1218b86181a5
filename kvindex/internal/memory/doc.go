// Package memory is the storage of the index. It allocates a few large pieces, mostly without pointers: the garbage
// collector has little to scan, and each byte can be counted.
//
//   - [Table] maps a 64-bit key to a number. It stores 33 bits of the key's hash, so the caller checks each result.
//   - [Arena] allocates elements of one type by index.
//   - [List] is a list of words that never change, in Go's heap. [Lists] counts the memory of lists.
//   - [Log] appends pairs of words to runs, and moves runs when much of the log is garbage.
//
// The methods Bytes count the memory in use. Memory that was given back no longer counts, even if the garbage collector
// has not freed it yet. So the process takes more memory than is counted (see GOGC).
//
// Readers may read a table, arena, list or log while one writer writes. For a table, Table.Shared must be set. The
// package knows no holders, blocks or budgets: package kvindex adds up the bytes and decides what to evict.
package memory
