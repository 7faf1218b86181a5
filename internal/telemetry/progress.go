package telemetry

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// StallAfter is how long one decision or one step of applying events may take before it counts as stalled. Both usually
// take microseconds. 2 s is longer than any pause of a loaded machine, and shorter than the patience of clients.
const StallAfter = 2 * time.Second

// Progress records work that is running, so that work that does not end is noticed. Its methods take no lock, so they
// work even if the recorded work holds locks. The zero value is ready; the methods may be called from any goroutine.
type Progress struct {
	// began is the time when the work in each slot began, in Unix nanoseconds; 0 is a free slot. A machine computes
	// fewer than 256 decisions at a time. If no slot is free, work is not recorded.
	began [256]atomic.Int64
}

// noSlot is the slot of work that is not recorded.
const noSlot = -1

// Begin records work that begins at now, in Unix nanoseconds. It returns the slot for End.
func (p *Progress) Begin(now int64) (slot int) {
	first := rand.IntN(len(p.began))
	for i := range p.began {
		slot := (first + i) % len(p.began)
		if p.began[slot].Load() == 0 && p.began[slot].CompareAndSwap(0, max(now, 1)) {
			return slot
		}
	}
	return noSlot
}

// End records that the work in the slot has ended.
func (p *Progress) End(slot int) {
	if slot != noSlot {
		p.began[slot].Store(0)
	}
}

// Oldest returns the age of the oldest running work; 0 if there is none.
func (p *Progress) Oldest(now time.Time) time.Duration {
	oldest := now.UnixNano()
	for i := range p.began {
		if began := p.began[i].Load(); began != 0 {
			oldest = min(oldest, began)
		}
	}
	return time.Duration(now.UnixNano() - oldest)
}

// Stall is the age of the oldest work of one kind.
type Stall struct {
	What string        // decisions, events
	For  time.Duration // age of the oldest work; 0: no work is running
	Who  string        // the holder, for messages; "": it is not known
}

// Stalled reports whether the work makes no progress.
func (s *Stall) Stalled() bool { return s.For >= StallAfter }
