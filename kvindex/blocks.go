package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// blocks knows who has which blocks of ours: strands and what belongs to them. Changes need Index.tableMu, or Index.mu
// where said; Match reads slots, strands, runs and sets without any lock.
type blocks struct {
	slots   slots
	roots   roots
	names   names
	strands strands
	runs    slab // segments that do not fit in their strands: their number, then they
	sets    sets

	beliefs     beliefs
	begun       []int64 // strands, by the holder that began them
	steps       uint64  // see Stats.Steps
	held        int64   // blocks that somebody has or is believed to have
	memberships int64

	// A strand whose parent block is not known floats until that comes: by the parent's key, and the other way.
	floats   map[block.Key]uint32
	floatKey map[uint32]block.Key

	// Slots of blocks that went without their keys being known are dead until the next sweep; strands to which such
	// slots point are not used again before.
	dead    int
	limbo   []uint32
	settled int  // of limbo, how many the sweep under way will free
	swept   int  // segments that the sweep under way has done; 0: there is none
	stale   bool // there may be names of blocks that nobody knows by them

	found    []found   // what is being removed
	old, new []segment // scratch
	scan     []segment // the same of those who paint while they look
	ghosts   []ghost   // that this operation made
	sum      uint64    // of what is read only to have it in cache
	alive    func(spot) bool
	kept     func(spot) bool // alive, or marked as named
	last     block.Key       // the block that was added last, and its spot: mostly the next one's parent
	lastSpot spot
}

func (b *blocks) init() {
	b.alive = b.there
	b.kept = func(s spot) bool { return s&spotNamed != 0 || b.alive(s) }
}

// there reports whether there is a block at a spot; it may be that of another slot.
func (b *blocks) there(s spot) bool {
	s &^= spotNamed
	st := b.strands.at(s.strand())
	return st != nil && s.offset() < st.length
}

// locate returns the spot of a block, 0 when it is not there.
func (b *blocks) locate(key block.Key) spot {
	if s := b.slots.get(key); s != 0 && b.there(s) {
		return s
	}
	return 0
}

// setAt returns the set of those who have the block at a spot.
func (b *blocks) setAt(s spot) setID {
	st := b.strands.at(s.strand())
	if st.more != 0 {
		run := b.runs.at(st.more)
		run = run[1 : 1+run[0]]
		lo, hi := 0, len(run)-1
		for lo < hi {
			if m := (lo + hi) / 2; segmentOf(run[m]).end <= s.offset() {
				lo = m + 1
			} else {
				hi = m
			}
		}
		return segmentOf(run[lo]).set
	}
	for _, w := range st.segs {
		if g := segmentOf(w); s.offset() < g.end {
			return g.set
		}
	}
	return 0
}

// maskAt returns what a holder has of the block at a spot.
func (b *blocks) maskAt(s spot, id fleet.Holder) uint64 {
	return b.sets.mask(b.sets.get(b.setAt(s), id).mask())
}

// segments appends a strand's segments to dst.
func (b *blocks) segments(s *strand, dst []segment) []segment {
	words := s.segs[:]
	if s.more != 0 {
		run := b.runs.at(s.more)
		words = run[1 : 1+run[0]]
	}
	for _, w := range words {
		if w == 0 {
			break
		}
		dst = append(dst, segmentOf(w))
	}
	return dst
}

// write gives a strand other segments. Their sets are held and those of old, which it has now, dropped.
func (b *blocks) write(s *strand, old, segs []segment) {
	for _, g := range segs {
		b.sets.hold(g.set)
	}
	s.turn()
	more := s.more
	if len(segs) <= inlineSegments {
		for i := range s.segs {
			w := uint64(0)
			if i < len(segs) {
				w = segs[i].word()
			}
			if s.segs[i] != w {
				atomic.StoreUint64(&s.segs[i], w)
			}
		}
		if more != 0 {
			atomic.StoreUint32(&s.more, 0)
		}
	} else {
		if more == 0 || !sameClass(len(old)+1, len(segs)+1) {
			atomic.StoreUint32(&s.more, b.runs.alloc(len(segs)+1))
		}
		run := b.runs.at(s.more)
		atomic.StoreUint64(&run[0], uint64(len(segs)))
		for i, g := range segs {
			if w := g.word(); run[1+i] != w {
				atomic.StoreUint64(&run[1+i], w)
			}
		}
	}
	length := uint32(0)
	if len(segs) > 0 {
		length = segs[len(segs)-1].end
	}
	if s.length != length {
		atomic.StoreUint32(&s.length, length)
	}
	s.turn()
	if more != 0 && s.more != more {
		b.runs.release(more, len(old)+1)
	}
	for _, g := range old {
		b.sets.drop(g.set)
	}
}

func sameClass(a, c int) bool {
	x, _ := slabClass(a)
	y, _ := slabClass(c)
	return x == y
}

// change is what happens to a holder's claims on some blocks.
type change struct {
	h       *holder
	bit     uint64 // of masks
	add     bool   // or it goes
	belief  uint32 // that the holder has what is not proven; of two the one that lasts longer stays
	doubt   uint32 // a belief that goes; anyBelief: every one
	expired int64  // beliefs until then, or before, go; 0: none
}

const anyBelief = 1<<32 - 1

// apply returns what a change makes of a claim.
func (b *blocks) apply(c change, old claim) claim {
	mask, belief := b.sets.mask(old.mask()), old.belief()
	if c.add {
		mask |= c.bit
	} else {
		if mask &^= c.bit; mask&possession == 0 {
			mask &^= maskCopied
		}
	}
	if c.belief != 0 && (belief == 0 || b.beliefs.until(belief) < b.beliefs.until(c.belief)) {
		belief = c.belief
	}
	if belief != 0 && (c.doubt == belief || c.doubt == anyBelief || c.expired != 0 && b.beliefs.until(belief) <= c.expired || c.h.view.proves(mask)) {
		belief = 0
	}
	return claimOf(b.sets.number(mask), belief)
}

// paint applies a change to the blocks from lo to hi (exclusive) of a strand.
func (b *blocks) paint(i, lo, hi uint32, c change) {
	s := b.strands.at(i)
	b.old = b.segments(s, b.old[:0])
	b.new = b.new[:0]
	b.steps += uint64(len(b.old))
	from, changed := uint32(0), false
	for _, g := range b.old {
		a, z := max(from, lo), min(g.end, hi)
		if a >= z {
			b.push(g)
			from = g.end
			continue
		}
		set := b.changed(g.set, c, int64(z-a))
		changed = changed || set != g.set
		if a > from {
			b.push(segment{a, g.set})
		}
		b.push(segment{z, set})
		if z < g.end {
			b.push(segment{g.end, g.set})
		}
		from = g.end
	}
	if changed {
		b.write(s, b.old, b.new)
	}
}

func (b *blocks) push(g segment) {
	if n := len(b.new); n > 0 && b.new[n-1].set == g.set {
		b.new[n-1].end = g.end
		return
	}
	b.new = append(b.new, g)
}

// changed returns a set after a change, and counts it for n blocks.
func (b *blocks) changed(set setID, c change, n int64) setID {
	old := b.sets.get(set, c.h.id)
	now := b.apply(c, old)
	if now == old {
		return set
	}
	next := b.sets.with(set, c.h.id, now)
	b.steps += uint64(len(b.sets.scratch))
	b.count(c.h, old, now, n)
	if was, is := b.lives(old), b.lives(now); was != is && !b.shared(set, c.h.id) {
		if is {
			b.held += n
		} else {
			b.held -= n
		}
	}
	return next
}

// lives reports whether a claim makes a block one that somebody has or is believed to have.
func (b *blocks) lives(c claim) bool {
	return c.belief() != 0 || b.sets.mask(c.mask())&possession != 0
}

// shared reports whether others than h have the blocks of a set or are believed to have them.
func (b *blocks) shared(set setID, h fleet.Holder) bool {
	if set == 0 {
		return false
	}
	if set&singleSet != 0 {
		m := set.single()
		return m.holder() != h && b.lives(m.claim())
	}
	for _, w := range b.sets.run(set) {
		if m := setMember(w); m.holder() != h && b.lives(m.claim()) {
			return true
		}
	}
	return false
}

// count notes that a holder's claim on n blocks became another.
func (b *blocks) count(h *holder, from, to claim, n int64) {
	h.changes++
	if from == 0 {
		h.claims += n
	} else if to == 0 {
		h.claims -= n
	}
	if from.belief() != to.belief() { // one whose count comes to 0 is gone
		b.beliefs.count(h, to.belief(), n)
		b.beliefs.count(h, from.belief(), -n)
	}
	old, mask := b.sets.mask(from.mask()), b.sets.mask(to.mask())
	if (old^mask)&maskNamed != 0 {
		if mask&maskNamed != 0 {
			h.named += n
		} else {
			h.named -= n
		}
	}
	old, mask = old&possession, mask&possession
	if old == mask {
		return
	}
	for rest := old ^ mask; rest != 0; {
		tier := bits.TrailingZeros64(rest) & (block.NumTiers - 1)
		all := uint64(anyGroup) << tier
		rest &^= all
		if (old&all == 0) != (mask&all == 0) {
			if old&all == 0 {
				h.blocks[tier] += n
			} else {
				h.blocks[tier] -= n
			}
		}
	}
	if old == 0 {
		b.memberships += n
	}
	if mask == 0 {
		b.memberships -= n
	}
}

// floatBytes is what the two maps of floating strands take for one.
const floatBytes = 80

func (b *blocks) bytes() int64 {
	return b.slots.bytes() + b.roots.bytes() + b.names.bytes() + b.strands.bytes() + b.runs.bytes() + b.sets.bytes() + b.beliefs.bytes() +
		int64(len(b.floats)+len(b.floatKey))*floatBytes/2 + int64(cap(b.limbo))*4 + int64(cap(b.old)+cap(b.new)+cap(b.scan))*8 + int64(cap(b.ghosts))*16
}

// growth returns an upper bound of what a change of n blocks makes it allocate.
func (b *blocks) growth(n int) int64 {
	return b.slots.growth(n) + b.roots.growth(n) + b.names.growth(n) + b.strands.growth(n) + b.runs.growth(2, max(cap(b.old), 16)+4) + b.sets.growth(n) +
		int64(n)*floatBytes*int64(min(len(b.floats), 1)) + 4*int64(n)
}
