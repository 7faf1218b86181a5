package engine

import "github.com/warmpath/warmpath/block"

// nullBlock is the number of a block that is never allocated, cached or freed. vLLM puts this block in the place of
// blocks before a sliding window.
const nullBlock = 0

// pool is a paged KV pool that caches full blocks by their hash, like vLLM's BlockPool. The free list is in the order
// of reuse. A free block keeps its hash until the block is reused, so a lookup of the hash still finds the block.
type pool struct {
	slots []slot
	free  int // number of blocks in the free list
	// cached has the oldest block with each hash. Other blocks with the same hash (copies) are in a ring with the oldest
	// block.
	cached cached
	// evicted, if not nil, is called with a hash when the last block with this hash is reused.
	evicted func(Hash)

	events []Event
	hashes []Hash // array to which the field Hashes of the events refers
}

// slot is a physical block. A slot can be in two rings: the free list, and the ring of blocks with the same hash
// (copies).
type slot struct {
	refs       int32
	hashed     bool
	hash       Hash
	prev, next int32 // neighbours in the free list, whose head is the null block
	older      int32 // next older copy in the ring of copies; at the oldest copy: the newest copy
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

// lookup returns the oldest block with the hash, or nullBlock if the hash is not cached.
func (p *pool) lookup(h Hash) int32 { return p.cached.find(h) }

// touch takes a reference to a cached block, and removes the block from the free list if it is free.
func (p *pool) touch(id int32) {
	if p.slots[id].refs == 0 {
		p.unlink(id)
	}
	p.slots[id].refs++
}

// idle reports whether no request refers to the block.
func (p *pool) idle(id int32) bool { return p.slots[id].refs == 0 }

// allocate appends the first n blocks of the free list to dst, and announces the removal of their hashes. The caller
// ensures that n blocks are free.
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

// drop removes a block from the cache and announces the removal.
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

// forget removes a block from the ring of its hash.
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

// release drops one reference to each block. A block without references is free: a cached block goes to the end of the
// free list, the last one first, and a block without a hash goes to the front. So the last blocks of a request are
// evicted before its first blocks.
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
	// vLLM puts the list of released blocks without a hash in front of the free list. In this list the request's last
	// block is first.
	for i := range blocks {
		if id := blocks[i]; id != nullBlock && p.slots[id].refs == 0 && !p.slots[id].hashed {
			p.pushFront(id)
		}
	}
}

// store caches blocks under hashes, and announces them with event e; it sets e.Hashes. It does not cache a null block,
// but the event contains the tokens of the null block. A block that was cached while partly full has another hash;
// store first removes this hash.
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

// insert caches a block under a hash, as the newest copy.
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

// reset empties the prefix cache. It returns false while blocks are in use.
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

// used returns the number of blocks that running requests hold.
func (p *pool) used() int { return len(p.slots) - 1 - p.free }
