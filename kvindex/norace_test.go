//go:build !race

package kvindex_test

const raced = false
