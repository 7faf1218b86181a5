// Package naive answers queries by counting how often each worker holds each block. Answers of an index are checked
// against it. It implements only the definition: a worker's depth is the number of leading blocks that it holds, and it
// holds a block that was stored more often than removed.
package naive

import "github.com/warmpath/warmpath/bench/internal/trace"

// Set is all workers' blocks.
type Set struct {
	workers []worker
}

type worker struct {
	covers map[uint64]int      // by key: the number of stored engine blocks that contain the block
	copies map[uint64]int      // by engine hash: the number of copies
	blocks map[uint64][]uint64 // by engine hash: the keys of the blocks in the engine block
	order  []uint64            // engine hashes by their first store, for Holdings; some of them may be removed
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
		for i, handle := range r.Handles {
			if w.copies[handle] == 0 {
				w.blocks[handle] = append([]uint64(nil), r.Keys[i*r.Units:(i+1)*r.Units]...)
				w.order = append(w.order, handle)
			}
			w.copies[handle]++
			for _, key := range w.blocks[handle] {
				w.covers[key]++
			}
		}
	case trace.Removed:
		for _, handle := range r.Handles {
			w.remove(handle)
		}
	case trace.Forgotten:
		w.clear()
	}
}

func (w *worker) remove(handle uint64) {
	if w.copies[handle] == 0 {
		return
	}
	for _, key := range w.blocks[handle] {
		if w.covers[key]--; w.covers[key] == 0 {
			delete(w.covers, key)
		}
	}
	if w.copies[handle]--; w.copies[handle] == 0 {
		delete(w.copies, handle)
		delete(w.blocks, handle)
	}
}

// Depths appends each worker's number of leading blocks of the chain.
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

// Copies returns how many copies of an engine block a worker holds. handle is the engine hash of the block.
func (s *Set) Copies(worker int, handle uint64) int { return s.workers[worker].copies[handle] }

// Live returns the number of (worker, block) pairs.
func (s *Set) Live() int {
	n := 0
	for i := range s.workers {
		n += len(s.workers[i].covers)
	}
	return n
}

// Holdings returns the engine hashes of the blocks that a worker holds, each as often as the worker holds it, in the
// order in which they were first stored.
func (s *Set) Holdings(worker int) []uint64 {
	w := &s.workers[worker]
	var all []uint64
	seen := map[uint64]bool{}
	for _, handle := range w.order {
		if seen[handle] {
			continue
		}
		seen[handle] = true
		for range w.copies[handle] {
			all = append(all, handle)
		}
	}
	return all
}

// Blocks returns the keys of the blocks in an engine block that a worker holds.
func (s *Set) Blocks(worker int, handle uint64) []uint64 { return s.workers[worker].blocks[handle] }
