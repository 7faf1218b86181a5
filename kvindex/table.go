package kvindex

// table maps 64-bit keys to 32-bit indexes: open addressing with linear probing, no tombstones, no pointers that the
// garbage collector would have to follow. It consists of segments that grow and shrink alone, so that growth costs
// little at a time and needs little room beside what is there. The zero value is empty. Not safe for concurrent
// change.
type table struct {
	segments [tableSegments]tableSegment
	n        int    // keys
	slots    int    // of all segments
	seed     uint64 // changes the multiplier
}

type tableSegment struct {
	slots []slot // length zero or a power of two
	shift uint8  // of a hash without its segment bits to a slot
	n     int
}

// slot is empty when val is 0; indexes start at 1.
type slot struct {
	lo, hi uint32 // the key: two halves, so that a slot takes 12 bytes and not 16
	val    uint32
}

const (
	tableSegments = 64 // growth copies 1/64 at a time; more would cost an empty index too much
	segmentBits   = 6
	smallSegment  = 8
	slotBytes     = 12
)

// spread scrambles a key: keys may be small integers (some engines number their blocks), or chosen by a worker that
// means harm.
func (t *table) spread(key uint64) uint64 {
	h := key * mixFirst
	return (h ^ h>>32) * (mixSecond ^ t.seed)
}

// clear forgets all keys.
func (t *table) clear() { *t = table{seed: t.seed} }

func (s *slot) key() uint64 { return uint64(s.hi)<<32 | uint64(s.lo) }

func (g *tableSegment) home(h uint64) int { return int(h << segmentBits >> g.shift) }

// get returns the index of key, 0 when it has none.
func (t *table) get(key uint64) uint32 {
	h := t.spread(key)
	g := &t.segments[h>>(64-segmentBits)]
	if g.n == 0 {
		return 0
	}
	slots := g.slots
	mask := len(slots) - 1
	lo, hi := uint32(key), uint32(key>>32)
	for i := g.home(h) & mask; ; i = (i + 1) & mask {
		s := &slots[i]
		if s.val == 0 || s.lo == lo && s.hi == hi {
			return s.val
		}
	}
}

// put makes val, which is not 0, the index of key.
func (t *table) put(key uint64, val uint32) {
	h := t.spread(key)
	g := &t.segments[h>>(64-segmentBits)]
	if (g.n+1)*4 > len(g.slots)*3 {
		t.resize(g, max(smallSegment, 2*len(g.slots)))
	}
	if g.place(h, key, val) {
		t.n++
	}
}

// place reports whether key is new.
func (g *tableSegment) place(h, key uint64, val uint32) bool {
	mask := len(g.slots) - 1
	for i := g.home(h) & mask; ; i = (i + 1) & mask {
		s := &g.slots[i]
		if s.val == 0 {
			*s = slot{uint32(key), uint32(key >> 32), val}
			g.n++
			return true
		}
		if s.key() == key {
			s.val = val
			return false
		}
	}
}

// resize gives a segment size slots.
func (t *table) resize(g *tableSegment, size int) {
	old := g.slots
	t.slots += size - len(old)
	g.slots = make([]slot, size)
	g.n = 0
	g.shift = 64
	for n := size; n > 1; n >>= 1 {
		g.shift--
	}
	for i := range old {
		if old[i].val != 0 {
			key := old[i].key()
			g.place(t.spread(key), key, old[i].val)
		}
	}
}

// del forgets key.
func (t *table) del(key uint64) {
	h := t.spread(key)
	g := &t.segments[h>>(64-segmentBits)]
	if g.n == 0 {
		return
	}
	mask := len(g.slots) - 1
	i := g.home(h) & mask
	for ; g.slots[i].key() != key || g.slots[i].val == 0; i = (i + 1) & mask {
		if g.slots[i].val == 0 {
			return
		}
	}
	g.n--
	t.n--
	// Move back what linear probing had pushed past the hole.
	for j := (i + 1) & mask; g.slots[j].val != 0; j = (j + 1) & mask {
		home := g.home(t.spread(g.slots[j].key())) & mask
		if (j-home)&mask >= (j-i)&mask {
			g.slots[i] = g.slots[j]
			i = j
		}
	}
	g.slots[i] = slot{}
	if len(g.slots) > 8*smallSegment && g.n*8 < len(g.slots) {
		t.resize(g, len(g.slots)/4)
	}
}

func (t *table) bytes() int64 { return int64(t.slots) * slotBytes }

// growth returns what n more keys make the table allocate, old slots beside new ones. Keys are hashes: no segment gets
// more than twice its share and some.
func (t *table) growth(n int) int64 {
	share := n/(tableSegments/2) + 16
	slots, most := 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		size := max(smallSegment/2, len(g.slots))
		before := slots
		for (g.n+share)*4 > size*3 {
			size *= 2
			slots += size
		}
		most = max(most, slots-before)
	}
	return int64(min(slots, n*most)) * slotBytes
}
