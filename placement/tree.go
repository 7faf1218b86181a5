package placement

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// node is a node of the tree. It has a part of keys, which follows the part in its parent node.
type node struct {
	text     []byte // this part of the keys, in memory of its own
	parent   uint32 // the id of the parent; not used in a root
	children int32  // the number of children
	end      int    // the number of bytes from the root to the end of text
	holds    []hold // the holders that have the node, ascending; all of them also have the parent
}

// hold is a holder's placement in a node.
type hold struct {
	holder fleet.Holder
	link   uint32 // index in Store.links
}

// edge leads from the node parent to its child whose text begins with page.
type edge struct {
	parent uint32
	page   uint64 // the bytes of the page, or a hash of its 16 tokens; the whole text is compared anyway
}

// The memory in bytes that counts against Config.Bytes, in addition to the text. TestMemoryIsWhatIsCounted measures it.
const (
	nodeBytes = 160 // a node with its edge
	linkBytes = 36  // a placement
)

// admit makes room for h in s.holders.
func (s *Store) admit(h fleet.Holder) {
	if n := int(h) + 1; n > len(s.holders) {
		s.holders = append(s.holders, make([]holder, n-len(s.holders))...)
	}
}

// follow looks below node at for a path of nodes whose texts, one after the other, make up key. It sets s.path to these
// nodes, from the top down. If there is no such path, follow returns false.
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

// grow makes the nodes for key that do not exist yet, below node at. It returns the last node of key.
func (s *Store) grow(at uint32, key []byte) uint32 {
	for len(key) > 0 {
		e := edge{at, s.first(key)}
		child, ok := s.children[e]
		if !ok {
			return s.leaf(e, key)
		}
		common := s.common(s.nodes[child].text, key)
		if common == 0 { // two different pages have the same hash: the prompt is remembered only up to here
			return at
		}
		if common < len(s.nodes[child].text) {
			child = s.split(child, common)
		}
		at, key = child, key[common:]
	}
	return at
}

// first returns the first page of key, as an edge has it.
func (s *Store) first(key []byte) uint64 {
	switch s.page {
	case 1:
		return uint64(key[0])
	case 8:
		return binary.LittleEndian.Uint64(key)
	}
	h := uint64(block.Golden)
	for i := 0; i < s.page; i += 8 {
		h = block.Fold128(h^binary.LittleEndian.Uint64(key[i:]), 0xbf58476d1ce4e5b9) ^ uint64(i)
	}
	return h
}

// common returns the length in bytes of the common beginning of a and b, in whole pages.
func (s *Store) common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	if n >= 64 && bytes.Equal(a[:n], b[:n]) { // bytes.Equal is faster than the loop: it compares 64 bytes at a time
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

// leaf adds a node with this text at edge e.
func (s *Store) leaf(e edge, text []byte) uint32 {
	id := s.node(node{text: slices.Clone(text), parent: e.parent, end: s.nodes[e.parent].end + len(text)})
	s.children[e] = id
	s.nodes[e.parent].children++
	return id
}

// split cuts a node after a number of bytes of its text. The part before the cut becomes a new node, which split
// returns; the old node keeps the rest. Each of the two texts has separate memory, so that one can be freed without the
// other.
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
		holds[i] = hold{h.holder, s.link(use{head, h.holder, h.link, s.links[h.link].at})}
	}
	s.nodes[head].holds = holds
	return head
}

// find returns the index of the holder among the node's holds. If the holder is not there, find returns false and the
// index at which the holder would be inserted.
func (s *Store) find(id uint32, h fleet.Holder) (int, bool) {
	return slices.BinarySearchFunc(s.nodes[id].holds, h, func(a hold, h fleet.Holder) int { return cmp.Compare(a.holder, h) })
}

// leave removes a holder from a node. If it was the last holder, leave also removes the node.
func (s *Store) leave(h fleet.Holder, id uint32) {
	n, list := &s.nodes[id], &s.holders[h]
	at, has := s.find(id, h)
	if !has {
		panic("bug: a holder's list has a node that the holder is not in")
	}
	s.unlink(list, n.holds[at].link)
	n.holds = slices.Delete(n.holds, at, at+1)
	list.bytes -= int64(len(n.text))
	s.held -= int64(len(n.text))
	if len(n.holds) > 0 {
		return
	}
	if n.children != 0 { // impossible, because all holders of a child are holders of its parent
		panic("bug: a node without holders has children")
	}
	delete(s.children, edge{n.parent, s.first(n.text)})
	s.nodes[n.parent].children--
	s.used -= nodeBytes + int64(len(n.text))
	*n = node{}
	s.freeNodes = append(s.freeNodes, id)
}
