package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// trail is the path of a request through the strands (runs of consecutive blocks), and the sets of holders on this
// path, each with its claim: the tiers and groups on which the holder has the blocks.
type trail struct {
	path  []visit
	runs  []run
	fixed bool // path and runs must not grow: their memory is on the stack
}

// visit is a strand on a request's path, as a reader saw it.
type visit struct {
	strand  *strand
	version uint32
}

// run is a number of consecutive blocks that the same set of holders has.
type run struct {
	set    setID
	blocks uint32
}

// matcher is the memory that the general match, matchSlowly, works in.
type matcher struct {
	trail
	sets    []reading // for each run, the members of its set
	members []member  // the holders for which a Match is computed
	own     []heldRun // the blocks of one holder
}

// reading is the stored members of a set, and how far claim has read them.
type reading struct {
	members []uint64
	next    int       // the index of the first member that is not read
	one     [1]uint64 // the memory of members, if the set has a single holder
}

// claim returns a holder's claim in the set, or 0 if the holder is not in the set. The holders of successive calls must
// ascend.
func (r *reading) claim(h fleet.Holder) claim {
	for ; r.next < len(r.members); r.next++ {
		if m := member(r.members[r.next]); m.holder() == h {
			return m.claim()
		} else if m.holder() > h {
			break
		}
	}
	return 0
}

// heldRun is a number of consecutive blocks that one holder has on the same tiers and in the same groups. held has a
// bit for each tier and group, as state has.
type heldRun struct {
	held   uint64
	blocks uint32
}

// patience is how often a reader retries if a writer changed strands while they were read. Then the reader takes the
// writers' lock. 16 failures in a row are next to impossible.
const patience = 16

// Match looks up a request with the given keys. It appends to dst one Match for each holder whose Blocks or Full is not
// 0, ascending by holder. It allocates nothing when dst has room.
func (x *Index) Match(keys []block.Key, dst []Match) []Match {
	if len(keys) == 0 {
		return dst
	}
	var path [6]visit
	var runs [12]run
	t := trail{path[:0], runs[:0], true}
	viewing, first := x.viewing.Load(), len(dst)
	t, ok := t.trace(&x.blocks, keys)
	if ok {
		dst, ok = x.sum(t, dst)
	}
	if ok && x.steady(t, viewing) {
		return dst
	}
	return x.matchSlowly(keys, dst[:first])
}

// matchSlowly is the general match, which computes one holder at a time. Match calls it if holders have several groups
// or tiers, if the path does not fit on the stack, or if the check of a version failed.
func (x *Index) matchSlowly(keys []block.Key, dst []Match) []Match {
	m := x.matchers.Get().(*matcher)
	defer x.matchers.Put(m)
	first := len(dst)
	for try := range patience + 1 {
		if try == patience {
			x.lock()
			defer x.unlock()
		}
		viewing, ok := x.viewing.Load(), false
		if m.trail, ok = m.trace(&x.blocks, keys); ok {
			dst, ok = x.weigh(m, dst[:first])
		}
		if ok && x.steady(m.trail, viewing) {
			break
		}
	}
	return dst
}

// trace finds the path to the deepest block of a request that is in the index, and the sets of holders of the blocks on
// this path. It reports false if a writer changed strands meanwhile, or if the path does not fit.
func (t trail) trace(b *blocks, keys []block.Key) (trail, bool) {
	t.path, t.runs = t.path[:0], t.runs[:0]
	for parent, depth := uint32(0), uint32(0); len(keys) > 0; {
		i, ok := b.head(parent, depth, keys[0], !t.fixed)
		if i == 0 || !ok {
			return t, ok
		}
		s := b.strands.At(i)
		if s == nil {
			return t, false
		}
		version := atomic.LoadUint32(&s.version)
		length := s.length()
		words, ok := s.run.Words()
		// A writer changes the strand's version and length before it frees keys. The version is unchanged, so words has at
		// least length keys.
		if !ok || version&1 != 0 || length == 0 || atomic.LoadUint32(&s.version) != version {
			return t, false
		}
		n := uint32(agree(words.Firsts(length), keys))
		if n == 0 || t.fixed && len(t.path) == cap(t.path) {
			return t, false
		}
		t.path = append(t.path, visit{s, version})
		if t.runs, ok = b.read(t.runs, s, n, t.fixed); !ok {
			return t, false
		}
		keys, parent, depth = keys[n:], i, depth+n
	}
	return t, true
}

// head returns the strand whose first block has the given key, whose parent strand is parent, and which has depth
// blocks of the chain before it. If parent is 0, the strand begins a chain. head returns 0 if there is no such strand.
// It reports false if a writer changed strands meanwhile. If compare is false, head compares only the key's hash, which
// saves a cache miss. If two keys have the same hash, head may then return the strand of the wrong key. Then trace
// finds no equal key and fails, and matchSlowly calls head with compare.
func (b *blocks) head(parent, depth uint32, key block.Key, compare bool) (uint32, bool) {
	h := b.heads.Hash(uint64(key))
	for v, p := b.heads.Find(h); v != 0; v, p = p.Next() {
		s := b.strands.At(uint32(v))
		if s == nil {
			return 0, false
		}
		if atomic.LoadUint32(&s.parent) != parent || atomic.LoadUint32(&s.depth) != depth {
			continue
		}
		words, ok := s.run.Words()
		if !ok {
			return 0, false
		}
		if !compare || atomic.LoadUint64(&words.Firsts(1)[0]) == uint64(key) {
			return uint32(v), true
		}
	}
	return 0, true
}

// read adds the segments of a strand's first n blocks to runs. It reports false if a writer changed the strand
// meanwhile, or if the segments do not fit.
func (b *blocks) read(runs []run, s *strand, n uint32, fixed bool) ([]run, bool) {
	words := b.segmentWords(s)
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

// steady reports whether nothing that a Match was computed from has changed: the strands of the path have the versions
// that trace read, and the views (what readers know of each holder) have the version viewing. If so, steady marks the
// path as used.
func (x *Index) steady(t trail, viewing uint64) bool {
	if viewing&1 != 0 || x.viewing.Load() != viewing {
		return false
	}
	for i := range t.path {
		if v := &t.path[i]; atomic.LoadUint32(&v.strand.version) != v.version {
			return false
		}
	}
	if n := len(t.path); n > 0 {
		t.path[n-1].strand.use(x.tick()) // the strands before it count as used with it: see blocks.free
	}
	return true
}

// sum computes the Matches in the usual case: all blocks are on the accelerator, and each holder has one group, of full
// attention. It makes a Match for each holder of the first run, and adds the next runs that the holder has without a
// gap. In other cases, or if a writer changed the sets meanwhile, it reports false.
func (x *Index) sum(t trail, dst []Match) ([]Match, bool) {
	first, done := len(dst), uint32(0)
	if x.special.Load() > 0 {
		return dst, false
	}
	for i, r := range t.runs {
		var one [1]uint64
		members, simple, ok := x.blocks.sets.listed(r.set, &one)
		if !ok || !simple {
			return dst, false
		}
		if i == 0 {
			dst = slices.Grow(dst, len(members))[:first+len(members)]
			done = r.blocks
			for k, to := 0, dst[first:]; k < len(members); k++ {
				id := fleet.Holder(members[k] >> claimBits)
				to[k] = Match{Holder: id, Blocks: done, Tier: [block.NumTiers]uint32{done}, Full: done}
			}
			continue
		}
		k, gone := 0, true
		for j := first; j < len(dst) && k < len(members); j++ {
			one := &dst[j]
			if one.Blocks < done {
				continue
			}
			id := fleet.Holder(members[k] >> claimBits)
			for k++; id < one.Holder && k < len(members); k++ {
				id = fleet.Holder(members[k] >> claimBits)
			}
			if id == one.Holder {
				n := done + r.blocks
				one.Blocks, one.Tier[0], one.Full = n, n, n
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

// weigh computes the Matches in the general case. It looks at the holders of the first run. If some holder has no
// full-attention group and so need not have the first block, weigh looks at the holders of all runs. It reports false
// if a writer changed strands or sets meanwhile.
func (x *Index) weigh(m *matcher, dst []Match) (_ []Match, ok bool) {
	m.members, m.sets = m.members[:0], slices.Grow(m.sets[:0], len(m.runs))[:len(m.runs)]
	for i, r := range m.runs {
		set := &m.sets[i]
		set.next = 0
		if set.members, _, ok = x.blocks.sets.listed(r.set, &set.one); !ok {
			return dst, false
		}
		if i == 0 || x.sparse.Load() > 0 {
			for k := range set.members {
				m.members = append(m.members, member(set.members[k]))
			}
		}
	}
	byHolder := func(p, q member) int { return int(p.holder()) - int(q.holder()) }
	slices.SortFunc(m.members, byHolder)
	m.members = slices.CompactFunc(m.members, func(p, q member) bool { return p.holder() == q.holder() })
	for _, one := range m.members {
		v := x.view(one.holder())
		if v == nil {
			continue // the holder is being forgotten
		}
		m.own = m.own[:0]
		for i, r := range m.runs {
			held, ok := x.blocks.sets.held(m.sets[i].claim(one.holder()))
			if !ok {
				return dst, false
			}
			if m.own = append(m.own, heldRun{held, r.blocks}); anywhere(held)&v.full != v.full {
				break // some full-attention group has no further blocks
			}
		}
		if r := v.match(m.own, x.size); r.Blocks != 0 || r.Full != 0 {
			r.Holder = one.holder()
			dst = append(dst, r)
		}
	}
	return dst, true
}

// match returns what a holder has of a request, given the runs of blocks that it has, without the holder's id.
func (v *view) match(own []heldRun, size uint32) (r Match) {
	if v.full != 0 {
		full := view{full: v.full, anyTier: v.anyTier}
		r.Full = full.usable(own, size, &r.Tier)
	}
	if r.Blocks = r.Full; len(v.groups) > 0 {
		r.Tier = [block.NumTiers]uint32{}
		if r.Blocks = 0; !v.unknown {
			r.Blocks = v.usable(own, size, &r.Tier)
		}
	}
	return r
}

// usable returns the longest length, in blocks, that all groups of a holder allow. It goes from tier to tier: where the
// blocks on one tier end, the next tier must have the following blocks. If the holder's engine loads from any tier in
// any order, all tiers count together. usable sets tiers to the number of blocks that the engine reads from each tier.
// size is the number of tokens of a block.
func (v *view) usable(own []heldRun, size uint32, tiers *[block.NumTiers]uint32) (length uint32) {
	for tier := range block.NumTiers {
		best, end := length, uint32(0)
		var inRow [MaxGroups + 1]uint32 // for each group, the number of blocks without a gap before the present position
		for _, r := range own {
			if end += r.blocks; end <= length {
				continue
			}
			mask := r.held >> tier
			if v.anyTier {
				mask = anywhere(r.held)
			}
			if mask&v.full != v.full {
				break
			}
			if len(v.groups) == 0 {
				best = end
				continue
			}
			for n := max(end-r.blocks, length) + 1; n <= end; n++ {
				if v.allows(mask, n-length, uint64(n)*uint64(size), &inRow) {
					best = n
				}
			}
		}
		tiers[tier] = best - length
		length = best
		if v.anyTier {
			break
		}
	}
	if v.anyTier {
		tiers[0] = 0
		end := uint32(0)
		for _, r := range own {
			n := min(r.blocks, length-end)
			tiers[slowest(r.held)] += n
			end += n
		}
	}
	return length
}

// allows reports whether all groups allow a match of the given number of tokens. The last fresh blocks of the match are
// on one tier, and mask has a bit for each group that has the last block there. allows adds this block to inRow, which
// counts for each group the blocks without a gap up to here.
func (v *view) allows(mask uint64, fresh uint32, tokens uint64, inRow *[MaxGroups + 1]uint32) bool {
	ok := true
	for g := range v.groups {
		l := &v.groups[g]
		inRow[g]++
		if mask>>(4*g)&1 == 0 {
			inRow[g] = 0
		}
		ok = ok && inRow[g] >= min(l.window, fresh) && tokens%l.unit == 0
	}
	return ok
}
