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
	names   names
	strands strands
	runs    slab // segments that do not fit in their strands: their number, then they
	sets    sets

	beliefs     beliefs
	held        int64 // blocks that somebody has or is believed to have
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

	probes   []probe
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
	b.alive = func(s spot) bool {
		s &^= spotNamed
		st := b.strands.at(s.strand())
		return st != nil && s.offset() < st.length
	}
	b.kept = func(s spot) bool { return s&spotNamed != 0 || b.alive(s) }
}

// locate returns the spot of a block, 0 when it is not there.
func (b *blocks) locate(key block.Key) spot {
	if s := b.slots.get(key); s != 0 && b.alive(s) {
		return s
	}
	return 0
}

// ghost is a block that nobody has any more, but that cannot go because others follow it. While its key is remembered,
// its slot can be cleared when it goes after all.
type ghost struct {
	key block.Key
	at  spot
}

// keptGhosts bounds how many are remembered: engines take blocks away from the ends mostly.
const keptGhosts = 1024

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
	atomic.AddUint32(&s.version, 1)
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
	atomic.AddUint32(&s.version, 1)
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
	h      *holder
	bit    uint64 // of masks
	add    bool   // or it goes
	belief uint32 // that the holder has what is not proven; of two the one that lasts longer stays
	doubt  uint32 // a belief that goes; anyBelief: every one
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
	if belief != 0 && (c.doubt == belief || c.doubt == anyBelief || c.h.view.proves(mask)) {
		belief = 0
	}
	return claimOf(b.sets.number(mask), belief)
}

// paint applies a change to the blocks from lo to hi (exclusive) of a strand.
func (b *blocks) paint(i, lo, hi uint32, c change) {
	s := b.strands.at(i)
	b.old = b.segments(s, b.old[:0])
	b.new = b.new[:0]
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
		i := b.tip(parent, rooted, depth)
		s := b.strands.at(i)
		n := min(len(keys), maxStrand-int(s.length))
		from := s.length
		b.lengthen(s, set, uint32(n))
		b.use(i, tick)
		for k, key := range keys[:n] {
			if k%ahead == 0 {
				b.expect(keys[k:min(k+ahead, n)])
			}
			if b.dead == 0 && b.swept == 0 {
				b.slots.insert(key, spotOf(i, from+uint32(k))|mark, nil)
			} else if !b.slots.put(key, spotOf(i, from+uint32(k))|mark, b.kept) && b.dead > 0 && b.swept == 0 {
				b.dead-- // its slot was dead
			}
			if len(b.floats) > 0 {
				b.land(key, spotOf(i, from+uint32(k)))
			}
		}
		parent, rooted = keys[n-1], false
		b.last, b.lastSpot = parent, spotOf(i, from+uint32(n)-1)
		depth += uint32(n)
		keys = keys[n:]
	}
}

// ahead is for how many keys a writer fetches the slots at once. An atomic store waits for its cache line alone.
const ahead = 16

// expect fetches the slots of keys.
func (b *blocks) expect(keys []block.Key) {
	for _, key := range keys {
		b.sum += b.slots.touch(key)
	}
}

// living returns what tells dead slots from others; nil when none is dead.
func (b *blocks) living() func(spot) bool {
	if b.dead == 0 && b.swept == 0 {
		return nil
	}
	return b.kept
}

// tip returns a strand to which what follows a block can be added: the block's own if it ends there, else a new one.
func (b *blocks) tip(parent block.Key, rooted bool, depth uint32) uint32 {
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
	atomic.AddUint32(&s.version, 1)
	atomic.StoreUint32(&s.depth, depth)
	atomic.StoreUint32(&s.child, 0)
	atomic.StoreUint32(&s.next, 0)
	atomic.StoreUint32(&s.prev, 0)
	atomic.StoreUint32(&s.parent, 0)
	atomic.StoreUint32(&s.at, 0)
	switch {
	case at != 0:
		b.hang(i, s, at)
	case !rooted:
		atomic.StoreUint32(&s.at, strandFloats)
		if b.floats == nil {
			b.floats, b.floatKey = map[block.Key]uint32{}, map[uint32]block.Key{}
		}
		if first := b.floats[parent]; first != 0 {
			atomic.StoreUint32(&s.next, first)
			atomic.StoreUint32(&b.strands.at(first).prev, i)
		}
		b.floats[parent], b.floatKey[i] = i, parent
	}
	atomic.AddUint32(&s.version, 1)
	return i
}

// hang makes a strand a child of the block at a spot. The strand's version must be odd.
func (b *blocks) hang(i uint32, s *strand, at spot) {
	p := b.strands.at(at.strand())
	atomic.StoreUint32(&s.parent, at.strand())
	atomic.StoreUint32(&s.at, at.offset()|s.at&strandClosed)
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
		atomic.AddUint32(&s.version, 1)
		b.hang(i, s, at)
		atomic.AddUint32(&s.version, 1)
		moved = append(moved, i)
		i = next
	}
	if i == 0 {
		delete(b.floats, key)
	} else {
		b.floats[key] = i
		atomic.StoreUint32(&b.strands.at(i).prev, 0)
	}
	for len(moved) > 0 { // what hangs on them is deeper now
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
			atomic.AddUint32(&s.version, 1)
			atomic.StoreUint64(&s.segs[k], segment{s.length + n, set}.word())
			atomic.StoreUint32(&s.length, s.length+n)
			atomic.AddUint32(&s.version, 1)
			return
		}
	}
	b.old = b.segments(s, b.old[:0])
	b.new = append(b.new[:0], b.old...)
	b.push(segment{s.length + n, set})
	b.write(s, b.old, b.new)
}

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

// take applies a change that takes blocks from a holder: those of keys, which runBack found from a spot backwards.
// handles are their names, nil when they need not be named.
func (b *blocks) take(keys []block.Key, handles []uint64, at spot, c change) {
	i, hi := at.strand(), at.offset()
	lo := hi + 1 - uint32(len(keys))
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
	for k, key := range keys {
		switch off := hi - uint32(k); {
		case off >= end && handles != nil:
			b.names.del(handles[k])
			b.slots.drop(&b.probes[k], b.living())
		case off >= end:
			b.erase(s, &b.probes[k])
		default:
			if set == 0 && len(b.ghosts) < keptGhosts {
				b.ghosts = append(b.ghosts, ghost{key, spotOf(i, off)})
			}
			if handles != nil && !b.named(set) {
				b.names.del(handles[k])
				b.probes[k].mark(false)
			}
		}
	}
	if end <= hi {
		b.trim(i)
	}
}

// erase forgets the key of a block that has been cut from a strand. If a handle names it, that must go first: see sweep.
func (b *blocks) erase(s *strand, p *probe) {
	if p.named() {
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
	atomic.AddUint32(&s.version, 1)
	atomic.StoreUint32(&s.parent, 0)
	atomic.StoreUint32(&s.at, 0)
	atomic.StoreUint32(&s.next, 0)
	atomic.StoreUint32(&s.prev, 0)
	atomic.AddUint32(&s.version, 1)
	if closed {
		b.limbo = append(b.limbo, i)
	} else {
		b.strands.release(i)
	}
	return parent
}

// sweepSlots is how many slots a sweep looks at in one go: about 20 µs.
const sweepSlots = 4096

// sweep clears dead slots, some at a time, once there is one in eight: first the names of blocks that nobody knows by them,
// for these keep slots. It needs tableMu.
func (b *blocks) sweep() {
	if b.swept == 0 {
		if b.dead <= 1024+b.slots.n/8 && len(b.limbo) <= 1024+b.strands.live/8 {
			return
		}
		b.dead, b.settled, b.stale = 0, len(b.limbo), false
	}
	for n := 0; n < sweepSlots && b.swept < nameSegments+slotSegments; b.swept++ {
		if b.swept < nameSegments {
			n += b.sweepNames(b.swept)
			continue
		}
		g := &b.slots.segments[b.swept-nameSegments]
		if a := g.array.Load(); a != nil {
			n += len(a.words) / 2
			b.slots.rebuild(g, 0, b.kept)
		}
	}
	if b.swept < nameSegments+slotSegments {
		return
	}
	b.swept = 0
	for _, i := range b.limbo[:b.settled] {
		b.strands.release(i)
	}
	b.limbo = append(b.limbo[:0], b.limbo[b.settled:]...)
}

// sweepNames drops the names of blocks that nobody knows by them from a segment, and returns how much it looked at.
func (b *blocks) sweepNames(segment int) int {
	b.names.sweep(segment, func(key block.Key) { b.sum += b.slots.touch(key) }, func(key block.Key) bool {
		p := b.slots.find(key)
		if p.at < 0 {
			return false
		}
		if b.alive(p.spot) && b.named(b.setAt(p.spot)) {
			return true
		}
		p.mark(false)
		return false
	})
	return len(b.names.segments[segment].words) / 2
}

// clear forgets all blocks and gives their memory back.
func (b *blocks) clear() {
	for i := range b.slots.segments {
		b.slots.segments[i].array.Store(nil)
		b.slots.segments[i].n = 0
	}
	b.slots.n, b.slots.words = 0, 0
	b.names = names{}
	b.strands.reset()
	b.runs.reset()
	b.sets.reset()
	b.beliefs.reset()
	b.floats, b.floatKey = nil, nil
	b.dead, b.limbo, b.settled, b.swept, b.stale = 0, nil, 0, 0, false
	b.old, b.new, b.scan, b.ghosts = nil, nil, nil, nil
	b.lastSpot = 0
}

// floatBytes is what the two maps of floating strands take for one.
const floatBytes = 80

func (b *blocks) bytes() int64 {
	return b.slots.bytes() + b.names.bytes() + b.strands.bytes() + b.runs.bytes() + b.sets.bytes() + b.beliefs.bytes() +
		int64(len(b.floats)+len(b.floatKey))*floatBytes/2 + int64(cap(b.limbo))*4 + int64(cap(b.old)+cap(b.new)+cap(b.scan))*8 + int64(cap(b.ghosts))*16
}

// growth returns an upper bound of what a change of n blocks makes it allocate.
func (b *blocks) growth(n int) int64 {
	return b.slots.growth(n) + b.names.growth(n) + b.strands.growth(n) + b.runs.growth(2, max(cap(b.old), 16)+4) + b.sets.growth(n) +
		int64(n)*floatBytes*int64(min(len(b.floats), 1)) + 4*int64(n)
}
