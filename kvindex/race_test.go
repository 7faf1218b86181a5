//go:build race

package kvindex_test

// raced: the race detector makes sync.Pool forget at random.
const raced = true
