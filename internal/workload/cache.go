package workload

// unbounded is a cache that keeps all blocks.
type unbounded struct{ seen []bool }

func (c *unbounded) hit(ids []int32) int { return leading(c.seen, ids) }

func (c *unbounded) store(_ int, ids []int32) {
	for _, id := range ids {
		c.seen[id] = true
	}
}

func leading(present []bool, ids []int32) int {
	for i, id := range ids {
		if !present[id] {
			return i
		}
	}
	return len(ids)
}

// queueCache is an LRU or FIFO cache. It keeps its blocks in one list and evicts the block at the old end.
type queueCache struct {
	capacity  int     // size of the cache in blocks
	move      bool    // true: a touch moves a cached block to the new end (LRU); false: a cached block keeps its place (FIFO)
	headFirst bool    // true: store touches a prompt's first block first, so it is evicted first; false: the last block first
	present   []bool  // by block
	older     []int32 // by block: the next older block; the last index is the list's anchor
	newer     []int32
	count     int
}

func newQueueCache(unique, capacity int, move, headFirst bool) *queueCache {
	c := &queueCache{
		capacity: capacity, move: move, headFirst: headFirst,
		present: make([]bool, unique), older: make([]int32, unique+1), newer: make([]int32, unique+1),
	}
	anchor := int32(unique)
	c.older[anchor], c.newer[anchor] = anchor, anchor
	return c
}

func (c *queueCache) hit(ids []int32) int { return leading(c.present, ids) }

func (c *queueCache) store(_ int, ids []int32) {
	for i := range ids {
		if c.headFirst {
			c.touch(ids[i])
		} else {
			c.touch(ids[len(ids)-1-i])
		}
	}
}

func (c *queueCache) touch(id int32) {
	switch {
	case !c.present[id]:
		c.present[id] = true
		c.count++
	case c.move:
		c.unlink(id)
	default:
		return
	}
	anchor := int32(len(c.present))
	newest := c.older[anchor]
	c.older[id], c.newer[id] = newest, anchor
	c.newer[newest], c.older[anchor] = id, id
	if c.count > c.capacity {
		oldest := c.newer[anchor]
		c.unlink(oldest)
		c.present[oldest] = false
		c.count--
	}
}

func (c *queueCache) unlink(id int32) {
	c.newer[c.older[id]], c.older[c.newer[id]] = c.newer[id], c.older[id]
}

// optimalCache is Belady's optimal cache: it knows the future, and evicts the block whose next use is latest. A request
// that needs a block also needs all blocks before this block in the prompt. So the first blocks of a prompt are never
// needed later than the blocks after them. Among blocks whose next use is by the same request, the last block in the
// prompt (largest depth) is evicted first.
type optimalCache struct {
	capacity int
	present  []bool
	due      []int32 // by cached block: the next request that needs the block
	// By index in touches.ids: the next request that needs this block. If no request needs it (never), the block is not
	// kept.
	next  []int32
	from  []int
	queue []optimalEntry // heap by due, then by depth; pop may return outdated entries, and store ignores them
	count int
}

type optimalEntry struct{ due, depth, id int32 }

const never = int32(1<<31 - 1)

func newOptimalCache(t *touches, capacity int) *optimalCache {
	c := &optimalCache{capacity: capacity, present: make([]bool, t.unique), due: make([]int32, t.unique), from: t.from}
	last := make([]int32, t.unique)
	for i := range last {
		last[i] = never
	}
	c.next = make([]int32, len(t.ids))
	for i := len(t.input) - 1; i >= 0; i-- {
		// This request does not need the blocks of its own answer, but later requests may need them.
		for at := t.from[i]; at < t.from[i+1]; at++ {
			c.next[at] = last[t.ids[at]]
		}
		for at := t.from[i]; at < t.from[i]+int(t.prompt[i]); at++ {
			last[t.ids[at]] = int32(i)
		}
	}
	return c
}

func (c *optimalCache) hit(ids []int32) int { return leading(c.present, ids) }

func (c *optimalCache) store(request int, ids []int32) {
	at := c.from[request]
	for depth, id := range ids {
		due := c.next[at+depth]
		if due == never {
			c.drop(id)
			continue
		}
		if !c.present[id] {
			c.present[id] = true
			c.count++
		}
		c.due[id] = due
		c.push(optimalEntry{due, int32(depth), id})
	}
	for c.count > c.capacity {
		e := c.pop()
		if c.present[e.id] && c.due[e.id] == e.due {
			c.drop(e.id)
		}
	}
}

func (c *optimalCache) drop(id int32) {
	if c.present[id] {
		c.present[id] = false
		c.count--
	}
}

func (e optimalEntry) later(other optimalEntry) bool {
	return e.due > other.due || e.due == other.due && e.depth > other.depth
}

func (c *optimalCache) push(e optimalEntry) {
	c.queue = append(c.queue, e)
	for i := len(c.queue) - 1; i > 0; {
		parent := (i - 1) / 2
		if !c.queue[i].later(c.queue[parent]) {
			return
		}
		c.queue[i], c.queue[parent] = c.queue[parent], c.queue[i]
		i = parent
	}
}

func (c *optimalCache) pop() optimalEntry {
	q := c.queue
	top := q[0]
	q[0] = q[len(q)-1]
	q = q[:len(q)-1]
	c.queue = q
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			return top
		}
		if child+1 < len(q) && q[child+1].later(q[child]) {
			child++
		}
		if !q[child].later(q[i]) {
			return top
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}
