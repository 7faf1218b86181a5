package block

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// littleEndian says whether the machine is little-endian. If it is, tokens in memory are hashed without a copy.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// local returns the XXH3-64 of a block's tokens.
func local(tokens []Token) uint64 {
	if littleEndian {
		return xxh3.Hash(bytesOf(tokens))
	}
	return localPortable(tokens)
}

// bytesOf returns the memory of tokens as bytes, without a copy.
func bytesOf(tokens []Token) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}

// bufferTokens is the size of the buffer on the stack, in tokens.
const bufferTokens = 256

// localPortable does the same as local on any machine.
func localPortable(tokens []Token) uint64 {
	var b [4 * bufferTokens]byte
	if len(tokens) <= bufferTokens {
		putTokens(b[:], tokens)
		return xxh3.Hash(b[:4*len(tokens)])
	}
	var h xxh3.Hasher
	for len(tokens) > 0 {
		n := min(len(tokens), bufferTokens)
		putTokens(b[:], tokens[:n])
		h.Write(b[:4*n])
		tokens = tokens[n:]
	}
	return h.Sum64()
}

// putTokens writes tokens to b in little-endian order.
func putTokens(b []byte, tokens []Token) {
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(b[4*i:], t)
	}
}
