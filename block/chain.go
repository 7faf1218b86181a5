package block

import "slices"

// A key is its parent's key plus a term that depends on the block's tokens and on where the block is, and on nothing else.
// So the hashes of all blocks, and their terms, are independent of each other and fill the processor's multipliers; what has
// to be done in order is one addition a block. docs/design/0006 says why different prefixes still have different keys.

const (
	golden  = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio: the places of blocks are its multiples
	spreads = 0x9fb21c651e98df25 // XXH3's PRIME_MX2, an odd number of 32 one bits
)

// place is what a block's position counts as. The first block has one too.
func (h *Hasher) place(start int) uint64 { return (uint64(start/h.size) + 1) * golden }

// term is what a block adds to its parent's key.
func term(local, place uint64) Key { return Key(mix(local^place, spreads)) }

// Locals appends to dst the hash of each full block by itself, XXH3-64 of its tokens (little-endian 32-bit numbers), and returns
// it: what [Hasher.Chain] makes keys of. A tail that fills no block has none. It panics for FNV1a, which has no such step.
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

// Chain appends the keys of blocks whose own hashes are known ([Hasher.Locals]) to dst and returns it. parent and start are as in
// [Hasher.Append]: start is in tokens. Multimodal features are folded by Append only. Chain panics for FNV1a.
func (h *Hasher) Chain(dst []Key, parent Key, start int, locals []uint64) []Key {
	h.mustChain()
	dst = slices.Grow(dst, len(locals))
	keys := dst[len(dst) : len(dst)+len(locals)]
	chain(keys, locals, parent, h.place(start))
	return dst[:len(dst)+len(locals)]
}

// The constants of the chain as variables: the compiler keeps them in registers, and would load constants of 64 bits anew for
// each block.
var chainFactor, chainStep uint64 = spreads, golden

// chain sets keys to those of as many blocks. Sixteen at a time take half of one at a time (BenchmarkHash): how many
// instructions a block takes decides here, not the multiplication. That is also why the slices are not cut as the loop goes
// on: with eight at a time it took a third more.
func chain(keys []Key, locals []uint64, parent Key, at uint64) {
	factor, step := chainFactor, chainStep
	keys = keys[:len(locals)]
	i := 0
	for ; i+16 <= len(locals); i += 16 {
		l, k := (*[16]uint64)(locals[i:]), (*[16]Key)(keys[i:])
		parent += Key(mix(l[0]^at, factor))
		k[0], at = parent, at+step
		parent += Key(mix(l[1]^at, factor))
		k[1], at = parent, at+step
		parent += Key(mix(l[2]^at, factor))
		k[2], at = parent, at+step
		parent += Key(mix(l[3]^at, factor))
		k[3], at = parent, at+step
		parent += Key(mix(l[4]^at, factor))
		k[4], at = parent, at+step
		parent += Key(mix(l[5]^at, factor))
		k[5], at = parent, at+step
		parent += Key(mix(l[6]^at, factor))
		k[6], at = parent, at+step
		parent += Key(mix(l[7]^at, factor))
		k[7], at = parent, at+step
		parent += Key(mix(l[8]^at, factor))
		k[8], at = parent, at+step
		parent += Key(mix(l[9]^at, factor))
		k[9], at = parent, at+step
		parent += Key(mix(l[10]^at, factor))
		k[10], at = parent, at+step
		parent += Key(mix(l[11]^at, factor))
		k[11], at = parent, at+step
		parent += Key(mix(l[12]^at, factor))
		k[12], at = parent, at+step
		parent += Key(mix(l[13]^at, factor))
		k[13], at = parent, at+step
		parent += Key(mix(l[14]^at, factor))
		k[14], at = parent, at+step
		parent += Key(mix(l[15]^at, factor))
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
