package placement

import (
	"encoding/binary"
	"unsafe"

	"github.com/warmpath/warmpath/block"
)

// Keys says what the keys of a [Store] are made of.
type Keys uint8

const (
	// Text: a key is a prompt's text. A unit is a byte. Two prompts match up to the first byte that differs.
	Text Keys = iota
	// Tokens: a key is a prompt's token ids, as [TokenBytes] returns them. A unit is a token. Two prompts match in
	// whole pages of 16 tokens, as in engines' caches.
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

// TokenBytes returns the memory of tokens as a key of a store of [Tokens]. It does not copy them.
func TokenBytes(tokens []block.Token) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), len(tokens)*tokenBytes)
}

// BlockBytes returns the memory of the keys of blocks as a key of a store of [Blocks]. It does not copy them.
func BlockBytes(keys []block.Key) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(keys))), len(keys)*blockBytes)
}

// BytesPerToken is how many bytes of text stand for a token if the token ids are not known. In current vocabularies,
// English and code have 3.5 to 4.5 bytes for each token.
const BytesPerToken = 4

// textRoot changes the root, and so all keys, of a text: keys of texts must not equal keys of tokens.
const textRoot block.Key = 0x7761726d74657874 // "warmtext"

// textChunk is how many bytes of text are turned into tokens at a time, rounded to whole blocks.
const textChunk = 16 << 10

// AppendTextKeys appends to dst the keys of a text's whole blocks in a scope, for a prompt whose token ids are not
// known. Each BytesPerToken bytes of the text stand for a token, and the keys are made as for tokens. With such keys
// the router can only find out where it sent the same text before, as llm-d's approximate prefix plugin does. No event
// confirms such keys. scratch is memory for the call; the second result is scratch for the next call.
func AppendTextKeys(dst []block.Key, h *block.Hasher, scope block.Scope, text []byte, scratch []block.Token) ([]block.Key, []block.Token) {
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
