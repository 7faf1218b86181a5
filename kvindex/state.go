package kvindex

import (
	"math/bits"

	"github.com/warmpath/warmpath/block"
)

// state says on which tiers and in which groups a holder has a block: four bits for each group, one for each tier.
// Flags are above these bits.
type state struct {
	named   uint64 // the tiers and groups on which the block was announced under the engine hash that names it
	covered uint64 // the tiers and groups on which points (records of other engine blocks) cover the block
}

const (
	possession = 1<<(4*MaxGroups) - 1 // the bits of all tiers and groups
	// known is a flag of state.named: for the holder, the block's engine hash names the block.
	known = 1 << 60
	// unnamed is a flag of state.named: the block is kept as a parent, but its hash means another block to the holder.
	unnamed = 1 << 61
	// pinned is a flag of state.covered, set only if covered has no other bit: points need the block, see holder.pins.
	pinned = 1 << 60
)

const allBits = 1<<64 - 1

// anyGroup has, for each group, the lowest of the group's four bits in state: the bit of the first tier.
const anyGroup = 0x0111111111111111

// held returns the tiers and groups on which the holder has the block.
func (s state) held() uint64 { return (s.named | s.covered) & possession }

func placeBit(tier block.Tier, group uint8) uint64 { return 1 << (4*uint64(group) + uint64(tier)) }

// placeOf returns the tier and the group of a bit in state.
func placeOf(bit uint64) (block.Tier, uint8) {
	i := bits.TrailingZeros64(bit)
	return block.Tier(i % 4), uint8(i / 4)
}

// anywhere returns the groups that have a block on some tier, as bits of the first tier.
func anywhere(mask uint64) uint64 { return (mask | mask>>1 | mask>>2 | mask>>3) & anyGroup }

// slowest returns the tier that limits a block: each group reads the block from its fastest tier, and slowest returns
// the slowest of these tiers. If no group has the block, it returns the first tier.
func slowest(mask uint64) uint8 {
	all, some := anywhere(mask), uint64(0)
	for tier := range uint8(block.NumTiers) {
		if some |= mask >> tier & anyGroup; some == all {
			return tier
		}
	}
	return 0
}

// tiersOf returns a bit for each tier on which some group has the block.
func tiersOf(held uint64) (tiers uint8) {
	for t := range block.NumTiers {
		if held&(anyGroup<<t) != 0 {
			tiers |= 1 << t
		}
	}
	return tiers
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
