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

// from returns the number of tokens of the chain before the first token that a record covers. size is the size of the
// record, in tokens before the point's end. With size 0 the record covers all tokens from the point's start.
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

// mostThrough returns the greatest length of rest.through: how many blocks of the index one point may help to complete.
// Up to 15 points end inside a block of 16 tokens, so one announcement changes at most 15 × 1,024 parts. The holder has
// no claim on further blocks.
func (x *Index) mostThrough() int { return int(max(16, 16384/x.size)) }

// through handles the first block of the index that the point p completes. Points before p may end within this block:
// they cover parts of it. If add is true, through adds the block to the lists of these points that have room, and adds
// the parts. If add is false, it removes the block from the lists that have it, and the parts.
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
		list := a.rest.through
		before := cap(list)
		x.blocks.steps++
		if add {
			if len(list) >= x.mostThrough() {
				continue
			}
			list = append(withRoom(list), at)
		} else {
			i := len(list) - 1 // Clear drops the newest points first
			for i >= 0 && list[i] != at {
				i--
			}
			x.blocks.steps += uint64(len(list)-i) / 16 // comparing a few words takes as long as another step
			if i < 0 {
				continue
			}
			list = without(list, i)
		}
		a.rest.through = list
		x.blocks.account(h, 8*int64(cap(list)-before))
		for _, r := range a.records {
			if h.groups[r.group].kind == block.AttentionStateSpace {
				continue
			}
			x.cover(h, cover{at, placeBit(r.tier, r.group)}, part{lo: max(a.from(r.size), lo) - lo, hi: a.end - lo}, add)
		}
	}
}

// spans returns an upper bound of the number of blocks of the index that a run of tokens touches.
func (x *Index) spans(tokens uint32) int { return int(tokens/x.size) + 2 }

// coversOf returns an upper bound of the number of blocks of the index of which a record of a point covers a part. size
// is the size of the record.
func (x *Index) coversOf(p *point, size uint32) int {
	n := x.spans(max(p.end-p.start, min(p.end, size)))
	if p.rest != nil {
		n += len(p.rest.through)
	}
	return n
}

// coversOfAll returns an upper bound of the number of parts of blocks that all records of a point cover if the point's
// engine block has the given number of tokens, and its chain has end tokens up to the end of the engine block.
func (x *Index) coversOfAll(p *point, tokens, end uint32) (n int) {
	for _, r := range p.records {
		n += x.spans(min(end, max(tokens, r.size)))
		if p.rest != nil {
			n += len(p.rest.through)
		}
	}
	return n
}

// coverBytes is an upper bound of the memory that one call of cover takes: an entry of holder.parts, parts, and a
// segment of the strand.
const coverBytes = partsBytes + listStep*partBytes + 64

// pending counts the records of points that end in the unfinished block of the index in which the position lies. When a
// later point completes this block, each counted record covers a part of it, which takes one call of cover.
func (x *Index) pending(pos *position) (records int) {
	for p := pos.point; p != nil && p.end > pos.end/x.size*x.size; p = p.parent {
		x.blocks.steps++
		records += len(p.records)
	}
	return records
}

// coverNeed returns an upper bound of the memory that a number of calls of cover take.
func (x *Index) coverNeed(calls int) int64 {
	if calls == 0 {
		return 0
	}
	return int64(calls)*coverBytes + x.blocks.sets.growth(calls)
}

// covers returns an upper bound of the number of calls of cover for points and records that are there already, when the
// hashes of an announcement in a.from and a.to are applied. need counts the calls for new points. If the number is
// large, covers makes the range in a.from and a.to shorter, but not shorter than one hash. items is the memory of the
// multimodal items that new points may copy from points that are there already.
func (x *Index) covers(a *announcement) (n int, items int64) {
	h := a.holder
	if h.pointed == 0 {
		return 0, 0
	}
	jumps := a.RootUnknown // the place of a known hash may be elsewhere than after the hash before it
	start := uint32(0)     // where the announcement begins in its chain, if it does not jump
	if parent, has := a.parent(); has {
		pos, known := x.after(x.refer(h, parent))
		start = pos.end
		n, items, jumps = x.pending(&pos), pos.point.featuresBytes(), jumps || !known
	}
	size := a.size()
	for i := a.from; i < a.to; i++ {
		p := h.byHash.get(a.Hashes[i])
		if p == nil {
			continue
		}
		x.blocks.steps++
		pos, placed := x.after(p, 0)
		if k := p.find(a.Tier, a.group); !placed && a.aligned { // the announcement may place the point
			end := uint32(MaxChain)
			if !jumps {
				end = start + uint32(i+1-a.from)*size
			}
			n += x.spans(size) + x.coversOfAll(p, size, end)
		} else if !placed {
			continue
		} else if k < 0 || p.records[k].size != size {
			n += x.coversOf(p, size)
		}
		if placed && jumps {
			n, items = n+x.pending(&pos), items+p.featuresBytes()
		}
		if n > x.stretch(0) {
			a.to = i + 1
		}
	}
	return n, items
}

// cover adds or removes a part of a block. The holder has the block while the union of all parts is the whole block. In
// the common case, one record covers the whole block: then only the bit of the claim is set, and h.parts has no entry.
func (x *Index) cover(h *holder, c cover, p part, add bool) {
	x.blocks.steps++
	was := x.blocks.stateAt(c.at, h.id).covered&c.bit != 0
	parts, listed := h.parts.entries[c]
	before := cap(parts)
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
		parts = slices.Insert(withRoom(parts), i, p)
	case !there:
		panic("bug: a part that was never covered is taken back")
	default:
		if parts[i].n--; parts[i].n == 0 {
			parts = without(parts, i)
		}
	}
	is := whole(parts, x.size)
	after := cap(parts)
	if len(parts) == 0 || is && len(parts) == 1 && parts[0].n == 1 {
		after = 0
		if listed {
			h.parts.drop(c)
		}
	} else {
		h.parts.put(c, parts)
	}
	x.blocks.account(h, partBytes*int64(after-before)+partsBytes*int64(min(after, 1)-min(before, 1)))
	ch := change{h: h}
	switch {
	case is == was:
		return
	case is:
		ch.add.covered, ch.drop.covered = c.bit, pinned
	default:
		if ch.drop.covered = c.bit; h.pins.get(c.at) != nil && x.blocks.stateAt(c.at, h.id).covered == c.bit {
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
