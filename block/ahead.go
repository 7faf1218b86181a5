package block

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// MaxAhead is the longest look-ahead, in tokens. EAGLE drafters look one token ahead, chained MTP modules one for each
// speculative token; no engine speculates half as far.
const MaxAhead = 64

// Ahead returns the root of a chain whose blocks are hashed with a look-ahead of len(first) tokens: block i of such an
// engine names the prompt's tokens up to the end of the block and the next len(first) after it. first are the prompt's
// first tokens, at most [MaxAhead]. The chain's blocks are those of the tokens after first, from position 0 on: its
// i-th key then covers exactly what the engine's hash covers (docs/design/0019). Without first it returns root.
func (h *Hasher) Ahead(root Key, first []Token) Key {
	if len(first) == 0 {
		return root
	}
	var b [8 + 4*MaxAhead]byte
	binary.LittleEndian.PutUint64(b[:], uint64(root))
	first = first[:min(len(first), MaxAhead)]
	putTokens(b[8:], first)
	return Key(xxh3.HashSeed(b[:8+4*len(first)], aheadSeed))
}
