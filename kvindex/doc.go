// Package kvindex knows which holder (a worker's data-parallel rank) has which blocks of a model's KV cache, on which
// tier and in which cache group, from what the engines announce. Most readers want one call:
//
//	matches = index.Match(keys, matches[:0]) // how much of a request each holder has
//
// # What it knows
//
// An engine names its blocks by hashes of its own, which mean something within one holder only. The index computes keys
// from the announced tokens (block.Hasher), so that the blocks of all engines and of the request can be compared,
// whatever the engine's block size. Events still name parents and removed blocks by engine hashes.
//
//   - Copies are counted for each (holder, tier, group, engine hash): vLLM stores and removes physical blocks. An
//     engine may also report a block that it has already; the report is no copy. If the events do not tell copies and
//     reports apart, the index assumes a report: it may forget a block too early, and never claims a block that is
//     gone. See judge in store.go. Stored.Origin overrides this decision.
//   - A holder has a block of the index while engine blocks cover all tokens of the block. Engine blocks may be larger
//     or smaller, may be no multiple, and may vary in size. The index remembers a partial block at a chain's end. Later
//     engine blocks complete it, and each continuation of the chain completes it in its own way.
//   - If the parent or the place of a block is not known, the block waits until both are known. The key of a removed
//     parent is kept while the parent has children. A hole ends a match. When the hole is filled, the blocks after the
//     hole count again.
//   - A match descends the tiers (accelerator, host, disk, remote) and never climbs back, as vLLM and SGLang load.
//     If the engine loads from any tier in any order (Stored.AnyTierOrder), each block counts on its fastest tier.
//   - A full-attention group must have every leading block. A sliding window of w tokens allows a length if the last
//     ⌈(w-1)/b⌉ engine blocks of b tokens before this length are there. A state-space group allows a length if the
//     group has a checkpoint there. The match is the longest length that all groups allow. Unless the holder's only
//     group has full attention, the length is also a multiple of the engine's block size of each full-attention group
//     and each sliding window.
//
// # What it refuses to know
//
// Events, their shapes and sequence numbers (kvevent, kvfeed); models (one index is for one model); load, trust and
// choice (fleet, policy); time; blocks that a holder may have because a prompt was sent to it (placement). The index
// does not guess:
//
//   - An engine hash without tokens means nothing until another event of the holder gives the tokens. If hashes do not
//     align with their tokens (windows that skip blocks), the index does not count tokens to place them. So a model
//     that has only sliding windows matches only where its events align: mostly in prompts no longer than the window.
//   - Groups of other kinds (chunked local, encoder, cross attention), windows of unknown width and more than MaxGroups
//     groups prove nothing: Match.Blocks of the holder is 0, and Match.Full is the match that full attention alone
//     would give.
//   - If the scope of a chain is not known (offload events leave out the salt), the index does not begin the chain.
//   - If an engine's hashes have a look-ahead (EAGLE, MTP), the hash of a block also covers the next tokens. If a
//     prompt ends within the look-ahead of its last block, the request has no key for this block.
//   - When an engine hash names new tokens, the index forgets that the hash named its old block.
//   - A report of reused blocks may leave out blocks that a window dropped. After the index evicted blocks, such a
//     report looks the same as new blocks of a short prompt: HolderStats.Whole is false then.
//
// # Structure
//
// The index keeps a chain as strands. A strand is a run of consecutive blocks. It has its blocks' keys and engine
// hashes. It consists of segments, each with the set of the holders that have the segment's blocks. A different
// continuation is a child strand. Each set of holders exists once. Two tables lead to strands: heads leads from the key
// of a strand's first block to the strand, and names leads from an engine hash to its block. A match follows the
// strands of a request from the root on and compares keys. It relies on the fact that a key determines all blocks
// before its own.
//
// A holder's claim on a block says on which tiers and in which groups the holder has the block, and whether the holder
// knows the block by its engine hash. At most one engine hash names a block: the holders whose engines compute this
// hash share the name.
//
// A point is a record of one holder's engine block that a claim cannot express: the block has another size, waits for
// its parent, or has a hash that names another block for other holders. A point may also stand beside a claim on the
// same hash: it then has the tiers and groups that announced the block in another size or several times. A block counts
// the same for a match, whether claims or points cover it. If a point without a claim is the parent of an engine block,
// this block is a point, too.
//
// # Memory
//
// Package kvindex/internal/memory allocates the memory. A block with its engine hash takes some 35 bytes. If many
// holders have about the same blocks, their number does not matter. A point takes some 300 bytes. Config.Bytes is a
// hard limit: the index makes room before it applies an announcement. While a table grows, its old and its new memory
// count. Released memory that the garbage collector has not freed yet does not count. Config.Seed decides where keys
// and engine hashes lie in tables, so that an attacker cannot choose them to collide.
//
// The index applies an announcement in parts of at most 256 blocks. It refuses a part that does not fit in an empty
// index, and the rest of the announcement, before it evicts anything for this part. In a full index, it also refuses a
// part that needs more than a quarter of the budget and more than its holder's fair share: the budget divided by the
// number of workers, divided by the known holders of its worker. An eviction samples some strands and takes the ends of
// the least recently used ones. It never takes a block before the block's descendants. It takes only blocks whose
// holders all exceed their shares. When there are no more such blocks, it takes other blocks, but only for a removal,
// or to make room for a holder that does not exceed its share.
//
// # Bounds
//
// Every operation ends. A step is a look at one strand, segment, member of a set, point, or part of a block;
// Stats.Steps counts the steps. An operation on n blocks takes no more steps than
//
//	(n+1) * (3*block.MaxSize + Bytes/128) + 40 * Bytes/16
//
// The first term is the cost of single blocks. A block covers at most block.MaxSize tokens. All strands may be children
// of its strand, and each strand takes at least 128 bytes. Usual blocks cost one to ten steps. The second term is the
// cost of operations that look at everything: an eviction, Clear and Forget. An element takes at least 16 bytes.
//
// HolderStats.Refused counts what the index refuses: an announcement that does not fit; a block of more than
// block.MaxSize tokens; a block that is its own parent or, among waiting blocks, its own ancestor; blocks beyond
// MaxChain and groups beyond MaxGroups. Waiting blocks have a budget of their own. If there are too many of them, the
// holder with the most waiting blocks loses its oldest ones. If they have too many bytes, the holder whose waiting
// blocks have the most bytes loses its oldest ones.
//
// # Concurrency
//
// Writers exclude each other by a lock. A writer computes the keys of at most 256 blocks and stores the blocks, then
// lets other writers in between. Forget does so after 256 strands. Clear holds the lock until it has looked at all
// strands. The events of one holder must come from one goroutine at a time, in order.
//
// Match takes no lock. It reads heads, strands and sets by atomic loads. It answers only if the versions of all strands
// on its path are unchanged after the last load. So an answer describes one moment between two changes of blocks; an
// announcement may be half applied at that moment. A strand's version is odd while the strand changes, and each version
// is used once. Memory that readers may still read is left to the garbage collector, or reused under another version. A
// reader whose version check fails retries, at most 16 times; then it takes the lock. A reader does not see a holder
// that is being forgotten. Match allocates nothing when its destination has room.
package kvindex
