package kvindex

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// cover is a block of the index on one tier in one group. It is the key of the map holder.parts: the parts of the block
// that the holder's points (engine blocks that claims cannot express) cover.
type cover struct {
	at  spot
	bit uint64
}

// part is a part of a block of the index that one or more records of points cover.
type part struct {
	lo, hi uint32 // the first token, and the token after the last; the block begins at token 0
	n      uint32 // the number of records that cover this part
}

// from returns the position in the chain, in tokens, at which a record of the given size begins to cover.
func (p *point) from(size uint32) uint32 {
	if size == 0 {
		return p.start
	}
	return p.end - min(p.end, size)
}

// contribute adds or removes the parts of blocks that a record covers. The record's point must have a place in its
// chain.
func (x *Index) contribute(h *holder, p *point, r record, add bool) {
	size, bit := x.size, placeBit(r.tier, r.group)
	if h.groups[r.group].kind == block.AttentionStateSpace {
		// A checkpoint is the state at the point's end. The blocks before need not be there.
		if p.end%size == 0 {
			x.cover(h, cover{p.at, bit}, part{lo: 0, hi: size}, add)
		}
		return
	}
	from, at := p.from(r.size), p.at
	for j := p.end / size; j > from/size; j-- {
		x.cover(h, cover{at, bit}, part{lo: max(from, (j-1)*size) - (j-1)*size, hi: size}, add)
		at = x.blocks.before(at)
	}
	if lo := p.end / size * size; p.rest != nil {
		for _, at := range p.rest.through {
			x.cover(h, cover{at, bit}, part{lo: max(from, lo) - lo, hi: p.end - lo}, add)
		}
	}
}

// through handles the first block of the index that the point p completes. Points before p may end within this block:
// they cover parts of it. If add is true, through adds the block to the lists of these points and adds the parts. If
// add is false, it removes both.
func (x *Index) through(h *holder, p *point, add bool) {
	size := x.size
	if p.start%size == 0 || p.end/size == p.start/size {
		return
	}
	at := p.at
	for j := p.end/size - 1; j > p.start/size; j-- {
		at = x.blocks.before(at)
	}
	lo := p.start / size * size
	for a := p.parent; a != nil && a.end > lo; a = a.parent {
		x.blocks.steps++
		if add {
			a.rest.through = append(a.rest.through, at)
			x.blocks.account(h, 8)
		} else if i := lastIndex(a.rest.through, at); i >= 0 {
			x.blocks.steps += uint64(len(a.rest.through) - i)
			a.rest.through = slices.Delete(a.rest.through, i, i+1)
			x.blocks.account(h, -8)
		}
		for _, r := range a.records {
			if h.groups[r.group].kind == block.AttentionStateSpace {
				continue
			}
			x.cover(h, cover{at, placeBit(r.tier, r.group)}, part{lo: max(a.from(r.size), lo) - lo, hi: a.end - lo}, add)
		}
	}
}

// lastIndex returns the last place of a spot in a list, or -1. It searches from the end: Clear removes the last spots
// first.
func lastIndex(spots []spot, at spot) int {
	for i, s := range slices.Backward(spots) {
		if s == at {
			return i
		}
	}
	return -1
}

// cover adds or removes a part of a block. The holder has the block while the union of all parts is the whole block. In
// the common case, one record covers the whole block: then only the bit of the claim is set, and h.parts has no entry.
func (x *Index) cover(h *holder, c cover, p part, add bool) {
	x.blocks.steps++
	was := x.blocks.stateAt(c.at, h.id).covered&c.bit != 0
	parts, listed := h.parts[c]
	before := len(parts)
	if !listed && was {
		parts = []part{{0, x.size, 1}}
	}
	i, there := slices.BinarySearchFunc(parts, p, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi))
	})
	x.blocks.steps += uint64(len(parts))
	switch {
	case add && there:
		parts[i].n++
	case add:
		p.n = 1
		parts = slices.Insert(parts, i, p)
	case !there:
		panic("bug: a part that was never covered is taken back")
	default:
		if parts[i].n--; parts[i].n == 0 {
			parts = slices.Delete(parts, i, i+1)
		}
	}
	is := whole(parts, x.size)
	after := len(parts)
	if after == 0 || is && after == 1 && parts[0].n == 1 {
		after = 0
		if listed {
			drop(&h.parts, c)
		}
	} else {
		put(&h.parts, c, parts)
	}
	x.blocks.account(h, partBytes*int64(after-before)+partsBytes*int64(min(after, 1)-min(before, 1)))
	ch := change{h: h}
	switch {
	case is == was:
		return
	case is:
		ch.add.covered, ch.drop.covered = c.bit, pinned
	default:
		if ch.drop.covered = c.bit; h.pins[c.at] != nil && x.blocks.stateAt(c.at, h.id).covered == c.bit {
			ch.add.covered = pinned
		}
	}
	x.blocks.paintOne(c.at, ch)
}

// whole reports whether the union of parts is a whole block.
func whole(parts []part, size uint32) bool {
	reach := uint32(0)
	for _, p := range parts {
		if p.lo > reach {
			return false
		}
		reach = max(reach, p.hi)
	}
	return reach == size
}
