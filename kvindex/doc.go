// Package kvindex knows which holder (a worker's data-parallel rank) has which blocks of a model's KV cache, on which
// tier and in which cache group, from what the engines announce. Most readers want one call:
//
//	matches = index.Match(keys, matches[:0]) // how much of a request each holder has
//
// # What it knows
//
// Engines name their blocks by hashes of their own, which mean something within one holder only. The index computes
// keys of its own from the announced tokens (block.Hasher), so that blocks of all engines and the request meet in one
// space, whatever the engine's block size. Engine hashes remain what parents and removals are given in.
//
//   - Copies are counted for each (holder, tier, group, engine hash): vLLM stores and removes per physical block. What
//     an engine reports again is no copy; where the wire does not tell a copy from a report the index takes it for a
//     report: it may then forget a block too early, and never claims one that is gone. The rule is at judge, in
//     store.go; Stored.Origin overrides it.
//   - A block of ours is held while the union of the live engine blocks covers it. Engine blocks may be bigger,
//     smaller, no multiple, and of varying size; the partial block at a chain's end is remembered and completed later,
//     also by several continuations.
//   - A block whose parent or place is not known waits, bounded by number and bytes, and joins when it becomes known.
//     A removed parent's key is known as long as children live. A hole ends a match there; the tail counts again when
//     the hole is filled.
//   - A match descends the tiers (accelerator, host, disk, remote) and never climbs back, as vLLM and SGLang load.
//     Where the engine loads from any tier in any order (Stored.AnyTierOrder), each block counts on its best tier.
//   - Full-attention groups must have every leading block. A sliding window of w tokens allows a length if the last
//     ⌈(w-1)/b⌉ engine blocks of b tokens before it are there; a state-space group if it has a checkpoint at it. The
//     match is the longest length that all groups allow, where a length divides into every group's blocks.
//
// # What it refuses to know
//
// Events, their shapes and sequence numbers (kvevent, kvfeed); models (one index is for one of them); load, trust and
// choice (fleet, policy); time; what a holder may have besides, because a prompt was sent to it (placement). It does not
// guess:
//
//   - An engine hash without tokens is nothing until another event of the holder explains it. Hashes that do not align
//     with their tokens (windows that skip blocks) are never placed by counting. So a model that has only sliding
//     windows matches where its events align, in prompts no longer than the window, and nowhere else.
//   - Groups of other kinds (chunked local, encoder, cross attention), windows of unknown width and more than MaxGroups
//     groups prove nothing: the holder's matches are 0, and Full is the match that full attention alone would give.
//   - A chain whose scope is not known (offload events leave out the salt) is never begun.
//   - An EAGLE engine's last block depends on a token that is not known: a match has one block less.
//   - When an engine hash names new tokens, its old block is forgotten.
//   - A report of reused blocks may leave out blocks that a window dropped. After the index evicted blocks, such a
//     report looks the same as new blocks of a short prompt: Holder's Whole is false then.
//
// # Structure
//
// A chain is kept as strands: stretches of blocks that follow each other. A strand has its blocks' keys and engine
// hashes, and segments of it say which set of holders has which of its blocks. Blocks that continue a chain in another
// way are a strand that hangs where the ways part. Each set of holders exists once. Two tables lead to strands: heads,
// from the key of a strand's first block, and names, from an engine hash to its block. A match follows the strands of a
// request from the root on, and compares keys. It rests on one assumption: a key determines what is before it.
//
// A holder's claim on a block says on which tiers and in which groups it has the block, and whether it knows the block by
// its engine hash. A block is named by one engine hash at most, for all holders whose engines hash alike.
//
// What a claim cannot say is an exception, kept for its holder: copies beyond the first; and points, the ends of engine
// blocks that are of another size, wait, or whose hash names another block for others. Blocks that points cover count
// like others. What follows a point is a point.
//
// # Memory
//
// Config.Seed decides where in tables keys and engine hashes lie, so that nobody can choose them to collide.
//
// Memory is in kvindex/internal/memory: a block takes some 35 bytes with its engine hash, however many holders have it,
// if they have much the same; a point some 400. Config.Bytes is a hard limit: room is made before an announcement is
// applied, and tables that grow count old and new. The garbage collector follows only the pointers of points, and one
// of each strand.
//
// An announcement that does not fit in an empty index is refused before anything is evicted. At the limit, an
// announcement is also refused if it needs more than a quarter of the budget and more than its holder's fair share.
// That share is the budget divided by the number of workers, divided by the known holders of its worker. Evictions take
// from holders that exceed their shares: of some strands chosen at random the least recently used, from their ends. A
// block goes only if all its holders exceed their shares, and never before its descendants. Where that finds too
// little, evictions look at all strands, and each takes more than the one before. Blocks of a holder below its share go
// only to make room for another such holder. A holder above its share is refused when it has nothing of its own left to
// evict.
//
// # Bounds
//
// Every operation ends. A step is a look at one strand, segment, member of a set, point or part; Stats.Steps counts
// them. An operation on n blocks takes no more steps than
//
//	(n+1) * (3*block.MaxSize + Bytes/128) + 40 * Bytes/16
//
// The first term is the cost of single blocks. A block covers at most block.MaxSize tokens, and as many strands may
// hang on its strand as there are: one in 128 bytes. Usual blocks cost about ten steps. The second term is paid by
// operations that look at everything: an eviction, Clear, Forget, and the announcement that makes points of blocks. An
// eviction has four passes over the blocks of holders above their shares, and four over all blocks; then the index is
// emptied. No element that is looked at is smaller than 16 bytes.
//
// The index refuses, and counts in HolderStats.Refused: an announcement that does not fit in an empty index; a block
// of more than block.MaxSize tokens; a block that is its own parent or, among waiting blocks, its own ancestor;
// blocks beyond MaxChain and groups beyond MaxGroups. Waiting blocks have a budget of their own: above it the holder
// with most of them loses its oldest.
//
// # Concurrency
//
// Writers exclude each other for at most 256 blocks at a time, hashing included, and let others in between; each
// holder's events must come from one goroutine at a time, in order, for their order to mean anything. Forget and Clear
// hold the lock while they look at each strand, and so does an eviction that smaller steps could not prevent.
//
// Match takes no lock: it reads heads, strands and sets by atomic loads and answers only if, after the last of them,
// the versions of all strands on its path are unchanged. An answer is therefore of one moment, between two changes of
// blocks; an announcement may be half applied then. A version is odd while a strand changes and never comes back;
// memory that readers may be in is either left to the garbage collector or reused under another version. A reader whose
// check fails retries, at most 16 times; then it takes the lock. A holder that is being forgotten is gone for readers
// at once. Match allocates nothing when its destination has room.
package kvindex
