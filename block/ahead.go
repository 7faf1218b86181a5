package block

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// MaxAhead is the longest look-ahead, in tokens. EAGLE drafters look one token ahead, chained MTP modules one for each
// speculative token. No engine speculates more than half as far.
const MaxAhead = 64

// Ahead returns the root of a chain for an engine whose hashes have a look-ahead of len(first) tokens: the hash of a
// block covers all tokens up to the end of the block and the next len(first) tokens. first are the prompt's first
// tokens, at most [MaxAhead]. The chain then consists of the tokens after first, from position 0 on, so that its i-th
// key covers the same tokens as the engine's i-th hash (docs/design/0019). If first is empty, Ahead returns root.
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
