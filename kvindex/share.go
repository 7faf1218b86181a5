package kvindex

// compareShares finds the holders that exceed their fair share, which is the budget divided by the number of holders.
// Each part of the index is charged to its users in proportion. So the charges add up to all memory, and a holder
// that fills a part which others hardly use pays for that part. A block counts in full for each holder that has it.
// Some of the budget cannot be used, so perhaps no holder exceeds its share: then the holders with about the highest
// charge count as exceeding it. It returns the excess of all these holders, in blocks.
func (x *Index) compareShares() (excess int64) {
	b := &x.blocks
	var claims, begun, extra int64
	for _, h := range x.holders {
		if h != nil {
			claims, begun, extra = claims+h.claims, begun+b.begunBy(h), extra+h.extra
		}
	}
	each := func(bytes, n int64) float64 { return float64(bytes) / float64(max(n, 1)) }
	aClaim := each(b.slots.bytes()+b.names.bytes()+b.runs.bytes()+b.sets.bytes()+b.beliefs.bytes()+copyBytes*int64(len(x.copies)), claims)
	aStrand := each(b.strands.bytes()+b.roots.bytes()+floatBytes*int64(len(b.floats)), begun)
	aPoint := each(x.points.bytes()+x.records.bytes()+x.handles.bytes()+x.queued.bytes()+x.waiters.bytes(), int64(x.points.live()))
	anExtra := each(x.extras.bytes()+x.extraBytes+x.covers.bytes()+x.parts.bytes(), extra)
	all, most := 0.0, 0.0
	for _, h := range x.holders {
		if h != nil {
			h.weight = aClaim*float64(h.claims) + aStrand*float64(b.begunBy(h)) + aPoint*float64(h.handles) + anExtra*float64(h.extra)
			all, most = all+h.weight, max(most, h.weight)
		}
	}
	known := float64(max(x.known, 1))
	share, over := float64(x.config.Bytes)/known, 0.0
	if most <= share {
		share = most * aboutMost
	}
	for _, h := range x.holders {
		if h != nil {
			h.over = h.weight > share
			h.quota = 0
			if excess := h.weight - share; h.over {
				over += excess
				h.quota = int64(excess/h.weight*float64(h.claims)) + h.claims/64 + 1
			}
		}
	}
	b.steps += 3 * uint64(len(x.holders))
	if all == 0 {
		return 0
	}
	return int64(over / all * float64(b.held))
}

// aboutMost is the fraction of the highest charge from which on a holder's charge is about the highest. A fraction
// closer to 1 would let a single holder pay for all; a smaller one would charge holders with much less than a share.
const aboutMost = 0.97

// spares reports whether a set has a holder at or below its share: the set's blocks stay while others can go.
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
