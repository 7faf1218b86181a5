package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Stats describes an [Index] at one moment.
type Stats struct {
	Blocks      int64 // distinct blocks that some holder has
	Memberships int64 // (holder, block) pairs
	Hashes      int64 // (holder, engine hash) pairs, waiting ones included
	Waiting     int64 // the part of Hashes that waits for a parent or a place
	Bytes       int64 // allocated memory; at most Budget
	Budget      int64 // Config.Bytes

	Evictions      int64 // blocks evicted to keep within the budget, since the beginning
	WaitingDropped int64 // waiting blocks dropped because they exceeded Config.MaxWaiting or Config.WaitingBytes; tests read it
	Refused        int64 // announcements and blocks that the index did not take: see HolderStats.Refused and MaxHolders
	UnknownRemoved int64 // removals of blocks that the holder was not known to have
	Forgotten      int64 // holders forgotten
	Steps          int64 // elements that operations looked at: see the package comment

	Holders []HolderStats // ascending
}

// HolderStats describes one holder in the index.
type HolderStats struct {
	Holder  fleet.Holder
	Blocks  [block.NumTiers]int64 // the index's blocks that the holder has, by tier
	Evicted [block.NumTiers]int64 // blocks evicted to keep within the budget, by tier, since the holder was last forgotten
	Hashes  int64                 // engine hashes that the index knows of the holder, waiting ones included
	Waiting int64                 // the part of Hashes that waits for a parent or a place
	Groups  []GroupStats
	// Refused counts announcements and blocks that the index did not take from the holder since the holder was last
	// forgotten. They are impossible, belong to a group beyond MaxGroups, do not fit in an empty index, or need room
	// from another holder's fair share.
	Refused int64
	// UnknownRemoved counts removals of blocks that the holder was not known to have, since the holder was last
	// forgotten.
	UnknownRemoved int64
	// Whole says that the index lost nothing of the holder: no block was evicted, no waiting block was dropped, and
	// nothing was refused. A loss belongs to the tier of the lost block. Clear of that tier makes the tier whole again.
	// But if blocks of other tiers still wait then, these tiers are no longer whole: the blocks may wait for the lost
	// block. Forget makes the holder whole. Evicted and Refused keep counting until Forget.
	Whole bool
}

// GroupStats describes one cache group.
type GroupStats struct {
	Group     int
	Attention block.Attention
	Window    int // in tokens
	BlockSize int // the largest announced block size, in tokens
}

// Stats returns figures of the whole index. It takes time in proportion to the number of holders.
func (x *Index) Stats() Stats {
	x.lock()
	defer x.unlock()
	s := x.counts
	s.Blocks, s.Memberships, s.Waiting = x.blocks.held, x.blocks.memberships, int64(x.waiting)
	s.Bytes, s.Budget, s.Steps = x.bytes(), x.config.Bytes, int64(x.blocks.steps)
	s.Holders = make([]HolderStats, 0, x.known)
	for _, h := range x.blocks.holders {
		if h != nil && !h.leaving {
			s.Hashes += h.hashes()
			s.Holders = append(s.Holders, x.describe(h))
		}
	}
	return s
}

// hashes returns how many engine hashes the holder knows.
func (h *holder) hashes() int64 { return h.pointed - h.twins + h.named }

// Holder returns figures of one holder, and whether it is known.
func (x *Index) Holder(id fleet.Holder) (HolderStats, bool) {
	x.lock()
	defer x.unlock()
	h := x.holder(id)
	if h == nil {
		return HolderStats{Holder: id}, false
	}
	return x.describe(h), true
}

func (g *group) stats() GroupStats { return GroupStats{g.id, g.kind, g.window, g.unit} }

func (x *Index) describe(h *holder) HolderStats {
	s := HolderStats{
		Holder: h.id, Blocks: h.blocks, Evicted: h.evicted, Hashes: h.hashes(), Waiting: h.waiting,
		Refused: h.refused, UnknownRemoved: h.unknown, Whole: h.broken == 0,
	}
	s.Groups = slices.Grow(s.Groups, len(h.groups))
	for i := range h.groups {
		s.Groups = append(s.Groups, h.groups[i].stats())
	}
	return s
}
