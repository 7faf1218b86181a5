package warmpath

import (
	"encoding/binary"

	"github.com/warmpath/warmpath/block"
)

// Approximate matches, for prompts whose tokens nobody can tell: bytesPerToken bytes of the prompt's text stand for a token,
// and the blocks of them are chained, matched and expected as blocks of tokens are. No event ever confirms one. What they
// say is where a prompt that began with the same text was sent in the last [Options.ApproximateTTL]: enough for a growing
// conversation to find its worker again. Dynamo and llm-d fall back to the same idea (a hash chain over the text in llm-d's
// prefix-cache plugin, facts/llm-d.md); here such entries live beside the confirmed ones, under the same budget.

// textRoot keeps chains of text apart from those of tokens: it changes the root, and with it every key.
const textRoot block.Key = 0x7761726d74657874 // "warmtext"

// textChunk is how many bytes of text are turned into tokens at a time, rounded to whole blocks.
const textChunk = 16 << 10

// appendText appends to p.keys the keys of the text's whole blocks, rooted in scope.
func (p *Prepared) appendText(h *block.Hasher, scope block.Scope, text []byte) {
	parent := h.Root(scope) ^ textRoot
	chunk := max(textChunk/(bytesPerToken*h.Size()), 1) * h.Size() // tokens
	for start := 0; len(text) >= bytesPerToken*h.Size(); start += chunk {
		n := min(len(text)/bytesPerToken, chunk)
		p.text = p.text[:0]
		for i := range n {
			p.text = append(p.text, binary.LittleEndian.Uint32(text[bytesPerToken*i:]))
		}
		text = text[bytesPerToken*n:]
		p.keys = h.Append(p.keys, parent, start, p.text, nil)
		parent = p.keys[len(p.keys)-1]
	}
}
