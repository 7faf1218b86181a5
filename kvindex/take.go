package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// ghost is a block that nobody has any more, but that cannot go because others follow it. While its key is remembered,
// its slot can be cleared when it goes after all.
type ghost struct {
	key block.Key
	at  spot
}

// keptGhosts bounds how many are remembered: engines take blocks away from the ends mostly.
const keptGhosts = 1024

// shorten cuts a strand's blocks from n on, which nobody has and on which nothing hangs.
func (b *blocks) shorten(s *strand, n uint32) {
	b.lastSpot = 0 // it may come to be another block's
	b.old = b.segments(s, b.old[:0])
	b.new = b.new[:0]
	from := uint32(0)
	for _, g := range b.old {
		if from < n {
			b.push(segment{min(g.end, n), g.set})
		}
		from = g.end
	}
	b.write(s, b.old, b.new)
}

// furthest returns the length that a strand must keep for what hangs on it.
func (b *blocks) furthest(s *strand) uint32 {
	n := uint32(0)
	for c := s.child; c != 0; {
		cs := b.strands.at(c)
		b.steps++
		n = max(n, cs.at&strandOffset+1)
		if n == s.length {
			break
		}
		c = cs.next
	}
	return n
}

// emptyEnd returns where the blocks at a strand's end begin that nobody has.
func (b *blocks) emptyEnd(s *strand) uint32 {
	if s.more != 0 {
		run := b.runs.at(s.more)
		n := int(run[0])
		if segmentOf(run[n]).set != 0 {
			return s.length
		}
		return segmentOf(run[n-1]).end
	}
	for k := inlineSegments - 1; k >= 0; k-- {
		if s.segs[k] == 0 {
			continue
		}
		switch {
		case setID(s.segs[k]) != 0:
			return s.length
		case k == 0:
			return 0
		}
		return segmentOf(s.segs[k-1]).end
	}
	return 0
}

// found is a block that is being removed, as it was found.
type found struct {
	probe
	handle uint64 // its name, if it was found by that
	place  int    // of it, in its segment of names
}

// findNamed fills found with the blocks that handles name. First all names are on their way into the cache, then all
// slots, so that the processor waits for many of them at a time.
func (b *blocks) findNamed(handles []uint64) {
	b.found = slices.Grow(b.found[:0], len(handles))[:len(handles)]
	for k, handle := range handles {
		b.found[k].handle = handle
		b.names.touch(handle)
	}
	for k := range b.found {
		f := &b.found[k]
		if f.key, f.place = b.names.lookUp(f.handle); f.key != 0 {
			b.slots.touch(f.key)
		}
	}
	b.findSlots()
}

// findKeys fills found with the blocks of keys.
func (b *blocks) findKeys(keys []block.Key) {
	b.found = slices.Grow(b.found[:0], len(keys))[:len(keys)]
	for k, key := range keys {
		if b.found[k].key = key; len(keys) > 1 {
			b.slots.touch(key)
		}
	}
	b.findSlots()
}

func (b *blocks) findSlots() {
	last := uint32(0)
	for k := range b.found {
		f := &b.found[k]
		if f.key == 0 {
			f.at, f.spot = -1, 0
			continue
		}
		f.probe = b.slots.find(f.key)
		if i := f.spot.strand(); i != last {
			if s := b.strands.at(i); s != nil {
				b.sum += uint64(s.length)
			}
			last = i
		}
	}
}

// runBack returns how many of what was found, from the first on, which is at a spot, are blocks of one segment of a
// strand, each before the one before.
func (b *blocks) runBack(found []found, at spot) int {
	n, most := 1, min(len(found), int(at.offset()-b.segmentStart(at))+1)
	for n < most && found[n].spot == at-spot(n) {
		n++
	}
	return n
}

// take applies a change that takes blocks from a holder: those that were found from a spot backwards. named tells that
// they were found by their names, which go with the last who knows them.
func (b *blocks) take(found []found, named bool, at spot, c change) {
	i, hi := at.strand(), at.offset()
	lo := hi + 1 - uint32(len(found))
	b.paint(i, lo, hi+1, c)
	s := b.strands.at(i)
	set, end := b.setAt(at), hi+1
	if set == 0 && end == s.length {
		if end = lo; s.child != 0 {
			end = max(lo, b.furthest(s))
		}
		if end <= hi {
			b.shorten(s, end)
		}
	}
	if end == 0 {
		b.dropRoot(found[len(found)-1].key)
	}
	unnamed, living := named && !b.named(set), b.living()
	for k := range found {
		f := &found[k]
		switch off := hi - uint32(k); {
		case off >= end && named:
			b.names.drop(f.handle, f.place)
			b.slots.drop(&f.probe, living)
		case off >= end:
			b.erase(s, &f.probe)
		default:
			if set == 0 && len(b.ghosts) < keptGhosts {
				b.ghosts = append(b.ghosts, ghost{f.key, spotOf(i, off)})
			}
			if unnamed {
				b.names.drop(f.handle, f.place)
				b.slots.current(&f.probe).mark(false)
			}
		}
	}
	if end <= hi {
		b.trim(i)
	}
}

// erase forgets the key of a block that has been cut from a strand. If a handle names it, that must go first: see
// sweep.
func (b *blocks) erase(s *strand, p *probe) {
	if p = b.slots.current(p); p.named() {
		b.dead++
		atomic.StoreUint32(&s.at, s.at|strandClosed)
		return
	}
	b.slots.drop(p, b.living())
}

// named reports whether a member of a set knows the blocks by their names.
func (b *blocks) named(set setID) bool {
	if set == 0 {
		return false
	}
	if set&singleSet != 0 {
		return b.sets.mask(set.single().claim().mask())&maskNamed != 0
	}
	for _, w := range b.sets.run(set) {
		if b.sets.mask(setMember(w).claim().mask())&maskNamed != 0 {
			return true
		}
	}
	return false
}

// trim cuts the blocks at a strand's end that nobody has and on which nothing hangs, and frees the strand if none is
// left, and so on with the one on which it hung. Their keys are not known: their slots are dead.
func (b *blocks) trim(i uint32) {
	for i != 0 {
		s := b.strands.at(i)
		n := b.emptyEnd(s)
		if n < s.length {
			n = max(n, b.furthest(s))
		}
		if n < s.length {
			cut := int(s.length-n) - b.bury(i, n)
			b.shorten(s, n)
			if cut > 0 {
				b.dead += cut
				atomic.StoreUint32(&s.at, s.at|strandClosed)
			}
		}
		if n > 0 {
			return
		}
		i = b.free(i, s)
	}
}

// bury clears the slots of a strand's ghosts from an offset on and returns how many there were.
func (b *blocks) bury(i, from uint32) int {
	n := 0
	for k := 0; k < len(b.ghosts); {
		g := b.ghosts[k]
		if g.at.strand() != i || g.at.offset() < from {
			k++
			continue
		}
		if p := b.slots.find(g.key); p.at >= 0 && p.named() {
			k++ // it stays until its name goes
			continue
		}
		b.slots.del(g.key, b.living())
		if g.at.offset() == 0 {
			b.dropRoot(g.key)
		}
		b.ghosts[k] = b.ghosts[len(b.ghosts)-1]
		b.ghosts = b.ghosts[:len(b.ghosts)-1]
		n++
	}
	return n
}

// free frees a strand without blocks and returns the one on which it hung.
func (b *blocks) free(i uint32, s *strand) (parent uint32) {
	parent = s.parent
	if s.next != 0 {
		atomic.StoreUint32(&b.strands.at(s.next).prev, s.prev)
	}
	switch {
	case s.prev != 0:
		atomic.StoreUint32(&b.strands.at(s.prev).next, s.next)
	case parent != 0:
		atomic.StoreUint32(&b.strands.at(parent).child, s.next)
	case s.at&strandFloats != 0 && s.next != 0:
		b.floats[b.floatKey[i]] = s.next
	case s.at&strandFloats != 0:
		delete(b.floats, b.floatKey[i])
	}
	if s.at&strandFloats != 0 {
		delete(b.floatKey, i)
	}
	closed := s.at&strandClosed != 0
	if h := s.at >> beganShift; h != 0 {
		b.begun[h-1]--
	}
	s.turn()
	atomic.StoreUint32(&s.parent, 0)
	atomic.StoreUint32(&s.at, 0)
	atomic.StoreUint32(&s.next, 0)
	atomic.StoreUint32(&s.prev, 0)
	s.turn()
	if closed {
		b.limbo = append(b.limbo, i)
	} else {
		b.strands.release(i)
	}
	return parent
}
