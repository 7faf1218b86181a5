package gateway

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// HoldConfig says how requests are held while no worker can take them: while all workers that serve the model are
// down, pause or drain, have open breakers, or have not joined yet.
type HoldConfig struct {
	// MaxWait is how long a request is held at most; after that it is answered 503. 0: requests are not held, and are
	// answered 503 immediately. A client may ask for a shorter time (X-Warmpath-Max-Wait). The default is 30 s, as long
	// as most clients wait: an engine with a small model starts in this time.
	MaxWait time.Duration `yaml:"max_wait"`
	// MaxRequests is the number of requests that are held at the same time, over all models. One more request gets 503
	// immediately. The default of 1024 has room for 30 s of 34 requests a second.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes bounds the memory for the bodies of held requests.
	MaxBytes int64 `yaml:"max_bytes"`
}

// DefaultHoldConfig returns the defaults: requests are held for 30 s at most.
func DefaultHoldConfig() HoldConfig {
	return HoldConfig{MaxWait: 30 * time.Second, MaxRequests: 1024, MaxBytes: 256 << 20}
}

// validate passes the problems of c to check.
func (c HoldConfig) validate(check func(ok bool, format string, args ...any)) {
	check(c.MaxWait >= 0 && c.MaxWait <= time.Hour, "hold.max_wait: %v is outside 0s..1h", c.MaxWait)
	check(c.MaxRequests >= 1, "hold.max_requests: %d is below 1; to turn the hold off, set max_wait: 0s", c.MaxRequests)
	check(c.MaxBytes >= 1, "hold.max_bytes: %d is below 1; to turn the hold off, set max_wait: 0s", c.MaxBytes)
}

// hold is where requests wait while no worker can take them. Requests that wait because all workers are saturated are
// in waiting instead.
//
// One goroutine, run, follows the fleet. When workers may take requests again, run gives turns in the order in which
// the requests came. A request that has its turn decides in its own goroutine and then ends the turn, so that no later
// request overtakes it. This matters when few requests may pass: after an outage a breaker lets one request pass
// as a trial.
//
// hold is safe for concurrent use.
type hold struct {
	g    *Gateway
	cfg  atomic.Pointer[HoldConfig]
	all  atomic.Int64  // number of held requests; may be read without mu
	runs atomic.Bool   // run gives turns
	wake chan struct{} // capacity 1: has a value when a breaker may have changed, or a request was added

	mu    sync.Mutex     // guards the fields below
	order list.List      // of *held, by the arrival of the requests
	bytes int64          // memory of the bodies of held requests
	plain map[string]int // by model name: the number of held requests that any worker of the model can serve
	over  bool           // the process drains: no request is held any more
	round uint64         // counts the calls of advance
	gone  goneModels
}

// held is a held request.
type held struct {
	q       *warmpath.Request // not changed while the request is held and does not have its turn
	plain   bool              // any worker of the model can serve the request
	refused []*fleet.Worker   // the workers that refused a connection for this request, as they were then
	tenant  string            // as q names it; it does not change
	choice  modelChoice       // a fall-back may take the request in place of its model
	bytes   int64
	came    time.Time
	at      *list.Element // guarded by hold.mu; nil when the request is held no longer
	turn    bool          // guarded by hold.mu
	round   uint64        // guarded by hold.mu; the last round of turns in which the request had one
	// called has capacity 1. It receives nil when the request has its turn, else the reason why it is held no longer.
	called chan error
	ended  chan struct{} // capacity 1; receives a value when the turn has ended
}

// holding is the part of an exchange that belongs to the hold.
type holding struct {
	turn      *held           // the exchange as a held request that has its turn; nil: it has none
	holdUntil time.Time       // when the time is over for which the request may be held; zero if it was never held
	unreached []*fleet.Worker // the workers that refused a connection, as they were then
	refusals  int             // number of attempts at workers that did not take the request
}

func newHold(g *Gateway, cfg HoldConfig) *hold {
	h := &hold{g: g, wake: make(chan struct{}, 1), plain: map[string]int{}}
	h.cfg.Store(&cfg)
	return h
}

// UseHold applies cfg from now on; cfg has passed Validate. If cfg turns the hold off, held requests are answered 503.
func (g *Gateway) UseHold(cfg HoldConfig) {
	h := g.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cfg.Store(&cfg)
	if cfg.MaxWait == 0 {
		h.sendAll(errReleased)
	}
}

// The reasons why a request is held no longer although no worker can take it.
var (
	errReleased = errors.New("requests are not held any more")
	errShed     = errors.New("the place is needed for another tenant")
)

// changed wakes run because a holder may take requests again. It never blocks.
func (h *hold) changed() {
	if h.all.Load() == 0 {
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// behind reports whether x must be held because earlier requests for the same model are held.
func (h *hold) behind(x *exchange) bool {
	if h.all.Load() == 0 || !unpinned(&x.prepared.route) || h.cfg.Load().MaxWait == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.plain[x.prepared.route.Model] > 0
}

// unpinned reports whether any worker may answer the request.
func unpinned(q *warmpath.Request) bool {
	return q.Target == "" && !q.Rank.Asked() && len(q.Exclude) == 0
}

// takes reports whether a request for which no worker could be chosen is held. err is the reason of the Router. A
// request that a worker may have received is not held: it could be the reason why no worker is left.
func (h *hold) takes(x *exchange, err error) bool {
	if h.cfg.Load().MaxWait == 0 || !h.runs.Load() || x.rec.Attempts != x.refusals || x.mayFallBack() || x.mayLoad() {
		return false
	}
	return errors.Is(err, warmpath.ErrNoWorker) || errors.Is(err, warmpath.ErrUnknownModel) && h.expected(x.prepared.route.Model)
}

// expected reports whether a model that no worker serves may be served soon.
func (h *hold) expected(model string) bool {
	if unheard, workers := h.g.unheard(); unheard > 0 || workers == 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone.has(model)
}

// wait holds x until it has a decision. It returns the decision, or the reason why there is none: the client's error,
// or ctx's error. why is the reason why x could not be routed.
func (h *hold) wait(ctx context.Context, x *exchange, why error) (*warmpath.Decision, error) {
	began := time.Now()
	if x.holdUntil.IsZero() {
		patience := h.cfg.Load().MaxWait
		if x.prepared.patience > 0 {
			patience = min(patience, x.prepared.patience)
		}
		x.holdUntil = began.Add(patience)
	}
	span := x.span.Part("hold")
	d, outcome, err := h.await(ctx, x, why)
	span.Text("warmpath.outcome", outcome)
	span.End()
	waited := time.Since(began)
	x.rec.HeldMS += milliseconds(waited)
	h.g.Telemetry.Held(outcome, waited, x.rec.TraceID)
	x.showHeld()
	return d, err
}

// showHeld tells the client for how long its request was held.
func (x *exchange) showHeld() {
	if x.g.cfg.Headers {
		x.w.Header().Set(headerHeld, time.Duration(x.rec.HeldMS*1e6).Round(time.Millisecond).String())
	}
}

// await is wait without its bookkeeping. outcome is the label of a metric.
func (h *hold) await(ctx context.Context, x *exchange, why error) (d *warmpath.Decision, outcome string, err error) {
	a, outcome, err := h.enter(x)
	if err != nil {
		return nil, outcome, err
	}
	timer := time.NewTimer(time.Until(x.holdUntil))
	defer timer.Stop()
	for {
		var sentAway error
		select {
		case sentAway = <-a.called:
		case <-ctx.Done():
			if h.leave(a) {
				return nil, "client_gone", ctx.Err()
			}
			sentAway = <-a.called // a was called just before: handle that call
		case <-timer.C:
			if h.leave(a) {
				return nil, "timeout", api.HoldTimeout(time.Since(x.rec.Time), why)
			}
			sentAway = <-a.called
		}
		switch {
		case errors.Is(sentAway, errReleased):
			return nil, "released", why
		case errors.Is(sentAway, errShed):
			return nil, "full", api.HoldFull()
		case sentAway != nil:
			return nil, "drained", sentAway
		}
		d, err = h.decide(ctx, a, x)
		switch {
		case err == nil:
			return d, "routed", nil
		case ctx.Err() != nil:
			h.forget(a)
			return nil, "client_gone", err
		case !h.takes(x, err):
			h.forget(a)
			return nil, "failed", err
		}
		a.refused = x.unreached
		if why = err; !h.again(a) { // a worker came and went
			return nil, "drained", errDraining
		}
	}
}

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

// unreachable notes that a worker refused a connection for x, or takes no requests now.
func (x *exchange) unreachable(w *fleet.Worker) {
	x.refusals++
	x.unreached = append(slices.DeleteFunc(x.unreached, func(was *fleet.Worker) bool { return was.ID == w.ID }), w)
}

// allowReturned lets x go again to workers that refused a connection and have come back since.
func (x *exchange) allowReturned() {
	snap, now := x.g.Fleet.Snapshot(), time.Now().UnixNano()
	for _, was := range x.unreached {
		if returned(snap, was, now) {
			x.prepared.route.Exclude = slices.DeleteFunc(x.prepared.route.Exclude, func(id fleet.WorkerID) bool { return id == was.ID })
		}
	}
}

// mayBeHeld reports whether x is held if no worker can be found for another attempt: its attempts are used up, and no
// worker other than w is left.
func (x *exchange) mayBeHeld(w *fleet.Worker) bool {
	return x.g.hold.takes(x, warmpath.ErrNoWorker) && len(x.untried(w)) == 0
}

// returned reports whether a worker that refused a connection may take requests again: it has changed since, or its
// breaker lets a trial pass. Otherwise it would refuse the next connection, too.
func returned(snap *fleet.Snapshot, was *fleet.Worker, now int64) bool {
	w := snap.ByID(was.ID)
	return w != nil && slices.ContainsFunc(w.Holders, func(h fleet.Holder) bool {
		return snap.Available(h, now) && (w != was || snap.BlockedUntil(h) > 0)
	})
}

// enter adds x to the held requests, or returns the outcome and the error for x's client.
func (h *hold) enter(x *exchange) (a *held, outcome string, err error) {
	a = &held{
		q: &x.prepared.route, plain: unpinned(&x.prepared.route), refused: x.unreached, bytes: int64(len(x.body.Bytes)), came: x.rec.Time,
		called: make(chan error, 1), ended: make(chan struct{}, 1), choice: x.prepared.choice,
		tenant: x.prepared.route.Tenant,
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := h.cfg.Load()
	switch {
	case h.over:
		return nil, "drained", errDraining
	case !h.makeRoom(a, cfg):
		return nil, "full", api.HoldFull()
	}
	h.add(a)
	h.changed() // a worker may have come back after the decision
	return a, "", nil
}

// share is the part of the hold that requests and bytes take, from 0 to 1.
func (c *HoldConfig) share(requests int, bytes int64) float64 {
	return max(float64(requests)/float64(c.MaxRequests), float64(bytes)/float64(c.MaxBytes))
}

// makeRoom reports whether the hold has room for a. With tenants, a full hold sheds the newest requests of tenants that
// have a greater share of the hold than the tenant of a would have. Otherwise the requests of one tenant could keep all
// others out. If no room can be made, nothing is shed. h.mu is held.
func (h *hold) makeRoom(a *held, cfg *HoldConfig) bool {
	fits := func(requests int, bytes int64) bool {
		return requests < cfg.MaxRequests && bytes+a.bytes <= cfg.MaxBytes
	}
	requests, bytes := h.order.Len(), h.bytes
	if fits(requests, bytes) {
		return true
	}
	if h.g.Tenants == nil || h.g.Tenants.Open() {
		return false // a header or a key names the tenant then, and a client could invent many
	}
	type use struct {
		requests int
		bytes    int64
	}
	uses := map[string]use{}
	for at := h.order.Front(); at != nil; at = at.Next() {
		b := at.Value.(*held)
		u := uses[b.tenant]
		uses[b.tenant] = use{u.requests + 1, u.bytes + b.bytes}
	}
	own := uses[a.tenant]
	mine := cfg.share(own.requests+1, own.bytes+a.bytes)
	var shed []*held
	for at := h.order.Back(); at != nil && !fits(requests, bytes); at = at.Prev() {
		b := at.Value.(*held)
		if u := uses[b.tenant]; b.tenant != a.tenant && !b.turn && cfg.share(u.requests, u.bytes) > mine {
			uses[b.tenant] = use{u.requests - 1, u.bytes - b.bytes}
			requests, bytes = requests-1, bytes-b.bytes
			shed = append(shed, b)
		}
	}
	if !fits(requests, bytes) {
		return false
	}
	for _, b := range shed {
		h.remove(b)
		b.called <- errShed
	}
	return true
}

// add puts a behind the requests that came before it. h.mu is held.
func (h *hold) add(a *held) {
	before := h.order.Back()
	for before != nil && before.Value.(*held).came.After(a.came) {
		before = before.Prev()
	}
	if before == nil {
		a.at = h.order.PushFront(a)
	} else {
		a.at = h.order.InsertAfter(a, before)
	}
	h.all.Add(1)
	h.bytes += a.bytes
	if a.plain {
		h.plain[a.q.Model]++
	}
	h.g.Telemetry.Holding(1, a.bytes)
}

// remove undoes add. h.mu is held.
func (h *hold) remove(a *held) {
	h.order.Remove(a.at)
	a.at = nil
	h.bytes -= a.bytes
	if a.plain {
		if h.plain[a.q.Model]--; h.plain[a.q.Model] == 0 {
			delete(h.plain, a.q.Model)
		}
	}
	h.all.Add(-1)
	h.g.Telemetry.Holding(-1, -a.bytes)
}

// leave removes a. It returns false if a was called just before: then a.called has the reason.
func (h *hold) leave(a *held) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.turn || a.at == nil {
		return false
	}
	h.remove(a)
	return true
}

// forget removes a, which has or had its turn.
func (h *hold) forget(a *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.at != nil {
		h.remove(a)
	}
}

// again lets a continue to wait after its turn, in its place. It returns false if the process drains.
func (h *hold) again(a *held) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		if a.at != nil {
			h.remove(a)
		}
		return false
	case a.at == nil: // the request was in the queue meanwhile
		h.add(a)
	}
	a.turn = false
	return true
}

// sendAll ends the wait of all held requests that do not have their turn. h.mu is held.
func (h *hold) sendAll(why error) {
	for at := h.order.Front(); at != nil; {
		a := at.Value.(*held)
		at = at.Next()
		if !a.turn {
			h.remove(a)
			a.called <- why
		}
	}
}

// flush sends away all held requests, and all that come later.
func (h *hold) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.sendAll(errDraining)
}

// run gives turns until ctx ends. It sleeps until the fleet changes, a request ends at a worker, or a breaker lets a
// trial pass.
func (h *hold) run(ctx context.Context) {
	h.runs.Store(true)
	defer h.runs.Store(false)
	timer := time.NewTimer(0)
	defer timer.Stop()
	snap := h.g.Fleet.Snapshot()
	for {
		var trial <-chan time.Time
		if h.all.Load() > 0 {
			h.advance()
			if next := nextTrial(h.g.Fleet.Snapshot()); next > 0 {
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
			return was.ID == w.ID && returned(snap, was, now)
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

// goneModels are the models that no worker serves because the workers that served them left the fleet. A rolling
// restart under a new address has such a moment. A model that a present worker stopped serving is not gone: an operator
// unloaded it. The zero value is empty.
type goneModels struct{ names map[string]struct{} }

// mostGone bounds the number of models that are remembered. Fleets with thousands of adapters exist; a fleet that loses
// more of them at the same moment answers 404 for the rest.
const mostGone = 4096

func (g *goneModels) has(model string) bool {
	_, ok := g.names[model]
	return ok
}

// note compares two snapshots of the fleet.
func (g *goneModels) note(was, is *fleet.Snapshot) {
	for name := range g.names {
		if _, back := is.Pool(name); back {
			delete(g.names, name)
		}
	}
	for _, m := range was.Models() {
		if _, stays := is.Pool(m.ID); stays {
			continue
		}
		pool, _ := was.Pool(m.ID)
		unloaded := slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool {
			now := is.ByID(w.ID)
			return now != nil && len(now.Facts.Models) > 0
		})
		if unloaded || len(g.names) >= mostGone {
			continue
		}
		if g.names == nil {
			g.names = map[string]struct{}{}
		}
		g.names[m.ID] = struct{}{}
	}
}
