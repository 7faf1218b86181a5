package synth

// recency is the cache of one worker: a list of the blocks that the worker holds, the most recently used block first.
type recency struct {
	at         map[int32]int32 // by block: index of its link in links
	links      []link
	free       []int32
	head, tail int32 // indexes of the first and the last link; -1: none
}

type link struct {
	block      int32
	prev, next int32 // indexes of the neighbours: prev is towards head, next is towards tail
}

func newRecency() *recency { return &recency{at: map[int32]int32{}, head: -1, tail: -1} }

func (r *recency) len() int { return len(r.at) }

func (r *recency) has(block int32) bool { _, ok := r.at[block]; return ok }

// touch makes block the most recently used one, and adds it if it is not held.
func (r *recency) touch(block int32) {
	i, held := r.at[block]
	switch {
	case held:
		r.cut(i)
	case len(r.free) > 0:
		i = r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
	default:
		i = int32(len(r.links))
		r.links = append(r.links, link{})
	}
	r.links[i] = link{block: block, prev: -1, next: r.head}
	if r.head >= 0 {
		r.links[r.head].prev = i
	} else {
		r.tail = i
	}
	r.head = i
	r.at[block] = i
}

// drop removes the least recently used block.
func (r *recency) drop() int32 {
	i := r.tail
	block := r.links[i].block
	r.cut(i)
	delete(r.at, block)
	r.free = append(r.free, i)
	return block
}

func (r *recency) cut(i int32) {
	l := r.links[i]
	if l.prev >= 0 {
		r.links[l.prev].next = l.next
	} else {
		r.head = l.next
	}
	if l.next >= 0 {
		r.links[l.next].prev = l.prev
	} else {
		r.tail = l.prev
	}
}

// depth returns how many blocks of chain are held, from the first block on. It uses binary search, because a worker
// that holds a block also holds all blocks before it.
func (r *recency) depth(chain []int32) int {
	low, high := 0, len(chain)
	for low < high {
		middle := (low + high) / 2
		if r.has(chain[middle]) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}
