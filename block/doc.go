// Package block turns tokens into keys: a prompt is cut into blocks of a fixed number of tokens, and each full block is
// named by a 64-bit hash that chains over everything before it. Two requests share a cached prefix of n blocks exactly
// when their first n keys are equal.
//
// Most readers want one call:
//
//	hasher, err := block.NewHasher(block.XXH3, 16)
//	keys := hasher.Append(nil, hasher.Root(block.Scope{Model: "m"}), 0, tokens, nil)
//
// A block's local hash is XXH3-64 of its tokens (little-endian 32-bit numbers). Its key is its parent's key plus a term made of
// the local hash and the block's number in the prompt (docs/design/0006), so that the blocks of a prompt are hashed
// independently of each other; [Hasher.Locals] and [Hasher.Chain] are the two steps apart. If multimodal features start in
// the block, the key is then folded once per distinct feature, in the order of (offset, identifier): XXH3-64, with a seed of
// its own, of the key, the offset within the block, the length and the XXH3-64 of the identifier. The parent of the first
// block is the root: model, LoRA name, salt and extra key, each by length and hash. Keys are Warmpath's own; they are stable
// within a major version and shared by routers that share an index.
//
// The same tokens give the same keys on the event side and on the request side, however an engine cut them.
//
// The package also reproduces, bit for bit, how engines hash their own blocks ([EngineHasher]), which the index does not
// need: engine hashes depend on seeds, options and paths of adapters that the wire does not show. It knows nothing of
// events, holders or where a block is; the kinds of tier and of attention group live here because every package that
// speaks of blocks needs them.
package block
