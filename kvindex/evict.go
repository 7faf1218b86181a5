package kvindex

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

const (
	// sampled is how many strands (runs of consecutive blocks) an eviction compares by age. With 64, the oldest eighth
	// of them is nearly always older than three quarters of all evictable strands.
	sampled = 64
	// sharesEvery is the number of samples after which an eviction compares the holders' shares again.
	sharesEvery = 4
	// ampleSamples is the number of samples after which an eviction stops making more room than is needed. With a larger
	// number, a holder that floods the index with small strands takes more of the other holders' blocks.
	ampleSamples = 2
	// looksPerBlock is the number of strands that an eviction may look at for each block that it evicts. Few strands may
	// be evictable: if each strand is the child of the strand before (a comb), only the last one has no child. With a
	// smaller number, an eviction takes more blocks than are needed. With a larger number, small events take longer.
	looksPerBlock = 128
)

// evict drops blocks until there is room, and reports whether there is room. It takes the least recently used blocks
// first, and children before their parents. First it evicts blocks whose holders all exceed their shares. If that is
// not enough, and h does not exceed its share or is nil, it evicts other blocks, if necessary all blocks. The first
// samples make more room than is needed, so that the next announcements need not evict.
func (x *Index) evict(h *holder, room func(ample bool) bool) bool {
	for _, fair := range []bool{true, false} {
		if !fair && h != nil && h.over {
			return room(false)
		}
		for n, found := 0, true; ; n++ {
			if room(fair && n < ampleSamples) {
				return true
			}
			compare := !found || n%sharesEvery == 0
			if compare {
				x.compareShares()
				x.shrink()
			}
			found = x.evictSome(fair)
			if x.blocks.compact(true); !found && compare {
				break
			}
		}
	}
	x.fit()
	if room(false) {
		return true
	}
	x.wipe()
	return room(false)
}

// evictSome looks at strands in a fixed pseudo-random order, from where the last call ended, until it has a sample of
// evictable strands without children. It evicts the ends of the oldest eighth of the sample, and points within the
// first block of their chain (see evictPartial). If it looked at many strands to find the sample, it evicts more
// strands of the sample. When a parent has no child left, the parent joins the sample at the place of its age.
// evictSome reports whether it evicted anything. If fair is true, it evicts only blocks whose holders all exceed their
// shares.
//
// If nearly all strands have holders below their shares, a fair call looks at many strands and evicts little. The
// allowance of a fair call is looksPerBlock × (evicted blocks + sampled) strands. x.debt is the number of strands that
// a fair call looked at beyond its allowance. While there is a debt, each fair call looks at no more than looksPerBlock
// strands, and reduces the debt by this number.
func (x *Index) evictSome(fair bool) bool {
	b := &x.blocks
	did := x.evictPartial(fair)
	type old struct{ strand, used uint32 }
	sample := make([]old, 0, sampled)
	order := uint32(1) << bits.Len32(b.strands.Space())
	looks, mostLooks, indebted := 0, int(order), fair && x.debt > 0
	if indebted {
		mostLooks = looksPerBlock
	}
	for ; looks < mostLooks && len(sample) < sampled; looks++ {
		x.hand++
		// Multiplication by an odd number modulo a power of two gives each number below it once.
		i := x.hand * 0x9e3779b1 & (order - 1)
		s := b.strands.At(i)
		b.steps++
		if s == nil || s.length() == 0 || s.child != 0 || fair && x.spares(b.setAt(spotOf(i, s.length()-1))) {
			continue
		}
		sample = append(sample, old{i, atomic.LoadUint32(&s.used)})
	}
	now := x.tick()
	oldestFirst := func(p, q old) int { return cmp.Compare(now-q.used, now-p.used) }
	slices.SortFunc(sample, oldestFirst)
	few, most, evicted := (len(sample)+7)/8, looks/looksPerBlock, x.counts.Evictions
	for k := 0; k < len(sample) && (k < few || k < most && x.counts.Evictions-evicted < int64(most)); k++ {
		s := b.strands.At(sample[k].strand)
		if s == nil {
			continue
		}
		if parent := s.parent; x.cutEnd(sample[k].strand, fair) {
			did = true
			if p := b.strands.At(parent); parent != 0 && p != nil && p.length() > 0 && p.child == 0 {
				one := old{parent, atomic.LoadUint32(&p.used)}
				at, _ := slices.BinarySearchFunc(sample[k+1:], one, oldestFirst)
				sample = slices.Insert(sample, k+1+at, one)
			}
		}
	}
	if indebted {
		x.debt -= looksPerBlock
	} else if fair {
		x.debt = looks - looksPerBlock*(sampled+int(x.counts.Evictions-evicted))
	}
	return did
}

// cutEnd drops the evictable blocks at the end of a strand, and reports whether there were any. If fair is true, it
// drops only blocks whose holders all exceed their shares, and at most as many as the quota of the last block's first
// holder.
func (x *Index) cutEnd(i uint32, fair bool) bool {
	b := &x.blocks
	s := b.strands.At(i)
	if s == nil || s.length() == 0 || s.child != 0 {
		return false
	}
	n := s.length()
	if fair {
		n -= x.sparedEnd(s)
		var one [1]uint64
		if first := b.sets.members(b.setAt(spotOf(i, s.length()-1)), &one); len(first) > 0 {
			h := x.blocks.holders[member(first[0]).holder()]
			n = uint32(max(0, min(int64(n), h.quota)))
			h.quota -= int64(n)
		}
	}
	if n == 0 {
		return false
	}
	before := b.held
	x.cut(i, s.length()-n)
	x.counts.Evictions += before - b.held
	return true
}

// sparedEnd returns the number of blocks of a strand up to the last one that a holder at or below its share has. It
// returns 0 if there is no such block.
func (x *Index) sparedEnd(s *strand) uint32 {
	words := x.blocks.segmentWords(s)
	for k := len(words) - 1; k >= 0; k-- {
		if x.blocks.steps++; words[k] != 0 && x.spares(setID(words[k])) {
			return segmentOf(words[k]).end
		}
	}
	return 0
}

// evictPartial drops points (engine blocks that claims cannot express) that end before the first block of their chain
// is complete, and that have no children: the oldest ones of each holder. These points need no strand, so an eviction
// of strands does not reach them. If fair is true, it drops only points of holders that exceed their shares. It reports
// whether it dropped any.
func (x *Index) evictPartial(fair bool) (did bool) {
	for _, h := range x.blocks.holders {
		if h == nil || fair && !h.over {
			continue
		}
		for n := 0; n < sampled && h.pins.get(0) != nil; n++ {
			x.blocks.steps++
			l := &h.pins.get(0).points
			if p := l.first; p.kids == 0 {
				x.dropPoint(h, p)
				did = true
			} else {
				l.remove(ofPin, p)
				l.push(ofPin, p)
			}
		}
	}
	return did
}

// dropPoint drops all records of a point. If the point has children, it is freed with its last child.
func (x *Index) dropPoint(h *holder, p *point) {
	for _, r := range p.records {
		h.broken |= 1 << r.tier
	}
	x.dropRecords(h, p, func(*record) bool { return true })
}

// cut removes a strand's blocks, from offset lo on, from all holders. The strand must have no children.
func (x *Index) cut(i, lo uint32) {
	b := &x.blocks
	x.dropPinned(i, lo)
	s := b.strands.At(i)
	if s == nil || s.length() <= lo {
		return
	}
	before := b.before(spotOf(i, lo))
	b.paint(i, lo, s.length(), &change{})
	b.trim(i)
	if before == 0 || !b.there(before) {
		return
	}
	for _, w := range b.sets.load(b.setAt(before)) {
		if b.there(before) {
			b.dropBare(x.blocks.holders[member(w).holder()], before)
		}
	}
}

// dropPinned drops the points that need a strand's blocks, from offset lo on, the deepest points first.
func (x *Index) dropPinned(i, lo uint32) {
	b := &x.blocks
	for hi := b.strands.At(i).length(); hi > lo; {
		s := b.strands.At(i)
		if s == nil || s.length() == 0 {
			return
		}
		if hi = min(hi, s.length()); hi <= lo {
			return
		}
		at := spotOf(i, hi-1)
		start, g := b.segmentAt(at)
		pinning := false
		for _, w := range b.sets.load(g.set) {
			b.steps++
			h := x.blocks.holders[member(w).holder()]
			if !b.there(at) || b.stateAt(at, h.id).covered == 0 {
				continue
			}
			pinning = true
			had := h.blocks
			for pin := h.pins.get(at); pin != nil && pin.points.last != nil; pin = h.pins.get(at) {
				if p := pin.points.last; p.kids > 0 {
					panic("bug: a point has children that are not after it")
				}
				x.dropPoint(h, pin.points.last)
			}
			h.noteEvicted(&had)
		}
		if hi--; !pinning {
			hi = start
		}
	}
}

// noteEvicted counts the blocks that the holder lost to an eviction, given its blocks before the eviction.
func (h *holder) noteEvicted(before *[block.NumTiers]int64) {
	for t := range before {
		h.evicted[t] += before[t] - h.blocks[t]
	}
}

// wipe makes the index empty: it drops the points that wait. It is called after evictions took all blocks and all other
// points, and freed too little memory.
func (x *Index) wipe() {
	for _, h := range x.blocks.holders {
		for h != nil && h.queue.first != nil {
			x.dropWaiting(h, h.queue.first)
		}
	}
	x.blocks.clear()
}
