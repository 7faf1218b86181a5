package telemetry

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// StallAfter is how long one decision or one step of applying events may take before it counts as stalled. Both take
// microseconds; 2 s is longer than any pause of a loaded machine, and shorter than the patience of clients.
const StallAfter = 2 * time.Second

// Progress notes work under way, so that work that does not end can be seen, whatever it holds: no method takes a lock. Its zero
// value is ready; its methods may be called from any goroutine.
type Progress struct {
	// began is when the work in each slot began, in Unix nanoseconds; 0 is a free slot. 256 are more than the decisions that a
	// machine computes at a time. Work that finds no free slot is not noted: 256 other works are under way then.
	began [256]atomic.Int64
}

// noSlot is the slot of work that is not noted.
const noSlot = -1

// Begin notes work that begins at now, in Unix nanoseconds, and returns the slot to give to End.
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

// End notes that the work in that slot has ended.
func (p *Progress) End(slot int) {
	if slot != noSlot {
		p.began[slot].Store(0)
	}
}

// Oldest returns for how long the oldest work under way has gone on at now; 0 when there is none.
func (p *Progress) Oldest(now time.Time) time.Duration {
	oldest := now.UnixNano()
	for i := range p.began {
		if began := p.began[i].Load(); began != 0 {
			oldest = min(oldest, began)
		}
	}
	return time.Duration(now.UnixNano() - oldest)
}

// Stall is how long the oldest work of one kind has been under way.
type Stall struct {
	What string        // decisions, events
	For  time.Duration // 0: nothing is under way
	Who  string        // whose events, for people; "" is not known
}

// Stalled reports whether the work makes no progress.
func (s *Stall) Stalled() bool { return s.For >= StallAfter }
