package kvindex

import (
	"cmp"
	"slices"
	"sync/atomic"
)

const (
	// relieved is how many strands relieve compares: of so many the oldest eighth is older than nine in ten of all,
	// nearly always.
	relieved = 64
	// mostCut bounds the blocks that go from one strand at a time: its deepest.
	mostCut = 4096
	// leastRelieved is the budget from which on relieve pays: below it an eviction takes about a millisecond, and takes
	// more evenly from those that share the index.
	leastRelieved = 8 << 20
	// fresh is how many operations a strand is safe from relieve: whoever stored to it may be about to go on.
	fresh = 16
)

// relieve does a little against a want of room before it is felt: once there is room for little more than the longest
// stretch, each stretch that is stored first drops some strands that were not used for long, or sweeps some of what
// they left, so that no writer waits for all of it at once. Only strands without descendants are shortened, from
// their ends, and only blocks of holders above their shares go. Blocks that points account for stay: evict removes
// them, and evict also runs when relieve does not keep up.
func (x *Index) relieve() {
	if x.resting > 0 {
		x.resting--
		return
	}
	b := &x.blocks
	if x.compared--; x.compared < 0 {
		x.compareShares()
		x.compared = len(x.holders) / 16 // so that a look at all holders costs as much as a few blocks each time
	}
	x.tableMu.Lock()
	defer x.tableMu.Unlock()
	if b.swept == 0 && b.dead > b.slots.n/16 {
		b.dead = max(b.dead, b.slots.n/8+1025) // as many as make a sweep worth it
	}
	if b.swept > 0 || b.dead > 1024+b.slots.n/8 {
		b.sweep()
		return
	}
	type old struct{ strand, used uint32 }
	var sample [relieved]old
	n, space := 0, uint64(len(b.strands.states))<<strandBits
	tick := x.tick()
	for range 4 * relieved {
		if n == relieved || space == 0 {
			break
		}
		x.hand = x.hand*6364136223846793005 + 1442695040888963407 // Knuth's generator: any order will do
		i := uint32((x.hand >> 33) % space)
		s := b.strands.at(i)
		for depth := 0; s != nil && s.child != 0 && depth < relieved; depth++ {
			i = s.child
			s = b.strands.at(i)
		}
		if s == nil || s.length == 0 || s.child != 0 || b.emptyEnd(s) < s.length || x.spares(b.setAt(spotOf(i, s.length-1))) {
			continue
		}
		if used := atomic.LoadUint32(&s.used); used+fresh < tick {
			sample[n] = old{i, used}
			n++
		}
	}
	slices.SortFunc(sample[:n], func(p, q old) int { return cmp.Compare(p.used, q.used) })
	before := b.held
	b.ghosts = b.ghosts[:0]
	for _, o := range sample[:(n+7)/8] {
		s := b.strands.at(o.strand)
		if s == nil || s.length == 0 || s.child != 0 {
			continue // it was there twice
		}
		n := x.charge(s, min(mostCut, s.length-x.sparedEnd(s)))
		if n == 0 {
			continue
		}
		x.cut(o.strand, s.length-n)
		if s = b.strands.at(o.strand); s != nil && s.length > 0 {
			b.trim(o.strand)
		}
	}
	b.stale = true
	x.dropLost()
	if b.held == before {
		x.resting = relieved // what is old is in points: it would be so again
	}
	x.counts.evictions += before - b.held
}
