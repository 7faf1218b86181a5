package block

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// EngineAlgorithm names how an engine, or another router, chains the hashes of its blocks.
type EngineAlgorithm uint8

// The hash chains that this package reproduces. Test vectors from the named engine or router check each of them.
const (
	VLLMSHA256       EngineAlgorithm = iota // vLLM --prefix-caching-hash-algo=sha256, the default: SHA-256 of a pickle
	VLLMSHA256CBOR                          // vLLM's sha256_cbor, and LMCache's chunks: SHA-256 of canonical CBOR
	VLLMSHA256CBOR64                        // sha256_cbor_64bit of vLLM 0.10.0 and 0.10.1: the last 8 bytes of such a SHA-256
	VLLMXXH128                              // vLLM's xxhash: XXH3-128 of a pickle
	VLLMXXH128CBOR                          // vLLM's xxhash_cbor: XXH3-128 of canonical CBOR
	SGLangSHA256                            // SGLang since 0.5.6: SHA-256 of the parent's digest and the page's tokens
	LLMDFNV                                 // llm-d's "cbor-fnv" request keys: FNV-64a of canonical CBOR
	LLMDXXH64                               // llm-d-router's "xxh64" request keys
	numEngineAlgorithms
)

var engineAlgorithmNames = [numEngineAlgorithms]string{
	"sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor", "sglang", "cbor-fnv", "xxh64",
}

// String returns the name of the algorithm in the engine's options.
func (a EngineAlgorithm) String() string {
	if a < numEngineAlgorithms {
		return engineAlgorithmNames[a]
	}
	return "unknown"
}

// DefaultSeed is the seed of vLLM's SHA-256 chains if PYTHONHASHSEED is not set, in versions from August 2026 on
// (#51875): the root of a chain is the hash of this text. Without PYTHONHASHSEED, older versions and the xxhash
// algorithms have a random root, so their chains cannot be reproduced.
const DefaultSeed = "vllm-none-hash"

// EngineChain holds the settings of an engine's hash chain.
type EngineChain struct {
	Algorithm EngineAlgorithm // the engine's hash function, and what it hashes
	Size      int             // tokens in a block; with Bigram, pairs of tokens
	Seed      string          // vLLM and llm-d: the text of PYTHONHASHSEED; SGLang has no seed
	Bigram    bool            // SGLang with EAGLE: a page is Size pairs (token, next token)
	Tail      bool            // LMCache with save_unfull_chunk: the last block is hashed even if it is not full
}

// Digest is an engine's hash of a block, 8 to 32 bytes. The zero Digest is empty: it is the root of an SGLang chain
// without a salt. Digests can be compared with ==.
type Digest struct {
	bytes  [32]byte
	length uint8
}

// NewDigest returns the digest with the bytes b. The length of b must be 8 to 32.
func NewDigest(b []byte) (Digest, error) {
	var d Digest
	if len(b) < 8 || len(b) > len(d.bytes) {
		return d, fmt.Errorf("make digest: %d bytes are not within 8..32", len(b))
	}
	d.length = uint8(copy(d.bytes[:], b))
	return d, nil
}

// NewDigest64 returns the digest of an algorithm whose hashes are 64-bit numbers.
func NewDigest64(v uint64) Digest {
	d := Digest{length: 8}
	binary.BigEndian.PutUint64(d.bytes[:], v)
	return d
}

// Bytes returns the digest's bytes; empty for the zero Digest.
func (d Digest) Bytes() []byte { return d.bytes[:d.length] }

// last64 returns the last 8 bytes of d as a big-endian number. vLLM reduces digests to 64 bits in this way.
func (d Digest) last64() uint64 {
	if d.length < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(d.bytes[d.length-8:])
}

// EngineHasher computes the same block hashes as an engine. Warmpath's own index does not need an EngineHasher, because
// it hashes the tokens in events. EngineHasher is for engines that publish hashes without tokens, and for
// [IdentifyEngine]. It is immutable; any number of goroutines may use it.
type EngineHasher struct {
	chain EngineChain
	none  Digest
}

// maxPickledBlock is the greatest block size for which a pickle is below 64 KiB. CPython writes a longer pickle in
// several frames, which this package does not reproduce.
const maxPickledBlock = 8192

// NewEngineHasher returns a hasher for the chain.
func NewEngineHasher(c EngineChain) (*EngineHasher, error) {
	if c.Algorithm >= numEngineAlgorithms {
		return nil, fmt.Errorf("make engine hasher: unknown algorithm %d", c.Algorithm)
	}
	if c.Size < 1 || c.Size > MaxSize {
		return nil, fmt.Errorf("make engine hasher: block size %d is not within 1..%d", c.Size, MaxSize)
	}
	if c.pickled() && c.Size > maxPickledBlock {
		return nil, fmt.Errorf("make engine hasher: %s of blocks of more than %d tokens is not reproduced", c.Algorithm, maxPickledBlock)
	}
	if c.Bigram && c.Algorithm != SGLangSHA256 {
		return nil, errors.New("make engine hasher: only SGLang hashes bigrams")
	}
	h := &EngineHasher{chain: c}
	switch {
	case c.Algorithm == LLMDFNV:
		h.none = NewDigest64(FNV(FNVBasis, []byte(c.Seed)))
	case c.Algorithm == LLMDXXH64:
		h.none = NewDigest64(xxh64([]byte(c.Seed)))
	case c.Algorithm == SGLangSHA256:
	case c.pickled():
		h.none = h.sum(pickleText(nil, c.Seed))
	default:
		h.none = h.sum(cborText(nil, c.Seed))
	}
	return h, nil
}

func (c EngineChain) pickled() bool { return c.Algorithm == VLLMSHA256 || c.Algorithm == VLLMXXH128 }

// Root returns the parent of a chain's first block. The root of SGLang depends on the salt, and the root of llm-d on
// the model's name. The root of vLLM depends on neither: its salt is an extra key of the first block.
func (h *EngineHasher) Root(model, salt string) Digest {
	switch h.chain.Algorithm {
	case SGLangSHA256:
		if salt == "" {
			return Digest{}
		}
		return h.sum(append([]byte("sglang-cache-salt-v1\x00"), salt...))
	case LLMDFNV:
		b := cborHead(nil, cborArray, 3)
		b = cborHead(b, cborUnsigned, h.none.last64())
		b = cborText(append(b, cborNull), model)
		return NewDigest64(FNV(FNVBasis, b))
	case LLMDXXH64:
		return NewDigest64(xxh64(appendLLMDText(binary.LittleEndian.AppendUint64(nil, h.none.last64()), model)))
	default:
		return h.none
	}
}

// Normal returns the normal form of a digest: the 64-bit number to which Warmpath reduces the hashes in events. For
// vLLM it is the last 8 bytes of the digest, and for SGLang the first 8 bytes, both big-endian.
func (h *EngineHasher) Normal(d Digest) uint64 {
	if h.chain.Algorithm == SGLangSHA256 {
		return binary.BigEndian.Uint64(d.bytes[:8])
	}
	return d.last64()
}

// Append appends the digests of the full blocks of tokens to dst and returns dst. extra[i] has the extra keys of block
// i, as vLLM's events list them; blocks from len(extra) on have none. SGLang has no extra keys. With Bigram, a block is
// only hashed if tokens has one more token after the block.
func (h *EngineHasher) Append(dst []Digest, parent Digest, tokens []Token, extra [][]ExtraKey) []Digest {
	pages := tokens
	if h.chain.Bigram && len(tokens) > 0 {
		pages = tokens[:len(tokens)-1]
	}
	buf := make([]byte, 0, 256+5*min(h.chain.Size, len(tokens)))
	for i := 0; len(pages) >= h.chain.Size || h.chain.Tail && len(pages) > 0; i++ {
		n := min(h.chain.Size, len(pages))
		var keys []ExtraKey
		if i < len(extra) {
			keys = extra[i]
		}
		block := pages[:n]
		if h.chain.Bigram {
			block = tokens[:n+1]
		}
		buf, parent = h.block(buf[:0], parent, block, keys)
		dst = append(dst, parent)
		pages, tokens = pages[n:], tokens[n:]
	}
	return dst
}

// block returns the digest of one block, and the buffer in which its input was written.
func (h *EngineHasher) block(b []byte, parent Digest, tokens []Token, extra []ExtraKey) ([]byte, Digest) {
	switch h.chain.Algorithm {
	case VLLMSHA256, VLLMXXH128:
		b = pickleBlock(b, parent.Bytes(), tokens, extra)
	case VLLMSHA256CBOR, VLLMXXH128CBOR:
		b = cborHead(b, cborArray, 3)
		b = cborHead(b, cborBytes, uint64(parent.length))
		b = append(b, parent.Bytes()...)
		b = cborExtra(cborTokens(b, tokens), extra)
	case VLLMSHA256CBOR64:
		b = cborHead(b, cborArray, 3)
		b = cborHead(b, cborUnsigned, parent.last64())
		b = cborExtra(cborTokens(b, tokens), extra)
	case SGLangSHA256:
		b = appendSGLangPage(b, parent, tokens, h.chain.Bigram)
	case LLMDFNV:
		b = cborHead(b, cborArray, 3)
		b = cborHead(b, cborUnsigned, parent.last64())
		b = cborLLMDExtra(cborTokens(b, tokens), extra)
		return b, NewDigest64(FNV(FNVBasis, b))
	case LLMDXXH64:
		b = binary.LittleEndian.AppendUint64(b, parent.last64())
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		for _, k := range extra {
			b = appendLLMDText(b, k.text())
		}
		return b, NewDigest64(xxh64(b))
	}
	return b, h.sum(b)
}

func (h *EngineHasher) sum(b []byte) Digest {
	switch h.chain.Algorithm {
	case VLLMXXH128, VLLMXXH128CBOR:
		d := Digest{length: 16}
		sum := xxh3.Hash128(b).Bytes()
		copy(d.bytes[:], sum[:])
		return d
	case VLLMSHA256CBOR64:
		sum := sha256.Sum256(b)
		return NewDigest64(binary.BigEndian.Uint64(sum[24:]))
	default:
		return Digest{bytes: sha256.Sum256(b), length: 32}
	}
}

// appendSGLangPage writes the input of SGLang's hash: the parent's digest, which is absent for a root without a salt,
// and each token, or each pair of neighbouring tokens, as little-endian 32-bit numbers.
func appendSGLangPage(b []byte, parent Digest, tokens []Token, bigram bool) []byte {
	b = append(b, parent.Bytes()...)
	if !bigram {
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		return b
	}
	for i := range tokens[:len(tokens)-1] {
		b = binary.LittleEndian.AppendUint32(b, tokens[i])
		b = binary.LittleEndian.AppendUint32(b, tokens[i+1])
	}
	return b
}

// EngineSample holds the first blocks of a chain, as an engine's event announced them.
type EngineSample struct {
	Size   int          // tokens in a block
	Tokens []Token      // the tokens of the blocks
	Hashes []uint64     // the blocks' hashes, as [EngineHasher.Normal] returns them
	Salt   string       // the salt in an event of SGLang; for vLLM the salt is in Extra
	Extra  [][]ExtraKey // the extra keys of each block, as the event lists them
}

// IdentifyEngine finds the vLLM or SGLang chain that reproduces every hash of the sample. It tries each algorithm with
// [DefaultSeed] and with each of seeds. It returns false if it finds no chain. Possible reasons: the engine's root is
// random, its seed is none of seeds, its hashes cover data that its events do not contain (such as the path of a LoRA
// adapter in vLLM 0.32), or the sample has no block.
func IdentifyEngine(s EngineSample, seeds ...string) (EngineChain, bool) {
	if len(s.Hashes) == 0 || s.Size < 1 || len(s.Tokens)/s.Size < len(s.Hashes) {
		return EngineChain{}, false
	}
	for a := VLLMSHA256; a <= SGLangSHA256; a++ {
		for i := -1; i < len(seeds); i++ {
			chain := EngineChain{Algorithm: a, Size: s.Size}
			switch {
			case a == SGLangSHA256 && i >= 0:
				continue // the algorithm has no seed and was tried before
			case a == SGLangSHA256:
			case i < 0:
				chain.Seed = DefaultSeed
			default:
				chain.Seed = seeds[i]
			}
			if h, err := NewEngineHasher(chain); err == nil && h.reproduces(s) {
				return chain, true
			}
		}
	}
	return EngineChain{}, false
}

func (h *EngineHasher) reproduces(s EngineSample) bool {
	digests := h.Append(nil, h.Root("", s.Salt), s.Tokens[:len(s.Hashes)*s.Size], s.Extra)
	for i, d := range digests {
		if h.Normal(d) != s.Hashes[i] {
			return false
		}
	}
	return len(digests) == len(s.Hashes)
}
