// Package naive answers queries with simple counts, to check the answers of an index. It implements only the
// definition. A worker holds a block if the block was stored more often than removed at the worker. The depth of a
// worker is the number of blocks of a query, from the first on, that the worker holds without a gap.
package naive

import "github.com/warmpath/warmpath/bench/internal/trace"

// Set has the blocks of all workers.
type Set struct {
	workers []worker
}

type worker struct {
	covers map[uint64]int      // by key of a block: number of stored engine blocks that contain the block
	copies map[uint64]int      // by engine hash: number of copies
	blocks map[uint64][]uint64 // by engine hash: keys of the blocks in the engine block
	order  []uint64            // engine hashes in the order of their first store, also of removed blocks
}

// New returns an empty set.
func New(workers int) *Set {
	s := &Set{workers: make([]worker, workers)}
	for i := range s.workers {
		s.workers[i].clear()
	}
	return s
}

func (w *worker) clear() {
	w.covers, w.copies, w.blocks, w.order = map[uint64]int{}, map[uint64]int{}, map[uint64][]uint64{}, nil
}

// Apply applies a record: it stores blocks, removes blocks, or forgets all blocks of a worker.
func (s *Set) Apply(r *trace.Record) {
	w := &s.workers[r.Worker]
	switch r.Kind {
	case trace.Stored, trace.StoredCut:
		for i, engineHash := range r.EngineHashes {
			if w.copies[engineHash] == 0 {
				w.blocks[engineHash] = append([]uint64(nil), r.Keys[i*r.Units:(i+1)*r.Units]...)
				w.order = append(w.order, engineHash)
			}
			w.copies[engineHash]++
			for _, key := range w.blocks[engineHash] {
				w.covers[key]++
			}
		}
	case trace.Removed:
		for _, engineHash := range r.EngineHashes {
			w.remove(engineHash)
		}
	case trace.Forgotten:
		w.clear()
	}
}

func (w *worker) remove(engineHash uint64) {
	if w.copies[engineHash] == 0 {
		return
	}
	for _, key := range w.blocks[engineHash] {
		if w.covers[key]--; w.covers[key] == 0 {
			delete(w.covers, key)
		}
	}
	if w.copies[engineHash]--; w.copies[engineHash] == 0 {
		delete(w.copies, engineHash)
		delete(w.blocks, engineHash)
	}
}

// Depths appends the depth of each worker for the chain keys.
func (s *Set) Depths(keys []uint64, dst []uint16) []uint16 {
	for i := range s.workers {
		n := 0
		for n < len(keys) && s.workers[i].covers[keys[n]] > 0 {
			n++
		}
		dst = append(dst, uint16(n))
	}
	return dst
}

// Copies returns the number of copies of an engine block at a worker.
func (s *Set) Copies(worker int, engineHash uint64) int { return s.workers[worker].copies[engineHash] }

// Live returns the number of pairs of a worker and a block that the worker holds.
func (s *Set) Live() int {
	n := 0
	for i := range s.workers {
		n += len(s.workers[i].covers)
	}
	return n
}

// Holdings returns the engine hashes of the engine blocks that a worker holds, in the order of their first store. If
// the worker has several copies, the hash occurs several times.
func (s *Set) Holdings(worker int) []uint64 {
	w := &s.workers[worker]
	var all []uint64
	seen := map[uint64]bool{}
	for _, engineHash := range w.order {
		if seen[engineHash] {
			continue
		}
		seen[engineHash] = true
		for range w.copies[engineHash] {
			all = append(all, engineHash)
		}
	}
	return all
}

// Blocks returns the keys of the trace's blocks in an engine block that a worker holds.
func (s *Set) Blocks(worker int, engineHash uint64) []uint64 {
	return s.workers[worker].blocks[engineHash]
}
