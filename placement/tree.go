package placement

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"unsafe"
)

// Tree is a tree of prefixes. Make one with NewText or NewTokens.
type Tree struct {
	unit   int   // bytes of a unit
	page   int   // bytes of a page: keys part at its multiples
	budget int64 // bytes

	mu sync.RWMutex // guards what follows
	// nodes by id; roots have no text and stay. links are the memberships by id, 0 is none.
	nodes     []node
	roots     int
	freeNodes []uint32
	links     []link
	freeLinks []uint32
	children  map[edge]uint32
	holders   []holder // by number
	used      int64    // bytes: text, nodes and links
}

// node is a run of bytes behind its parent's.
type node struct {
	text     []byte // its own memory
	parent   uint32 // of a root: nothing
	children int32
	end      int    // bytes from the root to the end of text
	holds    []hold // by ascending holder; a subset of the parent's
}

// hold is a holder's membership in a node.
type hold struct{ holder, link uint32 }

// link is a membership's place in its holder's list by recency; 0 ends the list.
type link struct{ node, newer, older uint32 }

// edge leads from a node to the child that begins with a page.
type edge struct {
	parent uint32
	page   uint64 // the byte itself, or a hash of 16 tokens: what is found is compared
}

type holder struct {
	newest, oldest uint32 // links
	bytes          int64  // of the texts of its nodes
	links          int
	trimming       bool // above the limit when Trim last began with it
}

// What a node, with its edge, and a membership cost beside the text, in bytes; measured by TestMemoryIsWhatIsCounted.
const (
	nodeBytes = 160
	linkBytes = 24
)

const tokenBytes, pageTokens = 4, 16

// maxHolders bounds the numbers of holders, which index an array: a greater one is a mistake and nobody's.
const maxHolders = 1 << 20

// NewText returns a tree whose units are bytes. It never takes more than budget bytes, but for a fixed overhead.
func NewText(budget int64) *Tree { return newTree(1, 1, budget) }

// NewTokens returns a tree whose units are tokens, in pages of 16; keys are made by TokenBytes.
func NewTokens(budget int64) *Tree { return newTree(tokenBytes, tokenBytes*pageTokens, budget) }

func newTree(unit, page int, budget int64) *Tree {
	return &Tree{unit: unit, page: page, budget: max(budget, 0), links: make([]link, 1), children: map[edge]uint32{}}
}

// TokenBytes views tokens as the key of a tree of tokens. It shares their memory.
func TokenBytes(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), len(tokens)*tokenBytes)
}

// Root is where prompts begin that have nothing in common with those of other roots.
type Root uint32

// Plant makes a root. It stays for as long as the tree: there should be one for each model, not for each prompt.
func (t *Tree) Plant() Root {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.roots++
	return Root(t.node(node{}))
}

// Insert notes that the holder was given key: all its prefixes are its most recent. A part of a page at the end is left
// out, and so is what is beyond a quarter of the tree's budget. When that is used up, the least recent of the holder that
// has the most is forgotten. It does not keep key.
func (t *Tree) Insert(root Root, holder uint32, key []byte) {
	if limit := t.budget / 4; int64(len(key)) > limit {
		key = key[:limit]
	}
	key = key[:len(key)-len(key)%t.page]
	if len(key) == 0 || holder >= maxHolders {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.admit(holder)
	at := t.grow(uint32(root), key)
	for ; len(t.nodes[at].text) > 0; at = t.nodes[at].parent {
		t.touch(at, holder)
	}
	t.fit()
}

// admit makes room for the holder.
func (t *Tree) admit(number uint32) {
	if n := int(number) + 1; n > len(t.holders) {
		t.holders = append(t.holders, make([]holder, n-len(t.holders))...)
	}
}

// grow makes nodes for key, from node at on, and returns the last one.
func (t *Tree) grow(at uint32, key []byte) uint32 {
	for len(key) > 0 {
		e := edge{at, t.first(key)}
		child, ok := t.children[e]
		if !ok {
			return t.leaf(e, key)
		}
		common := t.common(t.nodes[child].text, key)
		if common == 0 { // two pages with one hash: the prompt is remembered up to here
			return at
		}
		if common < len(t.nodes[child].text) {
			child = t.split(e, child, common)
		}
		at, key = child, key[common:]
	}
	return at
}

// first identifies the page that key begins with.
func (t *Tree) first(key []byte) uint64 {
	if t.page == 1 {
		return uint64(key[0])
	}
	h := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < t.page; i += 8 {
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(key[i:]), 0xbf58476d1ce4e5b9)
		h = hi ^ lo ^ uint64(i)
	}
	return h
}

// common returns how many bytes a and b begin with in common, in whole pages.
func (t *Tree) common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			i += bits.TrailingZeros64(x) / 8
			return i - i%t.page
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i - i%t.page
}

// node returns the id of a new node.
func (t *Tree) node(n node) uint32 {
	t.used += nodeBytes + int64(len(n.text))
	if last := len(t.freeNodes) - 1; last >= 0 {
		id := t.freeNodes[last]
		t.freeNodes = t.freeNodes[:last]
		t.nodes[id] = n
		return id
	}
	t.nodes = append(t.nodes, n)
	return uint32(len(t.nodes) - 1)
}

// leaf adds a node for text at e.
func (t *Tree) leaf(e edge, text []byte) uint32 {
	id := t.node(node{text: slices.Clone(text), parent: e.parent, end: t.nodes[e.parent].end + len(text)})
	t.children[e] = id
	t.nodes[e.parent].children++
	return id
}

// split cuts the node child, which e leads to, after so many bytes of its text. It returns the new node before the cut;
// child keeps what is behind it. Both have memory of their own, so that either can go.
func (t *Tree) split(e edge, child uint32, after int) uint32 {
	old := t.nodes[child] // a copy: nodes may move
	head := t.node(node{text: slices.Clone(old.text[:after]), parent: e.parent, children: 1, end: old.end - len(old.text) + after})
	t.children[e] = head
	tail := &t.nodes[child]
	tail.text, tail.parent = slices.Clone(old.text[after:]), head
	t.used -= int64(after)
	t.children[edge{head, t.first(tail.text)}] = child

	holds := make([]hold, len(old.holds))
	for i, h := range old.holds {
		holds[i] = hold{h.holder, t.link(h.holder, head, h.link)}
	}
	t.nodes[head].holds = holds
	return head
}

// find returns where the holder stands among the node's holds, or would.
func (t *Tree) find(id, holder uint32) (int, bool) {
	return slices.BinarySearchFunc(t.nodes[id].holds, holder, func(h hold, holder uint32) int { return cmp.Compare(h.holder, holder) })
}

// touch makes the node the holder's most recent, its own first if it is not.
func (t *Tree) touch(id, number uint32) {
	at, has := t.find(id, number)
	who := &t.holders[number]
	if !has {
		l := t.link(number, id, who.newest)
		n := &t.nodes[id]
		n.holds = slices.Insert(n.holds, at, hold{number, l})
		who.bytes += int64(len(n.text))
		return
	}
	l := t.nodes[id].holds[at].link
	if l == who.newest {
		return
	}
	t.unlink(who, l)
	t.place(who, l, who.newest)
}

// link returns the id of a new membership of the holder, placed just before the link older in its list.
func (t *Tree) link(number, id, older uint32) uint32 {
	var l uint32
	if last := len(t.freeLinks) - 1; last >= 0 {
		l = t.freeLinks[last]
		t.freeLinks = t.freeLinks[:last]
	} else {
		t.links = append(t.links, link{})
		l = uint32(len(t.links) - 1)
	}
	t.links[l].node = id
	who := &t.holders[number]
	t.place(who, l, older)
	who.links++
	t.used += linkBytes
	return l
}

// place puts l into the list just before the link older; 0 is the empty list's.
func (t *Tree) place(who *holder, l, older uint32) {
	x := &t.links[l]
	x.older, x.newer = older, 0
	if older == 0 {
		who.newest, who.oldest = l, l
		return
	}
	x.newer = t.links[older].newer
	t.links[older].newer = l
	if x.newer == 0 {
		who.newest = l
	} else {
		t.links[x.newer].older = l
	}
}

func (t *Tree) unlink(who *holder, l uint32) {
	x := t.links[l]
	if x.newer == 0 {
		who.newest = x.older
	} else {
		t.links[x.newer].older = x.older
	}
	if x.older == 0 {
		who.oldest = x.newer
	} else {
		t.links[x.older].newer = x.newer
	}
}
