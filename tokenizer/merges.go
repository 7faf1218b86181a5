package tokenizer

import (
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// merges is the table of the merges of BPE. A merge joins two neighbouring tokens to one token. Merges with a lower
// rank are applied first. The table is immutable once built, and goroutines may then use it concurrently.
type merges struct {
	slots []mergeSlot
	shift uint
}

type mergeSlot struct {
	pair  uint64 // left <<32 | right
	merge uint64 // rank <<32 | id of the joined token
}

const (
	noPair  = ^uint64(0)
	noMerge = ^uint64(0) // greater than the rank of any merge
)

func newMerges(n int) *merges {
	size := bits.Len(uint(n + n/2))
	m := &merges{slots: make([]mergeSlot, 1<<size), shift: uint(64 - size)}
	for i := range m.slots {
		m.slots[i].pair = noPair
	}
	return m
}

// add stores a merge. If a pair has two merges, the later merge replaces the earlier merge, as in the reference.
func (m *merges) add(left, right block.Token, rank uint32, merged block.Token) {
	pair := uint64(left)<<32 | uint64(right)
	mask := len(m.slots) - 1
	for i := m.home(pair); ; i = (i + 1) & mask {
		if s := &m.slots[i]; s.pair == noPair || s.pair == pair {
			*s = mergeSlot{pair, uint64(rank)<<32 | uint64(merged)}
			return
		}
	}
}

func (m *merges) home(pair uint64) int { return int(pair * block.Golden >> m.shift) }

// find returns rank<<32 | id of the joined token for two neighbours, or noMerge if no merge joins the two.
func (m *merges) find(left, right block.Token) uint64 {
	pair := uint64(left)<<32 | uint64(right)
	mask := len(m.slots) - 1
	for i := m.home(pair); ; i = (i + 1) & mask {
		s := &m.slots[i]
		if s.pair == pair {
			return s.merge
		}
		if s.pair == noPair {
			return noMerge
		}
	}
}

// mergeScratch is the working memory for one word.
type mergeScratch struct {
	ids         []block.Token
	next        []uint64 // for each position: merge with the right neighbour, as find returns it
	left, right []int32  // for each position: positions of the left and right neighbours; used by applyHeap
	heap, list  []uint64 // rank<<32 | position
}

// shortWord is the length in tokens up to which a scan for the lowest rank is faster than a heap. The value was
// measured on Chinese text and on program code.
const shortWord = 96

// apply joins neighbours in ids until no merge is left. The merge with the lowest rank comes first. Among merges with
// equal ranks, the leftmost comes first. The result is in the memory of ids.
func (m *merges) apply(ids []block.Token, s *mergeScratch) []block.Token {
	if len(ids) > shortWord {
		return m.applyHeap(ids, s)
	}
	if len(ids) < 2 {
		return ids
	}
	next := s.nexts(len(ids) - 1)
	for i := range next {
		next[i] = m.find(ids[i], ids[i+1])
	}
	return m.join(ids, next)
}

// applyBytes does the same as apply for the bytes of a word of at least two bytes. It takes the ids of single bytes,
// and the merges of two bytes, from small tables.
func (m *merges) applyBytes(word string, t *byteTable, s *mergeScratch) []block.Token {
	ids := s.ids[:0]
	for i := range len(word) {
		ids = append(ids, t.id[word[i]])
	}
	s.ids = ids
	if len(word) > shortWord {
		return m.applyHeap(ids, s)
	}
	next := s.nexts(len(ids) - 1)
	for i := range next {
		next[i] = t.merge[int(word[i])<<8|int(word[i+1])]
	}
	return m.join(ids, next)
}

// byteTable has the token of each byte and the merge of each pair of bytes. Merging in byte mode begins with these
// tokens and merges.
type byteTable struct {
	id    [256]block.Token
	merge [1 << 16]uint64
}

// fill sets the merge of every pair of bytes. The field id must be set before.
func (t *byteTable) fill(m *merges) {
	for i := range t.merge {
		t.merge[i] = m.find(t.id[i>>8], t.id[i&0xff])
	}
}

func (s *mergeScratch) nexts(n int) []uint64 {
	if cap(s.next) < n {
		s.next = make([]uint64, n, 2*n)
	}
	return s.next[:n]
}

// join applies the merge with the lowest rank until none is left. next has, for each id, the merge with the id after
// it.
func (m *merges) join(ids []block.Token, next []uint64) []block.Token {
	for {
		best, at := noMerge, -1
		for i, n := range next {
			if n < best {
				best, at = n, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = block.Token(best)
		ids = append(ids[:at+1], ids[at+2:]...)
		next = append(next[:at], next[at+1:]...)
		if at > 0 {
			next[at-1] = m.find(ids[at-1], ids[at])
		}
		if at < len(next) {
			next[at] = m.find(ids[at], ids[at+1])
		}
	}
}

// applyHeap does the same as apply for long words, in O(n log n) time and with about 36 bytes of memory for each token.
// The merges that are possible at the start are sorted into a list. New merges go into a heap. The next merge is the
// first of the list, or the top of the heap if its rank is lower. When the list is used up, the heap is sorted into the
// next list. So a long run of one letter costs little more than one pass over the run.
func (m *merges) applyHeap(ids []block.Token, s *mergeScratch) []block.Token {
	n := len(ids)
	if cap(s.left) < n {
		s.left, s.right = make([]int32, n), make([]int32, n)
	}
	if cap(s.next) < n {
		s.next = make([]uint64, n)
	}
	left, right, next := s.left[:n], s.right[:n], s.next[:n]
	h, list := s.list[:0], s.heap[:0]
	for i := range n {
		left[i], right[i], next[i] = int32(i-1), int32(i+1), noMerge
		if i+1 < n {
			if next[i] = m.find(ids[i], ids[i+1]); next[i] != noMerge {
				list = append(list, next[i]&^0xffffffff|uint64(i))
			}
		}
	}
	slices.Sort(list)
	for taken := 0; ; {
		if taken == len(list) {
			if len(h) == 0 {
				break
			}
			slices.Sort(h)
			list, h, taken = h, list[:0], 0
		}
		top := list[taken]
		if len(h) > 0 && h[0] < top {
			top = h[0]
			last := len(h) - 1
			h[0] = h[last]
			h = h[:last]
			sink(h, 0)
		} else {
			taken++
		}
		at := int32(uint32(top))
		if next[at]>>32 != top>>32 || next[at] == noMerge {
			continue // the merge is stale: one of its two tokens was joined with another token
		}
		gone := right[at]
		ids[at] = block.Token(next[at])
		after := right[gone]
		right[at] = after
		next[gone] = noMerge
		next[at] = noMerge
		if int(after) < n {
			left[after] = at
			h = m.queue(h, next, ids, at, after)
		}
		if before := left[at]; before >= 0 {
			h = m.queue(h, next, ids, before, at)
		}
	}
	s.heap, s.list = h, list
	kept := 0
	for i := int32(0); int(i) < n; i = right[i] {
		ids[kept] = ids[i]
		kept++
	}
	return ids[:kept]
}

func (m *merges) queue(h, next []uint64, ids []block.Token, a, b int32) []uint64 {
	next[a] = m.find(ids[a], ids[b])
	if next[a] == noMerge {
		return h
	}
	h = append(h, next[a]&^0xffffffff|uint64(a))
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 4
		if h[parent] <= h[i] {
			break
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
	return h
}

// sink restores the order of a four-way heap below index i.
func sink(h []uint64, i int) {
	for {
		first := 4*i + 1
		if first >= len(h) {
			return
		}
		least := first
		for c := first + 1; c < len(h) && c < first+4; c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if h[i] <= h[least] {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
