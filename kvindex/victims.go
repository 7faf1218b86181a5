package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// victims tells which blocks an eviction takes: those of a strand beyond what it keeps.
type victims struct {
	keeps []uint32 // by strand
}

func (d *victims) has(at spot) bool {
	return int(at.strand()) < len(d.keeps) && at.offset() >= d.keeps[at.strand()]
}

// from returns the offset from which on a strand's blocks go.
func (d *victims) from(i uint32) uint32 {
	if int(i) < len(d.keeps) {
		return d.keeps[i]
	}
	return 1<<32 - 1
}

const victimBuckets = 1024

// chooseVictims chooses at least n blocks, if there are as many: the least recently used first and, among blocks of
// about the same age, the deepest. A strand is as recent as its most recent descendant, and a spared block spares its
// ancestors, so that no block goes before its descendants. fair: only blocks whose holders all exceed their shares.
// all: a holder above its share may lose more than its quota.
func (x *Index) chooseVictims(n int, fair, all bool) victims {
	b := &x.blocks
	used := make([]uint32, len(b.strands.states)<<strandBits)
	var spared []uint32 // how many of a strand's blocks must stay
	if fair {
		spared = make([]uint32, len(used))
	}
	var oldest, newest, deepest uint32 = 1<<32 - 1, 0, 0
	b.strands.postOrder(func(i uint32, s *strand) {
		b.steps++
		used[i] = max(used[i], atomic.LoadUint32(&s.used))
		oldest, newest, deepest = min(oldest, used[i]), max(newest, used[i]), max(deepest, s.depth+s.length-1)
		if p := s.parent; p != 0 {
			used[p] = max(used[p], used[i])
		}
		if !fair {
			return
		}
		spared[i] = max(spared[i], x.sparedEnd(s))
		if p := s.parent; p != 0 && spared[i] > 0 {
			spared[p] = max(spared[p], s.at&strandOffset+1)
		}
	})
	keep := func(i uint32) uint32 {
		if fair {
			return spared[i]
		}
		return 0
	}
	age := func(i uint32) int {
		return int(uint64(used[i]-oldest) * (victimBuckets - 1) / uint64(max(newest-oldest, 1)))
	}
	var byAge [victimBuckets]int
	b.strands.each(func(i uint32, s *strand) { byAge[age(i)] += int(s.length - keep(i)) })
	last := 0
	for ; last < victimBuckets-1 && byAge[last] < n; last++ {
		n -= byAge[last]
	}
	floor := x.floor(n, deepest, keep, func(i uint32) bool { return age(i) == last })
	b.strands.postOrder(func(i uint32, s *strand) {
		b.steps += 3
		switch a := age(i); {
		case a < last:
			used[i] = keep(i)
		case a == last:
			used[i] = max(keep(i), floor-min(floor, s.depth))
		default:
			used[i] = 1<<32 - 1
		}
		if !fair {
			return
		}
		if used[i] < s.length && !all {
			used[i] = s.length - x.charge(s, s.length-used[i])
		}
		if p := s.parent; p != 0 && used[i] > 0 {
			spared[p] = max(spared[p], s.at&strandOffset+1)
		}
	})
	return victims{keeps: used}
}

// charge charges the n blocks to go at a strand's end to one holder, the first that has the last block. It returns
// how many blocks that holder's quota allows.
func (x *Index) charge(s *strand, n uint32) uint32 {
	b := &x.blocks
	b.scan = b.segments(s, b.scan[:0])
	set := b.scan[len(b.scan)-1].set
	switch {
	case set == 0:
		return n
	case set&singleSet == 0:
		set = b.sets.single(setMember(b.sets.run(set)[0]).holder(), plainMask)
	}
	h := x.holders[set.single().holder()]
	n = uint32(max(0, min(int64(n), h.quota)))
	h.quota -= int64(n)
	return n
}

// sparedEnd returns the end of the last block of a strand that some holder at or below its share has; 0 when there is
// none.
func (x *Index) sparedEnd(s *strand) uint32 {
	b := &x.blocks
	b.scan = b.segments(s, b.scan[:0])
	for k := len(b.scan) - 1; k >= 0; k-- {
		if b.steps++; x.spares(b.scan[k].set) {
			return b.scan[k].end
		}
	}
	return 0
}

// floor returns the depth below which about n blocks lie on the strands that which chooses, kept blocks not counted.
func (x *Index) floor(n int, deepest uint32, keep func(i uint32) uint32, which func(i uint32) bool) uint32 {
	var byDepth [victimBuckets]int
	step := deepest/victimBuckets + 1
	x.blocks.strands.each(func(i uint32, s *strand) {
		if !which(i) {
			return
		}
		for from := s.depth + keep(i); from < s.depth+s.length; {
			to := min((from/step+1)*step, s.depth+s.length)
			byDepth[from/step] += int(to - from)
			from = to
		}
	})
	floor := uint32(victimBuckets - 1)
	for ; floor > 0 && byDepth[floor] < n; floor-- {
		n -= byDepth[floor]
	}
	if step > 1 {
		return floor * step
	}
	return floor
}

// isVictim reports whether a point goes with the victims. hard: waiting points and points of incomplete blocks
// go, too.
func (x *Index) isVictim(d *victims, p uint32, hard bool) bool {
	pt := x.points.at(p)
	if pt.end == 0 {
		return hard // waiting points have a bound of their own
	}
	first, last := x.start(p)/x.size, pt.end/x.size
	if last > first {
		key, _ := x.completed(p, int(last-first)-1, int(last-first))
		return x.goes(d, key)
	}
	if pt.extra != 0 {
		if through := x.extras.at(pt.extra).through; len(through) > 0 {
			for _, key := range through {
				if x.blocks.steps++; !x.goes(d, key) {
					return false
				}
			}
			return true
		}
	}
	// The head of a block that nobody completed: worth as little as what it follows, nothing after a root.
	return hard || x.below(p) == 0 || x.goes(d, pt.key)
}

// goes reports whether a block is a victim, or is not in the index: a block that no holder has whole is worth nothing.
func (x *Index) goes(d *victims, key block.Key) bool {
	at := x.blocks.locate(key)
	return at == 0 || d.has(at)
}
