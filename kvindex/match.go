package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// trail is what a reader saw on the way of a request.
type trail struct {
	path  []visit
	runs  []run
	fixed bool // neither may grow: they are on the stack
}

// matcher is the scratch space of a Match that takes more than adding numbers up.
type matcher struct {
	trail
	now     int64
	members []member
	cursors []cursor
	masks   []uint64 // rows of one mask a block, for holders whose groups must be weighed
	rows    int
}

// visit is a strand on a request's path, as a reader saw it.
type visit struct {
	strand  *strand
	version uint32
	blocks  uint32 // of the strand that are on the path
}

// run is a number of blocks that the same set of holders has.
type run struct {
	set    setID
	blocks uint32
}

// cursor follows one holder along a request's blocks.
type cursor struct {
	holder fleet.Holder
	at     int32 // of its Match in the destination
	row    int32 // of its masks; -1: it needs none
	view   *view
	tier   uint8 // the tier from which the last confirmed block is read
	guess  uint8 // the same, counting speculative blocks, too
	sure   bool  // all blocks so far are confirmed (Full and Tier still grow)
	likely bool  // the same, counting speculative blocks, too (Speculative still grows)
}

// newMatcher returns a matcher with room for most requests, in one piece.
func newMatcher() *matcher {
	m := new(struct {
		matcher
		path    [16]visit
		runs    [16]run
		members [64]member
		cursors [64]cursor
	})
	m.matcher.trail = trail{m.path[:0], m.runs[:0], false}
	m.matcher.members, m.matcher.cursors = m.members[:0], m.cursors[:0]
	return &m.matcher
}

// believed marks a mask of a block that is believed on the holder; groups use the bits below.
const believed = 1 << 63

// keptMasks bounds the scratch space that is kept for the next Match: 64 holders with 2,048 blocks.
const keptMasks = 1 << 17

// patience is how often a reader retries when a writer changed what it read, before it locks writers out. So many
// failures in a row are next to impossible.
const patience = 16

// Match appends to dst what each holder has of a request with the given keys, one Match for every holder that has
// something, ascending by holder. now is in unix nanoseconds; speculative entries count until their time. It allocates
// nothing when dst has room.
func (x *Index) Match(keys []block.Key, now int64, dst []Match) []Match {
	if len(keys) == 0 {
		return dst
	}
	if x.blocks.beliefs.chunks.Load() != nil {
		x.notice(now)
	}
	var path [6]visit
	var runs [12]run
	if out, ok := x.quickly(trail{path[:0], runs[:0], true}, keys, dst); ok {
		return out
	}
	return x.slowly(keys, now, dst)
}

// quickly is Match for the common case: all blocks are on the accelerator, of holders with one group of full attention,
// and nothing is believed of them. It reports false when that is not so, or a writer changed something meanwhile.
func (x *Index) quickly(t trail, keys []block.Key, dst []Match) ([]Match, bool) {
	viewing, first := x.viewing.Load(), len(dst)
	t, ok := t.trace(&x.blocks, keys)
	if !ok || len(x.sparseHolders()) > 0 {
		return dst, false
	}
	n := len(t.path)
	if n == 0 {
		return dst, true
	}
	views := x.views.Load()
	if views == nil {
		return dst, false
	}
	dst, ok = x.sum(t, *views, dst)
	if !ok || viewing&1 != 0 || x.viewing.Load() != viewing || !t.steady() {
		return dst[:first], false
	}
	t.path[n-1].strand.use(x.tick()) // what is before it counts as used as recently: see evict
	return dst, true
}

// sum makes the Matches of the holders of the first run, and adds the runs that they have without a gap. It reports
// false when that is not all there is to know.
func (x *Index) sum(t trail, views []atomic.Pointer[view], dst []Match) ([]Match, bool) {
	first, done, states := len(dst), uint32(0), x.blocks.sets.all()
	for i, r := range t.runs {
		if r.set == 0 {
			break
		}
		var one [1]uint64
		members, simple := one[:], false
		if r.set&singleSet != 0 {
			m := r.set.single()
			one[0], simple = uint64(m), int(m.claim().state()) < len(states) && states[m.claim().state()].held() == 1
		} else {
			members, simple, _ = x.blocks.sets.listed(r.set)
		}
		if !simple {
			return dst, false
		}
		if i == 0 {
			dst = slices.Grow(dst, len(members))[:first+len(members)]
			if !openAll(dst[first:], members, views, r.blocks) {
				return dst, false
			}
			done = r.blocks
			continue
		}
		k, gone := 0, true
		for j := first; j < len(dst) && k < len(members); j++ {
			one := &dst[j]
			if one.Blocks < done {
				continue
			}
			id := fleet.Holder(atomic.LoadUint64(&members[k]) >> claimBits)
			for k++; id < one.Holder && k < len(members); k++ {
				id = fleet.Holder(atomic.LoadUint64(&members[k]) >> claimBits)
			}
			if id == one.Holder {
				n := done + r.blocks
				one.Blocks, one.Tier[0], one.Speculative, one.Full = n, n, n, n
				gone = false
			} else if id > one.Holder {
				k--
			}
		}
		if done += r.blocks; gone {
			break
		}
	}
	return dst, true
}

// openAll makes the Matches of members that have so many blocks. It reports false when one has groups, or is being
// forgotten.
func openAll(to []Match, members []uint64, views []atomic.Pointer[view], n uint32) bool {
	to = to[:len(members)]
	for k := range members {
		id := atomic.LoadUint64(&members[k]) >> claimBits
		if id >= uint64(len(views)) || views[id].Load() != fullView {
			return false
		}
		one := &to[k]
		one.Holder, one.Blocks = fleet.Holder(id), n
		one.Tier = [block.NumTiers]uint32{n}
		one.Speculative, one.Full = n, n
	}
	return true
}

// slowly is Match where groups, tiers or what is believed must be weighed, or where a writer disturbed the reader.
func (x *Index) slowly(keys []block.Key, now int64, dst []Match) []Match {
	m := x.matchers.Get().(*matcher)
	m.now = now
	first, ok := len(dst), false
	for range patience {
		if dst, ok = x.match(m, keys, dst[:first]); ok {
			break
		}
	}
	if !ok {
		x.lock()
		dst, _ = x.match(m, keys, dst[:first])
		x.unlock()
	}
	if cap(m.masks) > keptMasks {
		m.masks = nil
	}
	x.matchers.Put(m)
	return dst
}

// notice notes the time, by which entries expire.
func (x *Index) notice(now int64) {
	for {
		old := x.now.Load()
		if old >= now || x.now.CompareAndSwap(old, now) {
			return
		}
	}
}

// match answers without a lock: it reads the strands of a request's path from the root on, and makes sure that none of
// them has changed by the time it is done. It reports false when a writer changed something meanwhile.
func (x *Index) match(m *matcher, keys []block.Key, dst []Match) ([]Match, bool) {
	viewing, first := x.viewing.Load(), len(dst)
	t, ok := m.trace(&x.blocks, keys)
	m.trail = t
	if ok && len(m.path) > 0 {
		dst, ok = x.tally(m, dst)
	}
	if !ok || viewing&1 != 0 || x.viewing.Load() != viewing || !m.steady() {
		return dst, false
	}
	if n := len(m.path); n > 0 {
		m.path[n-1].strand.use(x.tick()) // what is before it counts as used as recently: see evict
	}
	return x.finish(m, dst, first), true
}

// trace finds the path of the deepest block of a request that is there, and the sets of its blocks' holders. It reports
// false when a writer was at it, or when the path does not fit.
func (t trail) trace(b *blocks, keys []block.Key) (trail, bool) {
	t.path, t.runs = t.path[:0], t.runs[:0]
	for parent, after := uint32(0), uint32(0); len(keys) > 0; {
		i, ok := b.head(parent, after, keys[0])
		if i == 0 || !ok {
			return t, ok
		}
		s := b.strands.At(i)
		if s == nil {
			return t, false
		}
		version := atomic.LoadUint32(&s.version)
		length := atomic.LoadUint32(&s.length)
		words, ok := s.run.Words()
		// Keys go after the strand's length and version have changed: there are as many as the length said.
		if !ok || version&1 != 0 || length == 0 || atomic.LoadUint32(&s.version) != version {
			return t, false
		}
		n := uint32(agree(words.Firsts(length), keys))
		if n == 0 || t.fixed && len(t.path) == cap(t.path) {
			return t, false
		}
		t.path = append(t.path, visit{s, version, n})
		if t.runs, ok = b.read(t.runs, s, n, t.fixed); !ok {
			return t, false
		}
		keys, parent, after = keys[n:], i, n-1
	}
	return t, true
}

// head returns the strand whose first block seems to have a key and follows a block of another strand, or begins a
// chain when that strand is 0. It reports false when a writer was at it.
func (b *blocks) head(parent, after uint32, key block.Key) (uint32, bool) {
	h := b.heads.Hash(uint64(key))
	p := b.heads.Find(h)
	for v := p.Next(); v != 0; v = p.Next() {
		s := b.strands.At(uint32(v))
		if s == nil {
			return 0, false
		}
		if atomic.LoadUint32(&s.parent) == parent && atomic.LoadUint32(&s.at)&strandOffset == after {
			return uint32(v), true
		}
	}
	return 0, true
}

// read adds the segments of a strand's first n blocks to runs. False means that a writer was at it, or that they do not
// fit.
func (b *blocks) read(runs []run, s *strand, n uint32, fixed bool) ([]run, bool) {
	words := s.segs[:]
	if more := atomic.LoadUint32(&s.more); more != 0 {
		if words = b.segments.At(more); words == nil {
			return runs, false
		}
		count := atomic.LoadUint64(&words[0])
		if count >= uint64(len(words)) {
			return runs, false
		}
		words = words[1 : 1+count]
	}
	from := uint32(0)
	for k := 0; k < len(words) && from < n; k++ {
		g := segmentOf(atomic.LoadUint64(&words[k]))
		end := min(g.end, n)
		if end <= from {
			continue
		}
		if last := len(runs) - 1; last >= 0 && runs[last].set == g.set {
			runs[last].blocks += end - from
		} else {
			if fixed && len(runs) == cap(runs) {
				return runs, false
			}
			runs = append(runs, run{g.set, end - from})
		}
		from = end
	}
	return runs, from == n
}

// steady reports whether all that the path was read from is as it was.
func (t trail) steady() bool {
	for i := range t.path {
		if v := &t.path[i]; atomic.LoadUint32(&v.strand.version) != v.version {
			return false
		}
	}
	return true
}

// tally counts how many blocks of the runs each holder has: the holders of the first run, and the holders that need not
// have the first block.
func (x *Index) tally(m *matcher, dst []Match) (_ []Match, ok bool) {
	views, depth := x.views.Load(), 0
	for _, r := range m.runs {
		depth += int(r.blocks)
	}
	m.cursors, m.rows, m.members = m.cursors[:0], 0, m.members[:0]
	if m.members, ok = x.blocks.sets.load(m.runs[0].set, m.members); !ok || views == nil {
		return dst, false
	}
	members, sparse := m.members, x.sparseHolders()
	for len(members) > 0 || len(sparse) > 0 {
		id := fleet.NoHolder
		if len(members) > 0 {
			id = members[0].holder()
		}
		if len(sparse) > 0 && sparse[0] <= id {
			if sparse[0] == id {
				members = members[1:]
			}
			id, sparse = sparse[0], sparse[1:]
		} else {
			members = members[1:]
		}
		if int(id) >= len(*views) {
			return dst, false
		}
		if v := (*views)[id].Load(); v != nil { // else it is being forgotten
			dst = m.enter(id, v, dst)
		}
	}
	if m.rows > 0 {
		m.clearMasks(depth)
	}
	done := 0
	for i, r := range m.runs {
		if len(m.cursors) == 0 {
			break
		}
		if i > 0 {
			if m.members, ok = x.blocks.sets.load(r.set, m.members[:0]); !ok {
				return dst, false
			}
		}
		if !m.advance(x, r, done, dst) {
			return dst, false
		}
		done += int(r.blocks)
	}
	return dst, true
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

// advance moves all cursors over a run, which begins after done blocks, and drops the cursors whose own runs have
// ended.
func (m *matcher) advance(x *Index, r run, done int, dst []Match) bool {
	members, n := m.members, 0
	all := x.blocks.sets.all()
	for i := range m.cursors {
		c := &m.cursors[i]
		for len(members) > 0 && members[0].holder() < c.holder {
			members = members[1:]
		}
		var own claim
		if len(members) > 0 && members[0].holder() == c.holder {
			own = members[0].claim()
		}
		if int(own.state()) >= len(all) {
			return false
		}
		held := all[own.state()].held()
		guessed := own.belief() != 0 && x.blocks.beliefs.until(own.belief()) > m.now
		if !c.move(held, guessed, r.blocks, &dst[c.at]) {
			continue
		}
		if c.row >= 0 {
			mask := held
			if guessed {
				mask |= believed
			}
			for k := done; k < done+int(r.blocks); k++ {
				m.masks[k*m.rows+int(c.row)] = mask
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

// move takes n blocks that are held in one way, and reports whether anything goes on.
func (c *cursor) move(held uint64, guessed bool, n uint32, r *Match) bool {
	full := c.view.full
	if c.view.anyTier {
		// It is read from here, whatever was before; a cursor beyond all tiers has stopped.
		tier := slowest(held)
		held = anywhere(held) << tier
		c.tier, c.guess = tier, tier
	}
	if c.sure {
		for c.tier < block.NumTiers && held>>c.tier&full != full {
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
		for full != 0 && c.guess < block.NumTiers && held>>c.guess&full != full {
			c.guess++
		}
		c.likely = c.likely && c.guess < block.NumTiers
	}
	if c.likely && c.row < 0 {
		r.Speculative += n
	}
	return c.sure || c.likely
}

// finish weighs the groups of holders that have groups, and leaves out holders without a match.
func (x *Index) finish(m *matcher, dst []Match, first int) []Match {
	n := first
	for i := first; i < len(dst); i++ {
		r := &dst[i]
		switch v := x.view(r.Holder); {
		case v == nil:
			continue
		case v.simple:
			r.Blocks = r.Full
			r.Speculative = max(r.Speculative, r.Blocks)
		default:
			x.weighGroups(m, v, int(r.Blocks), r)
		}
		if r.Blocks != 0 || r.Speculative != 0 || r.Full != 0 {
			if n != i {
				dst[n] = *r
			}
			n++
		}
	}
	return dst[:n]
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

// slowest returns the slowest tier among the best tiers of the groups that have a block; the first tier if no group has
// it.
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
