package placement

import "github.com/warmpath/warmpath/fleet"

// An array of nodes or links is made smaller if it has at least leastArray entries, and fewer than 1/sparse of its
// entries are in use. Moving an entry takes about 0.1 µs. So the used entries of an array of a million entries are
// moved in a few milliseconds. This happens rarely, because the number of used entries must first fall to a sixteenth.
const leastArray, sparse = 4096, 16

// compact frees the memory of arrays that are mostly empty. mu is held.
func (s *Store) compact() {
	if used := len(s.nodes) - len(s.freeNodes); len(s.nodes) >= leastArray && used*sparse < len(s.nodes) {
		s.compactNodes(used)
	}
	if used := len(s.links) - len(s.freeLinks); len(s.links) >= leastArray && used*sparse < len(s.links) {
		s.compactLinks(used)
	}
}

// compactNodes moves the nodes into a new array. It also makes a new map of edges, because a map never shrinks.
func (s *Store) compactNodes(used int) {
	nodes, moved := make([]node, 0, 2*used), make([]uint32, len(s.nodes))
	move := func(id uint32) {
		moved[id] = uint32(len(nodes))
		nodes = append(nodes, s.nodes[id])
	}
	for root, id := range s.roots {
		move(id)
		s.roots[root] = moved[id]
	}
	for _, id := range s.children {
		move(id)
	}
	children := make(map[edge]uint32, 2*len(s.children))
	for e, id := range s.children {
		children[edge{moved[e.parent], e.page}] = moved[id]
	}
	for id := range nodes {
		n := &nodes[id]
		n.parent = moved[n.parent]
		for _, h := range n.holds {
			s.links[h.link].node = uint32(id)
		}
	}
	s.nodes, s.freeNodes, s.children = nodes, nil, children
}

// compactLinks moves the links into a new array: for each holder, its links by recency.
func (s *Store) compactLinks(used int) {
	links := make([]link, 1, 2*used)
	for i := range s.holders {
		list, last := &s.holders[i], uint32(0)
		for l := list.oldest; l != 0; l = s.links[l].newer {
			id, x := uint32(len(links)), s.links[l]
			at, _ := s.find(x.node, fleet.Holder(i))
			s.nodes[x.node].holds[at].link = id
			links = append(links, link{node: x.node, older: last, at: x.at})
			if last == 0 {
				list.oldest = id
			} else {
				links[last].newer = id
			}
			last = id
		}
		list.newest = last
	}
	s.links, s.freeLinks = links, nil
}
