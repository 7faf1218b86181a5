// Package trace reads and writes KVTRACE1 files: one workload for every KV index, made of queries, of blocks that
// workers store and remove, and of the exact answer to each query. It knows the bytes and nothing of any index.
//
//	t, err := trace.Open("main.trace")
//	r := t.Reader()
//	for r.Next() { use(&r.Record) }
//	err = r.Err()
//
// All numbers are little-endian and lie at multiples of their size.
//
//	header   "KVTRACE1", u32 version, u32 workers, u32 block size in tokens, u32 0,
//	         u64 records, u64 stored blocks, u64 removed blocks, u64 queries (without probes), u64 seed
//	record   u32 kind, u32 worker, u32 n, u32 flags, u64 parent, payload
//	flags    bit 0: has a parent; from bit 16 on: units, in version 2 alone
//
//	0 Query      u16 depth for each worker, zeros up to a multiple of 8 bytes; n × u64 local hash; n × u64 key
//	1 Stored     n × (u64 local hash, u64 key)
//	2 Removed    n × u64 handle
//	3 Probe      as Query, of the end state
//	4 StoredCut  n × (u64 handle, units × (u64 local hash, u64 key))    version 2
//	5 Forgotten  nothing                                                version 2
//
// A local hash is the hash of a block alone. A key is the hash of a block and of all blocks before it. A handle is the
// hash by which an engine names a block. All harnesses read version 1 of the format: in version 1 each block's handle
// is its key.
//
// Version 2 adds engines whose blocks are longer than the trace's blocks. A record StoredCut announces n engine blocks;
// each of them contains `units` of the trace's blocks. The handle of an engine block is the key of its last unit. The
// parent of a StoredCut is a handle, too. A record Removed with units removes engine blocks with the given handles. A
// worker holds a block as long as the block was stored more often than removed; all engine blocks that contain the
// block count. A record Forgotten removes all blocks of one worker.
package trace
