package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// belief is what one Speculate made believed: that a holder has the blocks of a chain up to a leaf, until a time. The
// claims of the holder on these blocks name it; it lives while one does. 32 bytes.
type belief struct {
	until  int64 // unix nanoseconds; believed while now is before it
	leaf   block.Key
	blocks uint32 // that name it
	holder fleet.Holder
	prev   uint32 // neighbours in the queue; of free ones the next
	next   uint32
}

// beliefs keeps them, in chunks that never move: readers look up the time of what a claim names.
type beliefs struct {
	chunks atomic.Pointer[[]*beliefChunk]
	free   uint32
	unused uint32 // the first that was never used; 0: none was
	head   uint32 // the oldest
	tail   uint32
	n      int
	claims int64 // (holder, block) pairs
}

const (
	beliefChunkBits = 9
	beliefChunkLen  = 1 << beliefChunkBits // 16 KiB
)

type beliefChunk [beliefChunkLen]belief

// at returns a belief, nil when its chunk is gone.
func (q *beliefs) at(i uint32) *belief {
	c := q.chunks.Load()
	if c == nil || int(i>>beliefChunkBits) >= len(*c) {
		return nil
	}
	return &(*c)[i>>beliefChunkBits][i&(beliefChunkLen-1)]
}

// until returns until when a belief holds, as a reader may ask; 0 for none.
func (q *beliefs) until(i uint32) int64 {
	if b := q.at(i); b != nil && i != 0 {
		return atomic.LoadInt64(&b.until)
	}
	return 0
}

// push returns a new belief, the youngest.
func (q *beliefs) push(id fleet.Holder, leaf block.Key, until int64) uint32 {
	i := q.free
	if i != 0 {
		q.free = q.at(i).prev
	} else {
		q.unused = max(q.unused, 1)
		i = q.unused
		q.unused++
		var chunks []*beliefChunk
		if c := q.chunks.Load(); c != nil {
			chunks = *c
		}
		if int(i>>beliefChunkBits) == len(chunks) {
			chunks = append(chunks, new(beliefChunk))
			q.chunks.Store(&chunks)
		}
	}
	b := q.at(i)
	atomic.StoreInt64(&b.until, until)
	b.leaf, b.holder, b.blocks = leaf, id, 0
	q.enqueue(i)
	q.n++
	return i
}

func (q *beliefs) enqueue(i uint32) {
	b := q.at(i)
	b.prev, b.next = q.tail, 0
	if q.tail != 0 {
		q.at(q.tail).next = i
	} else {
		q.head = i
	}
	q.tail = i
}

func (q *beliefs) dequeue(i uint32) {
	b := q.at(i)
	if b.prev != 0 {
		q.at(b.prev).next = b.next
	} else {
		q.head = b.next
	}
	if b.next != 0 {
		q.at(b.next).prev = b.prev
	} else {
		q.tail = b.prev
	}
}

// count notes that n blocks more, or less, name a belief, and frees it with the last.
func (q *beliefs) count(h *holder, i uint32, n int64) {
	if i == 0 {
		return
	}
	b := q.at(i)
	b.blocks = uint32(int64(b.blocks) + n)
	q.claims += n
	h.believed += n
	if b.blocks == 0 {
		q.release(i)
	}
}

func (q *beliefs) release(i uint32) {
	q.dequeue(i)
	q.n--
	q.at(i).prev = q.free
	q.free = i
}

func (q *beliefs) reset() {
	q.chunks.Store(nil)
	q.free, q.unused, q.head, q.tail, q.n, q.claims = 0, 0, 0, 0, 0, 0
}

func (q *beliefs) bytes() int64 {
	c := q.chunks.Load()
	if c == nil {
		return 0
	}
	return int64(len(*c))*beliefChunkLen*32 + int64(cap(*c))*8
}

// growth returns an upper bound of what n more make it allocate.
func (q *beliefs) growth(n int) int64 {
	chunks, listed := int64(n/beliefChunkLen+1), int64(0)
	if c := q.chunks.Load(); c != nil {
		listed = int64(cap(*c))
	}
	return chunks*(beliefChunkLen*32+16) + 16*listed + 64
}

// Speculate makes the index believe until the given time (unix nanoseconds) that a holder has the blocks of keys, which
// begin at the chain's first block: because a request for them was just sent there, or because the holder sends no
// events. A later time wins over an earlier one. What is confirmed replaces what is believed. No more than
// Config.MaxSpeculative blocks are taken, the first ones.
func (x *Index) Speculate(id fleet.Holder, keys []block.Key, until int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	h := x.meet(id)
	if h == nil {
		return
	}
	x.advance()
	x.expire(len(keys))
	if over := len(keys) - x.config.MaxSpeculative; over > 0 {
		keys = keys[:x.config.MaxSpeculative]
		x.counts.speculativeDropped += int64(over)
	}
	parent, rooted := block.Key(0), true
	for len(keys) > 0 {
		n := min(len(keys), x.stretch(keyStretch, 0))
		if !x.makeRoom(h, need{handles: n, keyed: true}) {
			x.counts.refused++
			return
		}
		x.believe(h, keys[:n], parent, rooted, until)
		parent, rooted = keys[n-1], false
		if keys = keys[n:]; len(keys) > 0 && !x.yield(h) {
			return
		}
	}
}

// believe makes one belief of a stretch of keys.
func (x *Index) believe(h *holder, keys []block.Key, parent block.Key, rooted bool, until int64) {
	q := &x.blocks.beliefs
	if q.n >= maxBeliefs {
		x.dropOldest()
	}
	i := q.push(h.id, keys[len(keys)-1], until)
	x.tableMu.Lock()
	q.at(i).blocks++ // so that it lives while it is applied
	x.storeRun(keys, parent, rooted, change{h: h, belief: i})
	q.at(i).blocks--
	x.tableMu.Unlock()
	if q.at(i).blocks == 0 {
		q.release(i) // all of it is proven, or believed for longer
	}
	for q.claims > int64(x.config.MaxSpeculative) {
		x.dropOldest()
	}
}

// dropOldest makes the oldest belief end before its time.
func (x *Index) dropOldest() {
	blocks, _ := x.dropBelief(x.blocks.beliefs.head)
	x.counts.speculativeDropped += blocks
}

// dropBelief makes a belief end before its time, and returns of how many blocks, and whether that took a look at every
// strand. Then all that has expired of its holder ends with it.
func (x *Index) dropBelief(i uint32) (blocks int64, everywhere bool) {
	b := &x.blocks
	it := b.beliefs.at(i)
	n, c := int64(it.blocks), change{h: x.holders[it.holder], doubt: i}
	x.tableMu.Lock()
	if at := b.locate(it.leaf); at != 0 {
		b.doubtPath(at, c)
		b.trim(at.strand())
	}
	x.tableMu.Unlock()
	if it.blocks == 0 {
		return n, false
	}
	// The leaf was confirmed, out of order, and has gone: whatever is left may be anywhere.
	c.expired = x.now.Load()
	x.sweepStrands(c)
	return n, true
}

// doubtPath takes a belief back from a block and all before it.
func (b *blocks) doubtPath(at spot, c change) {
	it := b.beliefs.at(c.doubt)
	for it.blocks > 0 {
		b.steps++
		b.paint(at.strand(), 0, at.offset()+1, c)
		s := b.strands.at(at.strand())
		if s.parent == 0 {
			return
		}
		at = spotOf(s.parent, s.at&strandOffset)
	}
}

// expire ends what has expired, looking at the oldest first: about as many blocks as n and some more. It looks at every
// strand once at most.
func (x *Index) expire(n int) {
	q := &x.blocks.beliefs
	now := x.now.Load()
	// What has a longer life stands before others: let it go to the end, some at a time.
	alive := 4
	for n = 2*n + 64; n > 0 && q.head != 0; n-- {
		i := q.head
		if q.at(i).until <= now {
			blocks, everywhere := x.dropBelief(i)
			if n -= int(blocks); everywhere {
				return
			}
			continue
		}
		if alive--; alive == 0 {
			return
		}
		q.dequeue(i)
		q.enqueue(i)
	}
}
