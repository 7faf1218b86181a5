//go:build !amd64 && !arm64

package kvindex

import "sync/atomic"

// fetch brings a word's cache line.
func fetch(word *uint64) { atomic.LoadUint64(word) }
