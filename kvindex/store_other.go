//go:build race || !amd64

package kvindex

import "sync/atomic"

// store writes a word that readers may be reading.
func store(word *uint64, v uint64) { atomic.StoreUint64(word, v) }
