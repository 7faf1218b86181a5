package publish

import (
	"fmt"

	"github.com/warmpath/warmpath/block"
)

// HashBlocks returns the hashes of the full blocks of tokens, 32 bytes each. It is for engines that have no hashes of
// their own. The chain is vLLM's sha256_cbor with its default seed, and with an adapter's path of "" (vLLM 0.32,
// v1/core/kv_cache_utils.py): a hash is the SHA-256 of the canonical CBOR of the list of the parent's hash, the tokens,
// and the keys. The keys are null, or a list of ["lora", lora, ""] in each block of an adapter, and of ["cache_salt",
// salt] in the first block of a prompt.
//
// parent is the hash of the block before the tokens, of 32 bytes; nil: the tokens begin a prompt. lora and salt are ""
// if there is none. The salt counts only without a parent.
func HashBlocks(tokens []block.Token, size int, parent []byte, lora, salt string) ([][]byte, error) {
	if err := checkTexts(lora, salt); err != nil {
		return nil, err
	}
	h, err := block.NewEngineHasher(block.EngineChain{Algorithm: block.VLLMSHA256CBOR, Size: size, Seed: block.DefaultSeed})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	from := h.Root("", "")
	if parent != nil {
		if len(parent) != 32 {
			return nil, invalid("the parent's hash has %d bytes, not 32", len(parent))
		}
		if from, err = block.NewDigest(parent); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	n := len(tokens) / size
	extra := make([][]block.ExtraKey, n)
	for i := range extra {
		if lora != "" {
			extra[i] = append(extra[i], block.TupleKey("lora", lora, ""))
		}
		if salt != "" && parent == nil && i == 0 {
			extra[i] = append(extra[i], block.TupleKey("cache_salt", salt))
		}
	}
	hashes := make([][]byte, 0, n)
	for _, d := range h.Append(nil, from, tokens, extra) {
		hashes = append(hashes, append([]byte(nil), d.Bytes()...))
	}
	return hashes, nil
}

// Number returns the last 8 bytes of a hash as a big-endian number: vLLM makes numbers from its hashes in this way. A
// router takes the two forms of one hash for the same hash.
func Number(digest []byte) Hash {
	var n Hash
	for _, b := range digest[max(0, len(digest)-8):] {
		n = n<<8 | Hash(b)
	}
	return n
}
