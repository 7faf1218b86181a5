package block

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// Token is a token id as the engine's vocabulary numbers it.
type Token = uint32

// Key is the hash of a full block and of everything before the block: tokens, multimodal features and the scope. If all
// this is equal for two blocks, the blocks have the same key. Otherwise they have the same key with probability 2^-64.
type Key uint64

// Scope says which requests may share cached blocks: if two scopes differ in any field, no block is shared.
type Scope struct {
	Model string // the base model's name in the fleet
	LoRA  string // adapter name; "" is the base model
	Salt  string // the request's cache_salt; "" is none
	Extra string // SGLang's extra_key; "" is none
}

// Feature is a multimodal item in a prompt. Engines include its identifier in the hashes of the blocks that its
// placeholder tokens cover.
type Feature struct {
	ID     string // the engine's identifier, mostly a hash of the content
	Offset int    // absolute position of the placeholder's first token
}

// Algorithm is the way in which keys are made from tokens. All routers that share an index must use the same algorithm.
type Algorithm uint8

// The algorithms for Warmpath's own keys.
const (
	XXH3  Algorithm = iota // XXH3-64 of a block's tokens, summed along the chain; the default (docs/design/0006)
	FNV1a                  // h = basis ^ parent·prime, then h = (h ^ token)·prime for each token, with the constants of FNV-1a
)

// algorithms are the names of the algorithms, by their values.
var algorithms = [...]string{XXH3: "xxh3", FNV1a: "fnv1a"}

// ParseAlgorithm returns the algorithm with that name: xxh3 or fnv1a.
func ParseAlgorithm(name string) (Algorithm, error) {
	for a, known := range algorithms {
		if name == known {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("%q is none of %s", name, strings.Join(algorithms[:], ", "))
}

// String returns the name of the algorithm.
func (a Algorithm) String() string {
	if int(a) >= len(algorithms) {
		return fmt.Sprintf("algorithm %d", uint8(a))
	}
	return algorithms[a]
}

// MaxSize is the greatest block size in tokens. Hybrid models announce blocks of some thousand tokens.
const MaxSize = 65536

// Hasher makes the keys of blocks of one size. It is immutable; any number of goroutines may use it.
type Hasher struct {
	algorithm Algorithm
	size      int
}

// NewHasher returns a Hasher for blocks of size tokens, 1 to [MaxSize].
func NewHasher(a Algorithm, size int) (*Hasher, error) {
	if size < 1 || size > MaxSize {
		return nil, fmt.Errorf("make block hasher: block size %d is not within 1..%d", size, MaxSize)
	}
	if a > FNV1a {
		return nil, fmt.Errorf("make block hasher: unknown algorithm %d", a)
	}
	return &Hasher{algorithm: a, size: size}, nil
}

// Size returns the block size in tokens.
func (h *Hasher) Size() int { return h.size }

// Algorithm returns the way in which keys are made.
func (h *Hasher) Algorithm() Algorithm { return h.algorithm }

// Root returns the parent of a chain's first block. It is a hash of the scope's parts with their lengths, so that
// different scopes have different roots.
//
// With FNV1a the root of the empty scope is 0. So the keys of the empty scope are those of other programs with this
// algorithm. The router always gives the model, because some of its stores have the prompts of several models.
func (h *Hasher) Root(s Scope) Key {
	if h.algorithm == FNV1a && s == (Scope{}) {
		return 0
	}
	var b [64]byte
	for i, part := range [...]string{s.Model, s.LoRA, s.Salt, s.Extra} {
		binary.LittleEndian.PutUint64(b[16*i:], uint64(len(part)))
		binary.LittleEndian.PutUint64(b[16*i+8:], xxh3.HashString(part))
	}
	return Key(xxh3.HashSeed(b[:], rootSeed))
}

// Roots, features and look-aheads have a seed each, so that their hashes are independent of the hashes of blocks, which
// use seed 0.
const (
	rootSeed    = 0x7761726d726f6f74 // "warmroot"
	featureSeed = 0x7761726d66656174 // "warmfeat"
	aheadSeed   = 0x7761726d61686561 // "warmahea"
)

// Append appends the keys of the full blocks of tokens to dst and returns dst. start is the position of tokens[0]
// in the prompt, and must be a multiple of Size. The keys depend on start. Tokens at the end that fill no block have no
// key.
//
// A feature and its offset within a block change the key of the block in which the feature's placeholder starts. The
// keys of later blocks depend on the feature through their parents. So the keys do not depend on the pieces in which
// the tokens arrive. The order of features does not matter, and a feature that is listed twice counts once. Append
// allocates only to grow dst, and to sort features that are not in the order of (offset, identifier).
func (h *Hasher) Append(dst []Key, parent Key, start int, tokens []Token, features []Feature) []Key {
	// The check saves a sorted copy in the usual case: engines list features in order, and a prompt may have tens of
	// thousands of them.
	if !slices.IsSortedFunc(features, compare) {
		features = slices.SortedFunc(slices.Values(features), compare)
	}
	for {
		// The blocks before the next block with a feature are hashed without features.
		features = features[countBefore(features, start):]
		if len(features) == 0 || features[0].Offset >= start+len(tokens) {
			return h.blocks(dst, parent, start, tokens)
		}
		before := (features[0].Offset - start) / h.size * h.size
		dst = h.blocks(dst, parent, start, tokens[:before])
		if before > 0 {
			parent = dst[len(dst)-1]
		}
		start, tokens = start+before, tokens[before:]
		if len(tokens) < h.size {
			return dst
		}
		dst = h.blocks(dst, parent, start, tokens[:h.size])
		last := len(dst) - 1
		dst[last] = fold(dst[last], start, features[:countBefore(features, start+h.size)])
		parent = dst[last]
		start, tokens = start+h.size, tokens[h.size:]
	}
}

// compare orders features by offset, then by identifier.
func compare(a, b Feature) int {
	if a.Offset != b.Offset {
		return cmp.Compare(a.Offset, b.Offset)
	}
	return cmp.Compare(a.ID, b.ID)
}

// countBefore returns how many of the sorted features start before the position at.
func countBefore(features []Feature, at int) (n int) {
	for n < len(features) && features[n].Offset < at {
		n++
	}
	return n
}

// fold returns the key of the block at start, changed by each of the block's sorted features in turn.
func fold(key Key, start int, features []Feature) Key {
	for i, f := range features {
		if i > 0 && f == features[i-1] {
			continue // listed twice
		}
		var b [24]byte
		binary.LittleEndian.PutUint64(b[0:], uint64(key))
		binary.LittleEndian.PutUint32(b[8:], uint32(f.Offset-start))
		binary.LittleEndian.PutUint32(b[12:], uint32(len(f.ID)))
		binary.LittleEndian.PutUint64(b[16:], xxh3.HashString(f.ID))
		key = Key(xxh3.HashSeed(b[:], featureSeed))
	}
	return key
}

// blocks appends one key for each full block of tokens. The blocks have no features.
func (h *Hasher) blocks(dst []Key, parent Key, start int, tokens []Token) []Key {
	n := len(tokens) / h.size
	dst = slices.Grow(dst, n)
	keys := dst[len(dst) : len(dst)+n]
	dst = dst[:len(dst)+n]
	if h.algorithm == FNV1a {
		for i := range keys {
			parent = fnv1aBlock(parent, tokens[:h.size])
			keys[i], tokens = parent, tokens[h.size:]
		}
		return dst
	}
	at := h.place(start)
	switch h.size {
	case 16:
		for i := range keys {
			parent += term(block16((*[16]Token)(tokens)), at)
			keys[i], tokens = parent, tokens[16:]
			at += Golden
		}
	case 32:
		for i := range keys {
			parent += term(block32((*[32]Token)(tokens)), at)
			keys[i], tokens = parent, tokens[32:]
			at += Golden
		}
	default:
		for i := range keys {
			parent += term(local(tokens[:h.size]), at)
			keys[i], tokens = parent, tokens[h.size:]
			at += Golden
		}
	}
	return dst
}

// fnv1aBlock applies the formula of FNV1a.
func fnv1aBlock(parent Key, tokens []Token) Key {
	return Key(FNV(FNVBasis^uint64(parent)*fnvPrime, tokens))
}
