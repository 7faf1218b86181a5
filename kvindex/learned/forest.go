package learned

import (
	"math/bits"

	"github.com/warmpath/warmpath/block"
)

// forest is what one holder was sent: a tree of blocks for each first block. It is closed: with a block it has all
// blocks before it.
type forest struct {
	// nodes by number. Node 0 is the end of the list of marked nodes: its next is the least recently used, its prev the
	// most recently used one. Free nodes are a list by parent.
	nodes []node
	free  uint32
	live  int
	used  int64 // when anything was used last

	// slots is an open-addressing table of node numbers by key, 0 is empty; a power of two, at most 3/4 full.
	slots []uint32
}

type node struct {
	key      uint64
	stamp    int64  // when it was used last, if it is marked
	parent   uint32 // 0: the first block of a prompt
	children uint32
	// prev and next are neighbours among the marked nodes, those at which a use ended; unmarked in next tells that it
	// is none: it is as recent as the most recent node below it.
	prev, next uint32
}

const (
	unmarked  = ^uint32(0)
	nodeBytes = 32
	minSlots  = 16
)

func newForest() *forest {
	return &forest{nodes: make([]node, 1, minSlots/2), slots: make([]uint32, minSlots)}
}

// deepest returns how many of the leading blocks are there.
func (f *forest) deepest(keys []block.Key) int {
	if len(keys) > 0 && f.find(uint64(keys[len(keys)-1])) != 0 {
		return len(keys)
	}
	lo, hi := 0, len(keys) // lo are there, hi+1 are not
	for lo < hi {
		mid := int(uint(lo+hi+1) / 2)
		if f.find(uint64(keys[mid-1])) != 0 {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// learn adds the blocks after the first known ones, and marks the last as just used.
func (f *forest) learn(keys []block.Key, known int, now int64) {
	at := uint32(0)
	if known > 0 {
		at = f.find(uint64(keys[known-1]))
	}
	for _, key := range keys[known:] {
		at = f.add(uint64(key), at)
	}
	f.unmark(at)
	f.mark(at, f.nodes[0].prev, now)
	f.used = now
}

// oldest returns when the least recently used block was used. It needs a block.
func (f *forest) oldest() int64 {
	f.settle()
	return f.nodes[f.nodes[0].next].stamp
}

// settle unmarks nodes at the list's old end that others continue: these are more recent, and count for them.
func (f *forest) settle() {
	for {
		at := f.nodes[0].next
		if at == 0 || f.nodes[at].children == 0 {
			return
		}
		f.unmark(at)
	}
}

// drop removes the least recently used block, the deepest if there are several, and returns its key. It needs a block.
func (f *forest) drop() uint64 {
	f.settle()
	at := f.nodes[0].next
	key, stamp := f.nodes[at].key, f.nodes[at].stamp
	f.remove(at, stamp) // nothing that used what is before it is more recent
	return key
}

// remove removes a marked node that nothing continues. If nothing else continues the one before it, that was used before,
// and is marked as the oldest.
func (f *forest) remove(at uint32, before int64) {
	n := f.nodes[at]
	f.unmark(at)
	f.clear(at)
	f.nodes[at] = node{parent: f.free, next: unmarked}
	f.free = at
	f.live--
	if n.parent != 0 {
		p := &f.nodes[n.parent]
		if p.children--; p.children == 0 && p.next == unmarked {
			f.mark(n.parent, 0, before)
		}
	}
}

// unlearn removes the blocks after the first known ones, from the last one backwards, as far as nothing was used after the
// use at now that ended with them, and calls gone with each.
func (f *forest) unlearn(keys []block.Key, known int, now int64, gone func(block.Key)) {
	if len(keys) <= known {
		return
	}
	at := f.find(uint64(keys[len(keys)-1]))
	if n := &f.nodes[at]; at == 0 || n.children > 0 || n.next == unmarked || n.stamp != now {
		return
	}
	for i := len(keys) - 1; i >= known; i-- {
		before := f.nodes[at].parent
		p := &f.nodes[before]
		used := p.children > 1 || p.next != unmarked // by another
		f.remove(at, p.stamp)
		gone(keys[i])
		if used || before == 0 {
			return
		}
		at = before
	}
}

// mark puts a node into the list behind another one; 0 is the old end.
func (f *forest) mark(at, behind uint32, stamp int64) {
	next := f.nodes[behind].next
	n := &f.nodes[at]
	n.stamp, n.prev, n.next = stamp, behind, next
	f.nodes[behind].next = at
	f.nodes[next].prev = at
}

func (f *forest) unmark(at uint32) {
	n := &f.nodes[at]
	if n.next == unmarked {
		return
	}
	f.nodes[n.prev].next = n.next
	f.nodes[n.next].prev = n.prev
	n.next = unmarked
}

func (f *forest) add(key uint64, parent uint32) uint32 {
	if 4*(f.live+1) > 3*len(f.slots) {
		f.rehash(2 * len(f.slots))
	}
	at := f.free
	if at != 0 {
		f.free = f.nodes[at].parent
	} else {
		at = uint32(len(f.nodes))
		f.nodes = append(f.nodes, node{})
	}
	f.nodes[at] = node{key: key, parent: parent, next: unmarked}
	if parent != 0 {
		f.nodes[parent].children++
	}
	f.live++
	f.place(at)
	return at
}

// slot is where a key belongs. Keys are hashes already; the product only moves their high bits' entropy along.
func (f *forest) slot(key uint64) uint32 {
	return uint32(key * 0x9e3779b97f4a7c15 >> (64 - bits.TrailingZeros(uint(len(f.slots)))))
}

func (f *forest) find(key uint64) uint32 {
	mask := uint32(len(f.slots) - 1)
	for i := f.slot(key); ; i = (i + 1) & mask {
		at := f.slots[i]
		if at == 0 || f.nodes[at].key == key {
			return at
		}
	}
}

func (f *forest) place(at uint32) {
	mask := uint32(len(f.slots) - 1)
	i := f.slot(f.nodes[at].key)
	for f.slots[i] != 0 {
		i = (i + 1) & mask
	}
	f.slots[i] = at
}

// clear takes a node from the table and moves up what was pushed behind it.
func (f *forest) clear(at uint32) {
	mask := uint32(len(f.slots) - 1)
	i := f.slot(f.nodes[at].key)
	for f.slots[i] != at {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; f.slots[j] != 0; j = (j + 1) & mask {
		// What lies at j may move to i unless its own place is behind i.
		if home := f.slot(f.nodes[f.slots[j]].key); (j-home)&mask >= (j-i)&mask {
			f.slots[i] = f.slots[j]
			i = j
		}
	}
	f.slots[i] = 0
}

func (f *forest) rehash(n int) {
	old := f.slots
	f.slots = make([]uint32, n)
	for _, at := range old {
		if at != 0 {
			f.place(at)
		}
	}
}

// giveBack moves to less memory when most of it is not used.
func (f *forest) giveBack() {
	if len(f.nodes) <= minSlots || f.live > len(f.nodes)/4 {
		return
	}
	small := newForest()
	small.used = f.used
	small.slots = make([]uint32, max(minSlots, 1<<bits.Len(uint(2*f.live))))
	small.nodes = make([]node, 1, f.live+1)
	moved := make([]uint32, len(f.nodes))
	for _, at := range f.slots {
		if at != 0 {
			moved[at] = uint32(len(small.nodes))
			small.nodes = append(small.nodes, f.nodes[at])
		}
	}
	for i := 1; i < len(small.nodes); i++ {
		n := &small.nodes[i]
		n.parent = moved[n.parent]
		if n.next != unmarked {
			n.prev, n.next = moved[n.prev], moved[n.next]
		}
		small.live++
		small.place(uint32(i))
	}
	small.nodes[0].prev, small.nodes[0].next = moved[f.nodes[0].prev], moved[f.nodes[0].next]
	*f = *small
}

func (f *forest) bytes() int64 {
	return int64(cap(f.nodes))*nodeBytes + int64(cap(f.slots))*4
}
