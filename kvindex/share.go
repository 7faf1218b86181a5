package kvindex

// usage is what a holder makes the index keep. A block counts in full for each holder that has it.
type usage struct {
	claims  int64 // blocks that the holder has, knows by name, or is believed to have
	strands int64 // that it began
	points  int64
	extra   int64 // bytes beside its points
}

// What the parts of a usage weigh, in bytes, with the slots of tables that are three quarters full.
const (
	claimBytes = 48  // a slot and a name
	beginBytes = 192 // a strand and a root
	pointBytes = 96  // a point, its record, and its slot in handles
)

func (u *usage) weight() int64 {
	return u.claims*claimBytes + u.strands*beginBytes + u.points*pointBytes + u.extra
}

// usage returns what a holder makes the index keep.
func (x *Index) usage(h *holder) usage {
	return usage{claims: h.claims, strands: x.blocks.begunBy(h), points: h.handles, extra: h.extra}
}

// compareShares finds the holders that exceed their fair share: of all that is kept, as much as any other holder's. One
// exceeds it unless all have the same. It returns how many blocks are as much as they have in excess.
func (x *Index) compareShares() (excess int64) {
	all := int64(0)
	for _, h := range x.holders {
		if h != nil {
			u := x.usage(h)
			h.weight = u.weight()
			all += h.weight
		}
	}
	share := all / int64(max(x.known, 1))
	for _, h := range x.holders {
		if h != nil {
			h.over = h.weight > share
			excess += max(0, h.weight-share)
		}
	}
	x.blocks.steps += 2 * uint64(len(x.holders))
	if all == 0 {
		return 0
	}
	return int64(float64(excess) / float64(all) * float64(x.blocks.held))
}

// spares reports whether a set has a holder that does not exceed its share: its blocks stay while others can go.
func (x *Index) spares(set setID) bool {
	if set == 0 {
		return false
	}
	if set&singleSet != 0 {
		return !x.holders[set.single().holder()].over
	}
	for _, w := range x.blocks.sets.run(set) {
		if x.blocks.steps++; !x.holders[setMember(w).holder()].over {
			return true
		}
	}
	return false
}
