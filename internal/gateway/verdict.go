package gateway

import (
	"errors"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// verdict is what an answer says of worker and request together.
type verdict uint8

const (
	good    verdict = iota // or not the worker's doing
	failed                 // the worker's fault whatever the request is: no connection, an answer cut short, 503
	limited                // 429
	// What follows may be the request's fault or the worker's: another worker tells. Two answers of one verdict are the request's.
	refused // 3xx, 4xx
	broken  // 500 and what else is no 502, 503 or 504
	useless // 200, and no answer
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

// retryReason is what a retry is counted by.
func retryReason(r *proxy.Result) string {
	if r.Class == proxy.Abandoned {
		return "suspect"
	}
	return retryReasons[verdictOf(r)]
}

// retryReasons are the reasons by verdict; without one it is a failure of this machine.
var retryReasons = [...]string{good: "local", failed: "failed", limited: "limited", refused: "refused", broken: "broken", useless: "useless"}

// doubt is an answer of which another worker tells whose fault it is.
type doubt struct {
	holder  fleet.Holder
	worker  fleet.WorkerID
	verdict verdict
}

// maxLimit bounds how long a worker is left alone because it asked for it, and defaultLimit is for one that does not say how long.
const (
	maxLimit     = time.Minute
	defaultLimit = time.Second
)

// weigh notes what an attempt's end says of the holder and worker that were asked, and reports whether another worker is to be asked.
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
			x.doubts = x.doubts[:0] // the request's fault: nobody is blamed
			return false
		}
	}
	if !last.Retryable || known || k == refused && !x.g.opinions.take() {
		return false
	}
	x.doubts = append(x.doubts, doubt{h, w.ID, k})
	return true
}

// believe notes that a worker answers well, and blames those that did not for the same request.
func (x *exchange) believe(h fleet.Holder, w fleet.WorkerID, now int64) {
	scope := x.prepared.route.Scope
	if x.odd {
		x.g.evidence.useless(scope, w) // as the others: that is how it is known
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

// knows reports whether an answer that names another model than was asked for is one all the same: the worker serves the same model
// under several names, nobody else could do better, or others name it so, too.
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

// better returns which of two results of a request tells its client more, where neither served it: an engine's own answer tells
// more than that there was none, and of two that ask to come back the earlier one is right.
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

// limitedFor returns how long until one of the workers that asked to be left alone takes requests like x's again.
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

// limitedError is what the client of a request is told whose workers all asked to be left alone; nil for another error.
func (x *exchange) limitedError(err error) error {
	if !errors.Is(err, warmpath.ErrLimited) {
		return nil
	}
	return api.Limited(x.g.limitedFor(&x.prepared.route))
}
