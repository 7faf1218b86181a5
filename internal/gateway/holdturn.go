package gateway

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// decide makes the decision for x, which has its turn, and ends the turn on every path. If there is a decision, the
// request is held no longer.
func (h *hold) decide(ctx context.Context, a *held, x *exchange) (d *warmpath.Decision, err error) {
	x.turn = a
	defer func() {
		if cause := recover(); cause != nil { // the client gets an error, and the other held requests continue
			h.g.Telemetry.Panicked()
			h.g.Log.Error("decision panicked", "cause", cause, "stack", string(debug.Stack()))
			d, err = nil, api.Internal(fmt.Errorf("decide: panic: %v", cause))
		}
		if err == nil {
			h.forget(a)
		}
		h.endTurn(x)
	}()
	x.allowReturned()
	return x.choose(ctx)
}

// endTurn ends the turn of x, if it has one.
func (h *hold) endTurn(x *exchange) {
	if a := x.turn; a != nil {
		x.turn = nil
		a.ended <- struct{}{}
	}
}

// queues ends the turn of x, if it has one, because x goes to the queue: there are workers, but they are saturated.
func (h *hold) queues(x *exchange) {
	if x.turn != nil {
		h.forget(x.turn)
		h.endTurn(x)
	}
}

// allowReturned lets x go again to workers that refused it and have come back since.
func (x *exchange) allowReturned() {
	snap, now := x.g.Fleet.Snapshot(), time.Now().UnixNano()
	for _, was := range x.unreached {
		if returned(snap, was, x.retryAt, now) {
			x.prepared.route.Exclude = slices.DeleteFunc(x.prepared.route.Exclude, func(id fleet.WorkerID) bool { return id == was.ID })
		}
	}
}

// returned reports whether a worker that refused a request may take requests again: it has changed since, its breaker
// lets a trial pass, or retryAt has passed. Otherwise it would probably refuse the request again.
func returned(snap *fleet.Snapshot, was *fleet.Worker, retryAt time.Time, now int64) bool {
	w := snap.ByID(was.ID)
	due := !retryAt.IsZero() && now >= retryAt.UnixNano()
	return w != nil && slices.ContainsFunc(w.Holders, func(h fleet.Holder) bool {
		return snap.Available(h, now) && (due || w != was || snap.BlockedUntil(h) > 0)
	})
}

// nextRetry returns the first time after now at which a held request may go again to a worker that refused it; 0 if
// there is none.
func (h *hold) nextRetry(now int64) (at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for e := h.order.Front(); e != nil; e = e.Next() {
		a := e.Value.(*held)
		if t := a.retryAt.UnixNano(); !a.retryAt.IsZero() && t > now && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// run gives turns until ctx ends. It sleeps until the fleet changes, a request ends at a worker, a breaker lets a trial
// pass, or a held request may go again to a worker that refused it.
func (h *hold) run(ctx context.Context) {
	h.runs.Store(true)
	defer h.runs.Store(false)
	timer := time.NewTimer(0)
	defer timer.Stop()
	snap := h.g.Fleet.Snapshot()
	for {
		var trial <-chan time.Time
		if h.all.Load() > 0 {
			now := time.Now().UnixNano() // before the turns: a time that passes meanwhile is not missed
			h.advance()
			next := nextTrial(h.g.Fleet.Snapshot())
			if retry := h.nextRetry(now); next == 0 || retry > 0 && retry < next {
				next = retry
			}
			if next > 0 {
				timer.Reset(time.Until(time.Unix(0, next)))
				trial = timer.C
			}
		}
		select {
		case <-ctx.Done():
			h.flush()
			return
		case <-snap.Superseded():
			next := h.g.Fleet.Snapshot()
			h.mu.Lock()
			h.gone.note(snap, next)
			h.mu.Unlock()
			snap = next
		case <-h.wake:
		case <-trial:
		}
	}
}

// nextTrial returns the time at which the first breaker of a ready worker lets a request pass; 0 if all are closed.
func nextTrial(snap *fleet.Snapshot) (at int64) {
	now := time.Now().UnixNano()
	for _, w := range snap.Workers() {
		if !w.Ready {
			continue
		}
		for _, h := range w.Holders {
			if until := snap.BlockedUntil(h); until > now && (at == 0 || until < at) {
				at = until
			}
		}
	}
	return at
}

// advance gives a turn to each held request that a worker may take, in order.
func (h *hold) advance() {
	h.mu.Lock()
	h.round++
	h.mu.Unlock()
	for a := h.next(); a != nil; a = h.next() {
		a.called <- nil
		<-a.ended
	}
}

// next returns the first held request for which a worker may be found now and which had no turn in this round. It marks
// the request's turn.
func (h *hold) next() *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	snap, now := h.g.Fleet.Snapshot(), time.Now().UnixNano()
	hopeless := map[string]bool{} // the models that no worker can take now, for plain requests
	for at := h.order.Front(); at != nil; at = at.Next() {
		a := at.Value.(*held)
		switch {
		case a.turn:
		case a.round != h.round && a.q.Target == "" && !a.q.Rank.Asked() && a.choice.next(h.g, snap, now) > 0:
			a.turn, a.round = true, h.round // it falls back to another model
			return a
		case a.plain && hopeless[a.q.Model]:
		case a.round != h.round && h.ready(snap, a, now):
			a.turn, a.round = true, h.round
			return a
		case a.plain:
			hopeless[a.q.Model] = true
		}
	}
	return nil
}

// ready reports whether a decision about a would not fail for a lack of workers: a worker may take the request, or the
// decision will give another error. h.mu is held.
func (h *hold) ready(snap *fleet.Snapshot, a *held, now int64) bool {
	pool, ok := snap.Pool(a.q.Model)
	if !ok {
		unheard, workers := h.g.unheard()
		return unheard == 0 && workers > 0 && !h.gone.has(a.q.Model)
	}
	fits := false
	for _, x := range pool.Holders {
		w := snap.Worker(x)
		if !a.q.Rank.Allows(snap.Rank(x)) || a.q.Target != "" && !pointsTo(a.q.Target, w.URL) {
			continue
		}
		fits = true
		tried := slices.Contains(a.q.Exclude, w.ID) && !slices.ContainsFunc(a.refused, func(was *fleet.Worker) bool {
			return was.ID == w.ID && returned(snap, was, a.retryAt, now)
		})
		if !tried && snap.Available(x, now) {
			return true
		}
	}
	return !fits
}

// pointsTo reports whether the header X-Warmpath-Target means the worker at url: it has the URL, or its host and port.
func pointsTo(target, url string) bool {
	target = strings.TrimRight(target, "/")
	_, host, _ := strings.Cut(url, "://")
	return target == url || target == host
}
