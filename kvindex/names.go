package kvindex

import (
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// names maps engines' hashes to the keys of the blocks that they name, for all holders together: most engines of a fleet
// hash alike, so that a handle is paid once. Which holder knows a block by its name is in the holder's claim. A block has
// one name at most, and then its slot is marked: a claim would else not tell by which of two handles a holder knows it.
//
// Open addressing as in slots: buckets of one cache line with four pairs of handle and key, and beside them what tells how
// far to look. No key is 0. It is for the writer alone.
type names struct {
	segments [nameSegments]nameSegment
	n        int
	buckets  int // of all segments
	tight    bool
	filled   []uint8 // scratch
}

type nameSegment struct {
	words []uint64
	stray []stray // by bucket
	n     int
}

const (
	nameSegments = 256 // growth copies 1/256 at a time
	nameLoad     = 14  // of 16
)

func (t *names) segment(h uint64) *nameSegment { return &t.segments[h>>56] }

func (g *nameSegment) home(h uint64) uint64 { return homeBucket(h, uint64(len(g.stray))) }

// mixHandle spreads handles, which may be small integers.
func mixHandle(handle uint64) uint64 {
	h := handle * 0x9e3779b97f4a7c15
	return (h ^ h>>32) * 0xd6e8feb86659fd93
}

// touch reads the bucket in which a handle begins to be looked for, so that it is on its way into the cache.
func (t *names) touch(handle uint64) uint64 {
	h := mixHandle(handle)
	g := t.segment(h)
	if len(g.stray) == 0 {
		return 0
	}
	b := g.home(h)
	return g.words[b*bucketWords] + uint64(g.stray[b])
}

// find returns the place of a handle, -1 when it names nothing.
func (g *nameSegment) find(h, handle uint64) int {
	n := uint64(len(g.stray))
	if n == 0 {
		return -1
	}
	b, last := g.home(h), uint64(0)
	for step := uint64(1); ; step++ {
		w := (*[bucketWords]uint64)(g.words[b*bucketWords:])
		hit := isZero(w[0]^handle) | isZero(w[2]^handle)<<1 | isZero(w[4]^handle)<<2 | isZero(w[6]^handle)<<3
		for ; hit != 0; hit &= hit - 1 {
			if i := bits.TrailingZeros64(hit) * 2 & (bucketWords - 1); w[i+1] != 0 {
				return int(b)*bucketWords + i
			}
		}
		if step == 1 {
			last = g.stray[b].reach(n)
		}
		if step > last {
			return -1
		}
		b = nextBucket(b, step, n)
	}
}

// get returns the key of the block that a handle names, 0 when it names none.
func (t *names) get(handle uint64) block.Key {
	h := mixHandle(handle)
	g := t.segment(h)
	if at := g.find(h, handle); at >= 0 {
		return block.Key(g.words[at+1])
	}
	return 0
}

// lookUp returns the key of the block that a handle names, 0 when it names none, and where in its segment that is said.
func (t *names) lookUp(handle uint64) (block.Key, int) {
	h := mixHandle(handle)
	g := t.segment(h)
	if at := g.find(h, handle); at >= 0 {
		return block.Key(g.words[at+1]), at
	}
	return 0, -1
}

// offer lets a handle name a block if it names none, and returns the key of the one that it names now.
func (t *names) offer(handle uint64, key block.Key) block.Key {
	h := mixHandle(handle)
	g := t.segment(h)
	if len(g.stray) > 0 {
		// Mostly it is new, and its home has room: what tells both is read at once.
		home := g.home(h)
		w := (*[bucketWords]uint64)(g.words[home*bucketWords:])
		if i := freePlace(w); g.stray[home] == 0 && i < bucketWords && !seen(w, handle) && (g.n+1)*16 <= len(g.words)/2*nameLoad {
			w[i], w[i+1] = handle, uint64(key)
			g.n++
			t.n++
			return key
		}
	}
	if at := g.find(h, handle); at >= 0 {
		return block.Key(g.words[at+1])
	}
	if (g.n+1)*16 > len(g.words)/2*nameLoad {
		t.rebuild(g, slotBuckets(g.n+1, t.tight))
	}
	g.insert(h, handle, uint64(key))
	g.n++
	t.n++
	return key
}

// seen reports whether a handle is, or was, in a bucket.
func seen(w *[bucketWords]uint64, handle uint64) bool {
	return isZero(w[0]^handle)|isZero(w[2]^handle)|isZero(w[4]^handle)|isZero(w[6]^handle) != 0
}

// freePlace returns where in a bucket there is room, bucketWords when there is none.
func freePlace(w *[bucketWords]uint64) int {
	free := isZero(w[1]) | isZero(w[3])<<1 | isZero(w[5])<<2 | isZero(w[7])<<3 | 1<<4
	return bits.TrailingZeros64(free) * 2
}

// insert adds a pair and returns in which bucket.
func (g *nameSegment) insert(h, handle, key uint64) uint64 {
	home := g.home(h)
	b, n := home, uint64(len(g.stray))
	for far := uint64(0); ; far++ {
		w := (*[bucketWords]uint64)(g.words[b*bucketWords:])
		if i := freePlace(w); i < bucketWords {
			w[i], w[i+1] = handle, key
			if far > 0 {
				g.stray[home] = g.stray[home].more(far)
			}
			return b
		}
		b = nextBucket(b, far+1, n)
	}
}

func (t *names) rebuild(g *nameSegment, buckets int) {
	old := g.words
	t.buckets += buckets - len(g.stray)
	if buckets == 0 {
		g.words, g.stray = nil, nil
		return
	}
	g.words, g.stray = make([]uint64, buckets*bucketWords), make([]stray, buckets)
	t.filled = slices.Grow(t.filled[:0], buckets)[:buckets]
	clear(t.filled)
	for i := 0; i < len(old); i += 2 {
		if old[i+1] != 0 {
			g.fill(t.filled, mixHandle(old[i]), old[i], old[i+1])
		}
	}
}

// fill is insert into new memory: see [slotArray.fill].
func (g *nameSegment) fill(filled []uint8, h, handle, key uint64) {
	b := g.home(h)
	i := int(filled[b]) * 2
	if i == bucketWords {
		filled[g.insert(h, handle, key)]++
		return
	}
	w := (*[bucketWords]uint64)(g.words[b*bucketWords:])
	w[i&(bucketWords-1)], w[i&(bucketWords-1)+1] = handle, key
	filled[b]++
}

// drop lets a handle name nothing. at is where lookUp found it, a hint.
func (t *names) drop(handle uint64, at int) {
	h := mixHandle(handle)
	g := t.segment(h)
	if uint(at) >= uint(len(g.words)) || g.words[at] != handle || g.words[at|1] == 0 {
		if at = g.find(h, handle); at < 0 {
			return
		}
	}
	g.words[at+1] = 0
	if home := g.home(h); home != uint64(at/bucketWords) {
		g.stray[home] = g.stray[home].less()
	}
	g.n--
	t.n--
	t.shrink(g)
}

func (t *names) shrink(g *nameSegment) {
	if len(g.stray) > 8 && g.n*8 < len(g.words)/2*3 {
		t.rebuild(g, slotBuckets(g.n, t.tight))
	}
}

// sweep drops from a segment what keep does not keep. Of each key touch is called some time before.
func (t *names) sweep(segment int, touch func(key block.Key), keep func(key block.Key) bool) {
	g := &t.segments[segment]
	n := 0
	for i := 0; i < len(g.words); i += 2 {
		if i%(2*ahead) == 0 {
			for k := i; k < min(i+2*ahead, len(g.words)); k += 2 {
				touch(block.Key(g.words[k+1]))
			}
		}
		if g.words[i+1] == 0 {
			continue
		}
		if keep(block.Key(g.words[i+1])) {
			n++
		} else {
			g.words[i+1] = 0
		}
	}
	if n != g.n {
		t.n -= g.n - n
		g.n = n
		t.rebuild(g, min(slotBuckets(n, t.tight), len(g.stray))) // what tells how far to look is wrong now
	}
}

// each calls f for all names of a segment.
func (t *names) each(segment int, f func(handle uint64, key block.Key)) {
	words := t.segments[segment].words
	for i := 0; i < len(words); i += 2 {
		if words[i+1] != 0 {
			f(words[i], block.Key(words[i+1]))
		}
	}
}

func (t *names) bytes() int64 { return int64(t.buckets)*(bucketWords*8+1) + int64(cap(t.filled)) }

// growth returns what n more names make the table allocate, old memory beside new. Handles are hashes: no segment gets
// more than twice its share and some.
func (t *names) growth(n int) int64 {
	share := n/(nameSegments/2) + 8
	buckets, most := 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		if (g.n+share)*16 > len(g.words)/2*nameLoad {
			one := slotBuckets(g.n+share, t.tight)
			buckets, most = buckets+one, max(most, one)
		}
	}
	return int64(min(buckets, n*most))*(bucketWords*8+1) + 2*int64(most)
}
