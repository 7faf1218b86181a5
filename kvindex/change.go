package kvindex

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Change is one change of what the index claims of a holder's cache. All changes together, applied in their order, give
// what the index claims: also blocks that the index evicts or refuses by itself, blocks that waited and become known,
// and blocks of several copies, which are dropped with the last copy of their tier and group.
//
// Added and Dropped may repeat what the reader knows. For example, the index tells Cleared first, and then may drop
// single blocks of that tier.
type Change struct {
	Holder fleet.Holder
	Kind   ChangeKind

	Tier      block.Tier
	Group     int // the engine's number of the cache group
	Attention block.Attention
	Window    int // of the group, in tokens

	// Depth is the number of blocks of the chain before Keys[0].
	Depth int
	// Parent is the key of the block before Keys[0], and ParentHash is its engine hash. Both are 0 if Depth is 0.
	Parent     block.Key
	ParentHash uint64
	// Before are the keys of the blocks of the chain right before Keys[0], from the last block on whose depth is a
	// multiple of RowLength. A reader that keeps blocks in rows of this length needs them to find the row.
	Before []block.Key
	// Keys are consecutive blocks of one chain, at most 256.
	Keys []block.Key
	// Hashes are the engine's hashes of the blocks, one for each key. A hash is 0 if no single hash names the block: the
	// engine's blocks have another size than the index's.
	Hashes []uint64

	// Groups are all cache groups of the holder, see Regrouped.
	Groups []GroupStats
	// AnyTierOrder says that the holder's engine loads the blocks of a chain from any tier, see Stored.AnyTierOrder.
	AnyTierOrder bool
	// Unprovable says that the holder announced more than MaxGroups groups, so that none of its blocks proves a prefix.
	Unprovable bool
}

// ChangeKind says what a [Change] is.
type ChangeKind uint8

// The kinds of changes, each with the fields of Change that it has besides Holder.
const (
	Added     ChangeKind = iota + 1 // the holder has Keys on Tier in Group, and did not have them there before
	Dropped                         // the holder does not have Keys on Tier in Group any more
	Cleared                         // the holder has nothing on Tier
	Forgotten                       // nothing is known of the holder
	Regrouped                       // what limits the holder's matches changed: Groups, AnyTierOrder and Unprovable
)

// RowLength is the number of blocks of a row: see Change.Before. With longer rows, Change.Before would take longer.
const RowLength = 16

// teller tells Config.Changed of changes. Its buffers belong to the index's lock.
type teller struct {
	to     func(*Change)
	change Change
	keys   [mostStretch]block.Key
	before [RowLength]block.Key
	hashes [mostStretch]uint64
	groups []GroupStats
}

// newTeller returns nil if nobody wants to be told.
func newTeller(to func(*Change)) *teller {
	if to == nil {
		return nil
	}
	return &teller{to: to}
}

// bytes returns the memory of a teller, without the groups.
func (t *teller) bytes() int64 {
	if t == nil {
		return 0
	}
	return 16 * mostStretch
}

// simply tells a change that has no blocks.
func (t *teller) simply(h *holder, kind ChangeKind, tier block.Tier) {
	if t != nil {
		t.change = Change{Holder: h.id, Kind: kind, Tier: tier}
		t.to(&t.change)
	}
}

// regrouped tells the cache groups of a holder, if it has any.
func (t *teller) regrouped(h *holder) {
	if t == nil || len(h.groups) == 0 {
		return
	}
	t.groups = t.groups[:0]
	for i := range h.groups {
		t.groups = append(t.groups, h.groups[i].stats())
	}
	t.change = Change{Holder: h.id, Kind: Regrouped, Groups: t.groups, AnyTierOrder: h.anyTier, Unprovable: h.tooMany}
	t.to(&t.change)
}

// tell tells that a holder's claim on the blocks from lo to hi (exclusive) of strand i changes. before and after have a
// bit for each tier and group on which the holder has the blocks.
func (b *blocks) tell(h *holder, i, lo, hi uint32, before, after uint64) {
	t := b.teller
	gone := before &^ after &^ h.muted
	if after&^before == 0 && gone == 0 {
		return
	}
	for lo < hi {
		n := min(hi-lo, mostStretch)
		b.describe(t, h, spotOf(i, lo), n)
		b.tellBits(t, h, Added, after&^before)
		b.tellBits(t, h, Dropped, gone)
		lo += n
	}
}

// describe writes n consecutive blocks, from a spot (a place on a strand) on, into the teller's change.
func (b *blocks) describe(t *teller, h *holder, at spot, n uint32) {
	c := &t.change
	*c = Change{Holder: h.id, Depth: int(b.end(at)) - 1, Keys: t.keys[:n], Hashes: t.hashes[:n]}
	up := b.before(at)
	if up != 0 {
		c.Parent = b.key(up)
		if hash, has := b.hash(up); has {
			c.ParentHash = hash
		}
	}
	c.Before = t.before[:c.Depth%RowLength]
	for k := len(c.Before) - 1; k >= 0; k-- {
		c.Before[k] = b.key(up)
		up = b.before(up)
	}
	s := b.strands.At(at.strand())
	firsts, seconds := s.run.Firsts()[at.offset():], s.run.Seconds()[at.offset():]
	for k := range n {
		c.Keys[k], c.Hashes[k] = block.Key(firsts[k]), 0
		if seconds[k] != 0 {
			c.Hashes[k] = seconds[k] ^ b.veil
		}
	}
}

// tellBits tells the teller's change once for each tier and group in places.
func (b *blocks) tellBits(t *teller, h *holder, kind ChangeKind, places uint64) {
	for ; places != 0; places &= places - 1 {
		c := &t.change
		tier, place := placeOf(places & -places)
		g := &h.groups[place]
		c.Kind, c.Tier, c.Group, c.Attention, c.Window = kind, tier, g.id, g.kind, g.window
		t.to(c)
	}
}

// TellAgain tells Config.Changed again what the index claims of a holder, a part at a time: the cache groups of the
// holder, and Added for its blocks. The first call has from 0, and the next call has the number that this call returns.
// -1 means that everything was told, or that the holder is not known. Changes between the calls are told as they
// happen. So a reader that forgot the holder before the first call knows the same as the index after the last one.
func (x *Index) TellAgain(id fleet.Holder, from int) (next int) {
	x.lock()
	defer x.unlock()
	h, b := x.holder(id), &x.blocks
	if h == nil || b.teller == nil || from < 0 {
		return -1
	}
	if from == 0 {
		b.teller.regrouped(h)
	}
	told := uint32(0)
	for c := uint32(max(from, 1)); c < b.strands.Space(); c++ {
		b.steps++
		if told >= mostTold || c-uint32(from) >= mostLooked {
			return int(c)
		}
		s := b.strands.At(c)
		if s == nil || s.length() == 0 {
			continue
		}
		lo := uint32(0)
		for _, w := range b.segmentWords(s) {
			if w == 0 {
				break
			}
			g := segmentOf(w)
			if held := b.sets.state(b.sets.get(g.set, h.id)).held(); held != 0 {
				b.tell(h, c, lo, g.end, 0, held)
				told += g.end - lo
			}
			lo = g.end
		}
	}
	return -1
}

// mostTold and mostLooked bound one part of TellAgain, in blocks and in strands: it holds the index's lock for some
// hundred microseconds.
const (
	mostTold   = 2048
	mostLooked = 8192
)
