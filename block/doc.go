// Package block turns tokens into keys. A prompt is cut into blocks of a fixed number of tokens. The key of a full
// block is a 64-bit hash of the block's tokens and of all tokens before the block. Two requests share a cached prefix
// of n blocks exactly if their first n keys are equal.
//
// Most programs need only these calls:
//
//	hasher, err := block.NewHasher(block.XXH3, 16)
//	keys := hasher.Append(nil, hasher.Root(block.Scope{Model: "m"}), 0, tokens, nil)
//
// With [XXH3], a key is made in two steps ([Hasher.Locals] and [Hasher.Chain]). First, a block's local hash is the
// XXH3-64 of its tokens (little-endian 32-bit numbers). Then the block's key is its parent's key plus a term, which is
// computed from the local hash and the block's number in the prompt (docs/design/0006). So the blocks of a prompt are
// hashed independently of each other.
//
// A multimodal feature, such as an image, changes the key of the block in which it starts. For each different feature,
// in the order of (offset, identifier), the key is replaced by an XXH3-64 of four numbers, with a seed for features:
// the key so far, the offset within the block, the length of the identifier, and the XXH3-64 of the identifier.
//
// The parent of the first block is the root. It is a hash of the model, the LoRA name, the salt and the extra key, each
// given by its length and hash.
//
// Keys are Warmpath's own. Two Hashers with the same algorithm and block size give the same keys, on any machine. Keys
// may differ between versions of Warmpath: do not store them. The tokens of an event and of a request give the same
// keys, even if an event has only a piece of the prompt.
//
// The package also computes the hashes of engines ([EngineHasher]). The index does not need engine hashes, because they
// depend on facts that events do not contain: seeds, options and paths of adapters. The package knows nothing of
// events, of holders, or of where blocks are stored. [Tier] and [Attention] are here because every package about blocks
// needs them.
package block
