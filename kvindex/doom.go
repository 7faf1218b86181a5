package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// doomed tells which blocks an eviction takes: those of a strand beyond what it keeps.
type doomed struct {
	keeps []uint32 // by strand
}

func (d *doomed) has(at spot) bool {
	return int(at.strand()) < len(d.keeps) && at.offset() >= d.keeps[at.strand()]
}

// from returns the offset from which on a strand's blocks go.
func (d *doomed) from(i uint32) uint32 {
	if int(i) < len(d.keeps) {
		return d.keeps[i]
	}
	return 1<<32 - 1
}

const doomBuckets = 1024

// doom chooses at least n blocks: the least recently used and, among those of about the same moment, the deepest. A
// strand is as recently used as its most recently used descendant, so that no block goes without its descendants.
func (x *Index) doom(n int) doomed {
	b := &x.blocks
	used := make([]uint32, len(b.strands.states)<<strandBits)
	var oldest, newest, deepest uint32 = 1<<32 - 1, 0, 0
	b.strands.each(func(i uint32, s *strand) {
		used[i] = max(used[i], atomic.LoadUint32(&s.used))
		for p := s.parent; p != 0 && used[p] < used[i]; p = b.strands.at(p).parent {
			used[p] = used[i]
		}
	})
	b.strands.each(func(i uint32, s *strand) {
		oldest, newest, deepest = min(oldest, used[i]), max(newest, used[i]), max(deepest, s.depth+s.length-1)
	})
	age := func(i uint32) int {
		return int(uint64(used[i]-oldest) * (doomBuckets - 1) / uint64(max(newest-oldest, 1)))
	}
	var byAge [doomBuckets]int
	b.strands.each(func(i uint32, s *strand) { byAge[age(i)] += int(s.length) })
	last := 0
	for ; last < doomBuckets-1 && byAge[last] < n; last++ {
		n -= byAge[last]
	}
	floor := x.floor(n, deepest, func(i uint32) bool { return age(i) == last })
	b.strands.each(func(i uint32, s *strand) {
		switch a := age(i); {
		case a < last:
			used[i] = 0
		case a == last:
			used[i] = floor - min(floor, s.depth)
		default:
			used[i] = 1<<32 - 1
		}
	})
	return doomed{keeps: used}
}

// floor returns the depth from which on about n blocks lie on the strands that which chooses.
func (x *Index) floor(n int, deepest uint32, which func(i uint32) bool) uint32 {
	var byDepth [doomBuckets]int
	step := deepest/doomBuckets + 1
	x.blocks.strands.each(func(i uint32, s *strand) {
		if !which(i) {
			return
		}
		for from := s.depth; from < s.depth+s.length; {
			to := min((from/step+1)*step, s.depth+s.length)
			byDepth[from/step] += int(to - from)
			from = to
		}
	})
	floor := uint32(doomBuckets - 1)
	for ; floor > 0 && byDepth[floor] < n; floor-- {
		n -= byDepth[floor]
	}
	if step > 1 {
		return floor * step
	}
	return floor
}

// condemned reports whether a point goes with the blocks that are doomed.
func (x *Index) condemned(d *doomed, p uint32, pass int) bool {
	gone := func(key block.Key) bool {
		at := x.blocks.locate(key)
		return at == 0 || d.has(at) // a block that nobody has whole is worth nothing
	}
	pt := x.points.at(p)
	if pt.end == 0 {
		return pass > 3 // waiting points have a bound of their own
	}
	first, last := x.start(p)/x.size, pt.end/x.size
	if last > first {
		key, _ := x.completed(p, int(last-first)-1, int(last-first))
		return gone(key) || pass > 8
	}
	if pt.extra != 0 {
		if through := x.extras.at(pt.extra).through; len(through) > 0 {
			for _, key := range through {
				if !gone(key) {
					return pass > 8
				}
			}
			return true
		}
	}
	// The head of a block that nobody completed: worth as little as what it follows, nothing after a root.
	return x.below(p) == 0 || gone(pt.key) || pass > 3
}
