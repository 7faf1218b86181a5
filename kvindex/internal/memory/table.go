package memory

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Table maps a 64-bit key to a number from 1 to 2^48-1. It stores 33 bits of the key's hash, and not the key.
// [Table.Find] may return the value of another key, so the caller checks each result. An entry takes some 19 bytes,
// including free room.
//
// An entry is in the bucket that its hash chooses, or in the next bucket that has room, and stays there. A bucket is
// one cache line. The table has 256 segments of buckets. Each segment grows and shrinks alone, into new memory: a
// growth copies a 256th of the table.
//
// There is one writer at a time. If Shared is set, readers may run at the same time. A reader finds each entry that is
// in the table from the beginning of the reader's search to its end.
type Table struct {
	// Seed changes how keys are hashed: an attacker who does not know Seed cannot choose keys that collide. Set Seed
	// while the table is empty.
	Seed uint64
	// Shared says that readers run while the writer works.
	Shared bool
	// Tight is for a time when memory is short: segments become fuller, and grow in smaller steps.
	Tight bool

	segments [tableSegments]tableSegment
	buckets  int // the number of buckets in all segments

	shrinkHand int // the segment at which Shrink continues
}

type tableSegment struct {
	buckets atomic.Pointer[[]bucket]
	n       int // the number of entries
}

// bucket has room for six entries. Of the hash of an entry's key it keeps a tag and a fingerprint, see split. Readers
// read state and then entries.
type bucket struct {
	// state has one byte for each entry: the entry's fingerprint, which is usedSlot and 7 bits of the hash, or 0 if the
	// entry is free. The upper 16 bits count the entries that are in a later bucket because this bucket was full. If
	// the count reaches its maximum, it stays there: searches may then read the next bucket without need.
	state   uint64
	upper   uint64              // the upper 10 bits of each tag; only the writer reads them
	entries [bucketSlots]uint64 // the value in the upper 48 bits, and the lower 16 bits of the tag
}

const (
	tableSegments = 256
	bucketSlots   = 6
	bucketBytes   = int64(unsafe.Sizeof(bucket{}))
	eachSlot      = 0x010101010101 // eachSlot times a byte has this byte for each entry
	usedSlot      = 0x80
	anySlot       = usedSlot * eachSlot
	passed        = 1 << 48 // counts one entry in a later bucket, in bucket.state

	lowerBits = 16
	upperBits = 10
	tagBits   = lowerBits + upperBits
)

// Hash returns the hash of a key. Keys may be small integers, or chosen by an attacker.
func (t *Table) Hash(key uint64) uint64 {
	// Multiplication by a secret odd number [Dietzfelbinger, Hagerup, Katajainen, Penttonen: A Reliable Randomized
	// Algorithm for the Closest-Pair Problem, 1997].
	h := (key ^ t.Seed) * (0x9e3779b97f4a7c15 ^ t.Seed<<1)
	h = (h ^ h>>32) * (0xd6e8feb86659fd93 ^ t.Seed>>32<<1)
	return h ^ h>>32
}

func (t *Table) segment(h uint64) *tableSegment { return &t.segments[h>>56] }

// split returns what a segment keeps of a hash: the tag chooses the bucket, and the fingerprint is compared with
// bucket.state.
func split(h uint64) (tag, fingerprint uint64) { return h << 8 >> (64 - tagBits), h&0x7f | usedSlot }

// home returns the number of the bucket in which a search for a tag begins.
func home(buckets []bucket, tag uint64) int { return int(tag * uint64(len(buckets)) >> tagBits) }

// matching returns the highest bit of each byte of a state that equals a fingerprint. It may also return bits of used
// entries with another fingerprint.
func matching(state, fingerprint uint64) uint64 {
	x := state ^ fingerprint*eachSlot
	return (x - eachSlot) &^ x & anySlot
}

// after returns the number of the next bucket.
func after(buckets []bucket, at int) int {
	if at++; at == len(buckets) {
		return 0
	}
	return at
}

// entry returns the word that a bucket has in entries for a tag and a value.
func entry(tag, value uint64) uint64 { return value<<lowerBits | tag&(1<<lowerBits-1) }

// Probe is the state of a search for the entries of a hash. It is small enough to stay in registers.
type Probe struct {
	buckets *[]bucket
	hash    uint64
	gone    int    // the number of buckets that were searched
	slots   uint64 // a bit for each entry of the present bucket that was not searched, as matching returns them
}

// Find returns the value of the first entry that may have a hash, or 0, and the search for the next entry.
func (t *Table) Find(h uint64) (value uint64, next Probe) {
	p := t.segment(h).buckets.Load()
	if p == nil {
		return 0, Probe{}
	}
	return Probe{p, h, 0, anySlot}.Next()
}

// Next returns the value of the next entry that may have the hash, or 0, and the search for the entry after it. After
// a result of 0, Next must not be called.
func (p Probe) Next() (value uint64, next Probe) {
	tag, fingerprint := split(p.hash)
	buckets := *p.buckets
	first := home(buckets, tag)
	for ; p.gone < len(buckets); p.gone++ {
		at := first + p.gone
		if at >= len(buckets) {
			at -= len(buckets)
		}
		b := &buckets[at]
		state := atomic.LoadUint64(&b.state)
		for slots := matching(state, fingerprint) & p.slots; slots != 0; {
			w := atomic.LoadUint64(&b.entries[bits.TrailingZeros64(slots)/8])
			if slots &= slots - 1; uint16(w) == uint16(tag) {
				return w >> lowerBits, Probe{p.buckets, p.hash, p.gone, slots}
			}
		}
		if state < passed {
			break
		}
		p.slots = anySlot
	}
	return 0, Probe{}
}

// Touch fetches the cache line in which a search for a hash begins. If it is called for several hashes one after
// another, their cache lines are fetched at the same time.
func (t *Table) Touch(h uint64) {
	if p := t.segment(h).buckets.Load(); p != nil {
		tag, _ := split(h)
		atomic.LoadUint64(&(*p)[home(*p, tag)].state)
	}
}

// Put adds an entry.
func (t *Table) Put(h, value uint64) {
	g := t.segment(h)
	p := g.buckets.Load()
	if p == nil || (g.n+1)*16 > len(*p)*bucketSlots*t.load() {
		p = t.rebuild(int(h>>56), g.n+1)
	}
	tag, fingerprint := split(h)
	t.put(*p, tag, fingerprint, value)
	g.n++
}

func (t *Table) put(buckets []bucket, tag, fingerprint, value uint64) {
	at := home(buckets, tag)
	for ; ^buckets[at].state&anySlot == 0; at = after(buckets, at) {
		t.pass(&buckets[at], 1)
	}
	b := &buckets[at]
	k := bits.TrailingZeros64(^b.state&anySlot) / 8
	b.upper = b.upper&^((1<<upperBits-1)<<(k*upperBits)) | tag>>lowerBits<<(k*upperBits)
	t.store(&b.entries[k], entry(tag, value))
	t.store(&b.state, b.state|fingerprint<<(8*k)) // readers find the entry from now on
}

// pass adds n, 1 or -1, to a bucket's count of entries that are in later buckets because the bucket was full.
func (t *Table) pass(b *bucket, n int) {
	if b.state>>48 != 1<<16-1 {
		t.store(&b.state, b.state+uint64(n)*passed)
	}
}

func (t *Table) store(word *uint64, v uint64) {
	if t.Shared {
		atomic.StoreUint64(word, v)
	} else {
		*word = v
	}
}

// Delete removes the entry with a hash and a value. It reports whether there was such an entry.
func (t *Table) Delete(h, value uint64) bool {
	g := t.segment(h)
	p := g.buckets.Load()
	if p == nil {
		return false
	}
	buckets := *p
	tag, fingerprint := split(h)
	first := home(buckets, tag)
	for at, left := first, len(buckets); left > 0; at, left = after(buckets, at), left-1 {
		b := &buckets[at]
		for slots := matching(b.state, fingerprint); slots != 0; slots &= slots - 1 {
			k := bits.TrailingZeros64(slots) / 8
			if b.entries[k] != entry(tag, value) {
				continue
			}
			t.store(&b.state, b.state&^(0xff<<(8*k)))
			for ; first != at; first = after(buckets, first) {
				t.pass(&buckets[first], -1)
			}
			g.n--
			if len(buckets) > 1 && g.n*16 < len(buckets)*bucketSlots*5 {
				t.rebuild(int(h>>56), g.n)
			}
			return true
		}
		if b.state < passed {
			break
		}
	}
	return false
}

// load returns how full a segment may be before it grows, in sixteenths. In fuller segments more entries are in later
// buckets, so searches take longer.
func (t *Table) load() int {
	if t.Tight {
		return 14
	}
	return 13
}

// sizeFor returns how many buckets the i-th segment gets for n entries. Segments double at different times, so that an
// entry takes about the same memory at any size of the table.
func (t *Table) sizeFor(i, n int) int {
	if n == 0 {
		return 0
	}
	size := n*16/(bucketSlots*t.load()) + 1
	if t.Tight {
		return size + size/8
	}
	unit := tableSegments + i
	return unit << bits.Len(uint((size*tableSegments-1)/unit)) / tableSegments
}

// rebuild gives a segment new memory for n entries.
func (t *Table) rebuild(i, n int) *[]bucket {
	g := &t.segments[i]
	var old []bucket
	if p := g.buckets.Load(); p != nil {
		old = *p
	}
	size := t.sizeFor(i, n)
	t.buckets += size - len(old)
	if size == 0 {
		g.buckets.Store(nil)
		return nil
	}
	buckets := make([]bucket, size)
	for j := range old {
		b := &old[j]
		for k := range b.entries {
			if fingerprint := b.state >> (8 * k) & 0xff; fingerprint != 0 {
				upper := b.upper >> (k * upperBits) & (1<<upperBits - 1)
				t.put(buckets, upper<<lowerBits|b.entries[k]&(1<<lowerBits-1), fingerprint, b.entries[k]>>lowerBits)
			}
		}
	}
	g.buckets.Store(&buckets)
	return &buckets
}

// Fit rebuilds all segments that need less memory than they have.
func (t *Table) Fit() {
	for i := range t.segments {
		g := &t.segments[i]
		if p := g.buckets.Load(); p != nil && t.sizeFor(i, g.n) < len(*p) {
			t.rebuild(i, g.n)
		}
	}
}

// shrunk is how many segments Shrink rebuilds at most: the rebuilding of all segments of a large table takes long.
const shrunk = 16

// ShrinkCalls is the number of calls of Shrink that rebuild all segments, if no entries are added or removed meanwhile.
const ShrinkCalls = tableSegments / shrunk

// Shrink rebuilds segments that are more than a 32nd too large, at most 16 of them. So a table from which entries are
// removed one after another moves at most 32 entries for each removed entry. The next call of Shrink continues at the
// segment where this call ended.
func (t *Table) Shrink() {
	for n, looks := 0, 0; n < shrunk && looks < tableSegments; looks++ {
		i := t.shrinkHand % tableSegments
		t.shrinkHand = i + 1
		g := &t.segments[i]
		if p := g.buckets.Load(); p != nil && t.sizeFor(i, g.n) < len(*p)-len(*p)/32 {
			t.rebuild(i, g.n)
			n++
		}
	}
}

// Clear removes all entries and gives their memory back.
func (t *Table) Clear() {
	for i := range t.segments {
		t.segments[i].buckets.Store(nil)
		t.segments[i].n = 0
	}
	t.buckets = 0
}

// Bytes returns how much memory the table takes.
func (t *Table) Bytes() int64 { return int64(t.buckets) * bucketBytes }

// Growth returns an upper bound of the memory that n more entries take. The bound includes the old and the new memory
// of one growing segment. Growth relies on evenly distributed hashes: a segment gets at most twice its share of the
// entries and 8 more.
func (t *Table) Growth(n int) int64 {
	share := n/(tableSegments/2) + 8
	more, most, step := 0, 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		size := 0
		if p := g.buckets.Load(); p != nil {
			size = len(*p)
		}
		if (g.n+share)*16 > size*bucketSlots*t.load() {
			one := t.sizeFor(i, g.n+share)
			more, most, step = more+max(one-size, 0), max(most, one), max(step, one-size)
		}
	}
	return int64(min(more, n*step)+most) * bucketBytes
}
