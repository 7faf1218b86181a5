package placement

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/fleet"
)

// node is a run: bytes of keys behind those of its parent.
type node struct {
	text     []byte // its own memory
	parent   uint32 // of a root: nothing
	children int32
	end      int    // bytes from the root to the end of text
	holds    []hold // by ascending holder; a subset of the parent's
}

// hold is a holder's placement in a node.
type hold struct {
	holder fleet.Holder
	link   uint32
}

// edge leads from a node to the child that begins with a page.
type edge struct {
	parent uint32
	page   uint64 // the bytes themselves, or a hash of 16 tokens: the text is compared anyway
}

// The memory of a node with its edge, and of a placement, without the text, in bytes; measured by
// TestMemoryIsWhatIsCounted.
const (
	nodeBytes = 160
	linkBytes = 36
)

// admit extends the holders to include h.
func (s *Store) admit(h fleet.Holder) {
	if n := int(h) + 1; n > len(s.holders) {
		s.holders = append(s.holders, make([]holder, n-len(s.holders))...)
	}
}

// follow stores in path the nodes whose texts make up key. It reports false if no node ends where key ends.
func (s *Store) follow(at uint32, key []byte) bool {
	s.path = s.path[:0]
	for len(key) > 0 {
		child, ok := s.children[edge{at, s.first(key)}]
		if !ok || s.common(s.nodes[child].text, key) < len(s.nodes[child].text) {
			return false
		}
		s.path = append(s.path, child)
		at, key = child, key[len(s.nodes[child].text):]
	}
	return true
}

// grow makes nodes for key, from node at on, and returns the last one.
func (s *Store) grow(at uint32, key []byte) uint32 {
	for len(key) > 0 {
		e := edge{at, s.first(key)}
		child, ok := s.children[e]
		if !ok {
			return s.leaf(e, key)
		}
		common := s.common(s.nodes[child].text, key)
		if common == 0 { // two pages have one hash: the prompt is remembered up to here
			return at
		}
		if common < len(s.nodes[child].text) {
			child = s.split(child, common)
		}
		at, key = child, key[common:]
	}
	return at
}

// first identifies the page that key begins with.
func (s *Store) first(key []byte) uint64 {
	switch s.page {
	case 1:
		return uint64(key[0])
	case 8:
		return binary.LittleEndian.Uint64(key)
	}
	h := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < s.page; i += 8 {
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(key[i:]), 0xbf58476d1ce4e5b9)
		h = hi ^ lo ^ uint64(i)
	}
	return h
}

// common returns how many bytes a and b begin with in common, in whole pages.
func (s *Store) common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	if n >= 64 && bytes.Equal(a[:n], b[:n]) { // it compares 64 bytes at a time
		i = n
	}
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			i += bits.TrailingZeros64(x) / 8
			return i - i%s.page
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i - i%s.page
}

// node returns the id of a new node.
func (s *Store) node(n node) uint32 {
	s.used += nodeBytes + int64(len(n.text))
	if last := len(s.freeNodes) - 1; last >= 0 {
		id := s.freeNodes[last]
		s.freeNodes = s.freeNodes[:last]
		s.nodes[id] = n
		return id
	}
	s.nodes = append(s.nodes, n)
	return uint32(len(s.nodes) - 1)
}

// leaf adds a node for text at e.
func (s *Store) leaf(e edge, text []byte) uint32 {
	id := s.node(node{text: slices.Clone(text), parent: e.parent, end: s.nodes[e.parent].end + len(text)})
	s.children[e] = id
	s.nodes[e.parent].children++
	return id
}

// split cuts a node after a number of bytes of its text. It returns the new node before the cut; the old node keeps
// the rest. Each has memory of its own, so that either can be freed.
func (s *Store) split(id uint32, after int) uint32 {
	old := s.nodes[id] // a copy: nodes may move
	head := s.node(node{text: slices.Clone(old.text[:after]), parent: old.parent, children: 1, end: old.end - len(old.text) + after})
	s.children[edge{old.parent, s.first(old.text)}] = head
	tail := &s.nodes[id]
	tail.text, tail.parent = slices.Clone(old.text[after:]), head
	s.used -= int64(after)
	s.children[edge{head, s.first(tail.text)}] = id

	holds := make([]hold, len(old.holds))
	for i, h := range old.holds {
		holds[i] = hold{h.holder, s.link(h.holder, head, h.link, s.links[h.link].at)}
	}
	s.nodes[head].holds = holds
	return head
}

// find returns the index of the holder among the node's holds, or the index where it belongs.
func (s *Store) find(id uint32, h fleet.Holder) (int, bool) {
	return slices.BinarySearchFunc(s.nodes[id].holds, h, func(a hold, h fleet.Holder) int { return cmp.Compare(a.holder, h) })
}

// leave removes a holder from a node, and the node with its last holder.
func (s *Store) leave(h fleet.Holder, id uint32) {
	n, who := &s.nodes[id], &s.holders[h]
	at, has := s.find(id, h)
	if !has {
		panic("bug: a holder's list has a node that the holder is not in")
	}
	s.unlink(who, n.holds[at].link)
	n.holds = slices.Delete(n.holds, at, at+1)
	who.bytes -= int64(len(n.text))
	s.held -= int64(len(n.text))
	if len(n.holds) > 0 {
		return
	}
	if n.children != 0 { // the holders of a child are a subset of its parent's
		panic("bug: a node without holders has children")
	}
	delete(s.children, edge{n.parent, s.first(n.text)})
	s.nodes[n.parent].children--
	s.used -= nodeBytes + int64(len(n.text))
	*n = node{}
	s.freeNodes = append(s.freeNodes, id)
}
