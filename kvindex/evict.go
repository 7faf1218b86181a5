package kvindex

import (
	"cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// need is an upper bound of what an operation stores.
type need struct {
	handles int // engine blocks
	tokens  int
	size    int   // of one engine block
	bytes   int64 // of multimodal items
	keyed   bool  // nothing but blocks of ours, and no handles
	ample   bool  // of slack: so far from the budget that nothing else need be looked at before all of it is used
}

// bytes returns what the index has allocated.
func (x *Index) bytes() int64 {
	return x.blocks.bytes() +
		x.handles.bytes() + x.points.bytes() + x.records.bytes() + x.extras.bytes() + x.extraBytes +
		x.covers.bytes() + x.parts.bytes() + x.waiters.bytes() +
		x.queued.bytes() +
		int64(cap(x.holders))*16 + int64(x.known)*holderBytes +
		int64(len(x.copies))*copyBytes
}

// holderBytes covers a holder and its view with a few groups.
const holderBytes = 512

// vacant is an empty index. It is never changed.
var vacant Index

// alone returns an upper bound of the bytes that the need would take in an index with the known holders and no blocks.
func (x *Index) alone(n need) int64 {
	return int64(cap(x.holders))*16 + int64(x.known)*holderBytes + vacant.growth(n, int(x.size))
}

// growth returns an upper bound of the bytes that the index allocates for the need. size is the tokens of a block.
func (x *Index) growth(n need, size int) int64 {
	if n.keyed {
		return x.blocks.growth(n.handles) + x.keyedGrowth(n.handles)
	}
	blocks := max(n.tokens, n.handles*n.size)/size + 1 // that are completed
	if n.size != size {
		blocks += n.handles
	}
	touched := blocks + n.handles // a block of ours more for each engine block that does not end where one ends
	bytes := x.blocks.growth(blocks) +
		x.handles.growth(n.handles) + x.points.growth(n.handles) + x.records.growth(n.handles) +
		x.extras.growth(n.handles) + x.waiters.growth(n.handles) + x.queued.growth(n.handles) +
		x.covers.growth(touched)
	parts := 2 * touched
	if n.size != size {
		// Blocks that are put together: parts of their heads, and tails to remember.
		parts += 2*n.tokens + 4*size
		bytes += int64(n.handles) * int64(4*min(size, n.size+size)+8*(n.size/size+4))
	}
	return bytes + x.parts.growth(parts) + int64(8*n.tokens) + n.bytes + copyBytes*int64(n.handles)
}

// keyedGrowth is what of the growth by n keys, stored or believed, is not that of blocks.
func (x *Index) keyedGrowth(n int) int64 { return x.blocks.beliefs.growth(n) + copyBytes*int64(n) }

// fits reports whether a point that n blocks of ours run through can be stored. It is asked where nothing can be
// evicted, and only in the rare case of many continuations of one partial block.
func (x *Index) fits(n int) bool {
	if n < 32 {
		return true
	}
	return x.bytes()+x.blocks.growth(n)+x.parts.growth(2*n)+
		x.covers.growth(n) <= x.config.Bytes
}

// slackStretches is for how many of the longest stretches room is measured at a time, where there is much room.
const slackStretches = 8

// stretches returns the need of so many of the longest stretches, for engine blocks of n's size. Slack for engine
// blocks is slack for keys besides: what a router believes and what engines announce come in turn.
func (x *Index) stretches(many int, n need) need {
	size := n.size
	if n.keyed {
		size = cmp.Or(x.slack.size, int(x.size))
	}
	handles := many * x.stretch(keyStretch, size)
	return need{handles: handles, tokens: handles * max(size, 2*int(x.size)), size: size, bytes: 32 * int64(handles)}
}

// within reports whether room for another need is room for n.
func (n need) within(other *need) bool {
	return n.handles <= other.handles && n.tokens <= other.tokens && n.bytes <= other.bytes && (n.keyed || n.size == other.size)
}

// roomy reports whether the need fits in the budget as things are. Room is measured for many needs at a time.
func (x *Index) roomy(n need) bool {
	if n.within(&x.slack) {
		x.slack.handles -= n.handles
		x.slack.tokens -= n.tokens
		x.slack.bytes -= n.bytes
		return true
	}
	if x.bytes()+2*x.reserve <= x.config.Bytes && x.measure(n, slackStretches) || x.measure(n, 1) {
		return x.roomy(n)
	}
	return x.bytes()+x.growth(n, int(x.size)) <= x.config.Bytes
}

// measure makes room for so many stretches the slack, and reports whether they fit and are enough for n.
func (x *Index) measure(n need, many int) bool {
	b, budget, big := &x.blocks, x.config.Bytes, x.stretches(many, n)
	x.slack = need{}
	b.slots.loose, b.names.loose = false, false
	if !n.within(&big) {
		return false
	}
	growth := x.growth(big, int(x.size)) + x.keyedGrowth(big.handles)
	x.reserve = 0
	if many == 1 {
		x.reserve = growth
	}
	most := x.bytes() + growth
	if most > budget {
		return false
	}
	if big.ample = most < budget-budget/4; big.ample {
		b.slots.tight, b.names.tight = false, false
	}
	b.slots.loose, b.names.loose = big.ample, big.ample
	x.slack = big
	return true
}

// passes is the number of evictions, each larger than the one before, after which no evictable block is left.
const passes = 6

// makeRoom evicts until the need fits in the budget. Blocks of holders above their shares go first. If h is not above
// its own share, other blocks go, too, and in the end all. It reports false, before it evicts anything, when the need
// does not fit in an empty index, or is more than the share of h and a quarter of the budget: usual stretches need less
// than that. It reports false, too, when h is above its share and only blocks of holders below theirs are left. It must
// not be called with tableMu held, nor while points are in hand.
func (x *Index) makeRoom(h *holder, n need) bool {
	if x.slack.ample && x.roomy(n) {
		return true
	}
	b, budget := &x.blocks, x.config.Bytes
	used := x.bytes()
	if used+x.reserve > budget-budget/8 {
		b.slots.tight, b.names.tight = true, true
	}
	if used+x.reserve > budget-budget/64 && budget >= leastRelieved {
		x.relieve()
	}
	if x.roomy(n) {
		return true
	}
	if alone := x.alone(n); alone > budget || float64(alone) > max(x.share(h), float64(budget/4)) {
		return false
	}
	if b.swept > 0 || b.dead > b.slots.n/8 {
		x.sweepAll() // leftovers of forgotten holders go before held blocks
	}
	return x.evictUntil(h, func() bool { return x.roomy(n) })
}

// evictUntil evicts until there is room for what a holder needs: first from holders above their shares, then, if the
// holder itself is not above its share, from all, in the end everything. It reports whether there is room. h may be
// nil: then there is.
func (x *Index) evictUntil(h *holder, room func() bool) bool {
	for pass := 0; pass < 2*passes; pass++ {
		if room() {
			return true
		}
		if x.blocks.held == 0 && x.points.live() == 0 {
			break
		}
		if pass == passes && h != nil && h.over {
			return false
		}
		x.evict(pass%passes, pass < passes)
	}
	x.wipe()
	return room()
}

// roomToSplit evicts until a removal of n blocks fits in the budget. A removal can need room: it splits segments and
// makes new sets.
func (x *Index) roomToSplit(n int) {
	b := &x.blocks
	b.steps += uint64(n)
	if x.slack.ample {
		return
	}
	most := 8*int64(n*(b.sets.largest+8)+6*cap(b.old)+4*slabChunk) + b.sets.byHash.bytes()/16 + 4096
	x.evictUntil(nil, func() bool { return x.bytes()+most <= x.config.Bytes })
}

// wipe empties the index. It is the last resort, when evictions freed too little.
func (x *Index) wipe() {
	for _, h := range x.holders {
		if h == nil {
			continue
		}
		x.inStretches(h.points, func(p uint32) {
			for r := x.points.at(p).records; r != 0; r = x.records.at(r).next {
				h.broken |= 1 << x.records.at(r).tier
			}
		})
		for t, n := range h.blocks {
			h.evicted[t] += n
			if n > 0 {
				h.broken |= 1 << t
			}
		}
		h.points, h.handles, h.named, h.believed, h.waiting, h.waitingBytes, h.covers = 0, 0, 0, 0, 0, 0, 0
		h.blocks, h.queue, h.claims, h.extra = [block.NumTiers]int64{}, queue{}, 0, 0
	}
	x.blocks.steps += uint64(len(x.holders))
	x.counts.evictions += x.blocks.held
	x.resetArenas()
}

// resetArenas gives back the memory of an index that became empty.
func (x *Index) resetArenas() {
	x.tableMu.Lock()
	defer x.tableMu.Unlock()
	x.slack = need{}
	x.blocks.clear()
	x.copies = nil
	x.handles.clear()
	x.covers.clear()
	x.waiters.clear()
	x.points.reset()
	x.records.reset()
	x.extras.reset()
	x.parts.reset()
	x.queued.reset()
	x.extraBytes, x.waitingBytes, x.waiting = 0, 0, 0
	for _, h := range x.holders {
		if h != nil {
			h.named, h.claims = 0, 0
		}
	}
}

// evict drops the least recently used blocks, deepest before their parents, and the beliefs about them. It looks at
// the whole index once. fair: only blocks of holders above their shares. The first pass takes their excess and a 64th
// of their blocks, at most a sixteenth of all blocks. Each later pass may take four times as many, and of each holder
// twice as many beyond its excess; the last takes all.
func (x *Index) evict(pass int, fair bool) {
	b := &x.blocks
	b.ghosts = b.ghosts[:0]
	before, excess := b.held, x.compareShares()
	// A small n costs many passes; a large n takes more than its excess from a holder.
	n := before / 16
	if fair {
		n = min(n, max(excess, before/256, before/4/int64(max(x.known, 1))))
	}
	last := pass == passes-1
	if n = max(n, 1) << (2 * pass); last {
		n = before
	}
	for _, h := range x.holders {
		if h != nil {
			h.quota += h.claims / 64 * (1<<pass - 1)
		}
	}
	b.steps += uint64(len(x.holders))
	d := x.chooseVictims(int(min(n, before)), fair, last)
	for _, h := range x.holders {
		if h == nil || h.points == 0 || fair && !h.over {
			continue
		}
		had := h.blocks
		x.inStretches(h.points, func(p uint32) {
			if x.isVictim(&d, p, pass > 1) || last {
				x.dropRecords(h, p, func(r *record) bool {
					h.broken |= 1 << r.tier
					return true
				})
			}
		})
		h.noteEvicted(&had)
		x.collectAll(h)
		if last {
			x.releaseAll(h) // only points that wait for each other are left
		}
	}
	b.stale = true
	x.cutAll(&d)
	x.counts.evictions += before - b.held
	x.sweepAll()
	x.slack = need{}
}

// noteEvicted counts the blocks that a holder lost since before.
func (h *holder) noteEvicted(before *[block.NumTiers]int64) {
	for t := range before {
		h.evicted[t] += before[t] - h.blocks[t]
	}
}

// cutAll takes away what is a victim and known by no handles: blocks of holders whose events carry keys, and what is
// believed.
func (x *Index) cutAll(d *victims) {
	b := &x.blocks
	var touched []uint32
	x.tableMu.Lock()
	n := 0
	b.strands.each(func(i uint32, s *strand) {
		b.steps++
		if n++; n%stretch == 0 {
			x.tableMu.Unlock()
			x.tableMu.Lock()
		}
		if lo := d.from(i); lo < s.length {
			x.cut(i, lo)
			touched = append(touched, i)
		}
	})
	x.tableMu.Unlock()
	x.trimAll(touched)
	x.dropLost()
}

// dropLost forgets the copies of blocks that were cut.
func (x *Index) dropLost() {
	if !x.lost {
		return
	}
	x.lost = false
	x.blocks.steps += uint64(len(x.copies))
	for k := range x.copies {
		if x.held(k.key, k.holder)&k.bit == 0 {
			delete(x.copies, k)
		}
	}
}

// cut takes the claims that no handles account for from a strand's blocks, from an offset on.
func (x *Index) cut(i, lo uint32) {
	b := &x.blocks
	s := b.strands.at(i)
	old := b.segments(s, nil)
	b.steps += uint64(len(old))
	b.new = b.new[:0]
	var shaken []uint32 // beliefs
	from := uint32(0)
	for _, g := range old {
		if g.end <= lo {
			b.push(g)
		} else {
			if from < lo {
				b.push(segment{lo, g.set})
			}
			b.push(segment{g.end, x.remainder(g.set, int64(g.end-max(from, lo)), &shaken)})
		}
		from = g.end
	}
	b.write(s, old, b.new)
	// What is left of a belief would not be found by its leaf.
	before := spotOf(i, lo-1)
	if lo == 0 {
		before = spotOf(s.parent, s.at&strandOffset)
	}
	if before.strand() == 0 {
		return
	}
	members, _ := b.sets.load(b.setAt(before), nil)
	for _, m := range members {
		if m.claim().mask() == bareMask {
			b.unname(x.holders[m.holder()], before)
		}
	}
	for _, q := range shaken {
		if it := b.beliefs.at(q); it.blocks > 0 {
			b.doubtPath(before, change{h: x.holders[it.holder], doubt: q})
		}
	}
}

// remainder returns what cut leaves of a set, counted for n blocks, and adds the beliefs that lose by it.
func (x *Index) remainder(set setID, n int64, shaken *[]uint32) setID {
	b := &x.blocks
	members, _ := b.sets.load(set, nil)
	b.steps += uint64(len(members))
	left := members[:0:0]
	for _, m := range members {
		h := x.holders[m.holder()]
		now := claimOf(m.claim().mask(), 0)
		if mask := b.sets.mask(now.mask()); h.keyed || mask&maskNamed != 0 {
			x.lost = x.lost || mask&maskCopied != 0
			now = 0
			h.broken |= tiersOf(mask)
		}
		if q := m.claim().belief(); q != 0 {
			*shaken = append(*shaken, q)
		}
		if now != m.claim() {
			before := h.blocks
			b.count(h, m.claim(), now, n)
			h.noteEvicted(&before)
		}
		if now != 0 {
			left = append(left, memberOf(m.holder(), now))
		}
	}
	was, next := b.shared(set, fleet.NoHolder), b.sets.of(left)
	if was && !b.shared(next, fleet.NoHolder) {
		b.held -= n
	}
	return next
}

// tiersOf returns a bit for each tier that a mask has.
func tiersOf(mask uint64) (tiers uint8) {
	for t := range block.NumTiers {
		if mask&(anyGroup<<t) != 0 {
			tiers |= 1 << t
		}
	}
	return tiers
}

// sweepAll drops all names that nobody uses and clears all dead slots, in stretches.
func (x *Index) sweepAll() {
	b := &x.blocks
	for b.swept > 0 {
		x.sweepOn() // it may have passed some of them
	}
	if b.dead == 0 && !b.stale {
		return
	}
	for again := true; again; again = b.swept > 0 {
		x.sweepOn()
	}
}

// sweepFor is sweepAll for an announcement of a holder: it pauses between its stretches. It reports whether the
// holder is still known.
func (x *Index) sweepFor(h *holder) bool {
	b := &x.blocks
	whole := b.swept == 0                         // a sweep under way may have passed some of what is to go
	for range 2 * (nameSegments + slotSegments) { // others may begin sweeps in the pauses
		x.sweepOn()
		if b.swept == 0 {
			if whole || b.dead == 0 && !b.stale {
				return true
			}
			whole = true
		}
		if !x.pause(h) {
			return false
		}
	}
	return true
}

// sweepOn begins a sweep, however little there may be to sweep, or goes on with the one under way for a stretch.
func (x *Index) sweepOn() {
	b := &x.blocks
	if b.swept == 0 {
		b.dead = max(b.dead, b.slots.n+1024) // as many as make a sweep worth it
	}
	x.tableMu.Lock()
	b.sweep()
	x.tableMu.Unlock()
}

// sweepsAForget is for how many stretches Forget sweeps when there is much to sweep: 3 ms in an index of a million
// blocks with handles, and all of it in one of some ten thousand. Events of other holders wait that long, and a sweep
// of the whole would take 100 ms: what is left goes with what is stored next, a stretch each, see advance.
const sweepsAForget = 8

// giveBack frees memory that is no longer needed after much has gone at once.
func (x *Index) giveBack() {
	b := &x.blocks
	if b.held == 0 && x.points.live() == 0 {
		x.resetArenas()
		return
	}
	if b.swept == 0 && 4*b.dead <= b.slots.n {
		return
	}
	for range sweepsAForget {
		if x.sweepOn(); b.swept == 0 {
			return
		}
	}
}
