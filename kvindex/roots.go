package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// roots maps the keys of the first blocks of strands that began without a parent to these strands. All of them are in
// slots too; but there a reader would wait for a cache line to learn that nothing of a request is there, which is the
// commonest answer, and roots are few: two or three lines of a chain of hundreds of blocks. Every such block that is
// there is here. What else is here is a hint, which slots must confirm: entries may be of blocks that are gone.
//
// Open addressing in one array, pairs of a key and a strand. One writer at a time; any number of readers.
type roots struct {
	array atomic.Pointer[rootArray]
	n     int // entries
	used  int // the same with those that are gone
	seed  uint64
}

type rootArray struct {
	shift uint     // of a hash to a pair
	words []uint64 // two a pair; the second is 0 where there never was one
}

const (
	rootGone  = 1 << 32 // for a strand, where an entry was taken away
	leastRoot = 8       // pairs
)

// get returns the strand of a key, 0 when there is none.
func (r *roots) get(key block.Key) uint32 {
	a := r.array.Load()
	if a == nil {
		return 0
	}
	mask := uint64(len(a.words)-1) &^ 1
	for i := mixKey(key, r.seed) >> a.shift << 1; ; i += 2 {
		strand := atomic.LoadUint64(&a.words[i&mask+1])
		if strand == 0 {
			return 0
		}
		if atomic.LoadUint64(&a.words[i&mask]) == uint64(key) && strand != rootGone {
			return uint32(strand)
		}
	}
}

// put gives a key a strand and reports whether the key is new.
func (r *roots) put(key block.Key, strand uint32) bool {
	a := r.array.Load()
	if a == nil || (r.used+1)*8 > len(a.words)*3 {
		a = r.rebuild(nil)
	}
	mask, free := uint64(len(a.words)-1)&^1, uint64(1<<63)
	i := mixKey(key, r.seed) >> a.shift << 1
	for ; a.words[i&mask+1] != 0; i += 2 {
		switch {
		case a.words[i&mask+1] == rootGone:
			free = min(free, i)
		case a.words[i&mask] == uint64(key):
			atomic.StoreUint64(&a.words[i&mask+1], uint64(strand))
			return false
		}
	}
	if free < i {
		i = free
	} else {
		r.used++
	}
	r.n++
	atomic.StoreUint64(&a.words[i&mask], uint64(key))
	atomic.StoreUint64(&a.words[i&mask+1], uint64(strand))
	return true
}

// del takes a key away and reports whether it was there.
func (r *roots) del(key block.Key) bool {
	a := r.array.Load()
	if a == nil {
		return false
	}
	mask := uint64(len(a.words)-1) &^ 1
	for i := mixKey(key, r.seed) >> a.shift << 1; a.words[i&mask+1] != 0; i += 2 {
		if a.words[i&mask] == uint64(key) && a.words[i&mask+1] != rootGone {
			atomic.StoreUint64(&a.words[i&mask+1], rootGone)
			r.n--
			return true
		}
	}
	return false
}

// rebuild makes a new array with room for more, and leaves out those that are not alive; nil: none.
func (r *roots) rebuild(alive func(strand uint32) bool) *rootArray {
	old := r.array.Load()
	pairs := leastRoot
	for pairs < 2*(r.n+1) {
		pairs *= 2
	}
	a := &rootArray{shift: uint(64 - bits.Len(uint(pairs-1))), words: make([]uint64, 2*pairs)}
	r.n = 0
	if old != nil {
		mask := uint64(len(a.words) - 1)
		for k := 0; k < len(old.words); k += 2 {
			key, strand := old.words[k], old.words[k+1]
			if strand == 0 || strand == rootGone || alive != nil && !alive(uint32(strand)) {
				continue
			}
			i := mixKey(block.Key(key), r.seed) >> a.shift << 1
			for a.words[i&mask+1] != 0 {
				i += 2
			}
			a.words[i&mask], a.words[i&mask+1] = key, strand
			r.n++
		}
	}
	r.used = r.n
	r.array.Store(a)
	return a
}

func (r *roots) clear() {
	r.array.Store(nil)
	r.n, r.used = 0, 0
}

func (r *roots) bytes() int64 {
	if a := r.array.Load(); a != nil {
		return int64(len(a.words)) * 8
	}
	return 0
}

// growth returns an upper bound of what n more roots make it allocate.
func (r *roots) growth(n int) int64 {
	a := r.array.Load()
	if a != nil && (r.used+n)*8 <= len(a.words)*3 {
		return 0
	}
	return int64(max(leastRoot, 4*(r.n+n+1))) * 16
}

// rootCounts counts roots by a part of their hash, in 4 bits each; 15 may be more, and then stays. It lies beside the
// slots of a segment, where writers keep it in cache, and answers for most keys that are no roots.
type rootCounts [6]atomic.Uint64

const maxRoots = 15

// of returns which word counts a hash and where in it.
func (c *rootCounts) of(h uint64) (word *atomic.Uint64, shift uint64) {
	i := h & 0xffff * uint64(len(c)*16) >> 16
	return &c[i>>4], i & 15 * 4
}

func (c *rootCounts) add(h uint64) {
	if w, shift := c.of(h); w.Load()>>shift&maxRoots != maxRoots {
		w.Store(w.Load() + 1<<shift)
	}
}

func (c *rootCounts) drop(h uint64) {
	if w, shift := c.of(h); w.Load()>>shift&maxRoots != maxRoots {
		w.Store(w.Load() - 1<<shift)
	}
}

func (c *rootCounts) clear() {
	for i := range c {
		c[i].Store(0)
	}
}

// mayBegin reports whether a key may be in roots.
func (b *blocks) mayBegin(key block.Key) bool {
	h := b.slots.mix(key)
	w, shift := b.slots.segment(h).roots.of(h)
	return w.Load()>>shift&maxRoots != 0
}

// addRoot notes that a strand without a parent begins with a key.
func (b *blocks) addRoot(key block.Key, strand uint32) {
	if b.roots.put(key, strand) {
		h := b.slots.mix(key)
		b.slots.segment(h).roots.add(h)
	}
}

// dropRoot notes that the first block of a strand is gone.
func (b *blocks) dropRoot(key block.Key) {
	if b.roots.del(key) {
		h := b.slots.mix(key)
		b.slots.segment(h).roots.drop(h)
	}
}

// sweepRoots drops the roots that went without their keys being known.
func (b *blocks) sweepRoots() {
	if b.roots.n == 0 {
		return
	}
	a := b.roots.rebuild(func(strand uint32) bool { return b.alive(spotOf(strand, 0)) })
	counts := make([]rootCounts, slotSegments)
	for k := 0; k < len(a.words); k += 2 {
		if a.words[k+1] != 0 {
			h := b.slots.mix(block.Key(a.words[k]))
			counts[h>>56].add(h)
		}
	}
	for i := range counts {
		for k := range counts[i] {
			b.slots.segments[i].roots[k].Store(counts[i][k].Load())
		}
	}
}
