// Package learned guesses which holder has which blocks from where requests were sent, for engines that announce nothing:
// what a request computed is taken to stay in its worker's cache for a while. Most readers want two calls:
//
//	matches = index.Match(keys, now, matches[:0]) // as kvindex.Index.Match
//	index.Learn(holder, keys, now)                // the request was sent there
//
// It is the exact index ([kvindex.Index]) fed by decisions instead of events, with a memory of its own of what was used
// when. Two published designs are two settings of it:
//
//   - [TrackerConfig], the block cache tracker of the vllm_cache_aware policy (seed 000, "vLLM Cache-Aware Load Balancing
//     Design"): each holder keeps its 100,000 most recently used blocks by a counter of uses (no clock); a pass every
//     minute evicts what is beyond.
//   - [ApproximateConfig], Dynamo's approximate indexer for --no-kv-events (seed 001, "KV Cache Routing"; sizes of
//     lib/kv-router/src/approx.rs): a block is believed for 120 s after the last request that used it; above 2^20 blocks the
//     ones that would expire first go until 80 % are left.
//
// Both at once are allowed.
//
// # What differs from the originals, and why
//
// Blocks are known by chained keys, not by their position and content: the tracker's own hashes credit a holder with a
// block that it has behind other tokens. What a holder has is a prefix of what it was sent at every moment (the deepest
// blocks of the least recent request go first), which the tracker's binary search assumes and its eviction breaks, where
// blocks of one request carry one epoch and go in any order. A limit also holds between passes, at twice its value.
//
// # What it refuses to know
//
// Time (an argument), load, and what engines announce: a holder with events belongs into a [kvindex.Index]. Answers are
// guesses: an engine that evicts earlier than assumed is overcredited.
//
// # Structure and memory
//
// Each holder has a forest of the blocks it was sent, without pointers inside: 32 bytes a block and some 6 to 12 for finding it,
// beside the 16 to 40 of the index below. A request marks its last block only. The blocks before it are as recent as the most
// recent block behind them, so that a request that comes again costs a binary search, not a visit to each block. Marked blocks
// are in a list by recency; when the last block behind another one goes, that one inherits its place.
//
// # Concurrency
//
// All methods are safe for concurrent use. Match takes no lock and never waits, as the index below. The others exclude
// each other.
package learned
