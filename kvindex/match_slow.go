package kvindex

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// lookahead is how many keys are looked up at once: about as many cache misses as a processor has under way.
const lookahead = 16

// slowly is the answer where groups without full attention have a say: block by block, with tableMu held shared.
func (x *Index) slowly(m *matcher, keys []block.Key, dst []Match) []Match {
	x.tableMu.RLock()
	defer x.tableMu.RUnlock()
	first := len(dst)
	dst = x.begin(m, keys, dst)
	deepest := spot(0)
	for depth := 0; depth < len(keys) && len(m.cursors) > 0; {
		// Look some keys up at once: the processor then waits for their cache misses together.
		ahead := keys[depth:min(depth+lookahead, len(keys))]
		for i, key := range ahead {
			m.spots[i] = x.blocks.slots.get(key)
		}
		for _, at := range m.spots[:len(ahead)] {
			if len(m.cursors) == 0 {
				break
			}
			if at != 0 && !x.blocks.alive(at) {
				at = 0
			}
			x.step(m, at, depth, dst)
			depth++
			if len(m.cursors) > 0 && at != 0 {
				deepest = at
			}
		}
	}
	if deepest != 0 {
		x.blocks.use(deepest.strand(), x.tick())
	}
	return x.finish(m, dst, first)
}

// begin sets a cursor on every holder that may have something, and its Match.
func (x *Index) begin(m *matcher, keys []block.Key, dst []Match) []Match {
	m.cursors, m.rows, m.members = m.cursors[:0], 0, m.members[:0]
	if at := x.blocks.locate(keys[0]); at != 0 {
		m.members, _ = x.blocks.sets.load(x.blocks.setAt(at), m.members)
	}
	members, sparse := m.members, x.sparseHolders()
	for len(members) > 0 || len(sparse) > 0 {
		id := fleet.NoHolder
		if len(members) > 0 {
			id = min(id, members[0].holder())
		}
		if len(sparse) > 0 {
			id = min(id, sparse[0])
		}
		if len(members) > 0 && members[0].holder() == id {
			members = members[1:]
		}
		if len(sparse) > 0 && sparse[0] == id {
			sparse = sparse[1:]
		}
		if v := x.view(id); v != nil { // else it is being forgotten
			dst = m.enter(id, v, dst)
		}
	}
	m.clearMasks(len(keys))
	return dst
}

// enter sets a cursor on a holder.
func (m *matcher) enter(id fleet.Holder, v *view, dst []Match) []Match {
	c := cursor{holder: id, at: int32(len(dst)), row: -1, view: v, sure: v.full != 0, likely: true}
	r := Match{Holder: id}
	if !v.simple {
		c.row = int32(m.rows)
		r.Blocks = uint32(m.rows) // until its masks are weighed
		m.rows++
	}
	m.cursors = append(m.cursors, c)
	return append(dst, r)
}

// clearMasks makes a row of n masks for each cursor that needs one.
func (m *matcher) clearMasks(n int) {
	if n *= m.rows; cap(m.masks) < n {
		m.masks = make([]uint64, n)
	} else {
		m.masks = m.masks[:n]
		clear(m.masks)
	}
}

// step moves all cursors over one block and drops those whose runs have ended.
func (x *Index) step(m *matcher, at spot, depth int, dst []Match) {
	if at == 0 {
		m.set, m.members = 0, m.members[:0]
	} else if set := x.blocks.setAt(at); set != m.set || depth == 0 {
		m.members, _ = x.blocks.sets.load(set, m.members[:0])
		m.set = set
	}
	members, n := m.members, 0
	for i := range m.cursors {
		c := &m.cursors[i]
		var own claim
		members, own = seek(members, c.holder)
		mask := x.blocks.sets.mask(own.mask())
		guessed := own.belief() != 0 && x.blocks.beliefs.until(own.belief()) > m.now
		if !c.move(mask, guessed, 1, &dst[c.at]) {
			continue
		}
		if c.row >= 0 {
			m.masks[depth*m.rows+int(c.row)] = guess(mask, guessed)
		}
		if n != i {
			m.cursors[n] = *c
		}
		n++
	}
	m.cursors = m.cursors[:n]
}

// move takes n blocks of one mask and reports whether anything goes on.
func (c *cursor) move(mask uint64, guessed bool, n uint32, r *Match) bool {
	full := c.view.full
	if c.view.anyTier {
		// It is read from here, whatever was before; a cursor beyond all tiers has stopped.
		tier := slowest(mask)
		mask = anywhere(mask) << tier
		c.tier, c.guess = tier, tier
	}
	if c.sure {
		for c.tier < block.NumTiers && mask>>c.tier&full != full {
			c.tier++
		}
		if c.tier == block.NumTiers {
			c.sure = false
		} else {
			r.Full += n
			r.Tier[c.tier] += n
		}
	}
	if c.likely && !guessed {
		if full == 0 {
			// Without full attention no single block is needed, but something must be known at all.
			c.likely = len(c.view.groups) > 0
		}
		for full != 0 && c.guess < block.NumTiers && mask>>c.guess&full != full {
			c.guess++
		}
		c.likely = c.likely && c.guess < block.NumTiers
	}
	if c.likely && c.row < 0 {
		r.Speculative += n
	}
	return c.sure || c.likely
}
