package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// grow adds blocks that are not there, one after the other, after the block of the key parent, or at a chain's root
// when rooted. All of them get the holder's claim.
func (b *blocks) grow(keys []block.Key, parent block.Key, rooted bool, depth uint32, c change, tick uint32) {
	own, mark := b.apply(c, 0), spot(0)
	if c.bit&maskNamed != 0 {
		mark = spotNamed
	}
	set := b.sets.single(c.h.id, own)
	b.count(c.h, 0, own, int64(len(keys)))
	b.held += int64(len(keys))
	for len(keys) > 0 {
		i := b.tip(c.h, parent, rooted, depth)
		s := b.strands.at(i)
		n := min(len(keys), maxStrand-int(s.length))
		from := s.length
		s.marks.note(from, keys[:n])
		b.lengthen(s, set, uint32(n))
		b.use(i, tick)
		if from == 0 && s.parent == 0 {
			b.addRoot(keys[0], i)
		}
		b.enter(keys[:n], spotOf(i, from), mark)
		parent, rooted = keys[n-1], false
		b.last, b.lastSpot = parent, spotOf(i, from+uint32(n)-1)
		depth += uint32(n)
		keys = keys[n:]
	}
}

// enter makes slots of keys that are at spots which follow each other.
func (b *blocks) enter(keys []block.Key, at, mark spot) {
	if known := b.slots.putRun(keys, at|mark, b.dead == 0 && b.swept == 0, b.living()); b.swept == 0 {
		b.dead = max(b.dead-known, 0) // their slots were dead
	}
	if len(b.floats) > 0 {
		for k, key := range keys {
			b.land(key, at+spot(k))
		}
	}
}

// ahead is for how many keys a writer fetches the slots at once.
const ahead = 16

// living returns what tells dead slots from others, for when a segment moves; nil when so few are dead that telling
// them costs more than taking them along.
func (b *blocks) living() func(spot) bool {
	if b.swept == 0 && b.dead <= b.slots.n/16 {
		return nil
	}
	return b.kept
}

// tip returns a strand to which what follows a block can be added: the block's own if it ends there, else a new one.
func (b *blocks) tip(h *holder, parent block.Key, rooted bool, depth uint32) uint32 {
	at := spot(0)
	if !rooted {
		if b.last == parent && b.lastSpot != 0 && b.alive(b.lastSpot) {
			at = b.lastSpot
		} else {
			at = b.locate(parent)
		}
	}
	if at != 0 {
		s := b.strands.at(at.strand())
		if at.offset()+1 == s.length && s.length < maxStrand && s.at&strandClosed == 0 {
			return at.strand()
		}
	}
	i := b.strands.alloc()
	s := b.strands.at(i)
	s.turn()
	atomic.StoreUint32(&s.depth, depth)
	atomic.StoreUint32(&s.child, 0)
	atomic.StoreUint32(&s.next, 0)
	atomic.StoreUint32(&s.prev, 0)
	atomic.StoreUint32(&s.parent, 0)
	atomic.StoreUint32(&s.at, b.begin(h))
	s.marks.reset()
	switch {
	case at != 0:
		b.hang(i, s, at)
	case !rooted:
		atomic.StoreUint32(&s.at, s.at|strandFloats)
		if b.floats == nil {
			b.floats, b.floatKey = map[block.Key]uint32{}, map[uint32]block.Key{}
		}
		if first := b.floats[parent]; first != 0 {
			atomic.StoreUint32(&s.next, first)
			atomic.StoreUint32(&b.strands.at(first).prev, i)
		}
		b.floats[parent], b.floatKey[i] = i, parent
	}
	s.turn()
	return i
}

// begin counts a strand for the holder that begins it, and returns the strand's mark of that holder.
func (b *blocks) begin(h *holder) uint32 {
	if h.id >= mostBegan {
		return 0
	}
	for int(h.id) >= len(b.begun) {
		b.begun = append(b.begun, 0)
	}
	b.begun[h.id]++
	return (uint32(h.id) + 1) << beganShift
}

// begunBy returns how many strands a holder began.
func (b *blocks) begunBy(h *holder) int64 {
	if int(h.id) < len(b.begun) {
		return b.begun[h.id]
	}
	return 0
}

// disinherit makes the strands that h began count for no holder: h is being forgotten, and others may have their
// blocks.
func (b *blocks) disinherit(h *holder) {
	if b.begunBy(h) == 0 {
		return
	}
	b.strands.each(func(_ uint32, s *strand) {
		if s.at>>beganShift == uint32(h.id)+1 {
			atomic.StoreUint32(&s.at, s.at&(1<<beganShift-1))
		}
	})
	b.steps += uint64(b.strands.live)
	b.begun[h.id] = 0
}

// hang makes a strand a child of the block at a spot. The strand's version must be odd.
func (b *blocks) hang(i uint32, s *strand, at spot) {
	p := b.strands.at(at.strand())
	atomic.StoreUint32(&s.parent, at.strand())
	atomic.StoreUint32(&s.at, at.offset()|s.at&^(strandOffset|strandFloats))
	atomic.StoreUint32(&s.depth, p.depth+at.offset()+1)
	atomic.StoreUint32(&s.prev, 0)
	atomic.StoreUint32(&s.next, p.child)
	if p.child != 0 {
		atomic.StoreUint32(&b.strands.at(p.child).prev, i)
	}
	atomic.StoreUint32(&p.child, i)
}

// land hangs the strands that float for a key at its spot.
func (b *blocks) land(key block.Key, at spot) {
	i := b.floats[key]
	if i == 0 {
		return
	}
	var moved []uint32
	for i != 0 {
		s := b.strands.at(i)
		next := s.next
		if b.hangs(at.strand(), i) {
			break // keys that go in a circle: it floats on
		}
		delete(b.floatKey, i)
		depth := s.depth
		s.turn()
		b.hang(i, s, at)
		s.turn()
		if s.depth != depth {
			moved = append(moved, i)
		}
		i = next
	}
	if i == 0 {
		delete(b.floats, key)
	} else {
		b.floats[key] = i
		atomic.StoreUint32(&b.strands.at(i).prev, 0)
	}
	for len(moved) > 0 { // what hangs on them is deeper now
		b.steps++
		p := b.strands.at(moved[len(moved)-1])
		moved = moved[:len(moved)-1]
		for c := p.child; c != 0; c = b.strands.at(c).next {
			s := b.strands.at(c)
			atomic.StoreUint32(&s.depth, p.depth+s.at&strandOffset+1)
			moved = append(moved, c)
		}
	}
}

// hangs reports whether a strand is another or hangs on it, over any number.
func (b *blocks) hangs(i, on uint32) bool {
	for ; i != 0; i = b.strands.at(i).parent {
		b.steps++
		if i == on {
			return true
		}
	}
	return false
}

// lengthen adds n blocks of one set to a strand's end.
func (b *blocks) lengthen(s *strand, set setID, n uint32) {
	if s.more == 0 {
		k := inlineSegments - 1
		for k >= 0 && s.segs[k] == 0 {
			k--
		}
		same := k >= 0 && setID(s.segs[k]) == set
		if same || k < inlineSegments-1 {
			if !same {
				k++
				b.sets.hold(set)
			}
			s.turn()
			atomic.StoreUint64(&s.segs[k], segment{s.length + n, set}.word())
			atomic.StoreUint32(&s.length, s.length+n)
			s.turn()
			return
		}
	}
	b.old = b.segments(s, b.old[:0])
	b.new = append(b.new[:0], b.old...)
	b.push(segment{s.length + n, set})
	b.write(s, b.old, b.new)
}
