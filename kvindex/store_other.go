//go:build race || !amd64

package kvindex

import "sync/atomic"

// store and store32 write what readers may be reading.
func store(word *uint64, v uint64) { atomic.StoreUint64(word, v) }

func store32(word *uint32, v uint32) { atomic.StoreUint32(word, v) }
