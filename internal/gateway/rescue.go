package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
)

// rescueTick is the pause between two searches for requests that wait at a suspect. It adds to the second that it
// takes to notice a frozen worker.
const rescueTick = 50 * time.Millisecond

// roster is the set of exchanges at one worker: an unordered linked list through the exchanges.
type roster struct {
	mu    sync.Mutex // guards the links and, for readers, the exchanges in it: see enter
	first *exchange
}

// roster returns a worker's roster, made on first use.
func (g *Gateway) roster(w fleet.WorkerID) *roster {
	if r, ok := g.rosters.Load(w); ok {
		return r.(*roster)
	}
	r, _ := g.rosters.LoadOrStore(w, &roster{})
	return r.(*roster)
}

// enter adds x. Until it leaves, its own goroutine changes neither its decision nor its prepared request.
func (r *roster) enter(x *exchange) {
	r.mu.Lock()
	x.next = r.first
	if r.first != nil {
		r.first.previous = x
	}
	r.first = x
	r.mu.Unlock()
}

func (r *roster) leave(x *exchange) {
	r.mu.Lock()
	if x.previous == nil {
		r.first = x.next
	} else {
		x.previous.next = x.next
	}
	if x.next != nil {
		x.next.previous = x.previous
	}
	x.previous, x.next = nil, nil
	r.mu.Unlock()
}

// rescue moves requests that wait for their first byte at a suspect to other workers, until ctx ends.
func (g *Gateway) rescue(ctx context.Context) {
	tick := time.NewTicker(rescueTick)
	defer tick.Stop()
	seen := uint64(0) // generation of the fleet
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		snap := g.Fleet.Snapshot()
		if snap.Generation() != seen {
			seen = snap.Generation()
			g.forgetAbsent(snap)
		}
		for _, w := range snap.Workers() {
			if len(w.Holders) > 0 && snap.Suspected(w.Holders[0]) {
				g.rescueFrom(w.ID)
			}
		}
	}
}

// forgetAbsent drops what is known of workers that left the fleet. An exchange at such a worker keeps its roster, where
// the worker's later exchanges are not: it is not rescued if the worker comes back and freezes.
func (g *Gateway) forgetAbsent(snap *fleet.Snapshot) {
	gone := func(id fleet.WorkerID) bool { return snap.ByID(id) == nil }
	for _, byWorker := range []*sync.Map{&g.rosters, &g.reporting} {
		byWorker.Range(func(id, _ any) bool {
			if gone(id.(fleet.WorkerID)) {
				byWorker.Delete(id)
			}
			return true
		})
	}
	g.evidence.forget(gone)
}

// rescueFrom abandons attempts at a worker, if another worker can take them and the budget allows it. An attempt whose
// answer has begun stays: it continues when the worker does.
func (g *Gateway) rescueFrom(w fleet.WorkerID) {
	can := map[kind]bool{}
	r := g.roster(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := r.first; x != nil; x = x.next {
		if !x.attempt.Waits() {
			continue
		}
		if !g.rescues.take() {
			return
		}
		if !x.othersCanAs(can) || !x.attempt.Abandon() {
			g.rescues.giveBack()
		}
	}
}

// kind is everything in a first attempt that othersCan depends on.
type kind struct {
	model, tenant, target string
	scope                 fleet.Scope
	rank                  warmpath.Rank
}

// othersCanAs is othersCan, computed once for all first attempts of a kind because it walks the pool.
func (x *exchange) othersCanAs(known map[kind]bool) bool {
	q := &x.prepared.route
	if len(q.Exclude) > 0 {
		return x.othersCan(x.decision)
	}
	k := kind{q.Model, q.Tenant, q.Target, q.Scope, q.Rank}
	can, ok := known[k]
	if !ok {
		can = x.othersCan(x.decision)
		known[k] = can
	}
	return can
}
