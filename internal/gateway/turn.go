package gateway

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/queue"
)

// waiter is one request that waits.
type waiter struct {
	item     queue.Item
	anywhere bool // any worker of the base model can serve the request
	turn     bool // the request has its turn; guarded by the line's mu
	// called has capacity 1. It receives nil when the request has its turn, else the reason why the request waits no
	// longer.
	called chan error
	ended  chan ending
}

// ending is how a turn ended.
type ending int

const (
	// The request waits no longer: it goes to a worker, or it failed for another reason than a lack of room.
	decided ending = iota
	noRoom         // no worker that can serve the request has room
	gone           // the client left, or the request's time was over
)

// maxPassedOver is how many waiting requests may be passed over in one round because there is no room for them. A
// request that finds no room may stand before requests that would find room: it may have asked for one rank or one
// worker, or its attempts at other workers failed. With a much larger number, each round would give a turn to the whole
// queue.
const maxPassedOver = 4

// pollInterval bounds how long freed capacity goes unnoticed if no event wakes run: a backlog that became shorter with
// time, or a worker that came back.
const pollInterval = 20 * time.Millisecond

func newWaiter(q *warmpath.Request, pool *fleet.Pool) *waiter {
	return &waiter{
		// With an adapter, anywhere is false: the adapter may be on only a few of the base model's workers.
		anywhere: !q.Rank.Asked() && q.Target == "" && len(q.Exclude) == 0 && pool.LoRA == "",
		called:   make(chan error, 1),
		ended:    make(chan ending, 1),
	}
}

// await blocks until x has a decision, is sent away, its client leaves, or its time in the queue is over. a is x's
// waiter in the line l. outcome is the label of a metric.
func (w *waiting) await(ctx context.Context, l *line, a *waiter, x *exchange, began time.Time) (d *warmpath.Decision, outcome string, err error) {
	timer := time.NewTimer(time.Duration(a.item.Deadline - began.UnixNano()))
	defer timer.Stop()
	for waits := true; ; {
		var sentAway error
		if waits {
			select {
			case sentAway = <-a.called:
			case <-ctx.Done():
				waits = false
			case <-timer.C:
				waits = false
			}
		}
		if !waits {
			if w.leave(l, a) {
				break
			}
			sentAway = <-a.called // a was called just before and is no longer in the line: handle that call
		}
		switch {
		case errors.Is(sentAway, errDraining):
			return nil, "drained", sentAway
		case sentAway != nil:
			return nil, "shed", sentAway
		}
		d, end, err := w.turn(ctx, l, a, x)
		switch {
		case end == gone:
			return nil, "client_gone", err
		case end == decided && err != nil:
			return nil, "failed", err
		case end == decided:
			return d, "routed", nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, "client_gone", err
	}
	return nil, "timeout", w.timedOut(l, time.Since(began))
}

// turn makes the decision for x, which has its turn, and ends the turn on every path. end is noRoom if x must continue
// to wait.
func (w *waiting) turn(ctx context.Context, l *line, a *waiter, x *exchange) (d *warmpath.Decision, end ending, err error) {
	defer func() {
		if cause := recover(); cause != nil { // the client gets an error, and the other waiting requests continue
			w.g.Telemetry.Panicked()
			w.g.Log.Error("decision panicked", "cause", cause, "stack", string(debug.Stack()))
			d, end, err = nil, decided, api.Internal(fmt.Errorf("decide: panic: %v", cause))
		}
		w.end(l, a, end)
	}()
	q := &x.prepared.route
	if pool, ok := w.g.Fleet.Snapshot().Pool(q.Model); ok && !w.room(q, pool) {
		return nil, noRoom, nil
	}
	d, err = x.decide(ctx)
	switch {
	case errors.Is(err, warmpath.ErrSaturated):
		return nil, noRoom, nil
	case err != nil && ctx.Err() != nil:
		return nil, gone, err
	}
	return d, decided, err
}

// end records how the turn of the waiter a ended, and lets run continue.
func (w *waiting) end(l *line, a *waiter, e ending) {
	l.mu.Lock()
	a.turn = false
	switch {
	case e == decided:
		l.queue.Served(&a.item, time.Now().UnixNano())
		w.left(l, a)
	case e == gone:
		l.queue.Remove(&a.item)
		w.left(l, a)
	case w.over.Load(): // the process drains: flush sent away all waiters except the waiter that had its turn
		w.sendAway(l, a, errDraining)
	}
	l.mu.Unlock()
	a.ended <- e
}

// left removes the waiter a from l.waiters and from the counters of waiting requests. l.mu is held.
func (w *waiting) left(l *line, a *waiter) {
	delete(l.waiters, &a.item)
	l.here.Add(-1)
	w.all.Add(-1)
}

// sendAway ends the wait of the waiter a. Its client gets err. l.mu is held, and a does not have its turn.
func (w *waiting) sendAway(l *line, a *waiter, err error) {
	l.queue.Remove(&a.item)
	w.left(l, a)
	a.called <- err
}

// leave removes the waiter a from the line l. It returns false if a is not in the line any more, because a was called
// just before: then a.called has the reason.
func (w *waiting) leave(l *line, a *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.turn || !l.queue.Remove(&a.item) {
		return false
	}
	w.left(l, a)
	return true
}

// run gives turns until ctx ends. After that it sends away the requests that still wait.
func (w *waiting) run(ctx context.Context) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		late := tick.C
		if w.all.Load() == 0 {
			late = nil // no request waits: the next request wakes run
		}
		select {
		case <-ctx.Done():
			w.flush()
			return
		case <-w.wake:
		case <-late:
		}
		if w.all.Load() == 0 {
			continue
		}
		for _, l := range w.snapshot() {
			if l.here.Load() > 0 {
				w.advance(l)
			}
		}
	}
}

// advance gives turns in order, as long as requests find room.
func (w *waiting) advance(l *line) {
	var aside []*waiter // waiters that had their turn and found no room
	for len(aside) < maxPassedOver {
		a := l.call()
		if a == nil {
			break
		}
		if <-a.ended != noRoom {
			continue
		}
		aside = append(aside, a)
		if a.anywhere {
			break // any worker could serve this request, and none has room: no other request finds room
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range aside {
		if l.waiters[&a.item] != nil { // the waiter did not leave meanwhile
			l.queue.Return(&a.item)
		}
	}
}

// call gives the next waiter its turn and returns this waiter. It returns nil when no request waits.
func (l *line) call() *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.queue.Pop()
	if item == nil {
		return nil
	}
	a := l.waiters[item]
	a.turn = true
	a.called <- nil
	return a
}

// flush sends away all requests that wait, and all that come later. A request that has its turn ends the turn first.
func (w *waiting) flush() {
	w.over.Store(true)
	for _, l := range w.snapshot() {
		l.mu.Lock()
		for _, a := range l.waiters {
			if !a.turn {
				w.sendAway(l, a, errDraining)
			}
		}
		l.mu.Unlock()
	}
}
