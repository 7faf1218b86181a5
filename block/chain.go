package block

import "slices"

// The key of a block is its parent's key plus a term. The term depends only on the block's tokens and position. So the
// terms of all blocks are independent of each other, and the processor computes several terms at the same time. Only
// the additions must be done in order. docs/design/0006 says why different prefixes still have different keys.

// termFactor is a factor in each term. It is the constant PRIME_MX2 of XXH3: an odd number in which 32 of the 64 bits
// are 1.
const termFactor = 0x9fb21c651e98df25

// place returns the number that stands for a block's position in the block's term. It is a multiple of Golden, and
// never 0.
func (h *Hasher) place(start int) uint64 { return (uint64(start/h.size) + 1) * Golden }

// term returns the number that is added to the parent's key to make a block's key.
func term(local, place uint64) Key { return Key(Fold128(local^place, termFactor)) }

// Locals appends the local hash of each full block to dst and returns dst. A local hash is XXH3-64 of the block's
// tokens as little-endian 32-bit numbers. [Hasher.Chain] makes keys from local hashes. Tokens at the end that fill no
// block have no hash. Locals panics for FNV1a, which has no local hashes.
func (h *Hasher) Locals(dst []uint64, tokens []Token) []uint64 {
	h.mustChain()
	n := len(tokens) / h.size
	dst = slices.Grow(dst, n)
	locals := dst[len(dst) : len(dst)+n]
	for i := range locals {
		switch h.size {
		case 16:
			locals[i] = block16((*[16]Token)(tokens))
		case 32:
			locals[i] = block32((*[32]Token)(tokens))
		default:
			locals[i] = local(tokens[:h.size])
		}
		tokens = tokens[h.size:]
	}
	return dst[:len(dst)+n]
}

// Chain appends the keys of blocks to dst and returns dst. locals are the blocks' local hashes ([Hasher.Locals]).
// parent and start, in tokens, are as in [Hasher.Append]. Chain cannot include multimodal features in the keys; Append
// can. Chain panics for FNV1a.
func (h *Hasher) Chain(dst []Key, parent Key, start int, locals []uint64) []Key {
	h.mustChain()
	dst = slices.Grow(dst, len(locals))
	keys := dst[len(dst) : len(dst)+len(locals)]
	chain(keys, locals, parent, h.place(start))
	return dst[:len(dst)+len(locals)]
}

// chainFactor and chainStep are variables, because the compiler keeps variables in registers. The compiler would load a
// constant of 64 bits again for each block.
var chainFactor, chainStep uint64 = termFactor, Golden

// chain sets keys to the keys of the blocks with these local hashes. Each step of the first loop computes the keys of
// sixteen blocks, because such a loop needs fewer instructions. It takes half the time of a loop with one block a step,
// and two thirds of the time of a loop with eight blocks a step (BenchmarkHash). An index instead of slices saves
// instructions, too.
func chain(keys []Key, locals []uint64, parent Key, at uint64) {
	factor, step := chainFactor, chainStep
	keys = keys[:len(locals)]
	i := 0
	for ; i+16 <= len(locals); i += 16 {
		l, k := (*[16]uint64)(locals[i:]), (*[16]Key)(keys[i:])
		parent += Key(Fold128(l[0]^at, factor))
		k[0], at = parent, at+step
		parent += Key(Fold128(l[1]^at, factor))
		k[1], at = parent, at+step
		parent += Key(Fold128(l[2]^at, factor))
		k[2], at = parent, at+step
		parent += Key(Fold128(l[3]^at, factor))
		k[3], at = parent, at+step
		parent += Key(Fold128(l[4]^at, factor))
		k[4], at = parent, at+step
		parent += Key(Fold128(l[5]^at, factor))
		k[5], at = parent, at+step
		parent += Key(Fold128(l[6]^at, factor))
		k[6], at = parent, at+step
		parent += Key(Fold128(l[7]^at, factor))
		k[7], at = parent, at+step
		parent += Key(Fold128(l[8]^at, factor))
		k[8], at = parent, at+step
		parent += Key(Fold128(l[9]^at, factor))
		k[9], at = parent, at+step
		parent += Key(Fold128(l[10]^at, factor))
		k[10], at = parent, at+step
		parent += Key(Fold128(l[11]^at, factor))
		k[11], at = parent, at+step
		parent += Key(Fold128(l[12]^at, factor))
		k[12], at = parent, at+step
		parent += Key(Fold128(l[13]^at, factor))
		k[13], at = parent, at+step
		parent += Key(Fold128(l[14]^at, factor))
		k[14], at = parent, at+step
		parent += Key(Fold128(l[15]^at, factor))
		k[15], at = parent, at+step
	}
	for ; i < len(locals); i++ {
		parent += term(locals[i], at)
		keys[i], at = parent, at+step
	}
}

func (h *Hasher) mustChain() {
	if h.algorithm == FNV1a {
		panic("bug: FNV1a has no hash of a block by itself")
	}
}
