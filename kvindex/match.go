package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// cursor follows one holder along a request's blocks.
type cursor struct {
	holder fleet.Holder
	at     int32 // of its Match in the destination
	row    int32 // of its masks; -1: it needs none
	view   *view
	member uint32
	tier   uint8 // confirmed blocks are now read from here
	guess  uint8 // the same if what is believed counts
	sure   bool  // the confirmed run goes on
	likely bool  // the run that counts what is believed goes on
}

// matcher is the scratch space of one Match.
type matcher struct {
	cursors []cursor
	masks   []uint64 // rows of one mask a block, for holders whose groups must be weighed
	rows    int
	now     int64

	entries [lookahead]uint32
	lists   [lookahead][2]uint32 // of holders: those that have a block and those that are believed to
	sum     uint64               // of what is read only to have it in cache
}

// lookahead is how many keys are looked up at once: about as many cache misses as a processor has under way.
const lookahead = 16

// believed marks a mask of a block that is believed on the holder; groups use the bits below.
const believed = 1 << 63

// keptMasks bounds the scratch space that is kept for the next Match: 64 holders with 2,048 blocks.
const keptMasks = 1 << 17

// Match appends to dst what each holder has of a request with the given keys, one Match for every holder that has
// something, ascending by holder. now is in unix nanoseconds; speculative entries count until their time. It allocates
// nothing when dst has room.
func (x *Index) Match(keys []block.Key, now int64, dst []Match) []Match {
	if len(keys) == 0 {
		return dst
	}
	x.clock.Add(1)
	for {
		old := x.now.Load()
		if old >= now || x.now.CompareAndSwap(old, now) {
			break
		}
	}
	m := x.matchers.Get().(*matcher)
	m.now = now
	first := len(dst)
	x.tableMu.RLock()
	dst = x.match(m, keys, dst)
	x.tableMu.RUnlock()
	if cap(m.masks) > keptMasks {
		m.masks = nil
	}
	x.matchers.Put(m)

	// Keep those that have something.
	n := first
	for i := first; i < len(dst); i++ {
		if r := &dst[i]; r.Blocks != 0 || r.Speculative != 0 || r.Full != 0 {
			dst[n] = *r
			n++
		}
	}
	return dst[:n]
}

func (x *Index) match(m *matcher, keys []block.Key, dst []Match) []Match {
	first := len(dst)
	dst = x.begin(m, keys, dst)
	deepest := uint32(0)
	for depth := 0; depth < len(keys) && len(m.cursors) > 0; {
		// Look some keys up at once: the processor then waits for their cache misses together.
		ahead := keys[depth:min(depth+lookahead, len(keys))]
		for i, key := range ahead {
			m.entries[i] = x.keys.get(uint64(key))
		}
		for i := range ahead {
			m.lists[i] = [2]uint32{}
			if e := m.entries[i]; e != 0 {
				en := x.entries.at(e)
				m.lists[i] = [2]uint32{en.members, en.specs}
			}
		}
		for i := range ahead {
			if member := m.lists[i][0]; member != 0 {
				m.sum += x.members.at(member).mask
			}
		}
		for i := range ahead {
			if len(m.cursors) == 0 {
				break
			}
			x.step(m, m.lists[i], depth, dst)
			depth++
			if len(m.cursors) > 0 && m.entries[i] != 0 {
				deepest = m.entries[i]
			}
		}
	}
	if deepest != 0 {
		// What is before it counts as used as recently: see inherit.
		atomic.StoreUint32(&x.entries.at(deepest).used, x.tick())
	}
	for i := first; i < len(dst); i++ {
		r := &dst[i]
		v := x.views[r.Holder]
		if !v.simple {
			x.weighGroups(m, v, int(r.Blocks), r)
		} else {
			r.Blocks = r.Full
			r.Speculative = max(r.Speculative, r.Blocks)
		}
		if v.bigram {
			r.shorten()
		}
	}
	return dst
}

// begin sets a cursor on every holder that may have something, and its Match.
func (x *Index) begin(m *matcher, keys []block.Key, dst []Match) []Match {
	m.cursors, m.rows = m.cursors[:0], 0
	var member, spec uint32
	if e := x.keys.get(uint64(keys[0])); e != 0 {
		member, spec = x.entries.at(e).members, x.entries.at(e).specs
	}
	sparse := x.sparse
	for member != 0 || spec != 0 || len(sparse) > 0 {
		id := fleet.NoHolder
		if member != 0 {
			id = min(id, x.members.at(member).holder)
		}
		if spec != 0 {
			id = min(id, x.specs.at(spec).holder)
		}
		if len(sparse) > 0 {
			id = min(id, sparse[0])
		}
		if member != 0 && x.members.at(member).holder == id {
			member = x.members.at(member).next
		}
		if spec != 0 && x.specs.at(spec).holder == id {
			spec = x.specs.at(spec).next
		}
		if len(sparse) > 0 && sparse[0] == id {
			sparse = sparse[1:]
		}
		v := x.views[id]
		if v == nil {
			continue // being forgotten
		}
		c := cursor{holder: id, at: int32(len(dst)), row: -1, view: v, sure: v.full != 0, likely: true}
		r := Match{Holder: id}
		if !v.simple {
			c.row = int32(m.rows)
			r.Blocks = uint32(m.rows) // until its masks are weighed
			m.rows++
		}
		m.cursors = append(m.cursors, c)
		dst = append(dst, r)
	}
	if n := m.rows * len(keys); cap(m.masks) < n {
		m.masks = make([]uint64, n)
	} else {
		m.masks = m.masks[:n]
		clear(m.masks)
	}
	return dst
}

// step moves all cursors over one block and drops those whose runs have ended. lists are the block's.
func (x *Index) step(m *matcher, lists [2]uint32, depth int, dst []Match) {
	member, spec := lists[0], lists[1]
	n := 0
	for i := range m.cursors {
		c := &m.cursors[i]
		for member != 0 && x.members.at(member).holder < c.holder {
			member = x.members.at(member).next
		}
		for spec != 0 && x.specs.at(spec).holder < c.holder {
			spec = x.specs.at(spec).next
		}
		var mask uint64
		if member != 0 && x.members.at(member).holder == c.holder {
			mask = x.members.at(member).mask
		}
		guessed := spec != 0 && x.specs.at(spec).holder == c.holder && x.specs.at(spec).until > m.now
		if !c.move(mask, guessed, &dst[c.at]) {
			continue
		}
		if c.row >= 0 {
			if guessed {
				mask |= believed
			}
			m.masks[depth*m.rows+int(c.row)] = mask
		}
		if n != i {
			m.cursors[n] = *c
		}
		n++
	}
	m.cursors = m.cursors[:n]
}

// move takes one block and reports whether anything goes on.
func (c *cursor) move(mask uint64, guessed bool, r *Match) bool {
	full := c.view.full
	if c.sure {
		for c.tier < block.NumTiers && mask>>c.tier&full != full {
			c.tier++
		}
		if c.tier == block.NumTiers {
			c.sure = false
		} else {
			r.Full++
			r.Tier[c.tier]++
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
		r.Speculative++
	}
	return c.sure || c.likely
}

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
// next must have what is missing. Masks that have a bit of wild count as present in all groups on all tiers.
func (x *Index) usable(m *matcher, v *view, column []uint64, wild uint64, tiers *[block.NumTiers]uint32) uint32 {
	length := uint32(0)
	n := uint32((len(column) + m.rows - 1) / m.rows)
	for tier := range block.NumTiers {
		best := length
		var runs [MaxGroups + 1]uint32
		for i := length; i < n; i++ {
			mask := column[int(i)*m.rows]
			any := mask&wild != 0
			if !any && mask>>tier&v.full != v.full {
				break
			}
			if v.allows(mask>>tier, any, i+1-length, uint64(i+1)*uint64(x.size), &runs) {
				best = i + 1
			}
		}
		tiers[tier] = best - length
		length = best
	}
	return length
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

// shorten takes the last block off: an EAGLE engine's hash of it covers one token more than it holds.
func (r *Match) shorten() {
	for t := block.NumTiers - 1; t >= 0 && r.Blocks > 0; t-- {
		if r.Tier[t] > 0 {
			r.Tier[t]--
			r.Blocks--
			break
		}
	}
	if r.Full > 0 {
		r.Full--
	}
	if r.Speculative > 0 {
		r.Speculative--
	}
}
