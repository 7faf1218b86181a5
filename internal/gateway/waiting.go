package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/queue"
)

// waiting is where requests wait while all workers that could serve them are saturated: a line for each base model,
// because its adapters share its workers. One goroutine, run, gives turns; a request that has its turn decides for
// itself, in its own goroutine, and ends the turn. A line has one turn at a time: two requests that looked for room at
// the same moment could both take the last of it. It is safe for concurrent use.
type waiting struct {
	g    *Gateway
	cfg  atomic.Pointer[queue.Config]
	most int // requests that a holder may have at once; 0 is no limit

	all  atomic.Int64  // requests that wait, in all lines
	wake chan struct{} // holds one: there may be room
	over atomic.Bool   // the process drains: no request waits any more

	mu    sync.Mutex // guards lines; not held while a line's is
	lines map[string]*line
}

// line is the requests that wait for the workers of one base model.
type line struct {
	here atomic.Int64 // how many; read without mu

	mu      sync.Mutex // guards what follows; not held while a request has its turn
	queue   *queue.Queue
	waiters map[*queue.Item]*waiter
}

// waiter is one request that waits.
type waiter struct {
	item     queue.Item
	anywhere bool       // any worker of the base model would do for it
	turn     bool       // it has its turn; guarded by the line's mu
	called   chan error // holds one: nil when it has its turn, else why it waits no more
	ended    chan ending
}

// ending is how a turn ended.
type ending int

const (
	decided ending = iota // it waits no more: it goes to a worker, or its error is another than that there is no room
	noRoom                // no worker that would do for it can take it
	gone                  // its client left, or its time was over
)

// passed is how many requests may be passed over. The first request in order may find no room although others would:
// it asked for one rank or one worker, or other workers failed it. A larger number would give a turn to the whole
// queue each time.
const passed = 4

// pollInterval bounds how long freed capacity that sent no wake-up goes unnoticed: a backlog that became shorter with
// time, a worker that came back.
const pollInterval = 20 * time.Millisecond

func newWaiting(g *Gateway, cfg queue.Config, most int) *waiting {
	w := &waiting{g: g, most: most, wake: make(chan struct{}, 1), lines: map[string]*line{}}
	w.cfg.Store(&cfg)
	return w
}

// use applies cfg from now on. If it turns the queue off, no further request waits, and those in the queue are still
// served.
func (w *waiting) use(cfg queue.Config) {
	w.cfg.Store(&cfg)
	for _, l := range w.snapshot() {
		l.mu.Lock()
		l.queue.Use(cfg)
		l.mu.Unlock()
	}
	w.freed()
}

// on reports whether requests wait at all.
func (w *waiting) on() bool { return w.cfg.Load().On() }

// line returns the line of a base model, and makes it if create is set.
func (w *waiting) line(base string, create bool) *line {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[base]
	if l == nil && create {
		l = &line{queue: queue.New(*w.cfg.Load()), waiters: map[*queue.Item]*waiter{}}
		w.lines[base] = l
	}
	return l
}

// mustWait reports whether q has to wait: other requests wait, or there is no room.
func (w *waiting) mustWait(q *warmpath.Request, pool *fleet.Pool) bool {
	if w.all.Load() > 0 {
		if l := w.line(pool.Model, false); l != nil && l.here.Load() > 0 {
			return true
		}
	}
	return !w.room(q, pool)
}

// room reports whether a holder that may serve q has room. It also returns true if no holder can serve q for another
// reason: the router's error says which.
func (w *waiting) room(q *warmpath.Request, pool *fleet.Pool) bool {
	if q.Target != "" {
		return true
	}
	snap, now := w.g.Fleet.Snapshot(), time.Now().UnixNano()
	usable := false
	for _, h := range pool.Holders {
		if !snap.Available(h, now) || !q.Rank.Allows(snap.Rank(h)) || slices.Contains(q.Exclude, snap.Worker(h).ID) {
			continue
		}
		usable = true
		load := snap.LoadAt(h, now)
		if !w.saturated(&load, now) {
			return true
		}
	}
	return !usable
}

// saturated reports whether a holder should get no more requests. An engine's report of its queue counts only while
// our own counts agree: they include what was served since the report.
func (w *waiting) saturated(l *fleet.Load, now int64) bool {
	fresh := l.Reported.At != 0 && now-l.Reported.At < int64(fleet.ReportedFor)
	cfg := w.cfg.Load()
	most := int64(cfg.MaxWaiting)
	switch {
	case w.most > 0 && l.Requests >= int64(w.most):
		return true
	case cfg.MaxBacklog > 0 && l.Backlog >= cfg.MaxBacklog:
		return true
	case most > 0 && fresh && l.Reported.Waiting >= most && l.Waiting >= most:
		return true
	}
	return cfg.MaxKVUsed > 0 && fresh && l.Reported.KVUsed >= cfg.MaxKVUsed
}

// freed wakes run because there may be room. It never blocks.
func (w *waiting) freed() {
	if w.all.Load() == 0 {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wait lets x wait for its turn. It returns its decision, or why there is none: the client's error, or ctx's.
func (w *waiting) wait(ctx context.Context, x *exchange, pool *fleet.Pool) (*warmpath.Decision, error) {
	began := time.Now()
	a := newWaiter(&x.prepared.route, pool)
	if err := w.measure(ctx, a, x, began); err != nil {
		return nil, err
	}
	l := w.line(pool.Model, true)
	if err := w.enter(l, a, began); err != nil {
		return nil, err
	}
	w.freed() // there may be room since the fleet was found saturated
	d, outcome, err := w.await(ctx, l, a, x, began)
	waited := time.Since(began)
	x.rec.QueueMS += milliseconds(waited)
	w.g.Telemetry.Queued(outcome, waited)
	return d, err
}

func newWaiter(q *warmpath.Request, pool *fleet.Pool) *waiter {
	return &waiter{
		// An adapter may be on few of the base model's workers.
		anywhere: !q.Rank.Asked() && q.Target == "" && len(q.Exclude) == 0 && pool.LoRA == "",
		called:   make(chan error, 1),
		ended:    make(chan ending, 1),
	}
}

// await blocks until x has decided, its client leaves, or its patience ends; outcome is a metric's label.
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
			sentAway = <-a.called // at the same moment
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

// turn decides for x, which has its turn, and ends the turn on every path. The ending is noRoom if x must wait on.
func (w *waiting) turn(ctx context.Context, l *line, a *waiter, x *exchange) (d *warmpath.Decision, end ending, err error) {
	defer func() {
		if cause := recover(); cause != nil { // its client is answered: the requests behind it saw nothing of it
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

// end records how a's turn ended, and lets run continue.
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
	case w.over.Load(): // flush left it its turn
		w.sendAway(l, a, errDraining)
	}
	l.mu.Unlock()
	a.ended <- e
}

// measure fills a's item: the request's cost, and how long it may wait.
func (w *waiting) measure(ctx context.Context, a *waiter, x *exchange, now time.Time) error {
	p := &x.prepared
	p.route.Now = now.UnixNano()
	d, err := p.decisions.Explain(ctx)
	if d == nil {
		return err
	}
	uncached := d.UncachedTokens()
	d.Recycle()
	patience := w.cfg.Load().MaxWait
	if p.patience > 0 {
		patience = min(patience, p.patience)
	}
	a.item = queue.Item{
		Tenant:   p.route.Tenant,
		Priority: p.read.Priority,
		Tokens:   uncached,
		Bytes:    int64(len(x.body.Bytes)),
		Arrived:  x.rec.Time.UnixNano(),
		Deadline: now.Add(patience).UnixNano(),
	}
	return nil
}

// errDraining is the error of a request that waits when the process drains.
var errDraining = api.Draining()

// enter puts a into the line, or returns the error for its client.
func (w *waiting) enter(l *line, a *waiter, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.over.Load() {
		return errDraining
	}
	shed, refused := l.queue.Push(&a.item, now.UnixNano())
	for _, item := range shed { // its client gets the error of a full queue
		w.sendAway(l, l.waiters[item], api.QueueFull(l.queue.Full(now.UnixNano()).RetryAfter))
	}
	if refused != nil {
		if refused.Full {
			w.g.Telemetry.Queued("full", 0)
			return api.QueueFull(refused.RetryAfter)
		}
		w.g.Telemetry.Queued("too_long", 0)
		return api.QueueTooLong(refused.RetryAfter)
	}
	l.waiters[&a.item] = a
	l.here.Add(1)
	w.all.Add(1)
	return nil
}

// left takes a off the line's waiters. l.mu is held.
func (w *waiting) left(l *line, a *waiter) {
	delete(l.waiters, &a.item)
	l.here.Add(-1)
	w.all.Add(-1)
}

// sendAway ends a's wait with the error of its client. l.mu is held, and a does not have its turn.
func (w *waiting) sendAway(l *line, a *waiter, err error) {
	l.queue.Remove(&a.item)
	w.left(l, a)
	a.called <- err
}

// leave takes a out of the line. It reports false when a was called at the same moment: then called holds why.
func (w *waiting) leave(l *line, a *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.turn || !l.queue.Remove(&a.item) {
		return false
	}
	w.left(l, a)
	return true
}

func (w *waiting) timedOut(l *line, waited time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	retry, known := l.queue.RetryAfter(time.Now().UnixNano())
	if !known {
		retry = max(waited, time.Second) // nothing moved in all that time
	}
	return api.QueueTimeout(waited, retry)
}

// run gives turns until ctx ends. Then it sends away the requests that still wait.
func (w *waiting) run(ctx context.Context) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		late := tick.C
		if w.all.Load() == 0 {
			late = nil // the first request that comes wakes run
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

// snapshot returns the lines there are.
func (w *waiting) snapshot() map[string]*line {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.lines)
}

// advance gives turns in order, as long as requests find room.
func (w *waiting) advance(l *line) {
	var aside []*waiter // had their turn in vain
	for len(aside) < passed {
		a := l.call()
		if a == nil {
			break
		}
		if <-a.ended != noRoom {
			continue
		}
		aside = append(aside, a)
		if a.anywhere {
			break // then there is no room for any request
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range aside {
		if l.waiters[&a.item] != nil { // it did not leave meanwhile
			l.queue.Return(&a.item)
		}
	}
}

// call gives the next waiter its turn, and returns it; nil when none waits.
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

// charge subtracts the tokens of an answer from its tenant's share.
func (w *waiting) charge(base, tenant string, tokens int) {
	if w.all.Load() == 0 {
		return
	}
	if l := w.line(base, false); l != nil {
		l.mu.Lock()
		l.queue.Charge(tenant, tokens)
		l.mu.Unlock()
	}
}
