package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// Forget drops all that is known of a holder. From the beginning of Forget on, readers do not see the holder. Forget
// looks at every strand (a run of blocks), and lets other writers in between. A call that adds blocks to the holder
// waits until Forget has ended.
func (x *Index) Forget(id fleet.Holder) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil {
		return
	}
	x.special.Add(1) // the holder's claims stay for a while: only the general match passes over them
	defer x.special.Add(-1)
	x.setView(id, nil) // from here on no reader sees it
	h.leaving, h.muted = true, possession
	x.blocks.teller.simply(h, Forgotten, 0)
	x.dropPoints(h)
	if h.claims > 0 || h.owned > 0 {
		x.sweep(&change{h: h, drop: state{allBits, allBits}})
	}
	x.blocks.holders[id] = nil
	x.known--
	x.dismiss(h)
	x.counts.Forgotten++
	// The number of blocks does not show whether the index is empty: a holder may have claims on blocks that no tier has.
	// Load may begin with such blocks, the parents that the holder lost.
	if x.pointed == 0 && !slices.ContainsFunc(x.blocks.holders, func(h *holder) bool { return h != nil && h.claims > 0 }) {
		x.blocks.clear()
	}
	for range memory.ShrinkCalls {
		x.shrink()
		x.unlock()
		x.lock()
	}
}

// Clear records that a holder emptied one tier. The holder's blocks on other tiers stay, and stay known by their
// hashes. The tier is whole again (see HolderStats.Whole). If it was not whole before, the tiers of blocks that still
// wait are no longer whole: the index may have lost the parents of these blocks.
func (x *Index) Clear(id fleet.Holder, tier block.Tier) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil || tier >= block.NumTiers {
		return
	}
	lost := h.broken&(1<<tier) != 0
	h.broken &^= 1 << tier
	h.vague &^= 1 << tier
	x.blocks.teller.simply(h, Cleared, tier)
	if h.named > 0 {
		h.muted = anyGroup << tier
		x.sweep(&change{h: h, drop: state{named: anyGroup << tier}})
		h.muted = 0
	}
	there := x.dropAll(h, true, func(p *point, r *record) bool {
		if p.wait != nil && lost && r.tier != tier {
			h.broken |= 1 << r.tier
		}
		return r.tier == tier
	})
	if there && h.named > 0 {
		x.dropBares(h)
	}
}

// dropPoints forgets all points of a holder: the records of engine blocks that claims cannot express. The claims on the
// blocks that the points cover or need stay.
func (x *Index) dropPoints(h *holder) {
	x.pointed -= h.pointed
	x.waiting -= int(h.waiting)
	x.waitingBytes -= h.waitingBytes
	x.blocks.steps += uint64(h.pointed)
	x.blocks.account(h, -h.extra)
	h.pointed, h.twins, h.waiting, h.waitingBytes = 0, 0, 0, 0
	h.points, h.queue = list{}, list{}
	h.byHash, h.waiters, h.pins, h.parts = lookup[uint64, *point]{}, lookup[uint64, *list]{}, lookup[spot, *pin]{}, lookup[cover, []part]{}
}

// dropAll drops each record r of each point p of a holder if drop(p, r) is true. If pause is true, dropAll lets other
// writers in between every few milliseconds. It returns false if the holder was forgotten meanwhile.
func (x *Index) dropAll(h *holder, pause bool, drop func(p *point, r *record) bool) bool {
	var all []*point
	for p := h.points.first; p != nil; p = p.links[ofHolder].next {
		all = append(all, p)
	}
	from := x.blocks.steps
	for _, p := range slices.Backward(all) { // most children are newer than their parents, and go first
		if x.blocks.steps++; len(p.records) > 0 { // a point without records is kept for its children, or was freed
			x.dropRecords(h, p, func(r *record) bool { return drop(p, r) })
		}
		if pause && x.blocks.steps-from > pauseSteps {
			if !x.yield(h) {
				return false
			}
			from = x.blocks.steps
		}
	}
	return true
}

// sweep applies a change to all claims of the change's holder. A claim says on which tiers and in which groups the
// holder has a block. sweep looks at every strand. If the holder is being forgotten, sweep lets other writers in
// between. The changed sets of holders take memory: sweep makes room for them.
func (x *Index) sweep(c *change) {
	b := &x.blocks
	defer func() { x.slack = need{} }()
	var room need
	for i := uint32(1); i < b.strands.Space(); i++ {
		if c.h.leaving && i%mostStretch == 0 {
			x.unlock()
			x.lock()
		}
		s := b.strands.At(i)
		if s == nil || !b.changes(s, c) || !x.roomToPaint(&room, i) {
			continue
		}
		if c.h.leaving && s.extent>>ownerShift == uint32(c.h.id)+1 {
			atomic.StoreUint32(&s.extent, s.extent&strandLength) // a strand that stays is charged to no holder
		}
		version := s.version
		if b.paint(i, 0, s.length(), c); s.version != version {
			b.trim(i)
		}
	}
}

// changes reports whether a change of its holder's claims alters a strand, or its length or first holder may change.
func (b *blocks) changes(s *strand, c *change) bool {
	b.steps++
	if c.h.leaving {
		return true
	}
	return slices.ContainsFunc(b.segmentWords(s), func(w uint64) bool {
		st := b.sets.state(b.sets.get(setID(w), c.h.id))
		return st.named&c.drop.named != 0 || st.covered&c.drop.covered != 0
	})
}

// roomToPaint makes room in the memory budget for a change of one holder's claims on strand i. It may evict strands,
// and returns false if strand i is gone then. room is memory that an earlier call reserved and no change has used yet:
// roomToPaint evicts only if room is too small.
func (x *Index) roomToPaint(room *need, i uint32) bool {
	b := &x.blocks
	s := b.strands.At(i)
	if s == nil || s.length() == 0 {
		return false
	}
	// Each segment may be split, and may get two new sets.
	words := b.segmentWords(s)
	n := need{hashes: 2 * len(words), bytes: 2 * memory.ListBytes(2*len(words)+2)}
	var one [1]uint64
	for _, w := range words {
		n.bytes += 2 * memory.ListBytes(len(b.sets.members(setID(w), &one))+1)
	}
	if n.hashes > room.hashes || n.bytes > room.bytes {
		*room = need{hashes: max(n.hashes, x.stretch(0)), bytes: max(n.bytes, x.config.Bytes>>10)}
		most := b.sets.tablesGrowth(room.hashes) + room.bytes
		if x.evict(nil, func(bool) bool { return x.bytes()+most <= x.config.Bytes }); s.length() == 0 {
			return false // the strand was evicted
		}
	}
	room.hashes -= n.hashes
	room.bytes -= n.bytes
	return true
}

// dropBares does for all blocks of a holder what dropBare does for one block. It drops the claim if the holder knows
// the block by its hash, has it on no tier, and knows no block after it. dropBares looks once at each strand with such
// claims. Child strands come before their parents, because a block stays while the holder knows a block after it.
func (x *Index) dropBares(h *holder) {
	b := &x.blocks
	var bare []uint64 // depth and index of strands
	for i := uint32(1); i < b.strands.Space(); i++ {
		s := b.strands.At(i)
		if b.steps++; s != nil && s.length() > 0 && slices.ContainsFunc(b.segmentWords(s), func(w uint64) bool { return b.bare(h, setID(w)) }) {
			bare = append(bare, uint64(s.depth)<<32|uint64(i))
		}
	}
	slices.Sort(bare)
	var room need
	for _, k := range slices.Backward(bare) { // a child strand has more blocks before it than its parent
		if i := uint32(k); x.roomToPaint(&room, i) {
			x.dropBaresOf(h, i)
		}
	}
}

// dropBaresOf drops the claims on blocks of a strand that dropBare would drop.
func (x *Index) dropBaresOf(h *holder, i uint32) {
	b := &x.blocks
	s := b.strands.At(i)
	n := s.length()
	parents := make([]bool, n) // the offsets of blocks that the holder's child strands follow
	for c := s.child; c != 0; c = b.strands.At(c).next {
		b.steps++
		if b.knows(h, b.setAt(spotOf(c, 0))) {
			parents[b.strands.At(c).depth-s.depth-1] = true
		}
	}
	segments := b.appendSegments(s, nil)
	hi, after := n, false // no block from hi on is dropped any more; after: the holder knows the block at the offset k
	for k, g := n, len(segments)-1; k > 0; k-- {
		for g > 0 && segments[g-1].end >= k {
			g--
		}
		st := b.sets.state(b.sets.get(segments[g].set, h.id))
		at := spotOf(i, k-1)
		pin := h.pins.get(at)
		if st.named&(known|unnamed) == 0 || st.named&possession != 0 || after || parents[k-1] || pin != nil && pin.anchored > 0 {
			b.dropNamed(h, i, k, hi)
			hi, after = k-1, st.named&(known|unnamed) != 0
		}
	}
	b.dropNamed(h, i, 0, hi)
	b.trim(i)
}

// dropNamed drops the part state.named of a holder's state for the blocks from lo to hi (exclusive) of strand i: the
// blocks that the engine announced under the hashes that name them. The part state.covered stays.
func (b *blocks) dropNamed(h *holder, i, lo, hi uint32) {
	if lo < hi {
		b.paint(i, lo, hi, &change{h: h, drop: state{named: allBits}})
	}
}

// bare reports whether a holder knows the blocks of a segment, but has them on no tier. set is the segment's set of
// holders.
func (b *blocks) bare(h *holder, set setID) bool {
	st := b.sets.state(b.sets.get(set, h.id))
	return st.named&(known|unnamed) != 0 && st.named&possession == 0
}
