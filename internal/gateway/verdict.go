package gateway

import (
	"errors"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// verdict classifies an answer by the possible fault of worker and request.
type verdict uint8

const (
	good    verdict = iota // also: not caused by the worker
	failed                 // certainly the worker's fault: no connection, an answer cut short, 503
	limited                // 429
	// The next three may be the request's fault or the worker's: another worker's answer decides. Two workers with
	// the same verdict show the request's fault.
	refused // 3xx, 4xx
	broken  // 5xx except 502, 503 and 504
	useless // 200 without an answer of the dialect
)

func verdictOf(r *proxy.Result) verdict {
	switch {
	case r.Class == proxy.Limited:
		return limited
	case r.Class == proxy.Rejected && !r.FirstByte:
		return refused
	case r.Class == proxy.Useless && !r.FirstByte:
		return useless
	case r.Class == proxy.EngineError && r.Answer != nil:
		return broken
	case r.Class.WorkerFault() || r.Class == proxy.Useless:
		return failed
	}
	return good
}

// retryReason returns the reason by which a retry is counted.
func retryReason(r *proxy.Result) string {
	if r.Class == proxy.Abandoned {
		return "suspect"
	}
	return retryReasons[verdictOf(r)]
}

// retryReasons are the reasons by verdict. A retry after a good verdict is due to a failure of this machine.
var retryReasons = [...]string{good: "local", failed: "failed", limited: "limited", refused: "refused", broken: "broken", useless: "useless"}

// doubt is an answer whose fault another worker's answer decides.
type doubt struct {
	holder  fleet.Holder
	worker  fleet.WorkerID
	verdict verdict
}

// maxLimit bounds the pause that a worker may ask for by a 429; defaultLimit is the pause when it names none.
const (
	maxLimit     = time.Minute
	defaultLimit = time.Second
)

// weigh records what an attempt's end shows about its holder and worker, and reports whether to ask another worker.
func (x *exchange) weigh(h fleet.Holder, w *fleet.Worker, last *proxy.Result) (again bool) {
	k := verdictOf(last)
	now := time.Now().UnixNano()
	switch k {
	case good:
		if last.Class == proxy.Success {
			x.believe(h, w.ID, now)
		}
		return last.Retryable
	case failed:
		return last.Retryable
	case limited:
		wait := last.RetryAfter
		if wait <= 0 {
			wait = defaultLimit
		}
		for _, h := range w.Holders {
			x.g.Fleet.Limit(h, x.prepared.route.Tenant, now+int64(min(wait, maxLimit)), now)
		}
		return true
	}
	known := x.g.evidence.useless(x.prepared.route.Scope, w.ID)
	for _, d := range x.doubts {
		if d.verdict == k {
			x.doubts = x.doubts[:0] // the request's fault: no worker is blamed
			return false
		}
	}
	if !last.Retryable || known || k == refused && !x.g.opinions.take() {
		return false
	}
	x.doubts = append(x.doubts, doubt{h, w.ID, k})
	return true
}

// believe records a worker's good answer, and blames the workers whose answers to the same request were useless.
func (x *exchange) believe(h fleet.Holder, w fleet.WorkerID, now int64) {
	scope := x.prepared.route.Scope
	if x.odd {
		x.g.evidence.useless(scope, w) // recorded as for the others: evidence.known needs it
	} else {
		x.g.evidence.served(scope, w)
	}
	x.g.Fleet.ObserveScope(h, scope, fleet.OutcomeServed, now)
	for _, d := range x.doubts {
		if x.g.evidence.distrusted(scope, d.worker) {
			x.g.Fleet.ObserveScope(d.holder, scope, fleet.OutcomeFailed, now)
		}
	}
	x.doubts = x.doubts[:0]
}

// knows reports whether an answer that names another model than the request is acceptable: the worker serves the same
// model under several names, no other worker could do better, or others use that name, too.
func (x *exchange) knows(name []byte) bool {
	d := x.decision
	if d == nil {
		return true
	}
	pool, ok := x.g.Fleet.Snapshot().Pool(string(name))
	if ok && pool.Model == d.Base && pool.LoRA == d.LoRA {
		return true
	}
	x.odd = len(x.doubts) > 0 || !x.othersCan(d) || x.g.evidence.known(x.prepared.route.Scope, d.Worker.ID)
	if x.odd {
		x.doubts = x.doubts[:0]
	}
	return x.odd
}

// othersCan reports whether a worker that was not tried yet could take the request now.
func (x *exchange) othersCan(d *warmpath.Decision) bool {
	q := &x.prepared.route
	snap := x.g.Fleet.Snapshot()
	pool, ok := snap.Pool(q.Model)
	if !ok || q.Target != "" || q.Rank >= 0 && len(d.Worker.Holders) > 1 {
		return false
	}
	now := time.Now().UnixNano()
	for _, h := range pool.Holders {
		w := snap.Worker(h)
		full := x.g.MaxRequests > 0 && snap.Load(h).Requests >= int64(x.g.MaxRequests)
		if w.ID != d.Worker.ID && !full && !tried(q.Exclude, w.ID) && snap.Standing(h, q.Scope, q.Tenant, now).Bar == fleet.BarNone {
			return true
		}
	}
	return false
}

func tried(list []fleet.WorkerID, id fleet.WorkerID) bool {
	for _, w := range list {
		if w == id {
			return true
		}
	}
	return false
}

// better returns the more useful of two results for the client when neither served the request: an engine's answer
// before none, and of two 429 the one with the smaller Retry-After.
func better(a, b *proxy.Result) *proxy.Result {
	switch {
	case a.Answer == nil || b.FirstByte || b.Class == proxy.Cut || b.Class == proxy.ClientGone:
		return b
	case b.Answer == nil:
		return a
	case a.Class == proxy.Limited && b.Class == proxy.Limited && a.RetryAfter > 0 && (b.RetryAfter == 0 || a.RetryAfter < b.RetryAfter):
		return a
	}
	return b
}

// limitedFor returns the time until the first limited worker takes requests like q again.
func (g *Gateway) limitedFor(q *warmpath.Request) time.Duration {
	snap := g.Fleet.Snapshot()
	now := time.Now().UnixNano()
	first := now + int64(maxLimit)
	if pool, ok := snap.Pool(q.Model); ok {
		for _, h := range pool.Holders {
			if until := snap.LimitedUntil(h, q.Tenant, now); until > 0 {
				first = min(first, until)
			}
		}
	}
	return time.Duration(first - now)
}

// limitedError returns the client's error when all workers for the request asked for a pause; nil for another err.
func (x *exchange) limitedError(err error) error {
	if !errors.Is(err, warmpath.ErrLimited) {
		return nil
	}
	return api.Limited(x.g.limitedFor(&x.prepared.route))
}
