package gateway

import (
	"container/list"
	"context"
	"errors"
	"slices"
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

// holding is the part of an exchange that belongs to the hold.
type holding struct {
	turn      *held           // the exchange as a held request that has its turn; nil: it has none
	holdUntil time.Time       // when the time is over for which the request may be held; zero if it was never held
	unreached []*fleet.Worker // the workers that did not take the request, as they were then
	retryAt   time.Time       // when they may be asked again although nothing changed; zero: never
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
	if h.cfg.Load().MaxWait == 0 || !h.runs.Load() || x.rec.Attempts != x.refusals || x.nextFallBack() > 0 || x.mayLoad() {
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
		if why = err; !h.again(a, x) { // a worker came and went
			return nil, "drained", errDraining
		}
	}
}

// retryAfter is the time after which a held request goes again to a worker that did not take it, for example an engine
// that answered 503 because its queue was full. It is longer than the default of health.interval: if the worker is
// down, a check has noticed it by then, and the request is held until the worker's return.
const retryAfter = 6 * time.Second

// unreachable notes that w did not take x: it could not be reached, or answered that it takes no requests now. ended
// says that w's process has ended: then the next check shows its return.
func (x *exchange) unreachable(w *fleet.Worker, ended bool) {
	x.refusals++
	if !ended {
		x.retryAt = time.Now().Add(retryAfter)
	}
	x.unreached = append(slices.DeleteFunc(x.unreached, func(was *fleet.Worker) bool { return was.ID == w.ID }), w)
}

// mayBeHeld reports whether x is held if no worker can be found for another attempt: its attempts are used up, and no
// worker other than w is left.
func (x *exchange) mayBeHeld(w *fleet.Worker) bool {
	return x.g.hold.takes(x, warmpath.ErrNoWorker) && len(x.untried(w)) == 0
}
