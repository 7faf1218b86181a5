package block

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// MaxAhead is the longest look-ahead, in tokens: the number of tokens after a block that the hash of the block covers.
// An EAGLE drafter looks one token ahead. Chained MTP modules look one token ahead for each speculative token, and no
// engine uses more than MaxAhead/2 speculative tokens.
const MaxAhead = 64

// Ahead returns the root of a chain for an engine whose hashes have a look-ahead: the hash of a block covers all tokens
// up to the end of the block and the next n tokens. The argument first has the first n tokens of the prompt, at most
// [MaxAhead]. To make the keys, call Append with this root, with start 0, and with the tokens of the prompt after the
// first n. Then the i-th key covers the same tokens as the engine's i-th hash (docs/design/0019). If n is 0, Ahead
// returns the argument root.
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
