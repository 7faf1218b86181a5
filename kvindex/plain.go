package kvindex

import (
	"github.com/warmpath/warmpath/block"
)

// Most engines announce blocks of our size, one handle each. For such a holder nothing is kept but the names of its
// blocks, which it shares with all whose engines hash alike, and its claims on them: a claim with maskNamed stands
// for the handle that names the block and for a record of one copy on each tier in each group of the mask; copies
// tells of more. A claim with a name and nothing else (bareMask) is a block that the holder has no more, but whose
// descendants it has: its key must be known while they live.
//
// A holder that does anything else (blocks of other sizes, a handle that names another block than it does for others,
// or a block that has another name) becomes odd: unfold turns all it is known by into points, and so it stays until
// it is forgotten. Blocks that wait for their place are points in any case.

// knownBy returns the key of the block that a handle names for a holder that is not odd, and its spot; false when it
// knows none by it.
func (x *Index) knownBy(h *holder, handle uint64) (block.Key, spot, bool) {
	key := x.blocks.names.get(handle)
	if key == 0 {
		return 0, 0, false
	}
	at := x.blocks.locate(key)
	if at == 0 || x.blocks.maskAt(at, h.id)&maskNamed == 0 {
		return 0, 0, false
	}
	return key, at, true
}

// end returns the number of blocks from the chain's first to the one at a spot.
func (b *blocks) end(at spot) int {
	return int(b.strands.at(at.strand()).depth) + int(at.offset()) + 1
}

// verdict is what a stretch of an announcement came to.
type verdict uint8

const (
	applied verdict = iota
	strange         // the holder must become odd before the rest can be applied
	stale           // it may be right once names that nobody uses are gone
)

// applyPlain applies a stretch of an announcement of a holder that is not odd, and returns up to which handle. It needs
// tableMu.
func (x *Index) applyPlain(a *announcement) (int, verdict) {
	if !a.aligned {
		return x.applyLoose(a)
	}
	if a.BlockSize != int(x.size) {
		return a.from, strange
	}
	h := a.holder
	c := change{h: h, bit: maskBit(a.Tier, a.group) | maskNamed, add: true}
	parent, hasParent := a.Parent, a.HasParent
	if a.from > 0 {
		parent, hasParent = a.Handles[a.from-1], true
	}
	line := line{key: a.root, placed: !hasParent && !a.RootUnknown}
	if hasParent {
		if key, at, ok := x.knownBy(h, parent); ok {
			line.key, line.end, line.placed = key, x.blocks.end(at), true
		}
	}
	i := a.from
	for ; i < a.to && !line.placed; i++ {
		if key, at, ok := x.knownBy(h, a.Handles[i]); ok {
			line.key, line.end, line.placed = key, x.blocks.end(at), true
			x.again(a, key, at)
		} else {
			if hasParent && x.circular(h, a.Handles[i], parent) {
				x.refuse(h, 1<<a.Tier)
				return len(a.Handles), applied
			}
			tokens := a.Tokens[i*a.BlockSize : (i+1)*a.BlockSize]
			x.await(a, i, func(p uint32) { x.wait(h, p, parent, hasParent, tokens, x.relative(a, i)) })
		}
		parent, hasParent = a.Handles[i], true
	}
	return x.placePlain(a, i, line, c)
}

// line is where a chain goes on.
type line struct {
	key    block.Key // of the block before, or the root
	end    int       // blocks up to it
	placed bool      // that is known
}

// await notes that a block that has no place waits.
func (x *Index) await(a *announcement, i int, wait func(p uint32)) {
	h := a.holder
	r := record{tier: a.Tier, group: a.group, size: uint32(min(max(a.BlockSize, 0), MaxChain))}
	p := x.lookup(h, a.Handles[i])
	if p == 0 {
		p = x.add(h, a.Handles[i])
	} else if at := x.find(p, r.tier, r.group); at != 0 && a.aligned {
		x.records.at(at).shrink(r.size)
	}
	wait(p)
	x.note(h, p, r, a.copies)
}

// again applies the announcement of a block that the holder knows.
func (x *Index) again(a *announcement, key block.Key, at spot) {
	x.single[0] = key
	c := change{h: a.holder, bit: maskBit(a.Tier, a.group) | maskNamed, add: true}
	if a.copies {
		x.countCopies(x.single[:], at, c)
	}
	x.blocks.paint(at.strand(), at.offset(), at.offset()+1, c)
	x.blocks.use(at.strand(), x.tick())
}

// applyLoose is applyPlain where no tokens tell which block is where.
func (x *Index) applyLoose(a *announcement) (int, verdict) {
	h := a.holder
	for i := a.from; i < a.to; i++ {
		if key, at, ok := x.knownBy(h, a.Handles[i]); ok {
			if a.BlockSize > 0 && a.BlockSize != int(x.size) {
				return i, strange
			}
			x.again(a, key, at)
			continue
		}
		x.await(a, i, func(p uint32) { x.wait(h, p, 0, false, nil, nil) })
	}
	return a.to, applied
}

// placePlain applies the blocks from the i-th on, which follow each other on a line.
func (x *Index) placePlain(a *announcement, i int, line line, c change) (int, verdict) {
	b, size := &x.blocks, int(x.size)
	for i < a.to {
		n := min(a.to-i, MaxChain/size-line.end)
		if n <= 0 {
			x.refuse(a.holder, 1<<a.Tier)
			return len(a.Handles), applied
		}
		features := absolute(a.within(i, i+n), (line.end-i)*size)
		keys := x.hasher.Append(x.scratch.keys[:0], line.key, line.end*size, a.Tokens[i*size:(i+n)*size], features)
		x.scratch.keys = keys
		handles := a.Handles[i : i+n]
		done := x.placeKeys(&line, handles, keys, c, a.copies)
		i += done
		if done == n {
			continue
		}
		keys, handles = keys[done:], handles[done:]
		// The next handle does not name what its tokens say, or waits.
		if key, at, ok := x.knownBy(c.h, handles[0]); ok && a.RootUnknown {
			x.again(a, key, at) // its tokens came without their salt or images: the handle knows better
			line.key, line.end = key, b.end(at)
			i++
			continue
		}
		if p := x.waits(c.h, handles[0]); p != 0 {
			if at := x.find(p, a.Tier, a.group); at != 0 {
				x.records.at(at).shrink(x.size)
			}
			if !x.settle(c.h, p, line, keys[0]) {
				return i, x.estranged(a)
			}
			continue // it is known now
		}
		return i, x.estranged(a)
	}
	return i, applied
}

// placeKeys applies a change to the blocks of keys, which follow each other on a line, and moves that along: as many as
// their handles can name, from the first on.
func (x *Index) placeKeys(line *line, handles []uint64, keys []block.Key, c change, copies bool) (done int) {
	b, tick := &x.blocks, x.tick()
	for done < len(keys) {
		rest := keys[done:]
		at, n := b.knownRun(rest)
		known := n > 0
		if !known {
			n = b.newRun(rest)
		}
		n, bad := x.name(c.h, handles[done:done+n], rest, known)
		if n == 0 {
			return done
		}
		if known {
			if copies {
				x.countCopies(rest[:n], at, c)
			}
			b.ghosts = b.ghosts[:0] // they may be among them
			b.paint(at.strand(), at.offset(), at.offset()+uint32(n), c)
			b.use(at.strand(), tick)
		} else {
			b.grow(rest[:n], line.key, line.end == 0, uint32(line.end), c, tick)
		}
		x.rouse(c.h, handles[done:done+n])
		line.key, line.end = rest[n-1], line.end+n
		done += n
		if bad {
			return done
		}
	}
	return done
}

// estranged returns the verdict on a handle that does not name what it should.
func (x *Index) estranged(a *announcement) verdict {
	if !a.swept && (x.blocks.stale || x.blocks.swept > 0) {
		return stale
	}
	return strange
}

// waits returns the point of a handle of a holder that is not odd, 0 when there is none.
func (x *Index) waits(h *holder, handle uint64) uint32 {
	if h.handles == 0 {
		return 0
	}
	return x.lookup(h, handle)
}

// name lets handles name the blocks of keys, and returns how many do, from the first on, and whether one of them
// cannot. known tells that the blocks are there; else they must be added at once, with marks.
func (x *Index) name(h *holder, handles []uint64, keys []block.Key, known bool) (int, bool) {
	b := &x.blocks
	slotted := known || b.dead > 0 || b.swept > 0 // the keys may have slots, with marks
	for k, handle := range handles {
		if k%ahead == 0 {
			for _, next := range handles[k:min(k+ahead, len(handles))] {
				b.names.touch(next)
			}
		}
		if keys[k] == 0 || x.waits(h, handle) != 0 {
			return k, true
		}
		if slotted {
			if key := b.names.get(handle); key == keys[k] {
				continue
			} else if key != 0 {
				return k, true
			}
			if p := b.slots.find(keys[k]); p.at >= 0 {
				if p.named() {
					return k, true // by another handle
				}
				p.mark(true)
			}
		}
		if key := b.names.offer(handle, keys[k]); key != keys[k] {
			return k, true
		}
	}
	return len(handles), false
}

// rouse wakes what waits for handles that a holder has come to know.
func (x *Index) rouse(h *holder, handles []uint64) {
	if x.waiters.n == 0 {
		return
	}
	for _, handle := range handles {
		if x.waiters.get(h.key(handle)) != 0 {
			x.woken = append(x.woken, handle)
		}
	}
}

// settle gives a point that waits its place after a line, as a block that is known by its name, and frees it. It
// reports false when the point tells of more than such a block can have.
func (x *Index) settle(h *holder, p uint32, line line, key block.Key) bool {
	b := &x.blocks
	handle := x.points.at(p).handle
	for r := x.points.at(p).records; r != 0; r = x.records.at(r).next {
		if size := x.records.at(r).size; size != 0 && size != x.size {
			return false
		}
	}
	at := b.locate(key)
	if at != 0 && b.maskAt(at, h.id)&maskNamed != 0 {
		return false // by this name it knows another block, or this one by another
	}
	named, slot := b.names.get(handle), b.slots.find(key)
	if key == 0 || named != key && (named != 0 || slot.at >= 0 && slot.named()) {
		return false
	}
	c := change{h: h, bit: maskNamed, add: true}
	for r := x.points.at(p).records; r != 0; r = x.records.at(r).next {
		rec := x.records.at(r)
		bit := maskBit(rec.tier, rec.group)
		c.bit |= bit
		if rec.count > 1 {
			if x.copies == nil {
				x.copies = map[copyKey]uint32{}
			}
			x.copies[copyKey{key, bit, h.id}] += rec.count - 1
			c.bit |= maskCopied
		}
	}
	x.releaseRecords(p)
	x.orphan(p)
	x.collect(h, p)
	x.single[0] = key
	if b.names.offer(handle, key); slot.at >= 0 {
		slot.mark(true)
	}
	if at == 0 {
		b.grow(x.single[:], line.key, line.end == 0, uint32(line.end), c, x.tick())
	} else {
		b.ghosts = b.ghosts[:0]
		b.paint(at.strand(), at.offset(), at.offset()+1, c)
		b.use(at.strand(), x.tick())
	}
	handles := [1]uint64{handle}
	x.rouse(h, handles[:])
	if c.bit == maskNamed {
		x.bare = append(x.bare, key)
	}
	return true
}

// orphan lets those that wait for an unresolved point go on waiting for its handle without it.
func (x *Index) orphan(p uint32) {
	pt := x.points.at(p)
	for w := x.waiters.get(x.holders[pt.holder].key(pt.handle)); w != 0 && pt.kids > 0; w = x.extras.at(x.points.at(w).extra).sibling {
		x.blocks.steps++
		if wp := x.points.at(w); wp.parent == p {
			wp.parent = 0
			pt.kids--
		}
	}
}

// wakePlain resolves a point that waits for the last of those that woke, of a holder that is not odd. It reports
// whether the holder is still known.
func (x *Index) wakePlain(h *holder) bool {
	top := len(x.woken) - 1
	handle := x.woken[top]
	key, at, ok := x.knownBy(h, handle)
	w := x.waiters.get(h.key(handle))
	if !ok || w == 0 || x.points.at(w).holder != h.id {
		x.woken = x.woken[:top]
		return true
	}
	e := x.extras.at(x.points.at(w).extra)
	n := need{handles: 1, tokens: len(e.tokens), size: len(e.tokens)}
	if !x.roomy(n) {
		// Eviction may take any of them: look again after it.
		if !x.makeRoom(h, n) {
			x.giveUp(h, w)
		}
		return true
	}
	line := line{key: key, end: x.blocks.end(at), placed: true}
	fine := true
	x.tableMu.Lock()
	switch {
	case line.end*int(x.size)+len(e.tokens) > MaxChain:
		x.dropPoint(h, w)
	case len(e.tokens) != int(x.size):
		fine = false
	default:
		start := line.end * int(x.size)
		x.scratch.keys = x.hasher.Append(x.scratch.keys[:0], key, start, e.tokens, absolute(e.features, start))
		fine = x.settle(h, w, line, x.scratch.keys[0])
	}
	x.tableMu.Unlock()
	return fine || x.unfold(h)
}

// dropBare drops the names of blocks that a holder was thought to have descendants of, and has none after all.
func (x *Index) dropBare(h *holder) {
	if len(x.bare) == 0 {
		return
	}
	x.tableMu.Lock()
	for _, key := range x.bare {
		if at := x.blocks.locate(key); at != 0 && !h.odd {
			x.blocks.unname(h, at)
		}
	}
	x.tableMu.Unlock()
	x.bare = x.bare[:0]
}
