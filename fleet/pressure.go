package fleet

import (
	"math"
	"sync/atomic"
)

// pressure is how many blocks a cache evicts for each that it stores: 0 while there is room, 1 when it is full. It
// comes from the cache's events, over the last few thousand blocks.
type pressure struct{ bits atomic.Uint64 } // of a float; 0: no event has come

// pressureBlocks is the number of blocks over which the ratio is taken if the cache's size is not known; otherwise it
// is an eighth of the size.
const pressureBlocks = 4096

// Cached records that h's events announced blocks that were stored on the accelerator, and blocks that were removed
// from it. The events of one holder come from one goroutine at a time.
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
// The pressure stays. The count of held blocks begins at 0, so that nothing is at risk until events remove blocks.
func (f *Fleet) Lost(h Holder) {
	if s := f.Snapshot().state(h); s != nil {
		s.work.forgetCache()
	}
}

// room returns 1 less the pressure of s's cache, and whether it is known. A cache whose history is complete, and that
// has sent no event, is empty. Any other cache without events counts as full, because a cache fills up soon.
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
