package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
)

// rescueTick is the pause between two searches for requests that wait at a suspect, that is at a worker that seems to
// be frozen. A frozen worker becomes a suspect after about a second, so this pause adds little.
const rescueTick = 50 * time.Millisecond

// roster is the set of exchanges that are at one worker now. It is an unordered linked list through the exchanges.
type roster struct {
	mu    sync.Mutex // guards the links; a goroutine that has locked mu may also read the exchanges in the list: see enter
	first *exchange

	prefilled atomic.Int64 // when a prefill leg ended well there last, in Unix nanoseconds
}

// roster returns a worker's roster, made on first use.
func (g *Gateway) roster(w fleet.WorkerID) *roster {
	if r, ok := g.rosters.Load(w); ok {
		return r.(*roster)
	}
	r, _ := g.rosters.LoadOrStore(w, &roster{})
	return r.(*roster)
}

// enter adds x to the roster. While x is in the roster, x's own goroutine changes neither x.decision nor x.prepared.
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

// rescue searches for requests that wait at a suspect for the first byte of an answer, and moves these requests to
// other workers. It runs until ctx ends.
func (g *Gateway) rescue(ctx context.Context) {
	tick := time.NewTicker(rescueTick)
	defer tick.Stop()
	seen := uint64(0) // the generation of the fleet that was looked at last
	for ticks := 1; ; ticks++ {
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
		g.waiting.forgetAbsent(snap) // at each tick, because the last request may leave a line long after the last worker
		for _, w := range snap.Workers() {
			if len(w.Holders) > 0 && snap.Suspected(w.Holders[0]) {
				g.rescueFrom(w.ID)
			}
		}
		if g.cfg.StreamSilence > 0 && ticks%silenceTicks == 0 {
			now := time.Now()
			for _, w := range snap.Workers() {
				g.rescueSilent(w.ID, now)
			}
		}
	}
}

// silenceTicks is the number of ticks between two searches for silent streams: a second. A search looks at all streams,
// and StreamSilence is rarely below some seconds.
const silenceTicks = int(time.Second / rescueTick)

// rescueSilent moves streams to other workers from which no byte came for StreamSilence: their worker hangs, although
// its server may answer questions. Only streams that can continue are moved, so a mistake costs work, and no text. A
// continuation whose worker sends nothing at all, not even a header, is ended also if no other worker can take it: an
// earlier worker may, or the client gets an error, and does not wait for proxy.header_timeout.
func (g *Gateway) rescueSilent(w fleet.WorkerID, now time.Time) {
	can := map[attemptKey]bool{}
	before := now.Add(-g.cfg.StreamSilence).UnixNano()
	r := g.roster(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := r.first; x != nil; x = x.next {
		if x.recovery == nil || !x.recovery.silentSince(before) {
			continue
		}
		if !g.rescues.take() {
			return
		}
		unanswered := x.recovery.again != none && x.attempt.Waits()
		if !unanswered && !x.othersCanAs(can) || !x.attempt.BreakOff() {
			g.rescues.giveBack()
		}
	}
}

// forgetAbsent drops what is known about workers that left the fleet. An exchange that is still at such a worker keeps
// the old roster. If the worker comes back, its new exchanges are in a new roster, and the old exchange is not rescued
// if the worker freezes.
func (g *Gateway) forgetAbsent(snap *fleet.Snapshot) {
	g.adapters.forgetAbsent(snap)
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
	urls := make(map[string]bool, len(snap.Workers()))
	for _, w := range snap.Workers() {
		urls[w.URL] = true
	}
	g.Client.Keep(func(url string) bool { return urls[url] })
}

// rescueFrom ends the attempts at worker w, as far as other workers can take them and the budget allows. A stream that
// has begun continues at another worker if it can (see recovery). Another attempt whose answer has begun stays at w,
// and continues when w continues.
func (g *Gateway) rescueFrom(w fleet.WorkerID) {
	can := map[attemptKey]bool{}
	r := g.roster(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := r.first; x != nil; x = x.next {
		waits := x.attempt.Waits()
		if !waits && (x.recovery == nil || !x.recovery.movable.Load()) {
			continue
		}
		if !g.rescues.take() {
			return
		}
		if !x.othersCanAs(can) || waits && !x.attempt.Abandon() || !waits && !x.attempt.BreakOff() {
			g.rescues.giveBack()
		}
	}
}

// attemptKey holds all properties of a first attempt on which the result of othersCan depends.
type attemptKey struct {
	model, tenant, target string
	scope                 fleet.Scope
	rank                  warmpath.Rank
}

// othersCanAs returns the result of othersCan. It computes the result once for all first attempts with the same key,
// because othersCan walks the pool.
func (x *exchange) othersCanAs(known map[attemptKey]bool) bool {
	q := &x.prepared.route
	if len(q.Exclude) > 0 {
		return x.othersCan(x.at)
	}
	k := attemptKey{q.Model, q.Tenant, q.Target, q.Scope, q.Rank}
	can, ok := known[k]
	if !ok {
		can = x.othersCan(x.at)
		known[k] = can
	}
	return can
}
