// Package block turns tokens into keys: a prompt is cut into blocks of a fixed number of tokens, and each full block is
// named by a 64-bit hash of its tokens and of everything before it. Two requests share a cached prefix of n blocks
// exactly if their first n keys are equal.
//
// Most readers want one call:
//
//	hasher, err := block.NewHasher(block.XXH3, 16)
//	keys := hasher.Append(nil, hasher.Root(block.Scope{Model: "m"}), 0, tokens, nil)
//
// A block's local hash is XXH3-64 of its tokens (little-endian 32-bit numbers). Its key is its parent's key plus a term
// that is computed from the local hash and the block's number in the prompt (docs/design/0006). So the blocks of a
// prompt are hashed independently of each other. [Hasher.Locals] and [Hasher.Chain] are the two steps.
//
// If multimodal features start in the block, the key is folded once for each distinct feature, in the order of (offset,
// identifier): XXH3-64, with a seed of its own, of the key, the offset within the block, the length and the XXH3-64 of
// the identifier. The parent of the first block is the root: model, LoRA name, salt and extra key, each by length and
// hash. Keys are Warmpath's own. They do not change within a major version, and routers that share an index have the
// same keys.
//
// The same tokens give the same keys for events and for requests, in any pieces.
//
// The package also computes the hashes of engines ([EngineHasher]). The index does not need them: they depend on seeds,
// options and paths of adapters that events do not contain. The package knows nothing of events, holders or the places
// of blocks. The kinds of tier and of attention group are here because every package about blocks needs them.
package block
