package kvindex

import (
	"cmp"
	"math"
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

// Doubt takes back what one Speculate with this time made believed, because the request was not sent: that a holder has
// the blocks of keys after the first known ones, which it was believed to have before. What others made believed for
// longer stays. It waits for nobody, as Speculate.
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
	if x.expire(len(keys)) > 0 {
		x.sweepSome() // no event does where none come
	}
	if over := len(keys) - x.config.MaxSpeculative; over > 0 {
		keys = keys[:x.config.MaxSpeculative]
		x.counts.speculativeDropped += int64(over)
	}
	parent, rooted := block.Key(0), true
	for len(keys) > 0 {
		n := min(len(keys), x.stretch(keyStretch, 0))
		if !x.roomy(need{handles: n, keyed: true}) {
			x.counts.speculativeDropped += int64(len(keys))
			x.dropBeliefs(len(keys))
			x.sweepSome()
			return
		}
		x.believe(h, keys[:n], parent, rooted, until)
		parent, rooted = keys[n-1], false
		keys = keys[n:]
	}
}

// believe makes one belief of a stretch of keys.
func (x *Index) believe(h *holder, keys []block.Key, parent block.Key, rooted bool, until int64) {
	q := &x.blocks.beliefs
	if q.n >= maxBeliefs {
		if x.dropBeliefs(1); q.n >= maxBeliefs {
			x.counts.speculativeDropped += int64(len(keys))
			return
		}
	}
	i := q.push(h.id, keys[len(keys)-1], until)
	x.tableMu.Lock()
	q.at(i).blocks++ // so that it lives while it is applied
	x.storeRun(keys, parent, rooted, change{h: h, belief: i})
	q.at(i).blocks--
	x.tableMu.Unlock()
	if q.at(i).blocks == 0 {
		q.release(h, i) // all of it is proven, or believed for longer
	}
	x.dropBeliefs(int(q.claims - int64(x.config.MaxSpeculative)))
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
	x.tableMu.Lock()
	if at := b.locate(it.leaf); at != 0 {
		b.doubtPath(at, change{h: h, doubt: i})
		b.trim(at.strand())
	}
	x.tableMu.Unlock()
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
	b.ghosts = b.ghosts[:0]
	x.tableMu.Lock()
	defer x.tableMu.Unlock()
	for n, steps := len(keys), 1; n > known; steps++ {
		if steps%keyStretch == 0 { // readers come in between
			x.tableMu.Unlock()
			x.tableMu.Lock()
		}
		at := b.locate(keys[n-1])
		if at == 0 {
			n--
			continue
		}
		// A key determines what is before it: so many blocks of the strand are the keys before.
		lo := at.offset() + 1 - min(at.offset()+1, uint32(n-known))
		b.paint(at.strand(), lo, at.offset()+1, change{h: h, expired: until})
		b.trim(at.strand())
		n -= int(at.offset() + 1 - lo)
	}
	if known == 0 {
		return
	}
	// What is left of a belief must be found by its leaf.
	if at := b.locate(keys[known-1]); at != 0 {
		if q := b.sets.get(b.setAt(at), id).belief(); q != 0 && b.beliefs.until(q) == until {
			b.beliefs.at(q).leaf = keys[known-1]
		}
	}
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

// expire ends what has expired, looking at the oldest first: about as many blocks as n and some more. It returns how many.
func (x *Index) expire(n int) (blocks int64) {
	q := &x.blocks.beliefs
	now := x.now.Load()
	// What has a longer life stands before others: let it go to the end, some at a time.
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

// endLost ends a holder's lost beliefs, and its expired ones. It looks at every strand where there are lost ones.
func (x *Index) endLost(h *holder) {
	if h.lost > 0 {
		x.sweepStrands(change{h: h, expired: cmp.Or(x.now.Load(), lost)})
	}
}
