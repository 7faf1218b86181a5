package learned

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// batch is how many blocks go from the forests before the index below is told.
const batch = 1024

// drop removes a holder's least recently used block. It needs one.
func (x *Index) drop(h fleet.Holder) { x.dropped(h, block.Key(x.forests[h].drop())) }

// dropped notes that a block went from a holder's forest.
func (x *Index) dropped(h fleet.Holder, key block.Key) {
	x.gone = append(x.gone, key)
	x.blocks--
	if len(x.gone) >= batch {
		x.flush(h)
	}
}

// flush takes from the index below what went from a holder's forest.
func (x *Index) flush(h fleet.Holder) {
	if len(x.gone) > 0 {
		x.present.RemoveKeys(h, block.TierGPU, 0, x.gone)
		x.gone = x.gone[:0]
	}
}

// shrink leaves a holder at most limit blocks and returns how many went.
func (x *Index) shrink(h fleet.Holder, limit int) (gone int64) {
	for f := x.forests[h]; f.live > limit; gone++ {
		x.drop(h)
	}
	x.flush(h)
	return gone
}

// EvictSome is a part of [Index.Evict], for callers without a goroutine of their own: it brings h nearer to its limit by at
// most so many blocks, and returns how many went. Fewer than most means that h is within its limit.
func (x *Index) EvictSome(h fleet.Holder, most int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.known(h)
	if f == nil || x.config.MaxHolderBlocks == 0 {
		return 0
	}
	gone := x.shrink(h, max(x.config.MaxHolderBlocks, f.live-most))
	x.counts.evicted += gone
	return int(gone)
}

// expire ends what a holder used last at until or before, and returns how many blocks went.
func (x *Index) expire(h fleet.Holder, until int64) (gone int64) {
	for f := x.forests[h]; f.live > 0 && f.oldest() <= until; gone++ {
		x.drop(h)
	}
	x.flush(h)
	return gone
}

// prune leaves at most target blocks over all holders, the least recently used go, and returns how many went.
func (x *Index) prune(target int) (gone int64) {
	// A heap of holders by their oldest block: pruning is a fifth of all blocks at once.
	var heap []fleet.Holder
	for h, f := range x.forests {
		if f != nil && f.live > 0 {
			heap = append(heap, fleet.Holder(h))
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		x.sink(heap, i)
	}
	for x.blocks > target && len(heap) > 0 {
		h, f := heap[0], x.forests[heap[0]]
		for until := x.second(heap); x.blocks > target && f.live > 0 && f.oldest() <= until; gone++ {
			x.drop(h)
		}
		x.flush(h)
		if f.live == 0 {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		x.sink(heap, 0)
	}
	return gone
}

// second returns how old the oldest block of the other holders is.
func (x *Index) second(heap []fleet.Holder) int64 {
	until := x.now
	for i := 1; i < min(3, len(heap)); i++ {
		until = min(until, x.forests[heap[i]].oldest())
	}
	return until
}

func (x *Index) sink(heap []fleet.Holder, i int) {
	for {
		least := i
		for c := 2*i + 1; c < min(2*i+3, len(heap)); c++ {
			if x.forests[heap[c]].oldest() < x.forests[heap[least]].oldest() {
				least = c
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}
