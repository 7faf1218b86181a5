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

// waiting is where requests wait while all workers that could serve them are saturated: a line for each base model, as its
// adapters share its workers. One goroutine, run, gives decisions to those whose turn it is. It is safe for concurrent use.
type waiting struct {
	g    *Gateway
	cfg  atomic.Pointer[queue.Config]
	most int // requests that a holder may have at once; 0 is no limit

	all  atomic.Int64  // requests that wait, in all lines
	wake chan struct{} // holds one: there may be room
	over atomic.Bool   // the process drains: nobody waits any more

	mu    sync.Mutex // guards lines; not held while a line's is
	lines map[string]*line
}

// line is those that wait for the workers of one base model.
type line struct {
	here atomic.Int64 // how many; read without mu

	mu     sync.Mutex // guards what follows
	queue  *queue.Queue
	guests map[*queue.Item]*guest
}

// guest is one request that waits. Its request is read by whoever decides for it: its own goroutine does not touch it
// meanwhile.
type guest struct {
	item     queue.Item
	exchange *exchange
	adapter  bool       // it asks for an adapter, which not all workers of the base model need have
	granted  chan grant // holds one
}

// grant is what a guest waited for: a decision, or why there is none.
type grant struct {
	decision *warmpath.Decision
	err      error
}

// passed is how many requests are passed over when the first in order cannot be served though others might: it asked for
// one rank or one worker, or has tried the others. More would mean to decide for the whole queue at each turn.
const passed = 4

// lateness bounds how late room is noticed that nobody told of: a holder's backlog that time wore off, a worker that came back.
const lateness = 20 * time.Millisecond

func newWaiting(g *Gateway, cfg queue.Config, most int) *waiting {
	w := &waiting{g: g, most: most, wake: make(chan struct{}, 1), lines: map[string]*line{}}
	w.cfg.Store(&cfg)
	return w
}

// use makes cfg count from now on. Where it is off nobody comes to wait any more, and those that wait are served.
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

// line returns the line of a base model, which is made when create is set.
func (w *waiting) line(base string, create bool) *line {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[base]
	if l == nil && create {
		l = &line{queue: queue.New(*w.cfg.Load()), guests: map[*queue.Item]*guest{}}
		w.lines[base] = l
	}
	return l
}

// crowded reports whether q has to wait: others do, or there is no room.
func (w *waiting) crowded(q *warmpath.Request, pool *fleet.Pool) bool {
	if w.all.Load() > 0 {
		if l := w.line(pool.Model, false); l != nil && l.here.Load() > 0 {
			return true
		}
	}
	return !w.room(q, pool)
}

// room reports whether a holder that may serve q could take it, or none can for another reason: the router tells it then.
func (w *waiting) room(q *warmpath.Request, pool *fleet.Pool) bool {
	if q.Target != "" {
		return true
	}
	snap, now := w.g.Fleet.Snapshot(), time.Now().UnixNano()
	usable := false
	for _, h := range pool.Holders {
		if !snap.Available(h, now) || q.Rank >= 0 && snap.Rank(h) != q.Rank || slices.Contains(q.Exclude, snap.Worker(h).ID) {
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

// saturated reports whether a holder should get no more. What an engine reported of its queue counts as long as our own
// counts do not contradict: they know at once what was served since.
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

// freed tells that there may be room. It never waits.
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
	a := &guest{exchange: x, adapter: pool.LoRA != "", granted: make(chan grant, 1)}
	if err := w.measure(ctx, a, began); err != nil {
		return nil, err
	}
	l := w.line(pool.Model, true)
	if err := w.enter(l, a, began); err != nil {
		return nil, err
	}
	w.freed() // there may be room since it was found crowded
	got, outcome := w.await(ctx, l, a, began)
	waited := time.Since(began)
	x.rec.QueueMS += milliseconds(waited)
	w.g.Telemetry.Queued(outcome, waited)
	return got.decision, got.err
}

// await blocks until a is granted something, its client leaves, or its patience ends; outcome is a metric's label.
func (w *waiting) await(ctx context.Context, l *line, a *guest, began time.Time) (got grant, outcome string) {
	timer := time.NewTimer(time.Duration(a.item.Deadline - began.UnixNano()))
	defer timer.Stop()
	select {
	case got = <-a.granted:
	case <-ctx.Done():
		if got, waits := w.leave(l, a); !waits && got.decision != nil { // it was granted at the same moment
			got.decision.Unsent()
			got.decision.Recycle()
			w.freed()
		}
		return grant{err: ctx.Err()}, "client_gone"
	case <-timer.C:
		var waits bool
		if got, waits = w.leave(l, a); waits {
			return grant{err: w.timedOut(l, time.Since(began))}, "timeout"
		}
	}
	switch {
	case got.decision != nil:
		return got, "routed"
	case errors.Is(got.err, errDraining):
		return got, "drained"
	case errors.As(got.err, new(errShed)):
		return got, "shed"
	}
	return got, "failed"
}

// measure fills a's item: what it costs and how long it may wait.
func (w *waiting) measure(ctx context.Context, a *guest, now time.Time) error {
	p := &a.exchange.prepared
	p.route.Now = now.UnixNano()
	d, err := w.g.Router.Explain(ctx, &p.route)
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
		Bytes:    int64(len(a.exchange.body.Bytes)),
		Arrived:  a.exchange.rec.Time.UnixNano(),
		Deadline: now.Add(patience).UnixNano(),
	}
	return nil
}

// errDraining is what those that wait are told when the process drains.
var errDraining = api.Draining()

// errShed is the error of a request that was shed for another tenant: the same as of a request that finds the queue
// full.
type errShed struct{ error }

func (e errShed) Unwrap() error { return e.error }

// enter puts a into the line, or returns what its client is told.
func (w *waiting) enter(l *line, a *guest, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.over.Load() {
		return errDraining
	}
	shed, refused := l.queue.Push(&a.item, now.UnixNano())
	for _, item := range shed {
		gone := l.guests[item]
		w.left(l, gone)
		gone.granted <- grant{err: errShed{api.QueueFull(l.queue.Full(now.UnixNano()).RetryAfter)}}
	}
	if refused != nil {
		if refused.Full {
			w.g.Telemetry.Queued("full", 0)
			return api.QueueFull(refused.RetryAfter)
		}
		w.g.Telemetry.Queued("too_long", 0)
		return api.QueueTooLong(refused.RetryAfter)
	}
	l.guests[&a.item] = a
	l.here.Add(1)
	w.all.Add(1)
	return nil
}

// left books that a waits no more. l.mu is held.
func (w *waiting) left(l *line, a *guest) {
	delete(l.guests, &a.item)
	l.here.Add(-1)
	w.all.Add(-1)
}

// leave takes a out before its turn; when it was not waiting any more, it returns what a was granted.
func (w *waiting) leave(l *line, a *guest) (got grant, waits bool) {
	l.mu.Lock()
	waits = l.queue.Remove(&a.item)
	if waits {
		w.left(l, a)
	}
	l.mu.Unlock()
	if !waits {
		got = <-a.granted
	}
	return got, waits
}

func (w *waiting) timedOut(l *line, waited time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	retry, known := l.queue.RetryAfter(time.Now().UnixNano())
	if !known {
		retry = max(waited, time.Second) // nothing moved all the while
	}
	return api.QueueTimeout(waited, retry)
}

// run gives turns until ctx ends; whoever waits then is sent away.
func (w *waiting) run(ctx context.Context) {
	tick := time.NewTicker(lateness)
	defer tick.Stop()
	for {
		late := tick.C
		if w.all.Load() == 0 {
			late = nil // the first that comes wakes us
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

// advance serves those whose turn it is, as far as there is room.
func (w *waiting) advance(l *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var back []*queue.Item
	for len(back) < passed {
		item := l.queue.Pop()
		if item == nil {
			break
		}
		a := l.guests[item]
		got, room := w.decide(a)
		if !room {
			back = append(back, item)
			if a.anywhere() {
				break // then there is none for anybody
			}
			continue
		}
		l.queue.Served(item, time.Now().UnixNano())
		w.left(l, a)
		a.granted <- got
	}
	for _, item := range back {
		l.queue.Return(item)
	}
}

// anywhere reports whether any worker of the base model would do for a.
func (a *guest) anywhere() bool {
	q := &a.exchange.prepared.route
	return q.Rank < 0 && q.Target == "" && len(q.Exclude) == 0 && !a.adapter
}

// decide decides for a if there is room. An error of another kind is a's answer.
func (w *waiting) decide(a *guest) (got grant, room bool) {
	defer func() { // this is not the request's goroutine: a panic would end them all
		if cause := recover(); cause != nil {
			w.g.Telemetry.Panicked()
			w.g.Log.Error("decision panicked", "cause", cause, "stack", string(debug.Stack()))
			got, room = grant{err: api.Internal(fmt.Errorf("decide: panic: %v", cause))}, true
		}
	}()
	q := &a.exchange.prepared.route
	if pool, ok := w.g.Fleet.Snapshot().Pool(q.Model); ok && !w.room(q, pool) {
		return grant{}, false
	}
	d, err := a.exchange.decide(context.Background()) // a's own context is watched by its goroutine
	if errors.Is(err, warmpath.ErrSaturated) {
		return grant{}, false
	}
	return grant{d, err}, true
}

// flush sends away all that wait, and whoever comes.
func (w *waiting) flush() {
	w.over.Store(true)
	for _, l := range w.snapshot() {
		l.mu.Lock()
		for _, item := range l.queue.All() {
			a := l.guests[item]
			w.left(l, a)
			a.granted <- grant{err: errDraining}
		}
		l.mu.Unlock()
	}
}

// charge takes the tokens of an answer off its tenant's share.
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
