package inprocess

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
)

// BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf) hashes an image to 32 bytes, one chunk
// after the other. vLLM names images by this hash. This package implements BLAKE3 itself, because the code is short and
// speed matters little: the type pictures remembers the hash of an image. A library would bring assembly code that is
// made for gigabytes.

var blakeIV = [8]uint32{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}

const (
	blakeChunk = 1024
	blakeBlock = 64

	blakeChunkStart = 1 << 0
	blakeChunkEnd   = 1 << 1
	blakeParent     = 1 << 2
	blakeRoot       = 1 << 3
)

// blakeOrder has the order of a block's words, for each of the seven rounds.
var blakeOrder = func() (order [7][16]uint8) {
	permutation := [16]uint8{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8}
	for i := range order[0] {
		order[0][i] = uint8(i)
	}
	for r := 1; r < len(order); r++ {
		for i, p := range permutation {
			order[r][i] = order[r-1][p]
		}
	}
	return order
}()

// blakeNode has the inputs of a compression that is not computed yet. The last compression of the input is the root and
// needs the flag blakeRoot. Only the end of the input shows which compression is the last.
type blakeNode struct {
	cv      [8]uint32
	block   [16]uint32
	counter uint64
	length  uint32
	flags   uint32
}

func (n *blakeNode) compress(flags uint32) [8]uint32 {
	v := [16]uint32{n.cv[0], n.cv[1], n.cv[2], n.cv[3], n.cv[4], n.cv[5], n.cv[6], n.cv[7],
		blakeIV[0], blakeIV[1], blakeIV[2], blakeIV[3], uint32(n.counter), uint32(n.counter >> 32), n.length, n.flags | flags}
	for r := range blakeOrder {
		o, m := &blakeOrder[r], &n.block
		blakeMix(&v[0], &v[4], &v[8], &v[12], m[o[0]], m[o[1]])
		blakeMix(&v[1], &v[5], &v[9], &v[13], m[o[2]], m[o[3]])
		blakeMix(&v[2], &v[6], &v[10], &v[14], m[o[4]], m[o[5]])
		blakeMix(&v[3], &v[7], &v[11], &v[15], m[o[6]], m[o[7]])
		blakeMix(&v[0], &v[5], &v[10], &v[15], m[o[8]], m[o[9]])
		blakeMix(&v[1], &v[6], &v[11], &v[12], m[o[10]], m[o[11]])
		blakeMix(&v[2], &v[7], &v[8], &v[13], m[o[12]], m[o[13]])
		blakeMix(&v[3], &v[4], &v[9], &v[14], m[o[14]], m[o[15]])
	}
	var out [8]uint32
	for i := range out {
		out[i] = v[i] ^ v[i+8]
	}
	return out
}

func blakeMix(pa, pb, pc, pd *uint32, x, y uint32) {
	a, b, c, d := *pa, *pb, *pc, *pd
	a += b + x
	d = bits.RotateLeft32(d^a, -16)
	c += d
	b = bits.RotateLeft32(b^c, -12)
	a += b + y
	d = bits.RotateLeft32(d^a, -8)
	c += d
	b = bits.RotateLeft32(b^c, -7)
	*pa, *pb, *pc, *pd = a, b, c, d
}

// blakeOf returns the last compression of a chunk of at most 1,024 bytes. It computes the chunk's earlier compressions.
func blakeOf(chunk []byte, counter uint64) blakeNode {
	n := blakeNode{cv: blakeIV, counter: counter, flags: blakeChunkStart}
	for len(chunk) > blakeBlock {
		n.fill(chunk[:blakeBlock])
		n.cv = n.compress(0)
		n.flags = 0
		chunk = chunk[blakeBlock:]
	}
	n.fill(chunk)
	n.flags |= blakeChunkEnd
	return n
}

func (n *blakeNode) fill(b []byte) {
	n.length = uint32(len(b))
	if len(b) < blakeBlock {
		var whole [blakeBlock]byte
		copy(whole[:], b)
		b = whole[:]
	}
	for i := range n.block {
		n.block[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
}

// blake3 returns the hash of the concatenated parts in hexadecimal.
func blake3(parts ...[]byte) string {
	var (
		stack   [54][8]uint32 // hashes of complete subtrees, the largest first; no input has 2^54 chunks
		depth   int
		counter uint64
		rest    = make([]byte, 0, blakeChunk)
	)
	push := func(chunk []byte) {
		n := blakeOf(chunk, counter)
		cv := n.compress(0)
		counter++
		for total := counter; total&1 == 0; total >>= 1 {
			depth--
			cv = blakeJoin(&stack[depth], &cv).compress(0)
		}
		stack[depth] = cv
		depth++
	}
	for _, p := range parts {
		for len(p) > 0 {
			if len(rest) == blakeChunk { // more chunks follow
				push(rest)
				rest = rest[:0]
			}
			if len(rest) == 0 {
				for ; len(p) > blakeChunk; p = p[blakeChunk:] {
					push(p[:blakeChunk])
				}
			}
			n := min(blakeChunk-len(rest), len(p))
			rest, p = append(rest, p[:n]...), p[n:]
		}
	}
	last := blakeOf(rest, counter)
	for depth > 0 {
		cv := last.compress(0)
		depth--
		last = *blakeJoin(&stack[depth], &cv)
	}
	var sum [32]byte
	for i, word := range last.compress(blakeRoot) {
		binary.LittleEndian.PutUint32(sum[4*i:], word)
	}
	return hex.EncodeToString(sum[:])
}

// blakeJoin returns the compression of two subtrees.
func blakeJoin(left, right *[8]uint32) *blakeNode {
	n := &blakeNode{cv: blakeIV, length: blakeBlock, flags: blakeParent}
	copy(n.block[:8], left[:])
	copy(n.block[8:], right[:])
	return n
}
