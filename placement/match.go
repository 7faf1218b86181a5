package placement

import (
	"math"

	"github.com/warmpath/warmpath/fleet"
)

// Matches is the result of [Store.Match]. The zero value is ready for use. Use one Matches for many calls, by one
// goroutine at a time.
type Matches struct {
	total int            // the length of the key in bytes
	unit  int            // how many bytes of a key are one unit: what Of, Best and Total count
	round uint32         // the number of the present result in at
	at    []found        // the match of each holder, by the holder's number
	order []fleet.Holder // the holders with a match, the longest match first
	path  []uint32       // the nodes that match, from the root on
	ends  []int          // for each node of path: how many bytes of the key match up to the node's end
}

// found is the match of a holder. It is valid only if its round equals the round of Matches.
type found struct {
	round uint32
	bytes int
}

// Match finds, for each holder, the longest beginning of the key that was sent to the holder, and stores the result in
// m. now is the present time in Unix nanoseconds. A placement whose TTL has ended does not count, even if the store has
// not dropped it yet.
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
	// The holders of a node are a subset of the holders of its parent. So two nodes with equally many holders have the
	// same holders.
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
				seen = 0 // the holder's placement in the parent node may still count: look at all holders there
				continue
			}
			*f = found{m.round, m.ends[i]}
			m.order = append(m.order, h.holder)
		}
	}
}

// follow finds the nodes that match the key, from the root on, and stores them in m.path and m.ends. The last node may
// match in part.
func (m *Matches) follow(s *Store, root Root, key []byte) {
	at, ok := s.roots[root]
	if !ok {
		return
	}
	done := 0
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

// ended returns a time limit: the TTL of a placement has ended if the placement was last used at this time or before.
// now is the present time in Unix nanoseconds.
func (s *Store) ended(now int64) int64 {
	if s.config.TTL == 0 {
		return math.MinInt64
	}
	return now - int64(s.config.TTL)
}

// Clear makes m the result for a key that was sent to no holder, not even in part.
func (m *Matches) Clear() { m.begin(0, 1) }

// begin makes m an empty result for a key of the given number of bytes. unit is the number of bytes of a unit.
func (m *Matches) begin(bytes, unit int) {
	m.path, m.ends, m.order = m.path[:0], m.ends[:0], m.order[:0]
	m.total, m.unit = bytes, unit
	if m.round++; m.round == 0 { // the number overflowed: without clear, results of old rounds would count again
		clear(m.at)
		m.round = 1
	}
}

// Of returns the length of the holder's match in units: the longest beginning of the key that was sent to the holder.
func (m *Matches) Of(h fleet.Holder) int {
	if int(h) >= len(m.at) || m.at[h].round != m.round {
		return 0
	}
	return m.at[h].bytes / m.unit
}

// Longest returns the holders with a match, the longest match first. The slice is valid until the next Match.
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
