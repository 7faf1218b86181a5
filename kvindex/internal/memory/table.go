package memory

import "sync/atomic"

// Table maps keys of 64 bits to values from 1 to 2^48-1 of which the lower 32 bits are not 0. It keeps 56 bits of a
// key's hash and not the key: a caller holds what [Table.Find] yields to what it looks for. An entry takes 12 bytes.
//
// It is an open-addressing table with linear probing, in 256 segments that grow and shrink alone, each into new memory:
// growth costs a 256th at a time. One writer at a time. Readers may run at the same time. A reader must compare a found
// entry with the element that it leads to. An entry that it does not find may have been moved: [Table.Version] shows
// that.
type Table struct {
	// Seed changes how keys are hashed, so that nobody who does not know it can choose keys that collide. It must be
	// set while the table is empty.
	Seed uint64
	// Shared says that there are readers while the writer works.
	Shared bool
	// Tight makes segments fuller and grow by an eighth and not by a quarter, for when memory is short.
	Tight bool

	segments [tableSegments]tableSegment
	n        int
	slots    int // of all segments
}

type tableSegment struct {
	entries atomic.Pointer[tableEntries]
	version atomic.Uint32 // odd while entries are moved
	n       int32
}

// tableEntries are three words an entry: 32 bits of the hash after those that choose the segment, which say where the
// entry's home is; 16 more bits of the hash and the upper 16 of the value; the lower 32 of the value, 0 where there is
// no entry.
type tableEntries struct {
	size  uint64
	words []uint32
}

const (
	tableSegments = 256
	entryBytes    = 12
	// tableLoad is how full a segment may be before it grows, in sixteenths: fuller ones make long clusters, which a
	// removal has to close up. tightLoad is the same where memory is short.
	tableLoad = 11
	tightLoad = 13
)

// Hash returns the hash of a key. Keys may be small integers, or chosen by somebody who means harm.
func (t *Table) Hash(key uint64) uint64 {
	// Multiplication by an odd number that nobody knows [Dietzfelbinger, Hagerup, Katajainen, Penttonen: A Reliable
	// Randomized Algorithm for the Closest-Pair Problem, 1997].
	h := (key ^ t.Seed) * (0x9e3779b97f4a7c15 ^ t.Seed<<1)
	h = (h ^ h>>32) * (0xd6e8feb86659fd93 ^ t.Seed>>32<<1)
	return h ^ h>>32
}

func (t *Table) segment(h uint64) *tableSegment { return &t.segments[h>>56] }

func (e *tableEntries) home(h uint64) uint64 { return h << 8 >> 32 * e.size >> 32 }

// Len returns the number of entries.
func (t *Table) Len() int { return t.n }

// Version returns a number that changes while and when entries near a hash are moved. It is odd during a move.
func (t *Table) Version(h uint64) uint32 { return t.segment(h).version.Load() }

// Probe is a search for the entries of a hash.
type Probe struct {
	e      *tableEntries
	i      uint64
	tag    uint32
	suffix uint32
}

// Find begins a search.
func (t *Table) Find(h uint64) Probe {
	e := t.segment(h).entries.Load()
	if e == nil {
		return Probe{}
	}
	return Probe{e, e.home(h), uint32(h >> 24), uint32(h>>8) << 16}
}

// Next returns the value of the next entry of the hash, 0 when there is none.
func (p *Probe) Next() uint64 {
	if p.e == nil {
		return 0
	}
	words := p.e.words
	for n := p.e.size; n > 0; n-- {
		w := words[p.i*3 : p.i*3+3 : p.i*3+3]
		if p.i++; p.i == p.e.size {
			p.i = 0
		}
		low := atomic.LoadUint32(&w[2])
		if low == 0 {
			break
		}
		if atomic.LoadUint32(&w[0]) == p.tag {
			if mid := atomic.LoadUint32(&w[1]); mid&^0xffff == p.suffix {
				return uint64(mid&0xffff)<<32 | uint64(low)
			}
		}
	}
	p.e = nil
	return 0
}

// Touch brings the cache line in which a search begins. Lines that do not depend on each other come at the same time.
func (t *Table) Touch(h uint64) {
	if e := t.segment(h).entries.Load(); e != nil {
		atomic.LoadUint32(&e.words[e.home(h)*3])
	}
}

// Put adds an entry.
func (t *Table) Put(h, value uint64) {
	g := t.segment(h)
	e := g.entries.Load()
	if e == nil || (uint64(g.n)+1)*16 > e.size*t.load() {
		e = t.rebuild(g, int(g.n)+1)
	}
	i := e.home(h)
	for e.words[i*3+2] != 0 {
		if i++; i == e.size {
			i = 0
		}
	}
	w := e.words[i*3 : i*3+3]
	t.store(&w[0], uint32(h>>24))
	t.store(&w[1], uint32(h>>8)<<16|uint32(value>>32))
	t.store(&w[2], uint32(value)) // last: readers take the entry for there from now on
	g.n++
	t.n++
}

func (t *Table) store(word *uint32, v uint32) {
	if t.Shared {
		atomic.StoreUint32(word, v)
	} else {
		*word = v
	}
}

// Delete removes the entry of a hash and a value. It reports whether there was one.
func (t *Table) Delete(h, value uint64) bool {
	g := t.segment(h)
	e := g.entries.Load()
	if e == nil {
		return false
	}
	i := e.home(h)
	tag, mid, low := uint32(h>>24), uint32(h>>8)<<16|uint32(value>>32), uint32(value)
	for ; ; i++ {
		if i == e.size {
			i = 0
		}
		w := e.words[i*3 : i*3+3]
		if w[2] == 0 {
			return false
		}
		if w[0] == tag && w[1] == mid && w[2] == low {
			break
		}
	}
	if t.Shared {
		g.version.Add(1)
		t.shift(e, i)
		g.version.Add(1)
	} else {
		t.shift(e, i)
	}
	g.n--
	t.n--
	if e.size > 16 && uint64(g.n)*8 < e.size*3 {
		t.rebuild(g, int(g.n))
	}
	return true
}

// shift empties the i-th entry and moves back the entries after it that had no room nearer to their homes.
func (t *Table) shift(e *tableEntries, i uint64) {
	for j := i + 1; ; j++ {
		if j == e.size {
			j = 0
		}
		w := e.words[j*3 : j*3+3]
		if w[2] == 0 {
			break
		}
		home := uint64(w[0]) * e.size >> 32
		far, gap := j-home, j-i
		if j < home {
			far += e.size
		}
		if j < i {
			gap += e.size
		}
		if far >= gap {
			to := e.words[i*3 : i*3+3]
			t.store(&to[0], w[0])
			t.store(&to[1], w[1])
			t.store(&to[2], w[2])
			i = j
		}
	}
	t.store(&e.words[i*3+2], 0)
}

func (t *Table) load() uint64 {
	if t.Tight {
		return tightLoad
	}
	return tableLoad
}

// sizeFor returns how many entries a segment for n gets room for.
func (t *Table) sizeFor(n int) int {
	if n == 0 {
		return 0
	}
	if t.Tight {
		return max(4, n*16/tightLoad*9/8+1)
	}
	return max(4, n*16/tableLoad*5/4+1)
}

// rebuild gives a segment new memory for n entries.
func (t *Table) rebuild(g *tableSegment, n int) *tableEntries {
	old, size := g.entries.Load(), t.sizeFor(n)
	if old != nil {
		t.slots -= int(old.size)
	}
	if size == 0 {
		g.entries.Store(nil)
		return nil
	}
	e := &tableEntries{uint64(size), make([]uint32, 3*size)}
	t.slots += size
	if old != nil {
		for k := 0; k < len(old.words); k += 3 {
			from := old.words[k : k+3]
			if from[2] == 0 {
				continue
			}
			i := uint64(from[0]) * e.size >> 32
			for e.words[i*3+2] != 0 {
				if i++; i == e.size {
					i = 0
				}
			}
			copy(e.words[i*3:i*3+3], from)
		}
	}
	g.entries.Store(e)
	return e
}

// Fit gives segments with much unused room less memory.
func (t *Table) Fit() {
	for i := range t.segments {
		g := &t.segments[i]
		if e := g.entries.Load(); e != nil && t.sizeFor(int(g.n)) < int(e.size) {
			t.rebuild(g, int(g.n))
		}
	}
}

// Clear removes all entries and gives their memory back.
func (t *Table) Clear() {
	for i := range t.segments {
		t.segments[i].entries.Store(nil)
		t.segments[i].n = 0
	}
	t.n, t.slots = 0, 0
}

// Bytes returns how much memory the table takes.
func (t *Table) Bytes() int64 { return int64(t.slots) * entryBytes }

// Growth returns an upper bound of the memory that n more entries take, with the old memory of one segment in addition
// to its new. Hashes are even: no segment gets more than twice its share and some.
func (t *Table) Growth(n int) int64 {
	share := n/(tableSegments/2) + 8
	more, most, step := 0, 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		size, e := 0, g.entries.Load()
		if e != nil {
			size = int(e.size)
		}
		if (int(g.n)+share)*16 > size*int(t.load()) {
			one := t.sizeFor(int(g.n) + share)
			more, most, step = more+max(one-size, 0), max(most, one), max(step, one-size)
		}
	}
	return int64(min(more, n*step)+most) * entryBytes
}
