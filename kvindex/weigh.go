package kvindex

import "github.com/warmpath/warmpath/block"

// weighGroups sets the usable lengths of a holder whose groups have a say, from the masks in its row.
func (x *Index) weighGroups(m *matcher, v *view, row int, r *Match) {
	r.Tier = [block.NumTiers]uint32{}
	column := m.masks[row:]
	r.Blocks = 0
	if !v.unknown {
		r.Blocks = x.usable(m, v, column, 0, &r.Tier)
	}
	var tiers [block.NumTiers]uint32
	r.Speculative = max(r.Blocks, x.usable(m, v, column, believed, &tiers))
}

// usable returns the longest length that all groups of a holder allow, tier after tier: from where one tier ends, the
// next must have what is missing; or from all tiers at once, if the holder's engine loads so. Masks that have a bit
// of wild count as present in all groups on all tiers.
func (x *Index) usable(m *matcher, v *view, column []uint64, wild uint64, tiers *[block.NumTiers]uint32) uint32 {
	length := uint32(0)
	n := uint32((len(column) + m.rows - 1) / m.rows)
	for tier := range block.NumTiers {
		best := length
		var runs [MaxGroups + 1]uint32
		for i := length; i < n; i++ {
			mask := column[int(i)*m.rows]
			any := mask&wild != 0
			if v.anyTier {
				mask = anywhere(mask)
			}
			if !any && mask>>tier&v.full != v.full {
				break
			}
			if v.allows(mask>>tier, any, i+1-length, uint64(i+1)*uint64(x.size), &runs) {
				best = i + 1
			}
		}
		tiers[tier] = best - length
		length = best
		if v.anyTier {
			tiers[tier] = 0
			for i := range length {
				tiers[slowest(column[int(i)*m.rows])]++
			}
			break
		}
	}
	return length
}

// anywhere returns the groups that have a block on some tier, as bits of the first tier.
func anywhere(mask uint64) uint64 { return (mask | mask>>1 | mask>>2 | mask>>3) & anyGroup }

// slowest returns the tier from which the last group of those that have a block gets it, each from its best; the
// first if none has it.
func slowest(mask uint64) uint8 {
	all, some := anywhere(mask), uint64(0)
	for tier := range uint8(block.NumTiers) {
		if some |= mask >> tier & anyGroup; some == all {
			return tier
		}
	}
	return 0
}

// allows reports whether a length is usable: fresh blocks were added on this tier, runs counts for each group how many
// of them in a row are there.
func (v *view) allows(mask uint64, any bool, fresh uint32, tokens uint64, runs *[MaxGroups + 1]uint32) bool {
	ok := true
	for g := range v.groups {
		l := &v.groups[g]
		if any || l.kind <= block.AttentionStateSpace && mask>>(4*g)&1 != 0 {
			runs[g]++
		} else {
			runs[g] = 0
		}
		switch l.kind {
		case block.AttentionFull:
		case block.AttentionSlidingWindow:
			ok = ok && runs[g] >= min(l.window, fresh)
		case block.AttentionStateSpace:
			ok = ok && runs[g] > 0
		default:
			ok = ok && runs[g] >= fresh // believed, all of them
		}
		ok = ok && tokens%l.unit == 0
	}
	return ok
}
