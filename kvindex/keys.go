package kvindex

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// StoreKeys tells that a holder has new copies of the blocks keys, a run of one chain, where events carry keys
// instead of hashes of an engine's own. parent is the key of the block before the first; hasParent false: the run
// begins the chain. The keys are their own handles: [Index.RemoveKeys] takes them back. A block that is there already
// has one copy more, as with OriginNew. Blocks of an unknown parent count when it becomes known. The group has full
// attention. One holder uses either this or [Index.Store]: what comes by the other is refused.
func (x *Index) StoreKeys(id fleet.Holder, tier block.Tier, group int, parent block.Key, hasParent bool, keys []block.Key) {
	x.lock()
	defer x.unlock()
	h, bit := x.keyed(id, tier, group)
	if h == nil {
		return
	}
	x.advance()
	x.endLost(h)
	for len(keys) > 0 {
		n := min(len(keys), x.stretch(keyStretch, 0))
		if !x.makeRoom(h, need{handles: n, keyed: true}) {
			x.refuse(h, 1<<tier)
			return
		}
		x.tableMu.Lock()
		x.storeRun(keys[:n], parent, !hasParent, change{h: h, bit: bit, add: true})
		x.tableMu.Unlock()
		parent, hasParent = keys[n-1], true
		if keys = keys[n:]; len(keys) > 0 && !x.yield(h) {
			return
		}
	}
}

// RemoveKeys tells that a holder dropped one copy of each block from a tier and group. Keys that it has not are
// ignored.
func (x *Index) RemoveKeys(id fleet.Holder, tier block.Tier, group int, keys []block.Key) {
	x.lock()
	defer x.unlock()
	x.blocks.ghosts = x.blocks.ghosts[:0]
	h := x.holder(id)
	if h == nil || !h.keyed || tier >= block.NumTiers || h.find(group) < 0 {
		x.counts.unknownRemoved += int64(len(keys))
		return
	}
	c := change{h: h, bit: maskBit(tier, uint8(h.find(group)))}
	for len(keys) > 0 {
		n := min(len(keys), x.stretch(stretch, 0))
		x.roomToSplit(n)
		x.tableMu.Lock()
		x.removeRun(keys[:n], c)
		x.tableMu.Unlock()
		if keys = keys[n:]; len(keys) > 0 && !x.yield(h) {
			return
		}
	}
}

// keyed returns a holder whose events carry keys, and the bit of a tier and group; nil when it cannot be.
func (x *Index) keyed(id fleet.Holder, tier block.Tier, group int) (*holder, uint64) {
	if tier >= block.NumTiers {
		return nil, 0
	}
	h := x.meet(id)
	if h == nil {
		return nil, 0
	}
	g := h.find(group)
	if !h.keyed && h.handles+h.named > 0 {
		x.refuse(h, 1<<tier) // its events carry handles
		return nil, 0
	}
	if g < 0 {
		if g = x.join(h, &Stored{Group: group, BlockSize: int(x.size)}); g < 0 {
			return nil, 0
		}
	}
	h.keyed = true
	return h, maskBit(tier, uint8(g))
}

// storeRun stores blocks that follow each other. It needs tableMu.
func (x *Index) storeRun(keys []block.Key, parent block.Key, rooted bool, c change) {
	b, tick := &x.blocks, x.tick()
	for len(keys) > 0 {
		at, n := b.knownRun(keys)
		if n > 0 {
			if c.belief == 0 {
				x.countCopies(keys[:n], at, c)
			}
			b.ghosts = b.ghosts[:0] // they may be among them
			b.paint(at.strand(), at.offset(), at.offset()+uint32(n), c)
			b.use(at.strand(), tick)
		} else {
			n = b.newRun(keys)
			b.grow(keys[:n], parent, rooted, 0, c, tick)
		}
		parent, rooted = keys[n-1], false
		keys = keys[n:]
	}
}

// knownRun returns the spot of the first key and how many keys are there, one after the other on its strand.
func (b *blocks) knownRun(keys []block.Key) (spot, int) {
	at := b.locate(keys[0])
	if at == 0 {
		return 0, 0
	}
	// A key determines what is before it: the last one on the strand stands for all between.
	s := b.strands.at(at.strand())
	n := min(len(keys), int(s.length-at.offset()))
	for n > 1 && b.locate(keys[n-1]) != at+spot(n)-1 {
		n /= 2
	}
	return at, n
}

// newRun returns how many keys are not there, from the first on, which is not.
func (b *blocks) newRun(keys []block.Key) int {
	if len(b.floats) == 0 {
		return len(keys) // what is there is closed under what is before it
	}
	n := 1
	for n < len(keys) && b.locate(keys[n]) == 0 {
		n++
	}
	return n
}

// copyKey names a block that a holder has more than once on a tier in a group.
type copyKey struct {
	key    block.Key
	bit    uint64
	holder fleet.Holder
}

// copyBytes is what a map takes for one.
const copyBytes = 64

// countCopies notes the copies that a store adds of blocks on one strand, from a spot on.
func (x *Index) countCopies(keys []block.Key, at spot, c change) {
	b := &x.blocks
	lo := at.offset()
	hi := lo + uint32(len(keys))
	from, bit := uint32(0), c.bit&possession
	b.scan = b.segments(b.strands.at(at.strand()), b.scan[:0])
	for _, g := range b.scan {
		a, z := max(from, lo), min(g.end, hi)
		from = g.end
		if a >= z || b.sets.mask(b.sets.get(g.set, c.h.id).mask())&bit == 0 {
			continue
		}
		if x.copies == nil {
			x.copies = map[copyKey]uint32{}
		}
		for k := a; k < z; k++ {
			x.copies[copyKey{keys[k-lo], bit, c.h.id}]++
		}
		b.paint(at.strand(), a, z, change{h: c.h, bit: maskCopied, add: true})
	}
}

// removeRun removes blocks in any order. It needs tableMu.
func (x *Index) removeRun(keys []block.Key, c change) {
	b := &x.blocks
	b.findKeys(keys)
	for rest := b.found; len(rest) > 0; {
		f, mask := &rest[0], uint64(0)
		at := f.spot
		if f.at >= 0 && b.there(at) {
			mask = b.maskAt(at, c.h.id)
		}
		n := 1
		switch {
		case mask&c.bit == 0:
			x.counts.unknownRemoved++
		case mask&maskCopied != 0 && x.dropKeyCopy(copyKey{f.key, c.bit, c.h.id}):
		default:
			if n = b.runBack(rest, at); mask&maskCopied != 0 {
				n = 1
			}
			b.take(rest[:n], false, at, c)
		}
		rest = rest[n:]
	}
}

func (x *Index) dropKeyCopy(k copyKey) bool {
	n := x.copies[k]
	switch n {
	case 0:
		return false
	case 1:
		delete(x.copies, k)
	default:
		x.copies[k] = n - 1
	}
	return true
}

// segmentStart returns the offset at which the segment of a block begins.
func (b *blocks) segmentStart(at spot) uint32 {
	s := b.strands.at(at.strand())
	words := s.segs[:]
	if s.more != 0 {
		run := b.runs.at(s.more)
		words = run[1 : 1+run[0]]
	}
	start := uint32(0)
	for _, w := range words {
		end := segmentOf(w).end
		if end > at.offset() {
			break
		}
		start = end
	}
	return start
}

// sweepStrands applies a change to all blocks of all strands, and returns which strands it changed. It costs a look at
// every strand.
func (x *Index) sweepStrands(c change) (touched []uint32) {
	b := &x.blocks
	x.tableMu.Lock()
	n := 0
	b.strands.each(func(i uint32, s *strand) {
		if n++; n%stretch == 0 {
			x.tableMu.Unlock()
			x.tableMu.Lock()
		}
		b.steps++
		version := s.version
		b.paint(i, 0, s.length, c)
		if s.version != version {
			touched = append(touched, i)
		}
	})
	x.tableMu.Unlock()
	x.trimAll(touched)
	b.steps += uint64(len(x.copies))
	for k := range x.copies {
		if k.holder == c.h.id && x.held(k.key, k.holder)&k.bit == 0 {
			delete(x.copies, k)
		}
	}
	return touched
}

// trimAll trims strands, of which some may be gone.
func (x *Index) trimAll(strands []uint32) {
	b := &x.blocks
	x.tableMu.Lock()
	for k, i := range strands {
		if k%stretch == stretch-1 {
			x.tableMu.Unlock()
			x.tableMu.Lock()
		}
		if s := b.strands.at(i); s != nil && s.length > 0 {
			b.trim(i)
		}
	}
	x.tableMu.Unlock()
}
