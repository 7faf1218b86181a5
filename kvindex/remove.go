package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// removePlain takes one copy of each block from a holder that is not odd. It needs tableMu.
func (x *Index) removePlain(h *holder, tier block.Tier, group uint8, handles []uint64) {
	b := &x.blocks
	x.scratch.keys = slices.Grow(x.scratch.keys[:0], len(handles))
	keys := x.scratch.keys[:len(handles)]
	for _, handle := range handles {
		b.sum += b.names.touch(handle)
	}
	for i, handle := range handles {
		keys[i] = b.names.get(handle)
	}
	b.expect(keys)
	bit := maskBit(tier, group)
	for len(handles) > 0 {
		at, mask := spot(0), uint64(0)
		if keys[0] != 0 {
			if at = b.locate(keys[0]); at != 0 {
				mask = b.maskAt(at, h.id)
			}
		}
		n := 1
		switch {
		case mask&maskNamed == 0:
			x.removePoint(h, tier, group, handles[0])
		case mask&bit == 0:
			x.counts.unknownRemoved++
		case mask&maskCopied != 0 && x.dropKeyCopy(copyKey{keys[0], bit, h.id}):
		case mask&possession != bit:
			b.runBack(keys[:1], at)
			b.take(keys[:1], handles[:1], at, change{h: h, bit: bit}) // it is elsewhere too
		case b.hasChild(h, at):
			b.runBack(keys[:1], at)
			b.take(keys[:1], handles[:1], at, change{h: h, bit: bit})
		default:
			if n = b.runBack(keys, at); mask&maskCopied != 0 {
				n = 1
			}
			if s := b.strands.at(at.strand()); n > 1 && s.child != 0 {
				n = b.childless(h, s, at.offset(), n)
			}
			up := b.before(at - spot(n-1))
			b.take(keys[:n], handles[:n], at, change{h: h, bit: bit | maskNamed})
			if up != 0 {
				b.unname(h, up)
			}
		}
		keys, handles = keys[n:], handles[n:]
	}
}

// removePoint takes one copy from a point, if there is one.
func (x *Index) removePoint(h *holder, tier block.Tier, group uint8, handle uint64) {
	p := x.lookup(h.id, handle)
	if p == 0 || !x.dropCopy(h, p, tier, group) {
		x.counts.unknownRemoved++
		return
	}
	x.collect(h, p)
}

// knows reports whether a holder knows the blocks of a set by their names.
func (b *blocks) knows(h *holder, set setID) bool {
	return b.sets.mask(b.sets.get(set, h.id).mask())&maskNamed != 0
}

// hasChild reports whether a holder knows a block after the one at a spot by its name.
func (b *blocks) hasChild(h *holder, at spot) bool {
	s := b.strands.at(at.strand())
	if at.offset()+1 < s.length && b.knows(h, b.setAt(at+1)) {
		return true
	}
	for c := s.child; c != 0; {
		cs := b.strands.at(c)
		if cs.at&strandOffset == at.offset() && b.knows(h, b.setAt(spotOf(c, 0))) {
			return true
		}
		c = cs.next
	}
	return false
}

// childless returns how many of n blocks of a strand, from an offset backwards, have no strand hanging on them of which a
// holder knows blocks by name. The first has none.
func (b *blocks) childless(h *holder, s *strand, from uint32, n int) int {
	for c := s.child; c != 0; {
		cs := b.strands.at(c)
		if off := cs.at & strandOffset; off < from && int(from-off) < n && b.knows(h, b.setAt(spotOf(c, 0))) {
			n = int(from - off)
		}
		c = cs.next
	}
	return n
}

// unname drops the claim of a holder that knows a block by its name and nothing else, if it has no block after it; and so
// on with the one before.
func (b *blocks) unname(h *holder, at spot) {
	for at != 0 {
		set := b.setAt(at)
		mask := b.sets.mask(b.sets.get(set, h.id).mask())
		if mask&maskNamed == 0 || mask&possession != 0 || b.hasChild(h, at) {
			return
		}
		n := int(at.offset()-b.segmentStart(at)) + 1
		s := b.strands.at(at.strand())
		if n > 1 && s.child != 0 {
			n = b.childless(h, s, at.offset(), n)
		}
		lo := at - spot(n-1)
		up := b.before(lo)
		b.paint(at.strand(), lo.offset(), at.offset()+1, change{h: h, bit: maskNamed})
		b.stale = true
		if at.offset()+1 == s.length {
			b.trim(at.strand())
		}
		at = up
	}
}

// unnameStrand is unname for all blocks of a strand that may need it.
func (b *blocks) unnameStrand(h *holder, i uint32) {
	s := b.strands.at(i)
	if s == nil || s.length == 0 {
		return
	}
	from := uint32(0)
	var ends []uint32
	for _, g := range b.segments(s, nil) {
		if g.end > from && b.knows(h, g.set) {
			ends = append(ends, g.end)
		}
		from = g.end
	}
	for c := s.child; c != 0; c = b.strands.at(c).next {
		ends = append(ends, b.strands.at(c).at&strandOffset+1)
	}
	slices.Sort(ends)
	for k := len(ends) - 1; k >= 0; k-- {
		if s = b.strands.at(i); s == nil || s.length < ends[k] {
			continue
		}
		b.unname(h, spotOf(i, ends[k]-1))
	}
}
