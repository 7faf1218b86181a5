package tokenizer

import (
	"fmt"
	"math/bits"

	"github.com/warmpath/warmpath/block"
)

// maxVocabulary bounds token ids. The bound is 16 times the size of the largest published vocabulary.
const maxVocabulary = 1 << 22

// vocabulary maps the texts of tokens to ids and back. All texts are in one array of bytes, so a vocabulary of any size
// takes few allocations. It is immutable once built, and goroutines may then use it concurrently.
type vocabulary struct {
	arena []byte
	start []uint32 // for each id: position at which the id's text begins; the text ends where the next id's text begins
	known []bool   // for each id: whether the id has a text
	table []uint32 // hash table with open addressing; a slot has the id + 1, or zero if the slot is free
	count int
}

// token is a text with its id. It is used for building a vocabulary.
type token struct {
	text string
	id   block.Token
}

// newVocabulary builds a vocabulary. If several tokens have the same text, the last one counts, as in the reference.
func newVocabulary(tokens []token) (*vocabulary, error) {
	var size, top int
	for _, t := range tokens {
		if t.id >= maxVocabulary {
			return nil, fmt.Errorf("token %q has id %d, over the limit of %d", clip(t.text), t.id, maxVocabulary)
		}
		size += len(t.text)
		top = max(top, int(t.id)+1)
	}
	if top > 64*len(tokens)+1<<16 {
		return nil, fmt.Errorf("%d tokens have ids up to %d: too sparse to be a vocabulary", len(tokens), top-1)
	}
	byID := make([]string, top)
	v := &vocabulary{arena: make([]byte, 0, size), start: make([]uint32, top+1), known: make([]bool, top)}
	for _, t := range tokens {
		byID[t.id] = t.text
		v.known[t.id] = true
	}
	for id, text := range byID {
		v.start[id] = uint32(len(v.arena))
		v.arena = append(v.arena, text...)
	}
	v.start[top] = uint32(len(v.arena))
	v.table = make([]uint32, 1<<bits.Len(uint(2*len(tokens))))
	for _, t := range tokens {
		v.insert(t)
	}
	return v, nil
}

func (v *vocabulary) insert(t token) {
	mask := uint64(len(v.table) - 1)
	for i := hashText(t.text) & mask; ; i = (i + 1) & mask {
		at := v.table[i]
		if at == 0 {
			v.table[i] = t.id + 1
			v.count++
			return
		}
		if string(v.text(at-1)) == t.text {
			v.table[i] = t.id + 1
			return
		}
	}
}

// id returns the id of a text.
func (v *vocabulary) id(text string) (block.Token, bool) {
	mask := uint64(len(v.table) - 1)
	for i := hashText(text) & mask; ; i = (i + 1) & mask {
		at := v.table[i]
		if at == 0 {
			return 0, false
		}
		if string(v.text(at-1)) == text {
			return at - 1, true
		}
	}
}

// text returns the text of an id below the vocabulary's size. The caller must not change the text.
func (v *vocabulary) text(id block.Token) []byte {
	return v.arena[v.start[id]:v.start[id+1]]
}

// lookup returns the text of an id. The id need not be in the vocabulary.
func (v *vocabulary) lookup(id block.Token) (string, bool) {
	if int(id) >= len(v.known) || !v.known[id] {
		return "", false
	}
	return string(v.text(id)), true
}

const hashPrime = 0xd6e8feb86659fd93

// hashText returns a hash of a short text, similar to wyhash. The hash has no secret key. Collisions on purpose are no
// risk, because vocabularies store only texts of a model's files, and never texts of requests.
func hashText(s string) uint64 {
	h := uint64(len(s)) * hashPrime
	i := 0
	for ; len(s)-i >= 8; i += 8 {
		h = block.Fold128(h^load64(s, i), block.Golden)
	}
	return block.Fold128(h^loadTail(s, i), hashPrime)
}

func load64(s string, i int) uint64 {
	_ = s[i+7]
	return uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
		uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
}

// loadTail returns the bytes of s from position i on, padded with zeros. There may be at most seven such bytes.
func loadTail(s string, i int) uint64 {
	n := len(s) - i
	if n == 0 {
		return 0
	}
	if len(s) >= 8 {
		return load64(s, len(s)-8) >> (8 * (8 - uint(n)))
	}
	if n >= 4 {
		lo := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24
		for k := 4; k < n; k++ {
			lo |= uint64(s[i+k]) << (8 * uint(k))
		}
		return lo
	}
	v := uint64(s[i])
	if n > 1 {
		v |= uint64(s[i+1]) << 8
	}
	if n > 2 {
		v |= uint64(s[i+2]) << 16
	}
	return v
}

// clip shortens a text for an error message.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}
