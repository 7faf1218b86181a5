package placement

// Matches is what Match found. The zero value is ready; it is used again and again, by one goroutine at a time.
type Matches struct {
	total int
	best  int
	unit  int
	round uint32
	at    []found  // by holder
	order []uint32 // holders with a match, the longest first
	path  []uint32 // nodes
	ends  []int    // bytes of the key that match up to there
}

// found is a holder's match, when it was found in this round.
type found struct {
	round uint32
	bytes int
}

// Match finds how much of key's beginning each holder has.
func (t *Tree) Match(root Root, key []byte, m *Matches) {
	m.begin(len(key), t.unit)
	key = key[:len(key)-len(key)%t.page]
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(m.at) < len(t.holders) {
		m.at = append(m.at, make([]found, len(t.holders)-len(m.at))...)
	}
	at, done := uint32(root), 0
	for len(key) > 0 {
		child, ok := t.children[edge{at, t.first(key)}]
		if !ok {
			break
		}
		text := t.nodes[child].text
		common := t.common(text, key)
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
	m.best = done
	// A node's holders are a subset of its parent's: where there are as many, they are the same.
	seen := 0
	for i := len(m.path) - 1; i >= 0; i-- {
		holds := t.nodes[m.path[i]].holds
		if len(holds) == seen {
			continue
		}
		seen = len(holds)
		for _, h := range holds {
			if f := &m.at[h.holder]; f.round != m.round {
				*f = found{m.round, m.ends[i]}
				m.order = append(m.order, h.holder)
			}
		}
	}
}

// Clear makes it the answer to a key that nobody has anything of.
func (m *Matches) Clear() { m.begin(0, 1) }

// begin forgets the last round.
func (m *Matches) begin(bytes, unit int) {
	m.path, m.ends, m.order = m.path[:0], m.ends[:0], m.order[:0]
	m.total, m.unit, m.best = bytes, unit, 0
	if m.round++; m.round == 0 {
		clear(m.at)
		m.round = 1
	}
}

// Of returns the units that the holder has of the key's beginning.
func (m *Matches) Of(holder uint32) int {
	if int(holder) >= len(m.at) || m.at[holder].round != m.round {
		return 0
	}
	return m.at[holder].bytes / m.unit
}

// Longest returns the holders with a match, those with the longest first. It is valid until the next Match.
func (m *Matches) Longest() []uint32 { return m.order }

// Best returns the longest match of any holder, in units.
func (m *Matches) Best() int { return m.best / max(m.unit, 1) }

// Total returns the length of the key, in units.
func (m *Matches) Total() int { return m.total / max(m.unit, 1) }

// Units returns how much the holder has, in units: the sum of its texts.
func (t *Tree) Units(holder uint32) int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int(holder) >= len(t.holders) {
		return 0
	}
	return t.holders[holder].bytes / int64(t.unit)
}

// Stats describes a tree.
type Stats struct {
	Nodes       int   // without roots
	Memberships int   // (node, holder) pairs
	Units       int64 // of all nodes' texts
	Bytes       int64 // memory, as counted against the budget
}

// Stats describes the tree now.
func (t *Tree) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := Stats{Nodes: len(t.nodes) - t.roots - len(t.freeNodes), Memberships: len(t.links) - 1 - len(t.freeLinks), Bytes: t.used}
	s.Units = (t.used - int64(s.Nodes+t.roots)*nodeBytes - int64(s.Memberships)*linkBytes) / int64(t.unit)
	return s
}
