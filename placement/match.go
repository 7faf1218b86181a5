package placement

import (
	"math"

	"github.com/warmpath/warmpath/fleet"
)

// Matches is the result of a Match. The zero value is ready. It is used again and again, by one goroutine at a time.
type Matches struct {
	total int
	unit  int
	round uint32
	at    []found        // by holder
	order []fleet.Holder // holders with a match, the longest first
	path  []uint32       // nodes
	ends  []int          // bytes of the key that match up to the end of each node
}

// found is a holder's match; it is valid only if its round equals the round of Matches.
type found struct {
	round uint32
	bytes int
}

// Match finds how much of key's beginning each holder has at now, in Unix nanoseconds. A placement whose TTL has ended
// does not count, whether a pass has dropped it or not.
func (s *Store) Match(root Root, key []byte, now int64, m *Matches) {
	m.begin(len(key), s.unit)
	key = key[:len(key)-len(key)%s.page]
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(m.at) < len(s.holders) {
		m.at = append(m.at, make([]found, len(s.holders)-len(m.at))...)
	}
	m.follow(s, root, key)
	ended := s.ended(now + s.skew.Load())
	// The holders of a node are a subset of its parent's. If there are equally many, they are the same.
	seen := 0
	for i := len(m.path) - 1; i >= 0; i-- {
		holds := s.nodes[m.path[i]].holds
		if len(holds) == seen {
			continue
		}
		seen = len(holds)
		for _, h := range holds {
			f := &m.at[h.holder]
			if f.round == m.round {
				continue
			}
			if s.config.TTL > 0 && s.links[h.link].at <= ended {
				seen = 0 // the holder may have the parent's run for longer
				continue
			}
			*f = found{m.round, m.ends[i]}
			m.order = append(m.order, h.holder)
		}
	}
}

// follow notes the nodes whose texts key begins with, and how much of key matches up to the end of each.
func (m *Matches) follow(s *Store, root Root, key []byte) {
	at, done := s.roots[root], 0
	for len(key) > 0 {
		child, ok := s.children[edge{at, s.first(key)}]
		if !ok {
			break
		}
		text := s.nodes[child].text
		common := s.common(text, key)
		if common == 0 {
			break
		}
		done += common
		m.path, m.ends = append(m.path, child), append(m.ends, done)
		if common < len(text) {
			break
		}
		at, key = child, key[common:]
	}
}

// ended returns the latest stamp of the placements whose TTL has ended at now.
func (s *Store) ended(now int64) int64 {
	if s.config.TTL == 0 {
		return math.MinInt64
	}
	return now - int64(s.config.TTL)
}

// Clear makes m the result for a key of which no holder has anything.
func (m *Matches) Clear() { m.begin(0, 1) }

// begin drops the last result.
func (m *Matches) begin(bytes, unit int) {
	m.path, m.ends, m.order = m.path[:0], m.ends[:0], m.order[:0]
	m.total, m.unit = bytes, unit
	if m.round++; m.round == 0 {
		clear(m.at)
		m.round = 1
	}
}

// Of returns the units that the holder has of the key's beginning.
func (m *Matches) Of(h fleet.Holder) int {
	if int(h) >= len(m.at) || m.at[h].round != m.round {
		return 0
	}
	return m.at[h].bytes / m.unit
}

// Longest returns the holders with a match, the longest first. It is valid until the next Match.
func (m *Matches) Longest() []fleet.Holder { return m.order }

// Best returns the longest match of any holder, in units.
func (m *Matches) Best() int {
	if len(m.order) == 0 {
		return 0
	}
	return m.at[m.order[0]].bytes / m.unit
}

// Total returns the length of the key, in units.
func (m *Matches) Total() int { return m.total / max(m.unit, 1) }
