package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// removePlain takes one copy of each block from a holder that is not odd. It needs tableMu.
func (x *Index) removePlain(h *holder, tier block.Tier, group uint8, handles []uint64) {
	b := &x.blocks
	b.findNamed(handles)
	bit := maskBit(tier, group)
	for rest := b.found; len(rest) > 0; {
		f, mask := &rest[0], uint64(0)
		at := f.spot
		if f.at >= 0 && b.there(at) {
			mask = b.maskAt(at, h.id)
		}
		n, c := 1, change{h: h, bit: bit}
		switch {
		case mask&maskNamed == 0:
			x.removePoint(h, tier, group, f.handle)
		case mask&bit == 0:
			x.unknownRemoved(h)
		case mask&maskCopied != 0 && x.dropKeyCopy(copyKey{f.key, bit, h.id}):
		case mask&possession != bit, b.hasChild(h, at):
			b.take(rest[:1], true, at, c) // it is elsewhere too, or what follows names it
		default:
			if n = b.runBack(rest, at); mask&maskCopied != 0 {
				n = 1
			}
			if s := b.strands.at(at.strand()); n > 1 && s.child != 0 {
				n = b.childless(h, s, at.offset(), n)
			}
			up := b.before(at - spot(n-1))
			c.bit |= maskNamed
			b.take(rest[:n], true, at, c)
			if up != 0 {
				b.unname(h, up)
			}
		}
		rest = rest[n:]
	}
}

// removePoint takes one copy from a point, if there is one.
func (x *Index) removePoint(h *holder, tier block.Tier, group uint8, handle uint64) {
	p := x.lookup(h, handle)
	if p == 0 || !x.dropCopy(h, p, tier, group) {
		x.unknownRemoved(h)
		return
	}
	x.collect(h, p)
}

func (x *Index) unknownRemoved(h *holder) {
	x.counts.unknownRemoved++
	h.unknown++
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
		b.steps++
		if cs.at&strandOffset == at.offset() && b.knows(h, b.setAt(spotOf(c, 0))) {
			return true
		}
		c = cs.next
	}
	return false
}

// childless returns how many of n blocks of a strand, from an offset backwards, have no strand hanging on them of
// which a holder knows blocks by name. The first has none.
func (b *blocks) childless(h *holder, s *strand, from uint32, n int) int {
	for c := s.child; c != 0; {
		cs := b.strands.at(c)
		b.steps++
		if off := cs.at & strandOffset; off < from && int(from-off) < n && b.knows(h, b.setAt(spotOf(c, 0))) {
			n = int(from - off)
		}
		c = cs.next
	}
	return n
}

// unname drops the claim of a holder that knows a block by its name and nothing else, if it has no block after it;
// and so on with the one before.
func (b *blocks) unname(h *holder, at spot) {
	for at != 0 {
		b.steps++
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
