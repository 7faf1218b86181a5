package kvindex

import (
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// names maps engines' hashes to the keys of the blocks that they name, for all holders together: most engines of a
// fleet hash alike, so that a handle is paid once. Which holder knows a block by its name is in the holder's claim. A
// block has one name at most, and then its slot is marked: a claim would else not tell by which of two handles a
// holder knows it.
//
// Open addressing as in slots: buckets of one cache line with four pairs of a scrambled handle and a key. The segment
// says what the upper 8 bits of a scrambled handle are; in their stead the first pair has how far to look for handles
// whose home the bucket is, and the others together a filter of these handles, so that one which is new is mostly
// looked for in one line, and all that is known of it is there. No key is 0. It is for the writer alone.
type names struct {
	seed     nameSeed
	segments [nameSegments]nameSegment
	n        int
	buckets  int // of all segments
	tight    bool
	loose    bool    // there is room to spare: see slots
	filled   []uint8 // scratch
}

type nameSegment struct {
	words []uint64
	n     int
	gone  int // how many were dropped since it was built
}

type nameBucket = [bucketWords]uint64

const (
	nameSegments = 256 // growth copies 1/256 at a time
	nameLoad     = 14  // of 16
)

func (t *names) segment(h uint64) *nameSegment { return &t.segments[h>>56] }

func (g *nameSegment) buckets() uint64 { return uint64(len(g.words) / bucketWords) }

// limit is how full a segment may be, in sixteenths of a pair, and whether it is worn.
func (t *names) limit(g *nameSegment) (full int, worn bool) {
	if t.loose && g.gone > g.n {
		return len(g.words) / 2 * wornLoad, true
	}
	return len(g.words) / 2 * nameLoad, false
}

func (g *nameSegment) home(h uint64) uint64 { return homeBucket(h, g.buckets()) }

func (g *nameSegment) bucket(b uint64) *nameBucket { return (*nameBucket)(g.words[b*bucketWords:]) }

// nameSeed is what names need of the index's seed. The zero value is that of seed 0.
type nameSeed struct {
	handle, first, second uint64
}

// mix spreads handles, which may be small integers, or chosen by a worker that means harm.
func (s *nameSeed) mix(handle uint64) uint64 {
	h := (handle ^ s.handle) * (mixFirst ^ s.first)
	return (h ^ h>>32) * (mixSecond ^ s.second)
}

// unmixer returns the inverse of mix.
func (s *nameSeed) unmixer() func(h uint64) uint64 {
	first, second, handle := inverse(mixFirst^s.first), inverse(mixSecond^s.second), s.handle
	return func(h uint64) uint64 {
		h *= second
		return (h^h>>32)*first ^ handle
	}
}

// nameMeta are the bits of a pair's first word that do not tell of its handle.
const nameMeta = 1<<8 - 1

// matchName returns a bit for each of a bucket's pairs that is, or was, of a handle.
func matchName(w *nameBucket, h uint64) uint64 {
	return isZero((w[0]>>8)^(h&^(nameMeta<<56))) | isZero((w[2]>>8)^(h&^(nameMeta<<56)))<<1 |
		isZero((w[4]>>8)^(h&^(nameMeta<<56)))<<2 | isZero((w[6]>>8)^(h&^(nameMeta<<56)))<<3
}

// filterBit returns which bit of the filter at its home a handle has.
func filterBit(h uint64) (word, bit uint64) {
	f := h & (1<<24 - 1) * 24 >> 24
	return (f>>3*2 + 2) & (bucketWords - 1), f & 7
}

// strayName returns what a bucket tells of the handles whose home it is and that are elsewhere.
func strayName(w *nameBucket) stray { return stray(w[0]) }

// strayBit is 1 if a handle may be elsewhere though a bucket is its home, and else 0.
func strayBit(w *nameBucket, h uint64) uint64 {
	word, bit := filterBit(h)
	return w[word] >> bit & 1
}

// touch lets the bucket in which a handle begins to be looked for be on its way into the cache.
func (t *names) touch(handle uint64) {
	h := t.seed.mix(handle)
	if g := t.segment(h); len(g.words) > 0 {
		fetch(&g.words[g.home(h)*bucketWords])
	}
}

// find returns the place of a handle, -1 when it names nothing.
func (g *nameSegment) find(h uint64) int {
	n := g.buckets()
	if n == 0 {
		return -1
	}
	b, last := g.home(h), uint64(0)
	for step := uint64(1); ; step++ {
		w := g.bucket(b)
		for hit := matchName(w, h); hit != 0; hit &= hit - 1 {
			if i := bits.TrailingZeros64(hit) * 2 & (bucketWords - 1); w[i+1] != 0 {
				return int(b)*bucketWords + i
			}
		}
		if step == 1 {
			if strayBit(w, h) == 0 {
				return -1
			}
			last = strayName(w).reach(n)
		}
		if step > last {
			return -1
		}
		b = nextBucket(b, step, n)
	}
}

// get returns the key of the block that a handle names, 0 when it names none.
func (t *names) get(handle uint64) block.Key {
	key, _ := t.lookUp(handle)
	return key
}

// lookUp returns the key of the block that a handle names, 0 when it names none, and where in its segment that is said.
func (t *names) lookUp(handle uint64) (block.Key, int) {
	h := t.seed.mix(handle)
	g := t.segment(h)
	if at := g.find(h); at >= 0 {
		return block.Key(g.words[at+1]), at
	}
	return 0, -1
}

// offer lets a handle name a block if it names none, and returns the key of the one that it names now.
func (t *names) offer(handle uint64, key block.Key) block.Key {
	h := t.seed.mix(handle)
	g := t.segment(h)
	if at := g.find(h); at >= 0 {
		return block.Key(g.words[at+1])
	}
	if full, worn := t.limit(g); (g.n+1)*16 > full {
		t.rebuild(h>>56, slotBuckets(g.n+1, t.tight, worn))
	}
	g.insert(h, uint64(key))
	g.n++
	t.n++
	return key
}

// freePlace returns where in a bucket there is room, bucketWords when there is none.
func freePlace(w *nameBucket) int {
	free := isZero(w[1]) | isZero(w[3])<<1 | isZero(w[5])<<2 | isZero(w[7])<<3 | 1<<4
	return bits.TrailingZeros64(free) * 2
}

// insert adds a pair. What is not at home in a full bucket makes room there for what is, and goes where it can: else,
// where as much comes as goes, half of all would be away from home at a load of 0.8, because each hole is filled by
// the next that strays. Where nothing goes it does not pay.
func (g *nameSegment) insert(h, key uint64) {
	n := g.buckets()
	for moved := 0; g.gone > 0 && moved < displaced; moved++ {
		home := g.home(h)
		w := g.bucket(home)
		i := freePlace(w)
		if i == bucketWords {
			if i = g.guest(w, h, home); i == bucketWords {
				break
			}
		}
		other, otherKey := h>>56<<56|w[i]>>8, w[i+1]
		w[i], w[i+1] = h<<8|w[i]&nameMeta, key
		if otherKey == 0 {
			return
		}
		nameBack(g.bucket(g.home(other)))
		h, key = other, otherKey
	}
	home := g.home(h)
	b := home
	for far := uint64(0); ; far++ {
		w := g.bucket(b)
		if i := freePlace(w); i < bucketWords {
			w[i], w[i+1] = h<<8|w[i]&nameMeta, key
			if far > 0 {
				nameAway(g.bucket(home), h, far)
			}
			return
		}
		b = nextBucket(b, far+1, n)
	}
}

// displaced is how many one insertion moves at most. Mostly it is none or one.
const displaced = 8

// guest returns which pair of a full bucket has its home elsewhere, bucketWords when none has.
func (g *nameSegment) guest(w *nameBucket, h, bucket uint64) int {
	upper, n := h>>56<<56, g.buckets()
	away := bits.TrailingZeros64(0 |
		(isZero(homeBucket(upper|w[0]>>8, n)^bucket) ^ 1) | (isZero(homeBucket(upper|w[2]>>8, n)^bucket)^1)<<1 |
		(isZero(homeBucket(upper|w[4]>>8, n)^bucket)^1)<<2 | (isZero(homeBucket(upper|w[6]>>8, n)^bucket)^1)<<3 | 1<<4)
	return away * 2
}

func (t *names) rebuild(segment uint64, buckets int) {
	g := &t.segments[segment]
	old := g.words
	t.buckets += buckets - len(old)/bucketWords
	g.gone = 0
	if buckets == 0 {
		g.words = nil
		return
	}
	g.words = make([]uint64, buckets*bucketWords)
	t.filled = slices.Grow(t.filled[:0], buckets)[:buckets]
	clear(t.filled)
	for i := 0; i < len(old); i += 2 {
		if old[i+1] != 0 {
			g.fill(t.filled, segment<<56|old[i]>>8, old[i+1])
		}
	}
}

// fill is insert into new memory: see [slotArray.fill]. It displaces nothing, and notes where it comes to lie.
func (g *nameSegment) fill(filled []uint8, h, key uint64) {
	home, n := g.home(h), g.buckets()
	b := home
	for far := uint64(0); ; far++ {
		if i := int(filled[b]) * 2; i < bucketWords {
			w := g.bucket(b)
			w[i], w[i+1] = h<<8|w[i]&nameMeta, key
			filled[b]++
			if far > 0 {
				nameAway(g.bucket(home), h, far)
			}
			return
		}
		b = nextBucket(b, far+1, n)
	}
}

// drop lets a handle name nothing. at is where lookUp found it, a hint.
func (t *names) drop(handle uint64, at int) {
	h := t.seed.mix(handle)
	g := t.segment(h)
	if uint(at) >= uint(len(g.words)) || (g.words[at]^h<<8)>>8 != 0 || g.words[at|1] == 0 {
		if at = g.find(h); at < 0 {
			return
		}
	}
	g.words[at+1] = 0
	g.gone++
	if home := g.home(h); home != uint64(at/bucketWords) {
		nameBack(g.bucket(home))
	}
	g.n--
	t.n--
	if g.buckets() > 8 && g.n*8 < len(g.words)/2*3 {
		t.rebuild(h>>56, slotBuckets(g.n, t.tight, false))
	}
}

// nameAway notes that a handle whose home a bucket is lies so many steps from it.
func nameAway(w *nameBucket, h, far uint64) {
	w[0] = w[0]&^nameMeta | uint64(strayName(w).more(far))
	word, bit := filterBit(h)
	w[word] |= 1 << bit
}

// nameBack notes that a handle whose home a bucket is, and that was elsewhere, is gone.
func nameBack(w *nameBucket) {
	left := strayName(w).less()
	w[0] = w[0]&^nameMeta | uint64(left)
	if left == 0 {
		w[2], w[4], w[6] = w[2]&^nameMeta, w[4]&^nameMeta, w[6]&^nameMeta
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
		// What tells how far to look is wrong now.
		t.rebuild(uint64(segment), min(slotBuckets(n, t.tight, false), int(g.buckets())))
	}
}

// each calls f for all names of a segment.
func (t *names) each(segment int, f func(handle uint64, key block.Key)) {
	words, unmix := t.segments[segment].words, t.seed.unmixer()
	for i := 0; i < len(words); i += 2 {
		if words[i+1] != 0 {
			f(unmix(uint64(segment)<<56|words[i]>>8), block.Key(words[i+1]))
		}
	}
}

func (t *names) bytes() int64 { return int64(t.buckets)*bucketWords*8 + int64(cap(t.filled)) }

// growth returns what n more names make the table allocate, with the old memory of one segment beside its new one.
// Handles are hashes: no segment gets more than twice its share and some.
func (t *names) growth(n int) int64 {
	share := n/(nameSegments/2) + 8
	buckets, most, step := 0, 0, 0
	for i := range t.segments {
		g := &t.segments[i]
		if full, _ := t.limit(g); (g.n+share)*16 > full {
			one := slotBuckets(g.n+share, t.tight, false)
			old := int(g.buckets())
			buckets, most, step = buckets+max(one-old, 0), max(most, one), max(step, one-old)
		}
	}
	return int64(min(buckets, n*step)+most)*bucketWords*8 + 2*int64(most)
}
