package engine

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// cpuTier is host memory behind the pool: an LRU cache of blocks by hash. A reset of the pool does not empty it. A copy
// takes one step: a block that is queued in a step is cached and announced in the next step.
type cpuTier struct {
	capacity int
	describe bool
	entries  []cpuEntry // entry 0 is the head of a ring; the least recently used entry is next
	spare    []int32
	byHash   map[Hash]int32
	queued   []description
	// waiting has the descriptions of blocks that will be copied when the pool evicts them. It is nil without
	// OffloadOnEvict.
	waiting map[Hash]description
}

type cpuEntry struct {
	hash       Hash
	prev, next int32
}

// description is the part of an event of the CPU tier that describes one block. The tokens are a copy, because a slice
// of the request's tokens would keep the whole array in memory.
type description struct {
	hash, parent Hash
	hasParent    bool
	start        int
	tokens       []block.Token
	lora         string
}

func newCPUTier(cfg *Config) *cpuTier {
	t := &cpuTier{
		capacity: cfg.CPUBlocks,
		describe: cfg.Describe,
		entries:  make([]cpuEntry, 1, 64),
		byHash:   map[Hash]int32{},
	}
	if cfg.Offload == OffloadOnEvict {
		t.waiting = map[Hash]description{}
	}
	return t
}

// hit reports whether the tier has h. If so, h becomes the most recently used hash.
func (t *cpuTier) hit(h Hash) bool {
	id, ok := t.byHash[h]
	if ok {
		t.unlink(id)
		t.pushBack(id)
	}
	return ok
}

// stored is called when the pool caches blocks.
func (t *cpuTier) stored(hashes []Hash, e *Event) {
	parent, hasParent := e.Parent, e.HasParent
	for i, h := range hashes {
		d := description{hash: h, parent: parent, hasParent: hasParent, start: e.Start + i*e.BlockSize, lora: e.LoRA}
		if t.describe {
			d.tokens = slices.Clone(e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize])
		}
		parent, hasParent = h, true
		if t.waiting != nil {
			t.waiting[h] = d
		} else {
			t.queued = append(t.queued, d)
		}
	}
}

// evicted is called when the pool evicts its last copy of h.
func (t *cpuTier) evicted(h Hash) {
	if d, ok := t.waiting[h]; ok {
		delete(t.waiting, h)
		t.queued = append(t.queued, d)
	}
}

// forgetWaiting is called when the pool is reset: a reset block is not evicted later, so it is never copied.
func (t *cpuTier) forgetWaiting() { clear(t.waiting) }

// settle completes the queued copies and announces them on p: one event for all evicted blocks, then one event for each
// new block. Children come before parents, as in the events of vLLM's connector.
func (t *cpuTier) settle(p *pool, blockSize int) {
	if len(t.queued) == 0 {
		return
	}
	// If the queue is longer than the tier's capacity, drop the end of the queue, because the beginnings of prompts are
	// used most. So the loop below does not evict a block that it has added.
	t.queued = t.queued[:min(len(t.queued), t.capacity)]
	var removed []Hash
	admitted := t.queued[:0:0]
	for i := len(t.queued) - 1; i >= 0; i-- {
		d := t.queued[i]
		if t.hit(d.hash) {
			continue
		}
		if len(t.byHash) == t.capacity {
			removed = append(removed, t.popOldest())
		}
		t.push(d.hash)
		admitted = append(admitted, d)
	}
	clear(t.queued)
	t.queued = t.queued[:0]
	if len(removed) > 0 {
		p.emit(Event{Kind: Removed, Tier: block.TierCPU}, removed...)
	}
	for _, d := range admitted {
		e := Event{Kind: Stored, Tier: block.TierCPU}
		if t.describe {
			e.Parent, e.HasParent, e.Start, e.Tokens, e.BlockSize, e.LoRA = d.parent, d.hasParent, d.start, d.tokens, blockSize, d.lora
		}
		p.emit(e, d.hash)
	}
}

func (t *cpuTier) push(h Hash) {
	var id int32
	if n := len(t.spare); n > 0 {
		id, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		id = int32(len(t.entries))
		t.entries = append(t.entries, cpuEntry{})
	}
	t.entries[id].hash = h
	t.byHash[h] = id
	t.pushBack(id)
}

func (t *cpuTier) popOldest() Hash {
	id := t.entries[0].next
	h := t.entries[id].hash
	t.unlink(id)
	delete(t.byHash, h)
	t.spare = append(t.spare, id)
	return h
}

func (t *cpuTier) pushBack(id int32) {
	last := t.entries[0].prev
	t.entries[id].prev, t.entries[id].next = last, 0
	t.entries[last].next, t.entries[0].prev = id, id
}

func (t *cpuTier) unlink(id int32) {
	e := t.entries[id]
	t.entries[e.prev].next, t.entries[e.next].prev = e.next, e.prev
}
