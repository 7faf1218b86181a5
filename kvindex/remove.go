package kvindex

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
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

// hasChild reports whether a holder knows a block that follows the block at a spot (a place on a strand).
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
