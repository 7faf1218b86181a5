package kvindextest

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

func (x *reference) match(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
	for id, h := range x.holders {
		x.compute(h)
		m := kvindex.Match{Holder: id}
		if len(keys) > 0 {
			var known bool
			question := asked{&keys[0], len(keys)}
			if m, known = h.asked[question]; !known {
				m.Holder = id
				x.measure(h, keys, &m)
				h.asked[question] = m
			}
		}
		if m.Blocks > 0 || m.Full > 0 {
			dst = append(dst, m)
		}
	}
	slices.SortFunc(dst, func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
	return dst
}

// question is the lookup of one prompt at one holder.
type question struct {
	x    *reference
	h    *refHolder
	keys []block.Key
	// rows says, for each tier and group, which of the keys the holder has. It is computed once, because each key is
	// looked up many times.
	rows [][]bool
}

func (x *reference) ask(h *refHolder, keys []block.Key) question {
	q := question{x: x, h: h, keys: keys, rows: make([][]bool, block.NumTiers*len(h.groups))}
	for at, held := range h.held {
		row := make([]bool, len(keys))
		for i, key := range keys {
			row[i] = held[key]
		}
		q.rows[int(at.tier)*len(h.groups)+at.group] = row
	}
	return q
}

func (x *reference) measure(h *refHolder, keys []block.Key, m *kvindex.Match) {
	q := x.ask(h, keys)
	if slices.ContainsFunc(h.groups, func(g refGroup) bool { return g.kind == block.AttentionFull }) {
		// n is the number of blocks that would match if the model had only the groups with full attention.
		n, tier := 0, block.Tier(0)
		for ; n < len(keys); n++ {
			for tier < block.NumTiers && !q.has(n, tier, block.AttentionFull) {
				tier++
			}
			if tier == block.NumTiers {
				break
			}
		}
		m.Full = uint32(n)
	}
	if !h.unprovable() && len(h.groups) > 0 && h.anyTier {
		n := q.longest(0, 0)
		for i := range n {
			m.Tier[q.slowest(i)]++
		}
		m.Blocks = uint32(n)
	} else if !h.unprovable() && len(h.groups) > 0 {
		n := 0
		for tier := range block.Tier(block.NumTiers) {
			best := q.longest(n, tier)
			m.Tier[tier] = uint32(best - n)
			n = best
		}
		m.Blocks = uint32(n)
	}
}

func (h *refHolder) unprovable() bool {
	return h.tooMany || slices.ContainsFunc(h.groups, refGroup.unprovable)
}

func (g refGroup) unprovable() bool {
	return g.kind > block.AttentionStateSpace || g.kind == block.AttentionSlidingWindow && g.window <= 0
}

// in reports whether a group has block i on a tier, or on some tier if the holder's engine loads from any tier in any
// order.
func (q *question) in(i int, tier block.Tier, g int) bool {
	if q.h.anyTier {
		return q.best(i, g) < block.NumTiers
	}
	return q.on(i, tier, g)
}

func (q *question) on(i int, tier block.Tier, g int) bool {
	row := q.rows[int(tier)*len(q.h.groups)+g]
	return row != nil && row[i]
}

// best returns the fastest tier on which a group has block i.
func (q *question) best(i, g int) (tier block.Tier) {
	for tier < block.NumTiers && !q.on(i, tier, g) {
		tier++
	}
	return tier
}

// slowest returns the tier that limits block i: each group that has the block reads it from the group's fastest tier,
// and slowest returns the slowest of these tiers.
func (q *question) slowest(i int) (tier block.Tier) {
	for g := range q.h.groups {
		if best := q.best(i, g); best < block.NumTiers {
			tier = max(tier, best)
		}
	}
	return tier
}

// has reports whether all groups of a kind have block i on a tier.
func (q *question) has(i int, tier block.Tier, kind block.Attention) bool {
	for g := range q.h.groups {
		if q.h.groups[g].kind == kind && !q.in(i, tier, g) {
			return false
		}
	}
	return true
}

// longest returns the greatest usable length if all blocks after the first from blocks must come from one tier.
func (q *question) longest(from int, tier block.Tier) int {
	best := from
	for n := from + 1; n <= len(q.keys); n++ {
		if q.usable(from, n, tier) {
			best = n
		}
	}
	return best
}

func (q *question) usable(from, n int, tier block.Tier) bool {
	size := q.x.hasher.Size()
	simple := len(q.h.groups) == 0 || len(q.h.groups) == 1 && q.h.groups[0].kind == block.AttentionFull
	all := func(lo, g int) bool { // blocks lo..n of group g
		for i := max(lo, from); i < n; i++ {
			if !q.in(i, tier, g) {
				return false
			}
		}
		return true
	}
	for g, gr := range q.h.groups {
		unit := max(gr.unit, 1)
		switch {
		case gr.kind == block.AttentionFull:
			if !all(from, g) {
				return false
			}
		case gr.kind == block.AttentionSlidingWindow:
			tokens := (gr.window - 1 + unit - 1) / unit * unit
			if !all(n-(tokens+size-1)/size, g) {
				return false
			}
		case gr.kind == block.AttentionStateSpace:
			if !all(n-1, g) {
				return false
			}
			unit = 1
		}
		if !simple && n*size%unit != 0 {
			return false
		}
	}
	return true
}
