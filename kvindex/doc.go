// Package kvindex knows which holder (a worker's data-parallel rank) has which blocks of a model's KV cache, on which
// tier and in which cache group, from what the engines announce. Most readers want one call:
//
//	matches = index.Match(keys, matches[:0]) // how much of a request each holder has
//
// # What it knows
//
// An engine names its blocks by hashes of its own, which mean something within one holder only. The index computes keys
// from the announced tokens (block.Hasher), so that the blocks of all engines and of the request can be compared,
// whatever the engine's block size. Parents and removals are still given by engine hashes.
//
//   - Copies are counted for each (holder, tier, group, engine hash): vLLM stores and removes physical blocks. A report
//     of a block that is there is no copy. Where the events do not tell a copy from a report, the index assumes a
//     report: it may forget a block too early, and never claims one that is gone. See judge in store.go;
//     Stored.Origin overrides it.
//   - The index's block is held while engine blocks cover all of its tokens. Engine blocks may be larger or smaller,
//     may be no multiple, and may vary in size. A partial block at a chain's end is remembered, and completed later,
//     also by several continuations.
//   - A block whose parent or place is not known waits until it is known. The key of a removed parent is kept while it
//     has children. A hole ends a match; the blocks after it count again when the hole is filled.
//   - A match descends the tiers (accelerator, host, disk, remote) and never climbs back, as vLLM and SGLang load.
//     Where the engine loads from any tier in any order (Stored.AnyTierOrder), each block counts on its best tier.
//   - A full-attention group must have every leading block. A sliding window of w tokens allows a length if the last
//     ⌈(w-1)/b⌉ engine blocks of b tokens before it are there; a state-space group, if it has a checkpoint at it. The
//     match is the longest length that all groups allow and that is a multiple of every group's block size.
//
// # What it refuses to know
//
// Events, their shapes and sequence numbers (kvevent, kvfeed); models (one index is for one of them); load, trust and
// choice (fleet, policy); time; what a holder may have because a prompt was sent to it (placement). It does not guess:
//
//   - An engine hash without tokens means nothing until another event of the holder explains it. Hashes that do not
//     align with their tokens (windows that skip blocks) are never placed by counting. So a model that has only sliding
//     windows matches only where its events align, in prompts no longer than the window.
//   - Groups of other kinds (chunked local, encoder, cross attention), windows of unknown width and more than MaxGroups
//     groups prove nothing: the holder's matches are 0, and Full is the match that full attention alone would give.
//   - A chain whose scope is not known (offload events leave out the salt) is never begun.
//   - An EAGLE engine's last block depends on a token that is not known: a match has one block less.
//   - When an engine hash names new tokens, its old block is forgotten.
//   - A report of reused blocks may leave out blocks that a window dropped. After the index evicted blocks, such a
//     report looks the same as new blocks of a short prompt: HolderStats.Whole is false then.
//
// # Structure
//
// A chain is kept as strands: stretches of blocks that follow each other. A strand has its blocks' keys and engine
// hashes, and segments that say which set of holders has which of its blocks. A different continuation is a child
// strand. Each set of holders exists once. Two tables lead to strands: heads, from the key of a strand's first block,
// and names, from an engine hash to its block. A match follows the strands of a request from the root on and compares
// keys; it relies on the fact that a key determines all blocks before it.
//
// A holder's claim on a block says on which tiers and in which groups it has the block, and whether it knows the block
// by its engine hash. At most one engine hash names a block, for all holders whose engines hash alike.
//
// An exception is a point, kept for its holder: the end of an engine block that is of another size, waits, or has a
// hash that names another block for other holders. A hash can have a claim and a point beside it, which has the tiers
// and groups of another size or with several copies. Blocks that points cover count like others. A block after a point
// is a point, unless the point is beside a claim.
//
// # Memory
//
// Memory is in kvindex/internal/memory. A block with its engine hash takes some 35 bytes, however many holders have it
// if they have about the same blocks; a point takes some 300. Config.Bytes is a hard limit: room is made before an
// announcement is applied, and tables that grow count old and new. Released memory that the garbage collector has not
// freed yet does not count. Config.Seed decides where keys and engine hashes lie
// in tables, so that an attacker cannot choose them to collide.
//
// An announcement that does not fit in an empty index is refused before anything is evicted. At the limit, an
// announcement is also refused if it needs more than a quarter of the budget and more than its holder's fair share: the
// budget divided by the number of workers, divided by the known holders of its worker. Evictions take the ends of the
// least recently used of some strands, never a block before its descendants, and only blocks whose holders all exceed
// their shares. When there are no more such blocks, other blocks go, but only to make room for a holder below its
// share.
//
// # Bounds
//
// Every operation ends. A step is a look at one strand, segment, member of a set, point or part; Stats.Steps counts
// them. An operation on n blocks takes no more steps than
//
//	(n+1) * (3*block.MaxSize + Bytes/128) + 40 * Bytes/16
//
// The first term is the cost of single blocks. A block covers at most block.MaxSize tokens, and as many strands may
// hang on its strand as there are: one in 128 bytes. Usual blocks cost about ten steps. The second term is the cost of
// operations that look at everything: an eviction, Clear and Forget. An element takes at least 16 bytes.
//
// HolderStats.Refused counts what the index refuses: an announcement that does not fit; a block of more than
// block.MaxSize tokens; a block that is its own parent or, among waiting blocks, its own ancestor; blocks beyond
// MaxChain and groups beyond MaxGroups. Waiting blocks have a budget of their own: above it the holder with most of
// them loses its oldest.
//
// # Concurrency
//
// Writers exclude each other for at most 256 blocks at a time, hashing included, and let others in between; Forget does
// so after 256 strands. Clear holds the lock while it looks at each strand. The events of one holder must come from one
// goroutine at a time, in order.
//
// Match takes no lock: it reads heads, strands and sets by atomic loads and answers only if, after the last of them,
// the versions of all strands on its path are unchanged. An answer is therefore of one moment, between two changes of
// blocks; an announcement may be half applied then. A version is odd while a strand changes and is never used again.
// Memory that readers may be in is left to the garbage collector or reused under another version. A reader whose check
// fails retries, at most 16 times; then it takes the lock. A holder that is being forgotten is gone for readers at
// once. Match allocates nothing when its destination has room.
package kvindex
