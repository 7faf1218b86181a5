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
// hash by which an engine names a block. All harnesses read version 1: there each block's handle is its key.
//
// Version 2 adds engines whose blocks are longer than the trace's. A StoredCut announces n engine blocks of `units` of
// the trace's blocks each, under handles of their own (the key of the last unit). Its parent is a handle. A Removed
// with units takes such handles back. A worker holds a block as long as it was stored more often than removed, counted
// over all engine blocks that contain it. Forgotten takes back all blocks of one worker.
package trace
