package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// count is tally for the common case: everything is on the accelerator, of holders with one group of full attention. It
// reports false for simple when something is not.
func (x *Index) count(m *matcher, dst []Match) (out []Match, simple, ok bool) {
	first := len(dst)
	views := x.views.Load()
	if views == nil {
		return dst, false, true
	}
	m.rows = 0
	for i, r := range m.runs {
		if i > 0 {
			if m.members, ok = x.blocks.sets.load(r.set, m.members[:0]); !ok {
				return dst, false, false
			}
			if simple = m.follow(x, r.blocks, dst); !simple {
				return dst, false, true
			}
			if len(m.going) == 0 {
				break
			}
			continue
		}
		if dst, simple, ok = x.openSet(r.set, r.blocks, m.now, *views, dst); !simple {
			return dst, false, ok
		}
		m.going = m.going[:0]
		if len(m.runs) > 1 {
			for k := first; k < len(dst); k++ {
				m.going = append(m.going, int32(k))
			}
		}
	}
	return dst, true, true
}

// openSet makes the Matches of the holders in the set of a request's first run. It reports false for simple when one
// has something of it that is not plain.
func (x *Index) openSet(set setID, blocks uint32, now int64, all []atomic.Pointer[view], dst []Match) (out []Match, simple, ok bool) {
	if set&singleSet != 0 {
		dst, simple = x.openOne(set.single(), blocks, now, all, dst)
		return dst, simple, true
	}
	if set == 0 {
		return dst, true, true
	}
	members, plain, ok := x.blocks.sets.listed(set)
	if !ok {
		return dst, false, false
	}
	if plain && x.special.Load() == 0 {
		first := len(dst)
		dst = slices.Grow(dst, len(members))[:first+len(members)]
		openAll(dst[first:], members, blocks)
		return dst, true, true
	}
	dst, simple = x.open(members, blocks, now, all, dst)
	return dst, simple, true
}

// open is openSet for the members of a set as they lie.
func (x *Index) open(members []uint64, blocks uint32, now int64, all []atomic.Pointer[view], dst []Match) ([]Match, bool) {
	first := len(dst)
	dst = slices.Grow(dst, len(members))[:first+len(members)]
	if n := openPlain(dst[first:], members, all, blocks); n < len(members) {
		return x.openRest(members[n:], blocks, now, all, dst[:first+n])
	}
	return dst, true
}

// openAll makes the Matches of the members of a plain set. Where many holders have a prefix this loop is much of what
// a lookup takes: it and the next are functions of their own to have all in registers, and halves of a word are
// stored together.
//
//go:noinline
func openAll(to []Match, members []uint64, blocks uint32) {
	both := uint64(blocks)<<32 | uint64(blocks)
	to = to[:len(members)]
	for i := range members {
		to[i].fill(atomic.LoadUint64(&members[i])>>claimBits, both)
	}
}

// fill makes it that of a holder that has all blocks on the accelerator. Their number is in both halves of a word.
func (r *Match) fill(id, both uint64) {
	head := both&^(1<<32-1) | id
	r.Holder, r.Blocks = fleet.Holder(uint32(head)), uint32(head>>32)
	r.Tier = [block.NumTiers]uint32{uint32(both)}
	r.Speculative, r.Full = uint32(both), uint32(both>>32)
}

// openPlain makes the Matches of those members before the first one of which something is not plain, and returns how
// many.
//
//go:noinline
func openPlain(to []Match, members []uint64, all []atomic.Pointer[view], blocks uint32) int {
	both := uint64(blocks)<<32 | uint64(blocks)
	to = to[:len(members)]
	for i := range members {
		member := atomic.LoadUint64(&members[i])
		if !setMember(member).claim().plain() {
			return i
		}
		id := uint(member >> claimBits)
		if id >= uint(len(all)) {
			return i
		}
		if all[id].Load() != plainView {
			return i
		}
		to[i].fill(uint64(id), both)
	}
	return len(members)
}

// openRest is open where not all is plain.
func (x *Index) openRest(members []uint64, blocks uint32, now int64, all []atomic.Pointer[view], dst []Match) ([]Match, bool) {
	simple := true
	for i := 0; i < len(members) && simple; i++ {
		dst, simple = x.openOne(setMember(atomic.LoadUint64(&members[i])), blocks, now, all, dst)
	}
	return dst, simple
}

// openOne is openSet for one holder.
func (x *Index) openOne(member setMember, blocks uint32, now int64, all []atomic.Pointer[view], dst []Match) ([]Match, bool) {
	id, c := uint(member.holder()), member.claim()
	if id >= uint(len(all)) || all[id].Load() != plainView {
		return dst, false
	}
	switch {
	case claim(c.mask()).plain():
		n := len(dst)
		dst = slices.Grow(dst, 1)[:n+1]
		dst[n].fill(uint64(id), uint64(blocks)<<32|uint64(blocks))
		return dst, true
	case c.mask() != 0 && c.mask() != bareMask:
		return dst, false
	case x.blocks.beliefs.until(c.belief()) > now:
		dst = append(dst, Match{Holder: fleet.Holder(id), Speculative: blocks})
	}
	return dst, true
}

// follow adds blocks of a run, whose set is in m.members, to those holders that have all before it or are believed
// to. It reports false when one has something of it that is not plain.
func (m *matcher) follow(x *Index, blocks uint32, dst []Match) bool {
	members, n := m.members, 0
	for _, k := range m.going {
		r := &dst[k]
		for len(members) > 0 && members[0].holder() < r.Holder {
			members = members[1:]
		}
		if len(members) == 0 {
			break
		}
		if members[0].holder() != r.Holder {
			continue
		}
		switch c := members[0].claim(); {
		case claim(c.mask()).plain():
			if r.Blocks == r.Speculative { // all so far is confirmed
				r.Blocks += blocks
				r.Full += blocks
				r.Tier[0] += blocks
			}
		case c.mask() != 0 && c.mask() != bareMask:
			return false
		case x.blocks.beliefs.until(c.belief()) <= m.now:
			continue
		}
		r.Speculative += blocks
		m.going[n] = k
		n++
	}
	m.going = m.going[:n]
	return true
}

// tally counts what each holder of the first run has.
func (x *Index) tally(m *matcher, depth int, dst []Match) ([]Match, bool) {
	m.cursors, m.rows = m.cursors[:0], 0
	done := 0
	for i, r := range m.runs {
		if i > 0 && len(m.cursors) == 0 {
			break
		}
		var ok bool
		if m.members, ok = x.blocks.sets.load(r.set, m.members[:0]); !ok {
			return dst, false
		}
		if i == 0 {
			for _, member := range m.members {
				if v := x.view(member.holder()); v != nil {
					dst = m.enter(member.holder(), v, dst)
				}
			}
			if m.rows > 0 {
				m.clearMasks(depth)
			}
		}
		if !m.advance(x, r, done, dst) {
			return dst, false
		}
		done += int(r.blocks)
	}
	return dst, true
}

// advance moves all cursors over a run, which begins after done blocks, and drops those whose own runs have ended.
func (m *matcher) advance(x *Index, r run, done int, dst []Match) bool {
	members, n := m.members, 0
	all := x.blocks.sets.all()
	for i := range m.cursors {
		c := &m.cursors[i]
		var own claim
		if members, own = seek(members, c.holder); int(own.mask()) >= len(all) {
			return false
		}
		mask := all[own.mask()]
		guessed := own.belief() != 0 && x.blocks.beliefs.until(own.belief()) > m.now
		if !c.move(mask, guessed, r.blocks, &dst[c.at]) {
			continue
		}
		if c.row >= 0 {
			for k := done; k < done+int(r.blocks); k++ {
				m.masks[k*m.rows+int(c.row)] = guess(mask, guessed)
			}
		}
		if n != i {
			m.cursors[n] = *c
		}
		n++
	}
	m.cursors = m.cursors[:n]
	return true
}
