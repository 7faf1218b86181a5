package kvindex

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// slots maps the keys of blocks to their spots on strands. Open addressing in buckets of one cache line, which hold
// four slots of two words: the key; the spot in the upper 48 bits of the second. A bucket's first slot has in its lower
// 8 bits how far to look for keys whose home it is: see [stray]. So nothing ever moves and nothing is left behind where
// something was removed: a reader beside the writer never misses what stands still. 256 segments grow and shrink alone,
// each into new memory, so that a reader that is in the old one still reads what was true.
//
// One writer at a time; any number of readers. Readers must check that what they read was of one moment: see [probe].
type slots struct {
	// seed changes the multiplier of keys. It has a cache line of its own: readers need it for every look, and what
	// is beside it is written to.
	_        [7]uint64
	seed     uint64
	_        [7]uint64
	segments [slotSegments]slotSegment
	n        int // keys, dead ones included
	words    int // of all arrays
	tight    bool
	// loose: a quarter of the budget is spare. Worn segments may then grow without room being made for it: all
	// together get no more than three tenths larger, from a load of 14/16 to one of 9/10 of 12/16.
	loose  bool
	filled []uint8 // scratch
}

// slotSegment is one cache line.
type slotSegment struct {
	array atomic.Pointer[slotArray]
	n     int32
	gone  int32      // how many were dropped since it was built
	roots rootCounts // of keys that would be in the segment
}

type slotArray struct {
	buckets uint64
	words   []uint64
}

const (
	slotSegments = 256 // growth copies 1/256 at a time
	bucketWords  = 8
	// slotLoad is how full a segment may be before it grows, in 1/16: fuller saves less than the longer ways cost.
	slotLoad = 14
	// wornLoad is the same for a segment of which as much came and went as it has: holes are filled by what strays,
	// so that at a load of 0.8 half of all is away from home, where it is a sixth in one that was filled once.
	wornLoad = 12
)

// spot is a place on a strand: the strand's index, 31 bits, and an offset, 16 bits. 0 is none.
type spot uint64

// spotNamed marks in a slot a block that a handle names: see names.
const spotNamed = 1 << 47

func spotOf(strand, offset uint32) spot { return spot(strand)<<16 | spot(offset) }

func (s spot) strand() uint32 { return uint32(s >> 16) }
func (s spot) offset() uint32 { return uint32(s & 0xffff) }

// probe is where a key was found, for checking again: it was there all the time between two looks if its segment has
// the same array and the array the same words.
type probe struct {
	array *slotArray
	at    int // of the key's word; -1: it was not found
	key   block.Key
	spot  spot
}

func (t *slots) segment(h uint64) *slotSegment { return &t.segments[h>>56] }

// limit is how full a segment may be, in sixteenths of a slot, and whether it is worn.
func (t *slots) limit(g *slotSegment, a *slotArray) (full int, worn bool) {
	if t.loose && g.gone > g.n {
		return len(a.words) / 2 * wornLoad, true
	}
	return len(a.words) / 2 * slotLoad, false
}

// full reports whether a segment must grow before it takes n more keys.
func (t *slots) full(g *slotSegment, a *slotArray, n int) bool {
	if a == nil {
		return true
	}
	full, _ := t.limit(g, a)
	return (int(g.n)+n)*16 > full
}

func (a *slotArray) home(h uint64) uint64 { return homeBucket(h, a.buckets) }

// mixKey spreads keys, which are hashes, but of tokens that a client or a worker may have chosen.
func mixKey(key block.Key, seed uint64) uint64 { return uint64(key) * (mixKeys ^ seed) }

// mix spreads keys as all slots of an index do.
func (t *slots) mix(key block.Key) uint64 { return mixKey(key, t.seed) }

// fetch brings a word's cache line. Of words that are independent of each other the processor fetches some at a time.
func fetch(word *uint64) { atomic.LoadUint64(word) }

// touch lets the bucket in which a key begins to be looked for be on its way into the cache.
func (t *slots) touch(key block.Key) {
	h := t.mix(key)
	if a := t.segment(h).array.Load(); a != nil {
		fetch(&a.words[a.home(h)*bucketWords])
	}
}

// find looks for a key.
func (t *slots) find(key block.Key) probe {
	h := t.mix(key)
	a := t.segment(h).array.Load()
	if a == nil {
		return probe{at: -1, key: key}
	}
	b, last := a.home(h), uint64(0)
	for step := uint64(1); ; step++ {
		w := (*[bucketWords]uint64)(a.words[b*bucketWords:])
		// Which slot it is cannot be foreseen: no branch depends on it before all four were compared.
		hit := isZero(atomic.LoadUint64(&w[0])^uint64(key)) | isZero(atomic.LoadUint64(&w[2])^uint64(key))<<1 |
			isZero(atomic.LoadUint64(&w[4])^uint64(key))<<2 | isZero(atomic.LoadUint64(&w[6])^uint64(key))<<3
		for ; hit != 0; hit &= hit - 1 {
			i := bits.TrailingZeros64(hit) * 2 & (bucketWords - 1)
			// The key's word must be the same after its spot was read.
			if s := spot(atomic.LoadUint64(&w[i+1]) >> 16); s != 0 && atomic.LoadUint64(&w[i]) == uint64(key) {
				return probe{array: a, at: int(b)*bucketWords + i, key: key, spot: s &^ spotNamed}
			}
		}
		if step == 1 {
			last = stray(atomic.LoadUint64(&w[1])).reach(a.buckets)
		}
		if step > last {
			return probe{array: a, at: -1, key: key}
		}
		b = nextBucket(b, step, a.buckets)
	}
}

// isZero returns 1 for 0 and else 0.
func isZero(x uint64) uint64 { return (x - 1) &^ x >> 63 }

// still reports whether a key that was found is there as it was.
func (t *slots) still(p *probe) bool {
	return t.segment(t.mix(p.key)).array.Load() == p.array &&
		atomic.LoadUint64(&p.array.words[p.at]) == uint64(p.key) &&
		spot(atomic.LoadUint64(&p.array.words[p.at+1])>>16)&^spotNamed == p.spot
}

// current returns where a key is that was found and has not gone since; the segment may have shrunk.
func (t *slots) current(p *probe) *probe {
	if p.at >= 0 && t.segment(t.mix(p.key)).array.Load() != p.array {
		*p = t.find(p.key)
	}
	return p
}

// named reports whether a key that was found is marked as named.
func (p *probe) named() bool { return spot(p.array.words[p.at+1]>>16)&spotNamed != 0 }

// mark marks a key that was found as named, or takes the mark away.
func (p *probe) mark(named bool) {
	w := &p.array.words[p.at+1]
	if named {
		atomic.StoreUint64(w, *w|spotNamed<<16)
	} else {
		atomic.StoreUint64(w, *w&^(spotNamed<<16))
	}
}

// get returns a key's spot, 0 when it has none.
func (t *slots) get(key block.Key) spot { return t.find(key).spot }

// put gives a key a spot and reports whether the key is new. alive tells which spots, marks
// included, must be kept when the segment grows; nil: all.
func (t *slots) put(key block.Key, s spot, alive func(spot) bool) bool {
	if p := t.find(key); p.at >= 0 {
		w := &p.array.words[p.at+1]
		atomic.StoreUint64(w, *w&(0xffff|spotNamed<<16)|uint64(s)<<16)
		return false
	}
	t.insert(key, s, alive)
	return true
}

// insert is put of a key that is not there.
func (t *slots) insert(key block.Key, s spot, alive func(spot) bool) {
	h := t.mix(key)
	g := t.segment(h)
	a := g.array.Load()
	if t.full(g, a, 1) {
		a = t.rebuild(g, 1, alive)
	}
	a.insert(a.home(h), key, s)
	g.n++
	t.n++
}

func (a *slotArray) insert(home uint64, key block.Key, s spot) {
	if !a.insertHome(home, key, s) {
		a.insertStray(home, key, s)
	}
}

// insertHome is insert of a key whose home has room; it reports false when that is full.
func (a *slotArray) insertHome(home uint64, key block.Key, s spot) bool {
	w := (*[bucketWords]uint64)(a.words[home*bucketWords:])
	i := freeSlot(w)
	if i == bucketWords {
		return false
	}
	atomic.StoreUint64(&w[i], uint64(key))
	atomic.StoreUint64(&w[i+1], w[i+1]&0xffff|uint64(s)<<16)
	return true
}

// insertStray is insert of a key whose home is full.
func (a *slotArray) insertStray(home uint64, key block.Key, s spot) {
	b, i := a.spill(home)
	w := (*[bucketWords]uint64)(a.words[b*bucketWords:])
	atomic.StoreUint64(&w[i], uint64(key))
	atomic.StoreUint64(&w[i+1], w[i+1]&0xffff|uint64(s)<<16)
}

// spill returns where there is room for a key whose home is full, and notes how far that is.
func (a *slotArray) spill(home uint64) (b uint64, i int) {
	b = home
	for far := uint64(1); ; far++ {
		b = nextBucket(b, far, a.buckets)
		if i = freeSlot((*[bucketWords]uint64)(a.words[b*bucketWords:])); i < bucketWords {
			count := &a.words[home*bucketWords+1]
			atomic.StoreUint64(count, *count&^0xffff|uint64(stray(*count).more(far)))
			return b, i
		}
	}
}

// freeSlot returns the index of the first slot of a bucket that is free, bucketWords when none is.
func freeSlot(w *[bucketWords]uint64) int {
	free := isZero(w[1]>>16) | isZero(w[3]>>16)<<1 | isZero(w[5]>>16)<<2 | isZero(w[7]>>16)<<3 | 1<<4
	return bits.TrailingZeros64(free) * 2
}

// fill inserts what is in an older array, and alive, into one that no reader sees yet. filled counts what is in each
// bucket, so that a bucket need not be read for where there is room.
func (a *slotArray) fill(old []uint64, filled []uint8, seed uint64, alive func(spot) bool) {
	words, buckets := a.words, a.buckets
	for ; len(old) >= bucketWords; old = old[bucketWords:] {
		from := (*[bucketWords]uint64)(old)
		for k := 0; k < bucketWords; k += 2 {
			key, value := from[k], from[k+1]&^0xffff
			if value == 0 || alive != nil && !alive(spot(value>>16)) {
				continue
			}
			b := homeBucket(mixKey(block.Key(key), seed), buckets)
			i := int(filled[b]) * 2
			if i == bucketWords {
				b, i = a.spill(b)
			}
			filled[b]++
			w := (*[bucketWords]uint64)(words[b*bucketWords:])
			i &= bucketWords - 1
			w[i] = key // before anything is read: a page that is read first is mapped twice by the system
			w[i+1] |= value
		}
	}
}

// rebuild gives a segment room for so many more keys, and no more than it needs, and leaves out what is dead.
func (t *slots) rebuild(g *slotSegment, more int, alive func(spot) bool) *slotArray {
	old := g.array.Load()
	worn := t.loose && g.gone > g.n
	g.gone = 0
	n := int(g.n)
	if old != nil && alive != nil {
		n = 0
		for i := 0; i < len(old.words); i += 2 {
			if s := spot(old.words[i+1] >> 16); s != 0 && alive(s) {
				n++
			}
		}
	}
	t.n -= int(g.n) - n
	g.n = int32(n)
	buckets := slotBuckets(n+more, t.tight, worn)
	if old != nil && more == 0 {
		buckets = min(buckets, int(old.buckets)) // what is swept must not grow by it
	}
	if buckets == 0 {
		if old != nil {
			t.words -= len(old.words)
		}
		g.array.Store(nil)
		return nil
	}
	a := &slotArray{buckets: uint64(buckets), words: make([]uint64, buckets*bucketWords)}
	if old != nil {
		t.words -= len(old.words)
		t.filled = slices.Grow(t.filled[:0], buckets)[:buckets]
		clear(t.filled)
		a.fill(old.words, t.filled, t.seed, alive)
	}
	t.words += len(a.words)
	g.array.Store(a)
	return a
}

// slotBuckets returns how many buckets a segment of n keys gets: full by two thirds of its limit, so that it grows by
// half; by eight ninths when room is tight; by nine tenths of a lower limit when it is worn, which grows no more then.
func slotBuckets(n int, tight, worn bool) int {
	if worn {
		return (n*16*10/wornLoad/9 + 3) / 4
	}
	if tight {
		return (n*16*9/slotLoad/8 + 3) / 4
	}
	return (n*16*3/slotLoad/2 + 3) / 4
}

// del forgets a key.
func (t *slots) del(key block.Key, alive func(spot) bool) {
	p := t.find(key)
	t.drop(&p, alive)
}

// drop forgets a key where it was found, if it was.
func (t *slots) drop(p *probe, alive func(spot) bool) {
	if p.at < 0 {
		return
	}
	h := t.mix(p.key)
	g := t.segment(h)
	a := p.array
	if g.array.Load() != a {
		t.del(p.key, alive) // the segment has shrunk since
		return
	}
	w := &a.words[p.at+1]
	atomic.StoreUint64(w, *w&0xffff)
	if home := a.home(h); home != uint64(p.at/bucketWords) {
		w := &a.words[home*bucketWords+1]
		atomic.StoreUint64(w, *w&^0xffff|uint64(stray(*w).less()))
	}
	g.n--
	t.n--
	g.gone++
	if len(a.words) > 8*bucketWords && int(g.n)*8 < len(a.words)/2*3 {
		t.rebuild(g, 0, alive)
	}
}

// each calls f for all keys of a segment, dead ones included.
func (t *slots) each(segment int, f func(key block.Key)) {
	if a := t.segments[segment].array.Load(); a != nil {
		for i := 0; i < len(a.words); i += 2 {
			if a.words[i+1]>>16 != 0 {
				f(block.Key(a.words[i]))
			}
		}
	}
}

func (t *slots) bytes() int64 { return int64(t.words)*8 + int64(cap(t.filled)) }

// growth returns what n more keys make the table allocate, with the old memory of one segment beside its new one. Keys
// are hashes: no segment gets more than twice its share and some.
func (t *slots) growth(n int) int64 {
	share := n/(slotSegments/2) + 8
	buckets, most, step := 0, 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		if a := g.array.Load(); t.full(g, a, share) {
			one, old := slotBuckets(int(g.n)+share, t.tight, false), 0
			if a != nil {
				old = int(a.buckets)
			}
			buckets, most, step = buckets+max(one-old, 0), max(most, one), max(step, one-old)
		}
	}
	return int64(min(buckets, n*step)+most)*bucketWords*8 + 2*int64(most)
}
