package placement

import (
	"encoding/binary"
	"unsafe"

	"github.com/warmpath/warmpath/block"
)

// Keys says what the keys of a [Store] are made of.
type Keys uint8

const (
	// Text: a key is a prompt's text. A unit is a byte, and prompts may diverge at any byte.
	Text Keys = iota
	// Tokens: a key is a prompt's token ids, as [TokenBytes] returns them. Prompts diverge at multiples of 16 tokens,
	// as in engines' caches.
	Tokens
	// Blocks: a key is the chained keys of a prompt's blocks, as [BlockBytes] returns them. A unit is a block.
	Blocks
)

const tokenBytes, pageTokens, blockBytes = 4, 16, 8

// sizes returns the bytes of a unit and of a page.
func (k Keys) sizes() (unit, page int) {
	switch k {
	case Tokens:
		return tokenBytes, tokenBytes * pageTokens
	case Blocks:
		return blockBytes, blockBytes
	}
	return 1, 1
}

// TokenBytes views tokens as a key of a store of [Tokens]. It shares their memory.
func TokenBytes(tokens []block.Token) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), len(tokens)*tokenBytes)
}

// BlockBytes views the keys of blocks as a key of a store of [Blocks]. It shares their memory.
func BlockBytes(keys []block.Key) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(keys))), len(keys)*blockBytes)
}

// BytesPerToken is how many bytes of text stand for a token where the token ids are not known: English and code have
// 3.5 to 4.5 bytes a token in current vocabularies.
const BytesPerToken = 4

// textRoot keeps the keys of text apart from those of tokens: it changes the root, and with it every key.
const textRoot block.Key = 0x7761726d74657874 // "warmtext"

// textChunk is how many bytes of text are turned into tokens at a time, rounded to whole blocks.
const textChunk = 16 << 10

// AppendText appends to dst the keys of the text's whole blocks, rooted in scope, for a prompt whose token ids are not
// known: BytesPerToken bytes stand for a token, and blocks of them are chained as blocks of tokens are. Such a key says
// only where a prompt with the same text was sent, as llm-d's approximate prefix plugin does; no event confirms it.
// scratch is memory for the call, returned for the next one.
func AppendText(dst []block.Key, h *block.Hasher, scope block.Scope, text []byte, scratch []block.Token) ([]block.Key, []block.Token) {
	parent := h.Root(scope) ^ textRoot
	chunk := max(textChunk/(BytesPerToken*h.Size()), 1) * h.Size() // tokens
	for start := 0; len(text) >= BytesPerToken*h.Size(); start += chunk {
		n := min(len(text)/BytesPerToken, chunk)
		scratch = scratch[:0]
		for i := range n {
			scratch = append(scratch, binary.LittleEndian.Uint32(text[BytesPerToken*i:]))
		}
		text = text[BytesPerToken*n:]
		dst = h.Append(dst, parent, start, scratch, nil)
		parent = dst[len(dst)-1]
	}
	return dst, scratch
}
