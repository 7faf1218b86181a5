package engine

import "github.com/warmpath/warmpath/block"

// nullBlock is never handed out, cached or freed: vLLM keeps it as the place of blocks that a window has passed.
const nullBlock = 0

// pool is a paged KV pool with full-block prefix caching, as vLLM's BlockPool. Free blocks wait in the order in which they are
// reused; those that are still cached keep their hash until then.
type pool struct {
	slots []slot
	free  int // blocks in the free list
	// cached finds the oldest copy of a hash; further copies hang in its ring.
	cached cached
	// evicted is told of each hash whose last copy was reused. nil: nobody asks.
	evicted func(Hash)

	events []Event
	hashes []Hash // what the events' Hashes point into
}

// slot is a physical block and its place in two rings: the free list, and the copies of one hash.
type slot struct {
	refs       int32
	hashed     bool
	hash       Hash
	prev, next int32 // free list; the null block is its head
	older      int32 // ring of copies
	newer      int32
}

func newPool(blocks int) *pool {
	p := &pool{slots: make([]slot, blocks)}
	for i := 1; i < blocks; i++ {
		p.pushBack(int32(i))
	}
	return p
}

func (p *pool) link(id, before int32) {
	after := p.slots[before].next
	p.slots[id].prev, p.slots[id].next = before, after
	p.slots[before].next, p.slots[after].prev = id, id
	p.free++
}

func (p *pool) pushBack(id int32)  { p.link(id, p.slots[nullBlock].prev) }
func (p *pool) pushFront(id int32) { p.link(id, nullBlock) }

func (p *pool) unlink(id int32) {
	s := &p.slots[id]
	p.slots[s.prev].next, p.slots[s.next].prev = s.next, s.prev
	p.free--
}

// lookup returns the oldest copy of a hash, nullBlock when there is none.
func (p *pool) lookup(h Hash) int32 { return p.cached.find(h) }

// touch takes a reference on a cached block, which may have been waiting for reuse.
func (p *pool) touch(id int32) {
	if p.slots[id].refs == 0 {
		p.unlink(id)
	}
	p.slots[id].refs++
}

// idle reports whether nobody refers to the block.
func (p *pool) idle(id int32) bool { return p.slots[id].refs == 0 }

// allocate appends n blocks to dst, the first of the free list. What they cached is announced as removed. The caller makes
// sure that n blocks are free.
func (p *pool) allocate(dst []int32, n int) []int32 {
	if n > p.free {
		panic("bug: allocate more blocks than are free")
	}
	for range n {
		id := p.slots[nullBlock].next
		p.unlink(id)
		p.drop(id)
		p.slots[id].refs = 1
		dst = append(dst, id)
	}
	return dst
}

// drop takes a block out of the cache and announces it.
func (p *pool) drop(id int32) {
	s := &p.slots[id]
	if !s.hashed {
		return
	}
	p.forget(id)
	p.emit(Event{Kind: Removed, Tier: block.TierGPU}, s.hash)
	if p.evicted != nil && p.lookup(s.hash) == nullBlock {
		p.evicted(s.hash)
	}
}

// forget takes a block out of the ring of its hash.
func (p *pool) forget(id int32) {
	s := &p.slots[id]
	s.hashed = false
	if s.newer == id {
		p.cached.remove(s.hash)
		return
	}
	p.slots[s.older].newer, p.slots[s.newer].older = s.newer, s.older
	if p.lookup(s.hash) == id {
		p.cached.set(s.hash, s.newer)
	}
}

// release gives blocks back, the last one first. Blocks without a hash are reused at once, newest first; cached ones wait
// their turn, so that the tail of a request goes before its head.
func (p *pool) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		id := blocks[i]
		if id == nullBlock {
			continue
		}
		s := &p.slots[id]
		if s.refs--; s.refs > 0 {
			continue
		}
		if s.refs < 0 {
			panic("bug: block released more often than taken")
		}
		if s.hashed {
			p.pushBack(id)
		}
	}
	// vLLM prepends the unhashed blocks as one list in the order of release: the tail stands first again.
	for i := range blocks {
		if id := blocks[i]; id != nullBlock && p.slots[id].refs == 0 && !p.slots[id].hashed {
			p.pushFront(id)
		}
	}
}

// store caches blocks under hashes and announces them in one event, which e describes; e.Hashes is filled here. A null block is
// skipped, its tokens are announced all the same. A block that had another hash (it was cached when it was partly full)
// loses it first.
func (p *pool) store(blocks []int32, hashes []Hash, e Event) {
	for i, id := range blocks {
		if id != nullBlock && p.slots[id].hashed && p.slots[id].hash != hashes[i] {
			p.drop(id)
		}
	}
	first := len(p.hashes)
	for i, id := range blocks {
		if id == nullBlock {
			continue
		}
		p.insert(id, hashes[i])
		p.hashes = append(p.hashes, hashes[i])
	}
	e.Kind, e.Tier, e.Hashes = Stored, block.TierGPU, p.hashes[first:len(p.hashes):len(p.hashes)]
	p.events = append(p.events, e)
}

// insert makes a block the newest copy of a hash.
func (p *pool) insert(id int32, h Hash) {
	s := &p.slots[id]
	s.hashed, s.hash = true, h
	oldest := p.lookup(h)
	if oldest == nullBlock {
		p.cached.set(h, id)
		s.older, s.newer = id, id
		return
	}
	newest := p.slots[oldest].older
	s.older, s.newer = newest, oldest
	p.slots[newest].newer, p.slots[oldest].older = id, id
}

// reset empties the prefix cache. It refuses while blocks are in use.
func (p *pool) reset() bool {
	if p.free != len(p.slots)-1 {
		return false
	}
	for i := range p.slots {
		p.slots[i].hashed = false
	}
	p.cached.clear()
	p.emit(Event{Kind: Cleared})
	return true
}

// emit appends an event with the given hashes.
func (p *pool) emit(e Event, hashes ...Hash) {
	if len(hashes) > 0 {
		first := len(p.hashes)
		p.hashes = append(p.hashes, hashes...)
		e.Hashes = p.hashes[first:len(p.hashes):len(p.hashes)]
	}
	p.events = append(p.events, e)
}

// used returns the blocks that running requests hold.
func (p *pool) used() int { return len(p.slots) - 1 - p.free }
