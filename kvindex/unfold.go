package kvindex

import (
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// fold is a block that a holder knows by its name, on the way to become a point.
type fold struct {
	handle uint64
	key    block.Key
	at     spot
	end    int
}

// unfold makes a holder odd: what it knows by names becomes points. It costs a look at all names and all strands,
// once in a holder's life, and pauses while it looks at names. If the holder's fair share has no room for that, the
// holder loses its blocks. It reports whether the holder is still known, as pause does.
func (x *Index) unfold(h *holder) bool {
	b := &x.blocks
	folds := make([]fold, 0, h.named)
	for i := range nameSegments {
		if h.named == 0 {
			break
		}
		looked := 0
		b.names.each(i, func(handle uint64, key block.Key) {
			looked++
			if at := b.locate(key); at != 0 && b.maskAt(at, h.id)&maskNamed != 0 {
				folds = append(folds, fold{handle: handle, key: key})
			}
		})
		b.steps += uint64(1 + 4*looked)
		if looked > stretch && !x.pause(h) {
			return false
		}
	}
	x.roomToUnfold(h)
	h.odd = true
	if h.named == 0 {
		return true
	}
	// Others may have evicted some of the blocks in a pause, or to make room.
	left := folds[:0]
	for _, f := range folds {
		f.at = b.locate(f.key)
		if f.at != 0 && b.maskAt(f.at, h.id)&maskNamed != 0 && b.names.get(f.handle) == f.key {
			f.end = b.end(f.at)
			left = append(left, f)
		}
	}
	folds = left
	b.steps += uint64(8 * len(folds))
	slices.SortFunc(folds, func(f, g fold) int { return f.end - g.end })
	points := make(map[spot]uint32, len(folds))
	for _, f := range folds {
		p := x.add(h, f.handle)
		points[f.at] = p
		pt := x.points.at(p)
		pt.key, pt.end = f.key, uint32(f.end)*x.size
		if pt.parent = points[b.before(f.at)]; pt.parent != 0 {
			x.points.at(pt.parent).kids++
		}
		for rest := b.maskAt(f.at, h.id) & possession; rest != 0; rest &= rest - 1 {
			bit := bits.TrailingZeros64(rest)
			k := copyKey{f.key, 1 << bit, h.id}
			r := x.records.alloc()
			*x.records.at(r) = record{
				next: pt.records, count: 1 + x.copies[k], size: x.size, tier: block.Tier(bit % 4), group: uint8(bit / 4),
			}
			pt.records = r
			delete(x.copies, k)
		}
		if x.waiters.n > 0 && x.waiters.get(h.key(f.handle)) != 0 {
			x.woken = append(x.woken, f.handle)
		}
	}
	b.stale = true
	x.sweepStrands(change{h: h, bit: maskNamed | maskCopied})
	return true
}

// roomToUnfold makes room for the points of what a holder knows by names. A holder whose share has no room for them
// loses its blocks.
func (x *Index) roomToUnfold(h *holder) {
	b, records := &x.blocks, int64(0)
	for _, n := range h.blocks {
		records += n * int64(len(h.groups))
	}
	n := int(h.named)
	more := x.handles.growth(n) + x.points.growth(n) + x.records.growth(int(records))
	for pass := 0; pass < passes && x.bytes()+more > x.config.Bytes && float64(more) <= x.share(h); pass++ {
		x.evict(pass, true)
	}
	if x.bytes()+more <= x.config.Bytes {
		return
	}
	had, tiers := h.blocks, uint8(0)
	for t, n := range had {
		if n > 0 {
			tiers |= 1 << t
		}
	}
	before := b.held
	x.sweepStrands(change{h: h, bit: 1<<64 - 1})
	h.noteEvicted(&had)
	x.counts.evictions += before - b.held
	x.refuse(h, tiers)
}

// before returns the spot of the block before the one at a spot, 0 when there is none.
func (b *blocks) before(at spot) spot {
	if at.offset() > 0 {
		return at - 1
	}
	s := b.strands.at(at.strand())
	if s.parent == 0 {
		return 0
	}
	return spotOf(s.parent, s.at&strandOffset)
}
