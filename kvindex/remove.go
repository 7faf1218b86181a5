package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// Remove records that a holder dropped one copy of each block from a tier and group. Hashes that are not known are
// ignored.
func (x *Index) Remove(id fleet.Holder, tier block.Tier, group int, hashes []uint64) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil || tier >= block.NumTiers {
		return
	}
	g := h.find(group)
	if g < 0 {
		x.unknownRemoved(h, len(hashes))
		return
	}
	for len(hashes) > 0 {
		some := hashes[:x.splits(min(len(hashes), x.stretch(0)))]
		n := len(some)
		if h.pointed > 0 {
			some, n = x.fewCovers(h, tier, uint8(g), some)
		}
		hashes = hashes[len(some):]
		x.roomToSplit(n)
		for len(some) > 0 {
			some = some[x.removeSome(h, tier, uint8(g), some):]
		}
		if len(hashes) > 0 && !x.yield(h) {
			return
		}
	}
}

// fewCovers returns the first of some hashes, at least one, and an upper bound n of the number of blocks whose claims
// change if these hashes are removed from a tier and group. It returns so many hashes that n stays near the length of a
// stretch.
func (x *Index) fewCovers(h *holder, tier block.Tier, group uint8, hashes []uint64) (some []uint64, n int) {
	for i, hash := range hashes {
		n++
		if p := h.byHash.get(hash); p != nil && p.end != 0 {
			x.blocks.steps++
			if k := p.find(tier, group); k >= 0 {
				n += x.coversOf(p, p.records[k].size)
			}
		}
		if n > x.stretch(0) {
			return hashes[:i+1], n
		}
	}
	return hashes, n
}

// removeSome removes one copy of each of the first blocks that hashes names: one block, or several consecutive blocks
// of a strand (a run of blocks in the index). It returns the number of these blocks. If a point records the block, its
// record counts the copies. Else the holder's claim says on which tiers and in which groups the holder has the block.
func (x *Index) removeSome(h *holder, tier block.Tier, group uint8, hashes []uint64) int {
	b, bit := &x.blocks, placeBit(tier, group)
	p, at := x.refer(h, hashes[0])
	r := -1
	if p != nil {
		r = p.find(tier, group)
	}
	if at == 0 || r >= 0 {
		switch {
		case r < 0:
			x.unknownRemoved(h, 1)
		case p.records[r].count > 1:
			h.changes++
			p.records[r].count--
		default:
			x.dropRecords(h, p, func(r *record) bool { return r.tier == tier && r.group == group })
		}
		return 1
	}
	st := b.stateAt(at, h.id)
	switch {
	case st.named&bit == 0:
		x.unknownRemoved(h, 1)
		return 1
	case st.named&possession != bit || b.hasChild(h, at): // other tiers or groups have the block, or its children need its key
		b.paintOne(at, change{h: h, drop: state{named: bit}})
		return 1
	}
	// Engines evict chains from their ends, so the next hash is mostly the hash of the block before this block.
	n := 1
	start, _ := b.segmentAt(at)
	most := min(len(hashes), int(at.offset()-start)+1)
	seconds := b.strands.At(at.strand()).run.Seconds()[:at.offset()+1]
	for n < most && seconds[int(at.offset())-n] == hashes[n]^b.veil && (h.byHash.len() == 0 || h.byHash.get(hashes[n]) == nil) {
		n++
	}
	n = b.childless(h, at, n)
	lo := at - spot(n-1)
	up := b.before(lo)
	b.paint(at.strand(), lo.offset(), at.offset()+1, &change{h: h, drop: state{named: allBits}})
	b.trim(at.strand())
	b.dropBare(h, up)
	return n
}

func (x *Index) unknownRemoved(h *holder, n int) {
	x.counts.UnknownRemoved += int64(n)
	h.unknown += int64(n)
}

// knows reports whether a holder knows the blocks of a segment by their hashes, or keeps them as parents. set is the
// segment's set of holders.
func (b *blocks) knows(h *holder, set setID) bool {
	return b.sets.state(b.sets.get(set, h.id)).named&(known|unnamed) != 0
}

// hasChild reports whether a holder knows a block that follows the block at a spot. A spot is the place of a block on
// its strand.
func (b *blocks) hasChild(h *holder, at spot) bool {
	s := b.strands.At(at.strand())
	return at.offset()+1 < s.length() && b.knows(h, b.setAt(at+1)) || b.childless(h, at, 1) == 0
}

// mostSiblings is how many child strands childless looks at. All holders' continuations of a block are child strands of
// one strand, and there may be a million of them.
const mostSiblings = 256

// childless looks at n blocks of a strand, from a spot backwards. It returns how many of them, without a gap from the
// spot on, have no children at a holder: the holder knows no block of a child strand there, and none of the holder's
// points follows these blocks. If the strand has more than mostSiblings child strands, childless may return 0 although
// there are no children: then a block stays known that the holder has on no tier, until it is evicted.
func (b *blocks) childless(h *holder, at spot, n int) int {
	for k := 0; k < n && h.pins.len() > 0; k++ {
		if p := h.pins.get(at - spot(k)); p != nil && p.anchored > 0 {
			n = k
		}
	}
	s := b.strands.At(at.strand())
	for c, looks := s.child, 0; c != 0 && n > 0; looks++ {
		if looks == mostSiblings {
			return 0
		}
		cs := b.strands.At(c)
		b.steps++
		if off := cs.depth - s.depth - 1; off <= at.offset() && int(at.offset()-off) < n && b.knows(h, b.setAt(spotOf(c, 0))) {
			n = int(at.offset() - off)
		}
		c = cs.next
	}
	return n
}

// dropBare drops a holder's claim on a block if the holder only knows the block, has it on no tier, and knows no block
// after it. Then dropBare does the same for the block before.
func (b *blocks) dropBare(h *holder, at spot) {
	for at != 0 {
		b.steps++
		st := b.stateAt(at, h.id)
		if st.named&(known|unnamed) == 0 || st.named&possession != 0 || b.hasChild(h, at) {
			return
		}
		start, _ := b.segmentAt(at)
		n := int(at.offset()-start) + 1
		if n > 1 {
			n = 1 + b.childless(h, at-1, n-1)
		}
		lo := at - spot(n-1)
		up := b.before(lo)
		b.paint(at.strand(), lo.offset(), at.offset()+1, &change{h: h, drop: state{named: allBits}})
		b.trim(at.strand())
		at = up
	}
}

// bare reports whether a holder knows the blocks of a segment, but has them on no tier. set is the segment's set of
// holders.
func (b *blocks) bare(h *holder, set setID) bool {
	st := b.sets.state(b.sets.get(set, h.id))
	return st.named&(known|unnamed) != 0 && st.named&possession == 0
}

// dropBares drops all claims that dropBare would drop. It looks once at each strand with such blocks, and at the
// strand's child strands before.
func (x *Index) dropBares(h *holder) {
	b := &x.blocks
	var bare []uint64 // depth and index of strands
	for i := uint32(1); i < b.strands.Space(); i++ {
		s := b.strands.At(i)
		if b.steps++; s != nil && s.length() > 0 && slices.ContainsFunc(b.segmentWords(s), func(w uint64) bool { return b.bare(h, setID(w)) }) {
			bare = append(bare, uint64(s.depth)<<32|uint64(i))
		}
	}
	slices.Sort(bare)
	var room need
	for _, k := range slices.Backward(bare) { // a child strand has more blocks before it than its parent
		if i := uint32(k); x.roomToPaint(&room, i) {
			x.dropBaresOf(h, i)
		}
	}
}

// dropBaresOf drops the claims on blocks of a strand that dropBare would drop.
func (x *Index) dropBaresOf(h *holder, i uint32) {
	b := &x.blocks
	s := b.strands.At(i)
	n := s.length()
	parents := make([]bool, n) // the offsets of blocks that the holder's child strands follow
	for c := s.child; c != 0; c = b.strands.At(c).next {
		b.steps++
		if b.knows(h, b.setAt(spotOf(c, 0))) {
			parents[b.strands.At(c).depth-s.depth-1] = true
		}
	}
	segments := b.appendSegments(s, nil)
	hi, after := n, false // no block from hi on is dropped any more; after: the holder knows the block at the offset k
	for k, g := n, len(segments)-1; k > 0; k-- {
		for g > 0 && segments[g-1].end >= k {
			g--
		}
		st := b.sets.state(b.sets.get(segments[g].set, h.id))
		at := spotOf(i, k-1)
		pin := h.pins.get(at)
		if st.named&(known|unnamed) == 0 || st.named&possession != 0 || after || parents[k-1] || pin != nil && pin.anchored > 0 {
			b.dropAll(h, i, k, hi)
			hi, after = k-1, st.named&(known|unnamed) != 0
		}
	}
	b.dropAll(h, i, 0, hi)
	b.trim(i)
}

// dropAll drops a holder's named claims on the blocks from lo to hi (exclusive) of a strand.
func (b *blocks) dropAll(h *holder, i, lo, hi uint32) {
	if lo < hi {
		b.paint(i, lo, hi, &change{h: h, drop: state{named: allBits}})
	}
}

// roomToPaint makes room for a change of a holder's claims on a strand, and reports whether the strand is still there.
// room is room that was measured and is not used yet.
func (x *Index) roomToPaint(room *need, i uint32) bool {
	b := &x.blocks
	s := b.strands.At(i)
	if s == nil || s.length() == 0 {
		return false
	}
	// Each segment may be split, and may get two new sets.
	words := b.segmentWords(s)
	n := need{hashes: 2 * len(words), bytes: 2 * memory.ListBytes(2*len(words)+2)}
	var one [1]uint64
	for _, w := range words {
		n.bytes += 2 * memory.ListBytes(len(b.sets.members(setID(w), &one))+1)
	}
	if n.hashes > room.hashes || n.bytes > room.bytes {
		*room = need{hashes: max(n.hashes, x.stretch(0)), bytes: max(n.bytes, x.config.Bytes>>10)}
		most := b.sets.tablesGrowth(room.hashes) + room.bytes
		if x.evict(nil, func(bool) bool { return x.bytes()+most <= x.config.Bytes }); s.length() == 0 {
			return false // the strand was evicted
		}
	}
	room.hashes -= n.hashes
	room.bytes -= n.bytes
	return true
}

// changes reports whether a change of its holder's claims alters a strand, or its length or first holder may change.
func (b *blocks) changes(s *strand, c *change) bool {
	b.steps++
	if c.h.leaving {
		return true
	}
	return slices.ContainsFunc(b.segmentWords(s), func(w uint64) bool {
		st := b.sets.state(b.sets.get(setID(w), c.h.id))
		return st.named&c.drop.named != 0 || st.covered&c.drop.covered != 0
	})
}

// sweep applies a change to all claims of the change's holder. It looks at every strand. If the holder is being
// forgotten, sweep lets other writers in between. The changed sets of holders take memory: sweep makes room for them.
func (x *Index) sweep(c *change) {
	b := &x.blocks
	defer func() { x.slack = need{} }()
	var room need
	for i := uint32(1); i < b.strands.Space(); i++ {
		if c.h.leaving && i%mostStretch == 0 {
			x.unlock()
			x.lock()
		}
		s := b.strands.At(i)
		if s == nil || !b.changes(s, c) || !x.roomToPaint(&room, i) {
			continue
		}
		if c.h.leaving && s.extent>>ownerShift == uint32(c.h.id)+1 {
			atomic.StoreUint32(&s.extent, s.extent&strandLength) // a strand that stays is charged to no holder
		}
		version := s.version
		if b.paint(i, 0, s.length(), c); s.version != version {
			b.trim(i)
		}
	}
}

// Clear records that a holder emptied one tier. The holder's blocks on other tiers stay, and stay known by their
// hashes. The tier is whole again (see HolderStats.Whole). If it was not whole before, the tiers of blocks that still
// wait are no longer whole: the index may have lost the parents of these blocks.
func (x *Index) Clear(id fleet.Holder, tier block.Tier) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil || tier >= block.NumTiers {
		return
	}
	lost := h.broken&(1<<tier) != 0
	h.broken &^= 1 << tier
	h.vague &^= 1 << tier
	if h.named > 0 {
		x.sweep(&change{h: h, drop: state{named: anyGroup << tier}})
	}
	there := x.dropAll(h, true, func(p *point, r *record) bool {
		if p.wait != nil && lost && r.tier != tier {
			h.broken |= 1 << r.tier
		}
		return r.tier == tier
	})
	if there && h.named > 0 {
		x.dropBares(h)
	}
}

// dropAll drops the records that the parameter which selects, of all points of a holder. If pause is true, dropAll lets
// other writers in between after some milliseconds, and reports false if the holder was forgotten meanwhile.
func (x *Index) dropAll(h *holder, pause bool, which func(p *point, r *record) bool) bool {
	var all []*point
	for p := h.points.first; p != nil; p = p.links[ofHolder].next {
		all = append(all, p)
	}
	from := x.blocks.steps
	for _, p := range slices.Backward(all) { // most children are newer than their parents, and go first
		if x.blocks.steps++; len(p.records) > 0 { // a point without records is kept for its children, or was freed
			x.dropRecords(h, p, func(r *record) bool { return which(p, r) })
		}
		if pause && x.blocks.steps-from > pauseSteps {
			if !x.yield(h) {
				return false
			}
			from = x.blocks.steps
		}
	}
	return true
}

// Forget drops all that is known of a holder. From the beginning of Forget on, readers do not see the holder. Forget
// looks at every strand, and lets other writers in between. A call that adds blocks to the holder waits until Forget
// has ended.
func (x *Index) Forget(id fleet.Holder) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil {
		return
	}
	x.special.Add(1) // the holder's claims stay for a while: only the general match passes over them
	defer x.special.Add(-1)
	x.setView(id, nil) // from here on no reader sees it
	h.leaving = true
	x.dropPoints(h)
	if h.claims > 0 || h.owned > 0 {
		x.sweep(&change{h: h, drop: state{allBits, allBits}})
	}
	x.blocks.holders[id] = nil
	x.known--
	x.dismiss(h)
	x.counts.Forgotten++
	// The number of blocks does not show whether the index is empty: a holder may have claims on blocks that no tier has.
	// Load may begin with such blocks, the parents that the holder lost.
	if x.pointed == 0 && !slices.ContainsFunc(x.blocks.holders, func(h *holder) bool { return h != nil && h.claims > 0 }) {
		x.blocks.clear()
	}
	for range memory.ShrinkCalls {
		x.shrink()
		x.unlock()
		x.lock()
	}
}

// dropPoints forgets all points of a holder: the records of engine blocks that claims cannot express. The claims on the
// blocks that the points cover or need stay.
func (x *Index) dropPoints(h *holder) {
	x.pointed -= h.pointed
	x.waiting -= int(h.waiting)
	x.waitingBytes -= h.waitingBytes
	x.blocks.steps += uint64(h.pointed)
	x.blocks.account(h, -h.extra)
	h.pointed, h.twins, h.waiting, h.waitingBytes = 0, 0, 0, 0
	h.points, h.queue = list{}, list{}
	h.byHash, h.waiters, h.pins, h.parts = lookup[uint64, *point]{}, lookup[uint64, *list]{}, lookup[spot, *pin]{}, lookup[cover, []part]{}
}
