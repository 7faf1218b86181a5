package fleet

import (
	"math"
	"sync/atomic"
)

// pressure is how many blocks a cache evicts for each block that it stores: 0 while the cache has free blocks, 1 when
// it is full. It is measured from the cache's events, over the last few thousand blocks.
type pressure struct{ bits atomic.Uint64 } // the bits of a float64; 0: no event has come

// pressureBlocks is the number of blocks over which the pressure is measured if the size of the cache is not known. If
// the size is known, an eighth of it is used instead.
const pressureBlocks = 4096

// Cached records how many blocks h's events announced as stored on the accelerator, and how many as removed from it.
// For one holder, only one goroutine may call it at a time.
func (f *Fleet) Cached(h Holder, stored, removed int) {
	snap := f.Snapshot()
	s := snap.state(h)
	if s == nil {
		return
	}
	s.work.cached(int64(stored), int64(removed), s.trust.Load().level == TrustExact)
	span := pressureBlocks
	if w := snap.Worker(h); w != nil && w.Facts.BlocksPerRank > 0 {
		span = max(w.Facts.BlocksPerRank/8, 16)
	}
	room, _ := s.room()
	now := (1 - room) * max(1-float64(stored)/float64(span), 0)
	now = min(now+float64(removed)/float64(span), 1)
	s.pressure.bits.Store(math.Float64bits(max(now, math.SmallestNonzeroFloat64)))
}

// Emptied records that h's cache is empty: its engine reset it.
func (f *Fleet) Emptied(h Holder) {
	if s := f.Snapshot().state(h); s != nil {
		s.emptied()
	}
}

func (s *holderState) emptied() {
	s.work.forgetCache()
	s.pressure.bits.Store(math.Float64bits(math.SmallestNonzeroFloat64))
}

// Lost records that the content of h's cache is no longer known: messages are lost, or the stream is not read any more.
// The pressure stays. The count of held blocks begins at 0, so that no block counts as at risk of eviction until events
// remove blocks.
func (f *Fleet) Lost(h Holder) {
	if s := f.Snapshot().state(h); s != nil {
		s.work.forgetCache()
	}
}

// room returns 1 − the pressure of s's cache, and whether the pressure is known. If the history of the events is
// complete and there was no event, the cache is empty. Any other cache without events counts as full, because caches
// fill up soon.
func (s *holderState) room() (room float64, known bool) {
	bits := s.pressure.bits.Load()
	if bits != 0 {
		return 1 - math.Float64frombits(bits), true
	}
	if s.trust.Load().level == TrustExact {
		return 1, true
	}
	return 0, false
}
