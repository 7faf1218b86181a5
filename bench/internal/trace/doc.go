// Package trace reads and writes KVTRACE1 files. Such a file is a workload for KV indexes: queries with their exact
// answers, and events in which workers store and remove blocks. The package knows the format of the file, but nothing
// of an index.
//
//	t, err := trace.Open("main.trace")
//	r := t.Reader()
//	for r.Next() { use(&r.Record) }
//	err = r.Err()
//
// All numbers are little-endian. The position of each number is a multiple of its size.
//
//	header   "KVTRACE1", u32 version, u32 workers, u32 block size in tokens, u32 0,
//	         u64 records, u64 stored blocks, u64 removed blocks, u64 queries (without probes), u64 seed
//	record   u32 kind, u32 worker, u32 n, u32 flags, u64 parent, payload
//	flags    bit 0: has a parent; from bit 16 on: units, in version 2 alone
//
//	0 Query      u16 depth for each worker, zeros up to a multiple of 8 bytes; n × u64 local hash; n × u64 key
//	1 Stored     n × (u64 local hash, u64 key)
//	2 Removed    n × u64 engine hash
//	3 Probe      as Query, of the end state
//	4 StoredCut  n × (u64 engine hash, units × (u64 local hash, u64 key))    version 2
//	5 Forgotten  nothing                                                version 2
//
// A local hash is the hash of a block alone. A key is the hash of a block and of all blocks before it. An engine hash
// is the engine's own hash of a block. In version 1 of the format, the engine hash of a block is its key. The
// benchmarks of all projects read version 1.
//
// Version 2 adds engines whose blocks are longer than the trace's blocks. A record StoredCut announces n engine blocks;
// each of them contains a number of the trace's blocks (the field units). The engine hash of an engine block is the key
// of the last block in it. The parent of a StoredCut is an engine hash, too. A record Removed with units removes engine
// blocks by their engine hashes. A worker holds a block as long as the number of stores of engine blocks that contain
// the block is larger than the number of removals of such engine blocks. A record Forgotten removes all blocks of one
// worker.
package trace
