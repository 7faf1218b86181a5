package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/queue"
)

// waiting is where requests wait while all workers that could serve them are saturated. It has a line for each base
// model, because the adapters of a model share its workers.
//
// One goroutine, run, gives turns. A request that has its turn makes its routing decision in its own goroutine, and
// then ends the turn. run waits until the turn has ended before it gives the next turn. So only one request of the
// process has a turn at any time (docs/design/0024): two requests that looked for room at the same moment could both
// take the last place.
//
// waiting is safe for concurrent use.
type waiting struct {
	g    *Gateway
	cfg  atomic.Pointer[queue.Config]
	most int // number of requests that a holder may have at the same time; 0 is no limit

	all  atomic.Int64  // number of waiting requests in all lines
	wake chan struct{} // capacity 1: has a value when there may be room
	over atomic.Bool   // the process drains: no request waits any more

	mu    sync.Mutex // guards lines; a goroutine that has locked mu may lock the mutex of a line, but not the reverse
	lines map[string]*line
}

// line holds the requests that wait for the workers of one base model.
type line struct {
	here atomic.Int64 // number of waiting requests; may be read without mu

	mu      sync.Mutex // guards the fields below; not held while a request has its turn
	queue   *queue.Queue
	waiters map[*queue.Item]*waiter
	dropped bool // waiting.lines does not have the line any more, so no request may join it
}

func newWaiting(g *Gateway, cfg queue.Config, most int) *waiting {
	w := &waiting{g: g, most: most, wake: make(chan struct{}, 1), lines: map[string]*line{}}
	w.cfg.Store(&cfg)
	return w
}

// use applies cfg from now on. If cfg turns the queue off, no further request waits, and the requests in the queue are
// still served.
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

// mustWait reports whether q has to wait: other requests wait for the same base model, or there is no room.
func (w *waiting) mustWait(q *warmpath.Request, pool *fleet.Pool) bool {
	if w.all.Load() > 0 {
		if l := w.line(pool.Model, false); l != nil && l.here.Load() > 0 {
			return true
		}
	}
	return !w.room(q, pool)
}

// room reports whether a holder that may serve q has room. It also returns true if q names a worker, and if, for
// another reason, no holder can serve q: then the request does not wait, and the router's error names the reason.
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

// saturated reports whether a holder should get no more requests. The engine's report of its queue counts only if the
// router's own count of waiting requests is at the limit, too: the own count has already fallen for requests that were
// served after the report.
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

// freed wakes run because there may be room now. It never blocks.
func (w *waiting) freed() {
	if w.all.Load() == 0 {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wait lets x wait for its turn. It returns the decision of x, or the reason why there is none: the client's error, or
// ctx's error.
func (w *waiting) wait(ctx context.Context, x *exchange, pool *fleet.Pool) (*warmpath.Decision, error) {
	began := time.Now()
	a := newWaiter(&x.prepared.route, pool)
	if err := w.measure(ctx, a, x, began); err != nil {
		return nil, err
	}
	l, err := w.join(pool.Model, a, began)
	if err != nil {
		return nil, err
	}
	w.freed() // room may have become free after the fleet was found saturated
	span := x.span.Part("queue")
	d, outcome, err := w.await(ctx, l, a, x, began)
	span.Text("warmpath.outcome", outcome)
	span.End()
	waited := time.Since(began)
	x.rec.QueueMS += milliseconds(waited)
	w.g.Telemetry.Queued(outcome, waited, x.rec.TraceID)
	return d, err
}

// measure fills a's item with the request's cost and with the time that it may wait.
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
		Priority: p.priority(w.cfg.Load().HighFirst),
		Tokens:   uncached,
		Bytes:    int64(len(p.body)),
		Arrived:  x.rec.Time.UnixNano(),
		Deadline: now.Add(patience).UnixNano(),
	}
	return nil
}

// errDraining is the error for requests that wait when the process drains.
var errDraining = api.Draining()

// join puts a into the line of a base model, and returns the line, or the error for a's client.
func (w *waiting) join(base string, a *waiter, now time.Time) (*line, error) {
	for {
		l := w.line(base, true)
		err := w.enter(l, a, now)
		if !errors.Is(err, errDropped) {
			return l, err
		}
	}
}

// errDropped says that a line was dropped after it was looked up: look it up again.
var errDropped = errors.New("the line was dropped")

// enter puts a into the line, or returns errDropped, or the error for a's client.
func (w *waiting) enter(l *line, a *waiter, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.over.Load() {
		return errDraining
	}
	if l.dropped {
		return errDropped
	}
	shed, refused := l.queue.Push(&a.item, now.UnixNano())
	// The client of a shed request gets the same error as if the queue had been full.
	for _, item := range shed {
		w.sendAway(l, l.waiters[item], api.QueueFull(l.queue.Full(now.UnixNano()).RetryAfter))
	}
	if refused != nil {
		if refused.Full {
			w.g.Telemetry.Queued("full", 0, "")
			return api.QueueFull(refused.RetryAfter)
		}
		w.g.Telemetry.Queued("too_long", 0, "")
		return api.QueueTooLong(refused.RetryAfter)
	}
	l.waiters[&a.item] = a
	l.here.Add(1)
	w.all.Add(1)
	return nil
}

func (w *waiting) timedOut(l *line, waited time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	retry, known := l.queue.RetryAfter(time.Now().UnixNano())
	if !known {
		retry = max(waited, time.Second) // during waited the queue served no request
	}
	return api.QueueTimeout(waited, retry)
}

// forgetAbsent drops the lines that have no waiting request, if no worker of snap serves the base model or an adapter
// of it.
func (w *waiting) forgetAbsent(snap *fleet.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.lines, func(base string, l *line) bool {
		if serves(snap, base) {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dropped = len(l.waiters) == 0
		return l.dropped
	})
}

// serves reports whether a worker serves the base model or an adapter of it. The base model of an adapter may have no
// pool of its own.
func serves(snap *fleet.Snapshot, base string) bool {
	if _, ok := snap.Pool(base); ok {
		return true
	}
	return slices.ContainsFunc(snap.Models(), func(m fleet.Model) bool {
		pool, ok := snap.Pool(m.ID)
		return ok && pool.Model == base
	})
}

// snapshot returns all lines.
func (w *waiting) snapshot() map[string]*line {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.lines)
}

// charge subtracts the tokens of an answer from the share of its tenant.
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
