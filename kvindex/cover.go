package kvindex

import (
	"github.com/warmpath/warmpath/block"
)

// part is a stretch of a block of ours that records cover, in a list that is ascending by lo. 16 bytes.
type part struct {
	lo, hi uint32 // tokens from the block's first
	n      uint32 // how often
	next   uint32
}

// partBytes is the size of a part, with its share of a list's slot in covers.
const partBytes = 40

// coverKey names what one (holder, tier, group) covers of a block. Two of them are the same by chance only with odds of
// 2^-64, as with the block keys themselves, and nobody without the seed can choose tokens for which they are the same.
func coverKey(key block.Key, h *holder, r *record) uint64 {
	c := h.secret + (uint64(r.tier)<<8|uint64(r.group))*mixFirst
	c = (c ^ c>>32) * mixSecond
	return uint64(key) ^ c ^ c>>29
}

// contribute adds or takes back what a record of a resolved point covers.
func (x *Index) contribute(h *holder, p uint32, r *record, add bool) {
	pt := x.points.at(p)
	end, size := pt.end, x.size
	if h.groups[r.group].kind == block.AttentionStateSpace {
		// A checkpoint is the state at its end and says nothing of the blocks before.
		if end%size == 0 {
			x.cover(h, r, span{pt.key, x.before(p), end/size - 1, 0, size}, add)
		}
		return
	}
	from, path := x.from(p, r), x.scratch.path[:0]
	for c := p; c != 0; c = x.points.at(c).parent {
		path = append(path, c)
		if x.start(c) <= from {
			break
		}
	}
	x.scratch.path = path
	x.blocks.steps += uint64(len(path))
	if add { // parents first, so that no block comes before the one that it follows
		for k := len(path) - 1; k >= 0; k-- {
			first, last := x.start(path[k])/size, x.points.at(path[k]).end/size
			for j := max(first, from/size) + 1; j <= last; j++ {
				x.coverBlock(h, r, path[k], j, from, true)
			}
		}
	} else {
		for _, c := range path {
			first := x.start(c) / size
			for j := x.points.at(c).end / size; j > max(first, from/size); j-- {
				x.coverBlock(h, r, c, j, from, false)
			}
		}
	}
	if end%size == 0 || pt.extra == 0 {
		return
	}
	lo := end / size * size
	for _, key := range x.extras.at(pt.extra).through {
		x.cover(h, r, span{key, x.below(p), end / size, max(from, lo) - lo, end - lo}, add)
	}
}

// coverBlock adds or takes back a record's cover, from a position on, of the j-th block of a chain. The point
// completes the block.
func (x *Index) coverBlock(h *holder, r *record, c, j, from uint32, add bool) {
	size := x.size
	first, last := x.start(c)/size, x.points.at(c).end/size
	lo := (j - 1) * size
	key, parent := x.completed(c, int(j-1-first), int(last-first))
	x.cover(h, r, span{key, parent, j - 1, max(from, lo) - lo, size}, add)
}

// from returns the position at which a record begins to cover.
func (x *Index) from(p uint32, r *record) uint32 {
	if r.size == 0 {
		return x.start(p)
	}
	end := x.points.at(p).end
	return end - min(end, r.size)
}

// start returns the position of a resolved point's first token.
func (x *Index) start(p uint32) uint32 {
	if parent := x.points.at(p).parent; parent != 0 {
		return x.points.at(parent).end
	}
	return 0
}

// below returns the key of the last block of ours that ends at or before a point's end, 0 when there is none: the
// parent of the block in which the point ends.
func (x *Index) below(p uint32) block.Key {
	if pt := x.points.at(p); pt.end >= x.size {
		return pt.key
	}
	return 0
}

// before returns the parent of a point's last complete block.
func (x *Index) before(p uint32) block.Key {
	first, last := x.start(p)/x.size, x.points.at(p).end/x.size
	if last == first { // the block was completed by an ancestor
		if parent := x.points.at(p).parent; parent != 0 {
			return x.before(parent)
		}
		return 0
	}
	_, parent := x.completed(p, int(last-1-first), int(last-first))
	return parent
}

// completed returns the i-th of the n keys that a point completes, and that key's parent.
func (x *Index) completed(p uint32, i, n int) (key, parent block.Key) {
	pt := x.points.at(p)
	key = pt.key
	if n > 1 {
		keys := x.extras.at(pt.extra).keys
		key = keys[i]
		if i > 0 {
			return key, keys[i-1]
		}
	}
	if pt.parent != 0 {
		parent = x.below(pt.parent)
	}
	return key, parent
}

// span is a stretch of one block of ours.
type span struct {
	key, parent block.Key
	depth       uint32
	lo, hi      uint32
}

// cover adds or takes back the covering of a stretch; the block is held while the union of all stretches is the
// whole of it. The common case, covered as a whole and once, is the member's bit alone.
func (x *Index) cover(h *holder, r *record, s span, add bool) {
	x.blocks.steps++
	ck, list := coverKey(s.key, h, r), uint32(0)
	if x.covers.n > 0 {
		list = x.covers.get(ck)
	}
	whole := s.lo == 0 && s.hi == x.size
	if list == 0 && !add {
		if !whole {
			panic("bug: a part that was never covered is taken back")
		}
		x.unset(h, s.key, r)
		return
	}
	if list == 0 && whole && x.set(h, s.key, s.parent, s.depth, r) {
		return
	}
	was := x.held(s.key, h.id)&maskBit(r.tier, r.group) != 0
	if list == 0 && was {
		list = x.addPart(h, 0, 0, x.size)
	}
	before := list
	covered := x.covers.n
	if add {
		list = x.addPart(h, list, s.lo, s.hi)
	} else {
		list = x.takePart(h, list, s.lo, s.hi)
	}
	is := x.whole(list)
	if is && !was {
		x.set(h, s.key, s.parent, s.depth, r)
	}
	if !is && was {
		x.unset(h, s.key, r)
	}
	if list != 0 {
		if one := *x.parts.at(list); one == (part{0, x.size, 1, 0}) {
			x.parts.release(list)
			h.extra -= partBytes
			list = 0
		}
	}
	switch {
	case list == 0:
		x.covers.del(ck)
	case list != before || x.covers.get(ck) != list:
		x.covers.put(ck, list)
	}
	h.covers += x.covers.n - covered
}

// addPart returns the list with one more covering of lo..hi.
func (x *Index) addPart(h *holder, list, lo, hi uint32) uint32 {
	head := list
	link := &head
	for *link != 0 {
		p := x.parts.at(*link)
		x.blocks.steps++
		if p.lo > lo || p.lo == lo && p.hi > hi {
			break
		}
		if p.lo == lo && p.hi == hi {
			p.n++
			return head
		}
		link = &p.next
	}
	n := x.parts.alloc()
	h.extra += partBytes
	*x.parts.at(n) = part{lo, hi, 1, *link}
	*link = n
	return head
}

// takePart returns the list with one covering of lo..hi less.
func (x *Index) takePart(h *holder, list, lo, hi uint32) uint32 {
	head := list
	for link := &head; *link != 0; link = &x.parts.at(*link).next {
		p := x.parts.at(*link)
		x.blocks.steps++
		if p.lo != lo || p.hi != hi {
			continue
		}
		if p.n--; p.n == 0 {
			gone := *link
			*link = p.next
			x.parts.release(gone)
			h.extra -= partBytes
		}
		return head
	}
	panic("bug: a part that was never covered is taken back")
}

// whole reports whether the union of the parts is the whole block.
func (x *Index) whole(list uint32) bool {
	reach := uint32(0)
	for ; list != 0; list = x.parts.at(list).next {
		p := x.parts.at(list)
		if p.lo > reach {
			return false
		}
		reach = max(reach, p.hi)
	}
	return reach == x.size
}
