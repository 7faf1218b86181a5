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

	leaf    probe // where the path was found
	path    []visit
	runs    []run
	members []setMember
	going   []int32 // places in the destination of holders whose runs go on
	set     setID   // whose members are in members
	spots   [lookahead]spot
	simple  bool // every Match has something, and nothing of it need be weighed
	wary    bool // a dead slot was met: every slot is looked at twice
}

// newMatcher returns a matcher with room for most requests, in one piece.
func newMatcher() *matcher {
	m := new(struct {
		matcher
		path    [16]visit
		runs    [16]run
		members [64]setMember
		going   [64]int32
	})
	m.matcher.path, m.matcher.runs = m.path[:0], m.runs[:0]
	m.matcher.members, m.matcher.going = m.members[:0], m.going[:0]
	return &m.matcher
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

// believed marks a mask of a block that is believed on the holder; groups use the bits below.
const believed = 1 << 63

// guess adds to a mask what is believed.
func guess(mask uint64, guessed bool) uint64 {
	if guessed {
		return mask | believed
	}
	return mask
}

// keptMasks bounds the scratch space that is kept for the next Match: 64 holders with 2,048 blocks.
const keptMasks = 1 << 17

// patience is how often a reader looks again when a writer changed what it read, before it asks for a moment without
// writers. The first time is the exception; so many in a row are next to impossible.
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
	n, last := len(keys), probe{at: -1}
	if len(x.sparseHolders()) == 0 {
		if !x.blocks.mayBegin(keys[0]) {
			return dst
		}
		if last = x.blocks.slots.find(keys[n-1]); last.at < 0 {
			if n, last = x.blocks.search(keys[:n-1], false); n == 0 {
				return dst
			}
		}
		if out, ok := x.one(&last, n, now, dst); ok {
			return out
		}
	}
	return x.gather(keys, n, &last, now, dst)
}

// gather is Match where it takes more than a look at one strand. last is where the n-th key was found, after which
// nothing is there; -1: it was not looked for.
func (x *Index) gather(keys []block.Key, n int, last *probe, now int64, dst []Match) []Match {
	m := x.matchers.Get().(*matcher)
	m.now = now
	first := len(dst)
	outcome := torn
	for range patience {
		if dst, outcome = x.match(m, keys[:n], last, dst[:first]); outcome != torn {
			break
		}
		*last = x.blocks.slots.find(keys[n-1])
	}
	if outcome != whole {
		dst = x.slowly(m, keys, dst[:first])
	}
	if cap(m.masks) > keptMasks {
		m.masks = nil
	}
	simple := m.simple && outcome == whole
	x.matchers.Put(m)
	if simple {
		return dst
	}
	// Keep those that have something.
	n = first
	for i := first; i < len(dst); i++ {
		if r := &dst[i]; r.Blocks != 0 || r.Speculative != 0 || r.Full != 0 {
			if n != i {
				dst[n] = *r
			}
			n++
		}
	}
	return dst[:n]
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

// outcome tells what a look without a lock was worth.
type outcome uint8

const (
	whole outcome = iota // the answer is of one moment
	torn                 // a writer changed what was read
	slow                 // it takes more than looking at the path
)

// one answers the commonest of requests without a lock: what is there of it, n blocks, is on one strand, where the
// last was found, one set has all of them, and nothing of it need be weighed. False means that it is not so, or that
// a writer was at it.
func (x *Index) one(last *probe, n int, now int64, dst []Match) ([]Match, bool) {
	b, viewing, views := &x.blocks, x.viewing.Load(), x.views.Load()
	s := b.strands.at(last.spot.strand())
	if s == nil || views == nil || int(last.spot.offset())+1 != n {
		return dst, false
	}
	version := atomic.LoadUint32(&s.version)
	g := segmentOf(atomic.LoadUint64(&s.segs[0]))
	if version&1 != 0 || atomic.LoadUint32(&s.parent) != 0 || atomic.LoadUint32(&s.more) != 0 ||
		int(g.end) < n || int(atomic.LoadUint32(&s.length)) < n {
		return dst, false
	}
	out, simple, _ := x.openSet(g.set, uint32(n), now, *views, dst)
	if !simple || viewing&1 != 0 || x.viewing.Load() != viewing || atomic.LoadUint32(&s.version) != version || !b.slots.still(last) {
		return dst, false
	}
	if tick := x.tick(); atomic.LoadUint32(&s.used) != tick {
		atomic.StoreUint32(&s.used, tick)
	}
	return out, true
}

// match answers without a lock. It finds the deepest block of the request that is there, reads the strands from there
// up to the root, and makes sure that none of them has changed by the time it is done. last is where the last was
// found.
func (x *Index) match(m *matcher, keys []block.Key, last *probe, dst []Match) ([]Match, outcome) {
	viewing := x.viewing.Load()
	if len(x.sparseHolders()) > 0 {
		return dst, slow
	}
	depth, ok := x.trace(m, keys, last)
	if !ok {
		return dst, torn
	}
	if depth == 0 {
		m.simple = true
		return dst, whole
	}
	if !m.read(&x.blocks) {
		return dst, torn
	}
	first := len(dst)
	dst, simple, ok := x.count(m, dst)
	m.simple = simple
	if !ok {
		return dst, torn
	}
	if !simple {
		if dst, ok = x.tally(m, depth, dst[:first]); !ok {
			return dst, torn
		}
	}
	if viewing&1 != 0 || x.viewing.Load() != viewing || !m.steady(&x.blocks) {
		return dst, torn
	}
	// What is before it counts as used as recently: see chooseVictims.
	if leaf, tick := m.path[0].strand, x.tick(); atomic.LoadUint32(&leaf.used) != tick {
		atomic.StoreUint32(&leaf.used, tick)
	}
	if simple {
		return dst, whole
	}
	return x.finish(m, dst, first), whole
}

// finish weighs the groups of those holders that have some, and takes off what cannot be proven.
func (x *Index) finish(m *matcher, dst []Match, first int) []Match {
	for i := first; i < len(dst); i++ {
		r := &dst[i]
		v := x.view(r.Holder)
		if v == nil {
			*r = Match{Holder: r.Holder}
			continue
		}
		if !v.simple {
			x.weighGroups(m, v, int(r.Blocks), r)
		} else {
			r.Blocks = r.Full
			r.Speculative = max(r.Speculative, r.Blocks)
		}
	}
	return dst
}

// read makes the runs of the path. False means that a writer was at it.
func (m *matcher) read(b *blocks) bool {
	m.runs = m.runs[:0]
	for i := len(m.path) - 1; i >= 0; i-- {
		v := &m.path[i]
		s := v.strand
		if more := atomic.LoadUint32(&s.more); more != 0 {
			words := b.runs.at(more)
			if words == nil {
				return false
			}
			n := atomic.LoadUint64(&words[0])
			if n >= uint64(len(words)) {
				return false
			}
			words = words[1 : 1+n]
			from := uint32(0)
			for k := 0; k < len(words) && from < v.blocks; k++ {
				from = m.add(segmentOf(atomic.LoadUint64(&words[k])), from, v.blocks)
			}
			continue
		}
		from := uint32(0)
		for k := 0; k < inlineSegments && from < v.blocks; k++ {
			from = m.add(segmentOf(atomic.LoadUint64(&s.segs[k])), from, v.blocks)
		}
	}
	return true
}

// add adds a segment from a block on, cut at an end, to the runs, and returns where it ends.
func (m *matcher) add(g segment, from, end uint32) uint32 {
	end = min(g.end, end)
	if end <= from {
		return from
	}
	if n := len(m.runs); n > 0 && m.runs[n-1].set == g.set {
		m.runs[n-1].blocks += end - from
	} else {
		m.runs = append(m.runs, run{g.set, end - from})
	}
	return end
}
