package telemetry

import "sync"

// ring keeps the last records, in a buffer of fixed length. It is safe for concurrent use.
type ring struct {
	mu   sync.Mutex
	recs []Record // guarded by mu
	next int      // guarded by mu; the index in recs at which the next record is stored
	full bool     // guarded by mu; every element of recs has a record
}

func newRing(n int) *ring { return &ring{recs: make([]Record, n)} }

func (r *ring) add(rec *Record) {
	if len(r.recs) == 0 {
		return
	}
	r.mu.Lock()
	r.recs[r.next] = *rec
	r.next++
	if r.next == len(r.recs) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
}

// last returns up to n records, the newest first. If n is 0 or less, last returns all records.
func (r *ring) last(n int) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.next
	if r.full {
		have = len(r.recs)
	}
	if n <= 0 || n > have {
		n = have
	}
	out := make([]Record, 0, n)
	for i := 1; i <= n; i++ {
		out = append(out, r.recs[(r.next-i+len(r.recs))%len(r.recs)])
	}
	return out
}
