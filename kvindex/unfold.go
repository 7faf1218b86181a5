package kvindex

import (
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// unfold makes a holder odd: what it knows by names becomes points. It costs a look at all names and all strands, once in
// a holder's life. If the holder's fair share has no room for that, the holder loses its blocks.
func (x *Index) unfold(h *holder) {
	b, records := &x.blocks, int64(0)
	for _, n := range h.blocks {
		records += n * int64(len(h.groups))
	}
	n := int(h.named)
	more := x.handles.growth(n) + x.points.growth(n) + x.records.growth(int(records))
	for pass := 0; pass < passes && x.bytes()+more > x.config.Bytes && more <= x.config.Bytes/int64(x.known); pass++ {
		x.evict(pass, true)
	}
	if x.bytes()+more > x.config.Bytes {
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
	h.odd = true
	if h.named == 0 {
		return
	}
	type fold struct {
		handle uint64
		key    block.Key
		at     spot
		end    int
	}
	folds := make([]fold, 0, h.named)
	for i := range nameSegments {
		b.names.each(i, func(handle uint64, key block.Key) {
			if at := b.locate(key); at != 0 && b.maskAt(at, h.id)&maskNamed != 0 {
				folds = append(folds, fold{handle, key, at, b.end(at)})
			}
		})
	}
	b.steps += uint64(b.names.buckets*bucketWords/2 + 8*len(folds))
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
