package replica

import (
	"container/list"
	"slices"
	"time"
)

// waitingBudget bounds the memory for the requests that wait for their workers, in bytes. Beyond it the oldest ones are
// dropped and counted.
type waitingBudget struct {
	peer int // for the requests of one peer
	all  int // for all peers. Then the peer with the most bytes loses its oldest request.
}

// defaultWaiting lets a router that starts wait for its workers with all requests of its peers. A router with 2,000
// requests under way, each with 4 KB of keys, tells of 8 MB, and of 4 MB of requests that have ended.
var defaultWaiting = waitingBudget{peer: 16 << 20, all: 128 << 20}

// mendInterval is the least time between two asks for requests that were dropped while they waited.
const mendInterval = 5 * time.Second

// waitingOverhead is what a request that waits takes in addition to its record, in bytes: the entry, and its places in
// the map and in the list.
const waitingOverhead = 256

// waitingAdd is a recordAdd that waits for its worker.
type waitingAdd struct {
	id      uint64
	content []byte
	placed  time.Time
	until   time.Time // when it has waited too long; zero: never
	process process   // of the worker when it was seen first, before it answered or before it had the rank
}

func (w *waitingAdd) bytes() int { return len(w.content) + waitingOverhead }

// waitingAdds has the requests of a peer that wait for their workers. The zero value is empty.
type waitingAdds struct {
	byID  map[uint64]*list.Element
	order list.List // of *waitingAdd, the oldest first
	bytes int
}

func (q *waitingAdds) has(id uint64) bool { return q.byID[id] != nil }

func (q *waitingAdds) count() int { return len(q.byID) }

// put adds a request that is not in q.
func (q *waitingAdds) put(w *waitingAdd) {
	if q.byID == nil {
		q.byID = map[uint64]*list.Element{}
	}
	q.byID[w.id] = q.order.PushBack(w)
	q.bytes += w.bytes()
}

// remove removes a request, which may not be in q.
func (q *waitingAdds) remove(id uint64) {
	if e := q.byID[id]; e != nil {
		delete(q.byID, id)
		q.bytes -= q.order.Remove(e).(*waitingAdd).bytes()
	}
}

// removeOldest removes the oldest request. It returns false if there is none.
func (q *waitingAdds) removeOldest() bool {
	e := q.order.Front()
	if e == nil {
		return false
	}
	q.remove(e.Value.(*waitingAdd).id)
	return true
}

// all returns all requests, the oldest first. The caller may remove them from q meanwhile.
func (q *waitingAdds) all() []*waitingAdd {
	all := make([]*waitingAdd, 0, len(q.byID))
	for e := q.order.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*waitingAdd))
	}
	return all
}

// waiting returns the bytes of what waits of p.
func (p *peer) waiting() int { return p.refused.bytes + p.ended.bytes }

// wait keeps the request of r.placement in q, which is one of p, until its worker is known. content is the content of
// its record.
func (r *receiver) wait(p *peer, q *waitingAdds, content []byte, until, now time.Time) {
	placement := &r.placement
	w := &waitingAdd{placement.ID, slices.Clone(content), now.Add(-placement.Age), until, processAt(r.s.parts.Fleet, placement.URL)}
	q.remove(w.id)
	q.put(w)
	for p.waiting() > r.budget.peer {
		r.dropOldest(p)
	}
	for {
		all, most := 0, p
		for _, other := range r.s.peers {
			if all += other.waiting(); other.waiting() > most.waiting() {
				most = other
			}
		}
		if all <= r.budget.all {
			return
		}
		r.dropOldest(most)
	}
}

// dropOldest drops one request of p that waits. Load counts for more than what is expected in caches, so requests that
// have ended go first.
func (r *receiver) dropOldest(p *peer) {
	if !p.ended.removeOldest() {
		p.refused.removeOldest()
		p.overfull = true
	}
	r.s.drop(dropMemory, 1)
}

// retry adds the requests of p again that wait for their workers, if the fleet has changed since the last call. Callers
// hold s.mu.
func (r *receiver) retry(p *peer, now time.Time) {
	for e := p.ended.order.Front(); e != nil && now.After(e.Value.(*waitingAdd).until); e = p.ended.order.Front() {
		p.ended.removeOldest()
	}
	if fleet := r.s.parts.Fleet.Snapshot().Generation(); fleet != p.retried {
		for _, w := range p.refused.all() {
			r.retryUnderWay(p, w, now)
		}
		for _, w := range p.ended.all() {
			p.ended.remove(w.id) // before recent, which may panic
			if r.again(w, now) == nil && !r.recent(p, now) {
				p.ended.put(w)
			}
		}
		p.retried, p.mend = fleet, p.overfull // at the end: a policy may have panicked
	}
	if p.mend && now.Sub(p.mended) >= mendInterval {
		// The requests that were dropped may find their workers, too: forgetLost makes the peer tell of them again.
		p.mend, p.overfull, p.mended = false, false, now
		p.forgetLost()
	}
}

// retryUnderWay adds a request under way again.
func (r *receiver) retryUnderWay(p *peer, w *waitingAdd, now time.Time) {
	p.refused.remove(w.id) // before Add, which may panic
	if r.again(w, now) != nil {
		return
	}
	r.placement.PrefillCompleted = p.underWay[w.id].prefilled
	if !p.placements.Add(&r.placement, now.UnixNano()) {
		p.refused.put(w)
	}
}

// again reads w into r.placement.
func (r *receiver) again(w *waitingAdd, now time.Time) error {
	c, p := content{data: w.content, names: r.names}, &r.placement
	c.placement(p)
	p.Age = now.Sub(w.placed)
	at := processAt(r.s.parts.Fleet, p.URL)
	if !w.process.known {
		w.process = at
	}
	if w.process != at { // the present process has never seen the prompt
		p.Keys, p.AheadKeys, p.Text, p.Tokens = p.Keys[:0], p.AheadKeys[:0], nil, p.Tokens[:0]
	}
	return c.err
}
