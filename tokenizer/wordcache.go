package tokenizer

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

const (
	maxCachedBytes  = 24 // length of the longest word in the cache; longer words seldom occur twice
	maxCachedTokens = 8
	cacheSlots      = 1 << 16
)

// wordCache remembers the ids of short words. It is direct mapped: each word has exactly one slot in which it may be.
// It has a fixed size (4 MiB), no pointers and no locks, and does not allocate. Each slot is a seqlock: its fields are
// read and written atomically, and its header has a sequence number. If a slot is being written, a reader of the slot
// takes a miss. The cache is safe for concurrent use. If two goroutines write the same slot at the same time, the
// second goroutine drops its word.
type wordCache struct {
	slots []cacheSlot
}

// cacheSlot is one cache line: a header, 24 bytes of text, and 8 ids. The header is sequence<<16 | text length<<8 |
// number of ids. If the sequence is odd, a goroutine is writing the slot.
type cacheSlot struct {
	header atomic.Uint64
	text   [3]atomic.Uint64
	ids    [maxCachedTokens / 2]atomic.Uint64
}

// wordKey is a word of at most maxCachedBytes bytes, with its hash.
type wordKey struct {
	text [3]uint64
	size int
	hash uint64
}

const sequenceStep = 1 << 16

func newWordCache() *wordCache { return &wordCache{slots: make([]cacheSlot, cacheSlots)} }

// keyOf returns the key of a word of 1 to maxCachedBytes bytes.
func keyOf(word string) wordKey {
	k := wordKey{size: len(word)}
	switch {
	case len(word) < 8:
		k.text[0] = loadTail(word, 0)
	case len(word) < 16:
		k.text[0] = load64(word, 0)
		k.text[1] = loadTail(word, 8)
	default:
		k.text[0] = load64(word, 0)
		k.text[1] = load64(word, 8)
		if len(word) == maxCachedBytes {
			k.text[2] = load64(word, 16)
		} else {
			k.text[2] = loadTail(word, 16)
		}
	}
	k.hash = block.Fold128(k.text[0]^block.Golden, k.text[1]^hashPrime)
	if len(word) >= 16 {
		k.hash = block.Fold128(k.hash^k.text[2], hashPrime)
	}
	k.hash ^= uint64(len(word)) * block.Golden
	return k
}

func (c *wordCache) slot(k *wordKey) *cacheSlot {
	return &c.slots[(k.hash^k.hash>>32)%cacheSlots]
}

// get appends the ids of a word to dst, if the cache has the word.
func (c *wordCache) get(k *wordKey, dst []block.Token) ([]block.Token, bool) {
	s := c.slot(k)
	header := s.header.Load()
	if header>>8&0xff != uint64(k.size) || header&sequenceStep != 0 {
		return dst, false
	}
	if s.text[0].Load() != k.text[0] || k.size > 8 && (s.text[1].Load() != k.text[1] || s.text[2].Load() != k.text[2]) {
		return dst, false
	}
	n := int(header & 0xff)
	first := s.ids[0].Load()
	if n == 1 {
		if s.header.Load() != header {
			return dst, false
		}
		return append(dst, block.Token(first)), true
	}
	before := len(dst)
	dst = append(dst, block.Token(first), block.Token(first>>32))
	for i := 2; i < n; i += 2 {
		pair := s.ids[i/2].Load()
		dst = append(dst, block.Token(pair), block.Token(pair>>32))
	}
	if s.header.Load() != header {
		return dst[:before], false
	}
	return dst[:before+n], true
}

// put remembers the ids of a word, if there are at most maxCachedTokens ids.
func (c *wordCache) put(k *wordKey, ids []block.Token) {
	if len(ids) > maxCachedTokens || len(ids) == 0 {
		return
	}
	s := c.slot(k)
	header := s.header.Load()
	if header&sequenceStep != 0 || !s.header.CompareAndSwap(header, header+sequenceStep) {
		return
	}
	for i := range k.text {
		s.text[i].Store(k.text[i])
	}
	for i := 0; i < len(ids); i += 2 {
		pair := uint64(ids[i])
		if i+1 < len(ids) {
			pair |= uint64(ids[i+1]) << 32
		}
		s.ids[i/2].Store(pair)
	}
	s.header.Store((header>>16+2)<<16 | uint64(k.size)<<8 | uint64(len(ids)))
}
