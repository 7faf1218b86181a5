// Package kvindex knows which holder (a worker's data-parallel rank) has which blocks of a model's KV cache, on which
// tier and in which cache group, from what the engines announce. Most readers want one call:
//
//	matches = index.Match(keys, now, matches[:0]) // how much of a request each holder has
//
// # What it knows
//
// Engines name their blocks by hashes of their own, handles here, which mean something within one holder only. The
// index computes keys of its own from the announced tokens (block.Hasher), so that blocks of all engines and the
// request meet in one space, whatever the engine's block size. Handles remain what parents and removals are given in.
//
//   - Copies are counted for each (holder, tier, group, handle): vLLM stores and removes per physical block. What an
//     engine reports again is no copy; where the wire does not tell a copy from a report the index takes it for a
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
//   - What is believed (speculative entries, with an expiry) is told apart from what is confirmed, and replaced by it.
//
// # What it refuses to know
//
// Events, their shapes and sequence numbers (kvevent, ingest); models (one index is for one of them); load, trust and
// choice (fleet, policy); time, which is an argument. It does not guess:
//
//   - A handle without tokens is nothing until another event of the holder explains it. Handles that do not align with
//     their tokens (windows that skip blocks) are never placed by counting. So a model that has only sliding windows
//     matches where its events align, in prompts no longer than the window, and nowhere else.
//   - Groups of other kinds (chunked local, encoder, cross attention), windows of unknown width and more than MaxGroups
//     groups prove nothing: the holder's matches are 0, Full tells what full attention alone would claim.
//   - A chain whose scope is not known (offload events drop the salt) is never begun.
//   - An EAGLE engine's last block depends on a token that is not known: one block less.
//   - A handle that comes to name other tokens loses what it named before.
//   - A report of reused blocks that leaves out what a window dropped cannot be told from new blocks of a short prompt
//     when the index has been evicting: Holder's Whole is false then.
//
// Events whose hashes are keys already go in by StoreKeys: nothing then maps handles, and nothing is hashed.
//
// # Structure
//
// A chain is kept as strands: stretches of blocks that follow each other, in one cache line each, which know in
// segments who has which of their blocks. What continues in another way hangs on a strand as one of its own. Sets of
// holders are there once each. Slots, 16 bytes for a distinct block, lead from a key to a strand and an offset. A
// block that nobody has stays while others follow it, so that presence is closed under what is before a block: a
// request whose last key is there is answered by that probe and the strands up to the root, however long it is. Else
// the first key's strand is looked up in roots, which says at once if nothing of the request is there; each strand
// has milestones, a few bits of every so manyth key, which tell about where the request leaves it, and slots decide.
// It rests on one assumption: a key determines what is before it.
//
// What is believed lies in the same strands: a holder's claim on a block is a mask of where it has it and a belief,
// with the time until which that counts. So a match looks up both at once, and what is confirmed replaces what is
// believed by the way.
//
// Handles lie above. Where engine blocks are of our size a handle names a block, once for all holders whose engines
// hash alike, and a holder's claim says that it knows the block by that name. Holders that do anything else are odd:
// what they announce is kept in points, the ends of engine blocks on a chain, and records of them. See docs/design.
//
// # Memory
//
// The seed decides where in tables keys and handles lie, so that nobody can choose them to collide: see Config.Seed.
//
// Everything lies in arenas and open-addressing tables without pointers inside, which the garbage collector does not
// look into; only points of re-cut or waiting blocks have slices. A block takes some 20 to 30 bytes, however many
// holders have it, if they have much the same; a handle that names it some 20, once; a handle of an odd holder about
// 90. Config.Bytes is a hard limit: room is made before an announcement is applied, and tables that grow count old
// and new. Slots shrink, and strands are given back when they are no longer needed; all other memory is given back
// when the index is empty at the limit. The leftovers of a forgotten holder in a large index are removed in steps, by
// the announcements that follow, and at the limit before any held block.
//
// An announcement that does not fit in an empty index is refused before anything is evicted. At the limit, an
// announcement is also refused if it needs more than a quarter of the budget and more than its holder's fair share.
// That share is the budget divided by the number of workers, divided by the known holders of its worker. Evictions take
// from holders that exceed their shares: the least recently used blocks first, deepest before their parents. A block
// goes only if all its holders exceed their shares. Blocks of a holder below its share go only to make room for another
// such holder. A holder above its share is refused when it has nothing of its own left to evict. A strand is as recent
// as its most recent descendant. When there is room for little more than the longest stretch, in an index of 8 MiB and
// more, each stored stretch first shortens some of the least recently used strands, from their ends and only strands
// without descendants. If that is not enough, evictions look at the whole index, and each takes more than the one
// before.
//
// # Bounds
//
// Every operation ends. A step is a look at one strand, segment, member of a set, point, part, or table slot;
// Stats.Steps counts them. An operation on n blocks takes no more steps than
//
//	(n+1) * (3*block.MaxSize + Bytes/128) + 40 * Bytes/16
//
// The first term is the cost of single blocks. A block covers at most block.MaxSize tokens, and as many strands may
// hang on its strand as there are: one in 128 bytes. Usual blocks cost about ten steps. The second term is paid by
// operations that look at everything: an eviction, Clear, Forget, and the announcement that makes a holder odd. An
// eviction has six passes over the blocks of holders above their shares, and six over all blocks; then the index is
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
// holder's events must come from one goroutine at a time, in order, for their order to mean anything. Forget and
// Clear keep writers out for a look at each strand, and so does an eviction that smaller steps could not prevent, and
// what a holder announces first after a belief of it was lost.
//
// Speculate and Doubt wait for no writer: what they tell while the index is locked is noted, and taken in by whoever has
// the lock at its next pause, in order, at most 65,536 blocks. They make no room but of what is believed, and never look
// at the whole index. So a decision takes as long in a full index, beside a flood of events, as in an idle one.
//
// Match takes no lock: it reads slots, strands and sets by atomic loads and answers only if, after the last of them,
// the slot it came by and the versions of all strands it met are still the same. What roots and milestones say is a
// hint: no answer rests on it, but that what is not in roots does not begin a chain. An answer is therefore of one
// moment, between two changes of blocks; an announcement may be half applied then. A version is odd while a strand
// changes and never comes back; memory that readers may be in is either left to the garbage collector or reused under
// another version. Who is disturbed looks again, sixteen times at most.
//
// A match takes a lock that writers hold for 256 blocks at a time (64 of an odd holder) in two cases: a holder has
// groups and none with full attention; the sixteen looks failed. A holder that is being forgotten is gone for readers
// at once. Match allocates nothing when its destination has room.
package kvindex
