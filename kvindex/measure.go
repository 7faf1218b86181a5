package kvindex

import "github.com/warmpath/warmpath/block"

// Measure computes a holder's matches outside of an [Index], by the same rules: from what somebody else knows of the
// holder's blocks. It is safe for concurrent use.
type Measure struct {
	view *view
	size uint32
}

// NewMeasure returns the Measure of a holder with the given cache groups, as a [Change] of the kind Regrouped has them.
// Groups after the first MaxGroups are left out, and then no block proves a prefix. blockSize is in tokens.
func NewMeasure(blockSize int, groups []GroupStats, anyTierOrder, unprovable bool) *Measure {
	if len(groups) > MaxGroups {
		groups, unprovable = groups[:MaxGroups], true
	}
	var list []group
	for _, g := range groups {
		list = append(list, group{id: g.Group, kind: g.Attention, window: min(max(g.Window, 0), MaxChain), unit: min(max(g.BlockSize, 0), MaxChain)})
	}
	size := uint32(min(max(blockSize, 1), block.MaxSize))
	return &Measure{digest(list, size, anyTierOrder, unprovable), size}
}

// Sparse reports whether the holder's blocks may count although the first block of a prompt is missing: it has no group
// of full attention.
func (m *Measure) Sparse() bool { return m.view.sparse() }

// Place returns the bit of a tier and a group in [Measure.Match]. place is the place of the group in the list of groups
// that NewMeasure got, below MaxGroups.
func Place(tier block.Tier, place int) uint64 { return placeBit(tier, uint8(place)) }

// Match returns what the holder has of a request, without the holder's id. held has one element for each leading block
// of the request, with the bits of [Place] that the holder has. Bits of groups that NewMeasure did not get count for
// nothing.
func (m *Measure) Match(held []uint64) Match {
	var memory [32]heldRun
	own := memory[:0]
	for _, h := range held {
		if h &= possession; len(own) > 0 && own[len(own)-1].held == h {
			own[len(own)-1].blocks++
		} else {
			own = append(own, heldRun{h, 1})
		}
	}
	return m.view.match(own, m.size)
}
