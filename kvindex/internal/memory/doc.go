// Package memory holds what the index keeps, in few large pieces without pointers, so that the garbage collector has
// nothing to look through and each byte can be counted:
//
//   - [Table] leads from a hash of 64 bits to a number.
//   - [Arena] has elements of one size by number, and uses freed ones again.
//   - [Slab] has runs of words of any length that readers may read while one writer writes.
//   - [Log] has runs of pairs that are written one after another, and moves them when much of it is garbage.
//
// It knows no holders, blocks or budgets: package kvindex counts the bytes and decides what goes.
package memory
