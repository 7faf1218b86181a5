package telemetry

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// StallAfter is how long one decision, or one step of applying events, may take before it counts as stalled. Both
// usually take microseconds. 2 s is longer than any pause of a loaded machine, and shorter than the time that clients
// wait.
const StallAfter = 2 * time.Second

// Progress records which work is running, so that work that does not end is noticed. Its methods take no lock, so they
// also work while the recorded work holds locks. The zero value is ready for use. The methods may be called from any
// goroutine.
type Progress struct {
	// began has a slot for each running work: the time when the work began, in Unix nanoseconds. 0 means that the slot is
	// free. If no slot is free, work is not recorded; but a machine computes fewer than 256 decisions at a time.
	began [256]atomic.Int64
}

// noSlot stands for work that has no slot, because no slot was free.
const noSlot = -1

// Begin records work that begins at the time now, in Unix nanoseconds. It returns the slot, which End needs.
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

// Oldest returns how long the oldest running work has been running at the time now. If no work is running, it returns
// 0.
func (p *Progress) Oldest(now time.Time) time.Duration {
	oldest := now.UnixNano()
	for i := range p.began {
		if began := p.began[i].Load(); began != 0 {
			oldest = min(oldest, began)
		}
	}
	return time.Duration(now.UnixNano() - oldest)
}

// Stall describes the oldest running work of one kind.
type Stall struct {
	What string        // kind of the work: decisions or events
	For  time.Duration // how long the work has been running; 0: no work is running
	Who  string        // the holder that the work is about, for log messages; "": not known
}

// Stalled reports whether the work has been running for StallAfter or longer.
func (s *Stall) Stalled() bool { return s.For >= StallAfter }
