package kvindex

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// belief is what one Speculate made believed: that a holder has the blocks of a chain up to a leaf, until a time. The
// claims of the holder on these blocks name it; it lives while one does. 32 bytes.
type belief struct {
	until  int64  // unix nanoseconds; believed while now is before it
	leaf   spot   // the last of them
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
func (q *beliefs) push(id fleet.Holder, until int64) uint32 {
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
	b.leaf, b.holder, b.blocks = 0, id, 0
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
	if b.until != lost {
		q.claims += n
	}
	h.believed += n
	if b.blocks == 0 {
		q.release(h, i)
	}
}

func (q *beliefs) release(h *holder, i uint32) {
	if q.at(i).until == lost {
		h.lost--
	} else {
		q.dequeue(i)
	}
	q.n--
	q.at(i).prev = q.free
	q.free = i
}

// lost is the time of a belief that is over, but whose blocks only a look at every strand would find: its leaf was
// confirmed, out of order, and has gone. The next blocks that the holder stores end it: see endLost.
const lost = math.MinInt64

// lose makes a belief a lost one.
func (q *beliefs) lose(h *holder, i uint32) {
	q.dequeue(i)
	q.claims -= int64(q.at(i).blocks)
	atomic.StoreInt64(&q.at(i).until, lost)
	h.lost++
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
//
// It waits for nobody. If the index is being changed, the blocks are believed from the next pause of that change on. No
// room is made for them but of what is believed: in a full index they may be dropped, and Stats.SpeculativeDropped
// counts them.
func (x *Index) Speculate(id fleet.Holder, keys []block.Key, until int64) {
	x.tell(expectation{holder: id, until: until}, keys)
}

// Doubt undoes one Speculate with this time, because the request was not sent: the holder is no longer expected to have
// the blocks of keys after the first known ones, which were expected before. Expectations of other calls with a later
// time stay. Like Speculate, it waits for no writer.
func (x *Index) Doubt(id fleet.Holder, keys []block.Key, known int, until int64) {
	x.tell(expectation{holder: id, until: until, doubt: true, known: known}, keys)
}

// expect is Speculate while the index is locked.
func (x *Index) expect(id fleet.Holder, keys []block.Key, until int64) {
	if len(keys) == 0 {
		return
	}
	h := x.meet(id)
	if h == nil {
		return
	}
	x.pass()
	x.expire(len(keys))
	if over := len(keys) - x.config.MaxSpeculative; over > 0 {
		keys = keys[:x.config.MaxSpeculative]
		x.counts.speculativeDropped += int64(over)
	}
	for at := spot(0); len(keys) > 0; {
		n := min(len(keys), x.stretch(0))
		if !x.roomy(need{hashes: n, keyed: true}) {
			x.counts.speculativeDropped += int64(len(keys))
			x.dropBeliefs(len(keys))
			return
		}
		if at = x.believe(h, at, keys[:n], until); at == 0 {
			return
		}
		keys = keys[n:]
	}
}

// believe makes one belief of a stretch of keys after a block, and returns the last one's spot; 0 when it is not
// believed any more, or cannot be.
func (x *Index) believe(h *holder, at spot, keys []block.Key, until int64) spot {
	b, q := &x.blocks, &x.blocks.beliefs
	if q.n >= maxBeliefs {
		if x.dropBeliefs(1); q.n >= maxBeliefs || at != 0 && !b.there(at) {
			x.counts.speculativeDropped += int64(len(keys))
			return 0
		}
	}
	i := q.push(h.id, until)
	q.at(i).blocks++ // so that it lives while it is applied
	c := change{h: h, belief: i}
	for len(keys) > 0 {
		first, n := b.follow(at, keys)
		if n == 0 {
			at = b.grow(at, keys, nil, &c, x.tick())
			break
		}
		at = first + spot(n) - 1
		b.paint(first.strand(), first.offset(), at.offset()+1, &c)
		b.strands.At(first.strand()).use(x.tick())
		keys = keys[n:]
	}
	q.at(i).leaf = at
	if q.at(i).blocks--; q.at(i).blocks == 0 {
		q.release(h, i) // all of it is proven, or believed for longer
	}
	if over := q.claims - int64(x.config.MaxSpeculative); over > 0 {
		if x.dropBeliefs(int(over)); !b.there(at) {
			return 0
		}
	}
	return at
}

// dropBeliefs makes the oldest beliefs end before their time, until so many blocks fewer are believed or none is left.
func (x *Index) dropBeliefs(n int) {
	for n > 0 && x.blocks.beliefs.head != 0 {
		blocks := x.dropBelief(x.blocks.beliefs.head)
		x.counts.speculativeDropped += blocks
		n -= int(blocks)
	}
}

// dropBelief makes a belief end before its time, and returns of how many blocks.
func (x *Index) dropBelief(i uint32) int64 {
	b := &x.blocks
	it := b.beliefs.at(i)
	n, h := int64(it.blocks), x.holders[it.holder]
	if at := it.leaf; b.there(at) { // it may be another block by now: then the belief is not found
		b.doubtPath(at, &change{h: h, doubt: i})
		b.trim(at.strand())
	}
	if it.blocks > 0 {
		b.beliefs.lose(h, i)
	}
	return n
}

// doubt is Doubt while the index is locked.
func (x *Index) doubt(id fleet.Holder, keys []block.Key, known int, until int64) {
	b, h := &x.blocks, x.holder(id)
	if h == nil || known >= len(keys) {
		return
	}
	runs, n := b.walk(keys)
	leaf := spot(0) // the last of the known ones
	for _, r := range slices.Backward(runs) {
		n -= r.n
		b.steps++
		if from := max(known-n, 0); from < r.n {
			b.paint(r.first.strand(), r.first.offset()+uint32(from), r.first.offset()+uint32(r.n), &change{h: h, expired: until})
			b.trim(r.first.strand())
		}
		if known > n && leaf == 0 {
			leaf = r.first + spot(min(known-n, r.n)) - 1
			break
		}
	}
	// What is left of a belief must be found by its leaf.
	if leaf != 0 && b.there(leaf) {
		if q := b.sets.get(b.setAt(leaf), id).belief(); q != 0 && b.beliefs.until(q) == until {
			b.beliefs.at(q).leaf = leaf
		}
	}
}

// keyRun is some blocks that follow each other on a strand.
type keyRun struct {
	first spot
	n     int
}

// walk returns where the blocks of keys are that begin a chain, as many as are there.
func (b *blocks) walk(keys []block.Key) (runs []keyRun, n int) {
	for at := spot(0); n < len(keys); {
		first, more := b.follow(at, keys[n:])
		if more == 0 {
			break
		}
		runs = append(runs, keyRun{first, more})
		at, n = first+spot(more)-1, n+more
	}
	return runs, n
}

// doubtPath removes a belief from a block and all blocks before it.
func (b *blocks) doubtPath(at spot, c *change) {
	it := b.beliefs.at(c.doubt)
	for at != 0 && it.blocks > 0 {
		b.steps++
		b.paint(at.strand(), 0, at.offset()+1, c)
		at = b.before(spotOf(at.strand(), 0))
	}
}

// expire ends what has expired, looking at the oldest first: about as many blocks as n and some more. It returns how
// many.
func (x *Index) expire(n int) (blocks int64) {
	q := &x.blocks.beliefs
	now := x.now.Load()
	// A belief with a longer life stands before others: let it go to the end, some at a time.
	alive := 4
	for most := 2*int64(n) + 64; blocks < most && q.head != 0; most-- {
		i := q.head
		if q.at(i).until <= now {
			blocks += x.dropBelief(i)
			continue
		}
		if alive--; alive == 0 {
			break
		}
		q.dequeue(i)
		q.enqueue(i)
	}
	return blocks
}

// endLost ends a holder's lost and expired beliefs. If the holder has lost beliefs, it looks at every strand.
func (x *Index) endLost(h *holder) {
	if h.lost > 0 {
		x.sweep(change{h: h, expired: cmp.Or(x.now.Load(), lost)})
	}
}
