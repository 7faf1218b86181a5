package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// trace finds the path of the deepest block of a request that is there with all before it, and returns how many blocks
// that is. The path is in m, the deepest strand first. last is where the last block was found, if it was.
func (x *Index) trace(m *matcher, keys []block.Key, last *probe) (depth int, ok bool) {
	b := &x.blocks
	n, p := len(keys), *last
	m.wary = false
	for {
		if p.at < 0 {
			if n, p = b.search(keys[:n-1], m.wary); n == 0 {
				return 0, true
			}
		}
		m.leaf = p
		reach, ok := m.climb(b, n-1)
		if !ok {
			return 0, false
		}
		if reach == n || reach == 0 {
			return reach, true
		}
		n = reach
		p = b.find(keys[n-1], m.wary)
	}
}

// find looks for a key; when wary, it does not take dead slots.
func (b *blocks) find(key block.Key, wary bool) probe {
	p := b.slots.find(key)
	if wary && p.at >= 0 {
		if s := b.strands.at(p.spot.strand()); s == nil || p.spot.offset() >= atomic.LoadUint32(&s.length) {
			p.at = -1
		}
	}
	return p
}

// search returns how many leading keys are there and where the last of them was found. It follows the strands from
// the root: the milestones of each tell about where the request leaves it, and the slots of the keys around whether
// it does, or goes on along a child. When wary, it takes no dead slots.
func (b *blocks) search(keys []block.Key, wary bool) (int, probe) {
	if len(keys) == 0 {
		return 0, probe{at: -1}
	}
	root := b.roots.get(keys[0])
	if root == 0 {
		return 0, probe{at: -1}
	}
	for i, base, seen := root, 0, -1; base < len(keys); {
		s := b.strands.at(i)
		if s == nil {
			break
		}
		on, off, step := s.marks.leave(keys[base:], atomic.LoadUint32(&s.length))
		last := min(base+off, len(keys)-1)
		n, p := b.scour(keys[:last+1], base+on, wary)
		for n == 0 && on > 0 { // a milestone was right by chance
			last = base + on - 1
			on = max(0, on-step)
			if n, p = b.scour(keys[:last+1], base+on, wary); n > 0 {
				return n, p // the one after the last is not there
			}
		}
		if n == 0 {
			break
		}
		if n <= last || last == len(keys)-1 {
			return n, p
		}
		if i == p.spot.strand() || int(p.spot.offset()) > last || last <= seen {
			break
		}
		i, base, seen = p.spot.strand(), last-int(p.spot.offset()), last
	}
	return b.scour(keys, 0, wary)
}

const (
	// fan is how many keys a round of scour looks up: about as many cache misses as a processor has under way.
	fan = 7
	// fanOnce is up to how many are looked up in one round rather than two.
	fanOnce = 10
)

// scour returns how many leading keys are there, if those before the i-th are, and where the last was found; 0 when
// the i-th is not there. What is there is closed under what is before it, but for strands that float; climb finds
// those.
func (b *blocks) scour(keys []block.Key, i int, wary bool) (int, probe) {
	best := probe{at: -1}
	lo, n := i-1, len(keys)-i+1 // keys[lo] is there, keys[lo+n] is not
	if n-1 > fanOnce {
		if best = b.find(keys[i], wary); best.at < 0 {
			return 0, best
		}
		lo, n = lo+1, n-1
	}
	for n > 1 {
		step, parts := n, fan+1
		if n-1 <= fanOnce {
			step, parts = fan+1, n // each of them
		}
		k := 1
		for ; k < parts; k++ {
			p := b.find(keys[lo+step*k/(fan+1)], wary)
			if p.at < 0 {
				break
			}
			best = p
		}
		from, to := step*(k-1)/(fan+1), n
		if k < parts {
			to = step * k / (fan + 1)
		}
		lo, n = lo+from, to-from
	}
	if best.at < 0 {
		return 0, best
	}
	return lo + 1, best
}

// climb follows the strands from the one in m.leaf up to the chain's root; the block is at position pos of the request.
// It returns the number of blocks that are there: pos+1, or how many may still be there if this one is not. False means
// that a writer was at it.
func (m *matcher) climb(b *blocks, pos int) (int, bool) {
	m.path = m.path[:0]
	i, off := m.leaf.spot.strand(), int(m.leaf.spot.offset())
	rest := pos
	for {
		s := b.strands.at(i)
		if s == nil {
			return 0, false
		}
		version := atomic.LoadUint32(&s.version)
		if version&1 != 0 {
			return 0, false
		}
		parent, at := atomic.LoadUint32(&s.parent), atomic.LoadUint32(&s.at)
		if off >= int(atomic.LoadUint32(&s.length)) {
			// The slot is dead, or the strand has changed since its child was read.
			m.wary = true
			return pos, len(m.path) == 0 && m.steady(b) && atomic.LoadUint32(&s.version) == version
		}
		m.path = append(m.path, visit{s, version, uint32(off) + 1})
		rest -= off + 1
		if parent == 0 {
			if rest == -1 {
				return pos + 1, true
			}
			// It floats: the block before it is not there.
			return max(0, rest), m.steady(b)
		}
		if rest < 0 {
			return 0, m.steady(b) // the request does not begin where the chain does
		}
		i, off = parent, int(at&strandOffset)
	}
}

// steady reports whether all that the path was read from is as it was.
func (m *matcher) steady(b *blocks) bool {
	if !b.slots.still(&m.leaf) {
		return false
	}
	for i := range m.path {
		if v := &m.path[i]; atomic.LoadUint32(&v.strand.version) != v.version {
			return false
		}
	}
	return true
}
