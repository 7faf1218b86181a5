package gateway

import (
	"errors"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/policy"
)

// verdict classifies an answer by the possible fault of worker and request.
type verdict uint8

const (
	good    verdict = iota // a complete answer, or a failure that the worker did not cause
	failed                 // the worker was not reached: the request is not at fault
	lost                   // the answer ended early, after a part was forwarded: the request cannot be repeated
	limited                // the worker answered 429
	// For cut, refused, broken and useless, the request or the worker may be at fault; another worker's answer decides.
	// If two workers get the same verdict, the request is at fault, unless a third worker may do better.
	cut     // no answer, or one that ended early, before a part was forwarded; or 502, 503, 504
	refused // 3xx, 4xx
	broken  // other 5xx
	useless // 200 without an answer of the dialect

	verdicts = iota
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
	case r.Class == proxy.Refused && r.Answer == nil && !r.FirstByte:
		return failed
	case !r.Class.WorkerFault() && r.Class != proxy.Useless:
		return good
	case r.FirstByte:
		return lost
	}
	return cut
}

// retryReason returns the label of a retry in the metric warmpath_retries_total.
func retryReason(r *proxy.Result) string {
	if r.Class == proxy.Abandoned {
		return "suspect"
	}
	return retryReasons[verdictOf(r)]
}

// retryReasons has the reasons by verdict. If an attempt with the verdict good is retried, a failure of this machine
// was the cause.
var retryReasons = [...]string{good: "local", failed: "failed", lost: "failed", limited: "limited", cut: "failed", refused: "refused",
	broken: "broken", useless: "useless"}

// doubt is a useless answer whose cause is not known: the worker or the request. A second opinion, that is another
// worker's answer to the same request, shows the cause.
type doubt struct {
	holder  fleet.Holder
	worker  *fleet.Worker
	verdict verdict
}

// maxLimit bounds the pause that a worker may ask for with a 429. defaultLimit is the pause when the 429 names none.
const (
	maxLimit     = time.Minute
	defaultLimit = time.Second
)

// weigh records what the end of an attempt shows about holder and worker. It reports whether to ask another worker.
func (x *exchange) weigh(h fleet.Holder, w *fleet.Worker, last *proxy.Result) (again bool) {
	k := verdictOf(last)
	now := time.Now().UnixNano()
	switch k {
	case good:
		switch {
		case last.Class != proxy.Success:
			x.observeScopes(h, fleet.OutcomeUnknown, k, now)
		case x.hollow(last):
			x.lose(h, w, now)
		default:
			x.believe(h, w, now)
		}
		return last.Retryable
	case failed:
		x.observeScopes(h, fleet.OutcomeUnknown, k, now)
		return last.Retryable
	case lost:
		x.lose(h, w, now)
		return false
	case limited:
		wait := last.RetryAfter
		if wait <= 0 {
			wait = defaultLimit
		}
		for _, h := range w.Holders {
			x.g.Fleet.Limit(h, x.prepared.route.Tenant, now+int64(min(wait, maxLimit)), now)
		}
		x.observeScopes(h, fleet.OutcomeUnknown, k, now)
		// Workers that limit other tenants may also limit this tenant.
		snap := x.g.Fleet.Snapshot()
		x.avoid(w, func(other *fleet.Worker) bool { return snap.Limited(other.Holders[0], now) > 0 })
		return true
	}
	if x.named(w) {
		x.observeScopes(h, fleet.OutcomeUnknown, k, now)
		return false
	}
	scope := x.prepared.route.Scope
	x.g.evidence.useless(scope, w, x.serving())
	known := k != cut && x.known(w, k)
	alike := slices.ContainsFunc(x.doubts, func(d doubt) bool { return d.verdict == k })
	x.doubts = append(x.doubts, doubt{h, w, k})
	if known || alike && !x.mayAskOn(w) {
		if x.wholeMayDo(k, last) {
			x.prepared.route.Undivided = policy.BypassOneWorker
			return true
		}
		x.acquit(now)
		return false
	}
	if !last.Retryable || k == refused && !x.g.evidence.oftenBettered(scope, w) && !x.opinion() {
		return false
	}
	x.avoid(w, x.g.evidence.better(scope, x.untried(w)))
	return true
}

// wholeMayDo reports whether one worker may serve the request, although legs of it failed alike. A leg also fails if
// the blocks do not come, for which vLLM answers 500, so such answers (503 has the verdict cut) show nothing about the
// whole request.
func (x *exchange) wholeMayDo(k verdict, last *proxy.Result) bool {
	divided := x.rec.PrefillWorker != ""
	answered := k == broken || k == useless || k == cut && last.Status != 0
	if !divided || !answered || !last.Retryable || x.rec.Attempts >= x.most {
		return false
	}
	pool, ok := x.g.Fleet.Snapshot().Pool(x.prepared.route.Model)
	return ok && len(pool.Whole.Workers) > 0
}

// hollow reports whether a complete answer has no token, although the request asked for tokens. The client has the
// answer, so it is lost. Of an answer in one piece the engine must say itself that it generated no token: if the model
// ends its answer at once, vLLM and SGLang count the token that ends it.
func (x *exchange) hollow(last *proxy.Result) bool {
	p := &x.prepared.read
	if !last.FirstTokenAt.IsZero() || p.NoAnswer {
		return false
	}
	return p.Stream || x.dialect.Generates() && last.Usage.Seen && last.Usage.Completion == 0
}

// named reports whether only w could get the request, because the client named w or a rank that no other worker has.
// Such a request is no evidence about w: a client may know a request that breaks any worker, or a request that every
// worker serves.
func (x *exchange) named(w *fleet.Worker) bool {
	q := &x.prepared.route
	if q.Target != "" || !q.Rank.Asked() {
		return q.Target != ""
	}
	return !slices.ContainsFunc(x.serving(), func(other *fleet.Worker) bool {
		at := q.Rank.Number() - other.Facts.FirstRank
		return other.ID != w.ID && at >= 0 && at < len(other.Holders)
	})
}

// serving returns the workers that serve the request's model now. It returns none if the last worker left in the
// meantime.
func (x *exchange) serving() []*fleet.Worker {
	pool, ok := x.g.Fleet.Snapshot().Pool(x.prepared.route.Model)
	if !ok {
		return nil
	}
	return x.legPool(pool).Workers
}

// legPool returns the workers of a model that could have the attempt under way. In place of a prefill worker another
// prefill worker can, and so can a worker that serves the whole request.
func (x *exchange) legPool(pool *fleet.Pool) *fleet.Pool {
	switch {
	case pool.Prefill == nil:
	case x.at != nil && x.at.Facts.Role == fleet.RolePrefill && len(pool.Whole.Workers) > 0:
		return pool
	case x.at != nil && x.at.Facts.Role == fleet.RolePrefill:
		return pool.Prefill
	case len(pool.Whole.Workers) == 0:
		return pool.Decode
	}
	return pool.Whole
}

// known reports whether the request is known to be at fault for a useless answer of w. It decides once for each
// attempt.
func (x *exchange) known(w *fleet.Worker, v verdict) bool {
	if !x.judged {
		x.judged, x.inherent = true, x.g.evidence.known(x.prepared.route.Scope, w, v, x.others(w))
	}
	return x.inherent
}

// lose records that an answer of h was lost. The loss counts against w only if w loses far more answers than the best
// other worker, and another worker can take the request.
func (x *exchange) lose(h fleet.Holder, w *fleet.Worker, now int64) {
	scope := x.prepared.route.Scope
	if !x.named(w) && x.g.evidence.lose(scope, w, x.serving()) && len(x.others(w)) > 0 {
		x.observeScope(h, scope, fleet.OutcomeFailed, lost, now)
	} else {
		x.observeScopes(h, fleet.OutcomeUnknown, lost, now)
	}
}

// acquit ends the search for a better answer without blaming a worker.
func (x *exchange) acquit(now int64) {
	for _, d := range x.doubts {
		if len(x.doubts) > 1 {
			x.g.evidence.confirm(x.prepared.route.Scope, d.worker, d.verdict)
		}
		x.observeScopes(d.holder, fleet.OutcomeUnknown, d.verdict, now)
	}
	x.doubts = x.doubts[:0]
}

// giveUpDoubts ends the doubts of a request that no worker served. If a single worker was asked and gave no answer, the
// attempt is recorded as a lost answer of this worker.
func (x *exchange) giveUpDoubts() {
	now := time.Now().UnixNano()
	if len(x.doubts) == 1 && x.doubts[0].verdict == cut && x.rec.Attempts == 1 {
		d := x.doubts[0]
		x.doubts = x.doubts[:0]
		x.lose(d.holder, d.worker, now)
		return
	}
	x.acquit(now)
}

// opinion takes an extra attempt from the budget of second opinions, once for each attempt. The extra attempt is given
// back when another worker serves the request.
func (x *exchange) opinion() bool {
	if !x.granted && x.g.opinions.take() {
		x.granted = true
		x.opinions++
	}
	return x.granted
}

// returnOpinion gives the extra attempt back to the budget when no worker was found for the attempt.
func (x *exchange) returnOpinion() {
	if x.granted {
		x.granted = false
		x.opinions--
		x.g.opinions.giveBack()
	}
}

// mayAskOn reports whether to ask one more worker after w and another worker gave the same useless answer. There must
// be an untried worker that is not distrusted, and the budget must allow it.
func (x *exchange) mayAskOn(w *fleet.Worker) bool {
	if x.rec.Attempts >= x.most {
		return false
	}
	for _, other := range x.others(w) {
		if x.fresh(other) {
			return x.g.evidence.oftenBettered(x.prepared.route.Scope, w) || x.opinion()
		}
	}
	return false
}

// avoid keeps the next attempt away from the workers for which ill returns true, if another worker can take the
// attempt.
func (x *exchange) avoid(w *fleet.Worker, ill func(*fleet.Worker) bool) {
	untried := x.untried(w)
	if slices.IndexFunc(untried, func(other *fleet.Worker) bool { return !ill(other) }) < 0 {
		return
	}
	q := &x.prepared.route
	for _, other := range untried {
		if ill(other) {
			q.Exclude = append(q.Exclude, other.ID)
		}
	}
}

// untried returns the workers of others(w) that may be asked next. The result is valid until the next call of untried
// or others.
func (x *exchange) untried(w *fleet.Worker) []*fleet.Worker {
	return slices.DeleteFunc(x.others(w), func(other *fleet.Worker) bool {
		return slices.Contains(x.prepared.route.Exclude, other.ID)
	})
}

// fresh reports whether a worker was not tried yet and is not distrusted in the request's scope.
func (x *exchange) fresh(w *fleet.Worker) bool {
	q := &x.prepared.route
	return !slices.Contains(q.Exclude, w.ID) && !x.g.evidence.distrusted(q.Scope, w)
}

// others returns the workers other than w that take the request of x now. The result is valid until the next call.
func (x *exchange) others(w *fleet.Worker) []*fleet.Worker {
	q := &x.prepared.route
	snap := x.g.Fleet.Snapshot()
	x.peers = x.peers[:0]
	pool, ok := snap.Pool(q.Model)
	if !ok {
		return nil
	}
	now := time.Now().UnixNano()
	for _, other := range x.legPool(pool).Workers {
		if other.ID != w.ID && slices.ContainsFunc(other.Holders, func(h fleet.Holder) bool { return x.takes(snap, h, now) }) {
			x.peers = append(x.peers, other)
		}
	}
	return x.peers
}

// takes reports whether h takes the request now, or would take it later if requests wait for a saturated worker.
func (x *exchange) takes(snap *fleet.Snapshot, h fleet.Holder, now int64) bool {
	q := &x.prepared.route
	full := !x.g.waiting.on() && x.g.MaxRequests > 0 && snap.Load(h).Requests >= int64(x.g.MaxRequests)
	return !full && q.Rank.Allows(snap.Rank(h)) && snap.Standing(h, q.Scope, q.Tenant, now).Bar == fleet.BarNone
}

// believe records a worker's good answer. It blames the workers that gave useless answers to the same request.
func (x *exchange) believe(h fleet.Holder, w *fleet.Worker, now int64) {
	scope := x.prepared.route.Scope
	if x.named(w) {
		x.observeScopes(h, fleet.OutcomeUnknown, good, now)
		return
	}
	if x.otherModel {
		x.g.evidence.useless(scope, w, x.serving()) // recorded as for other workers, so that evidence.known can compare
	} else {
		x.g.evidence.served(scope, w, x.prepared.read.Stream || x.dialect.Generates())
	}
	x.observeScopes(h, fleet.OutcomeServed, good, now)
	for _, d := range x.doubts {
		here, everywhere := x.g.evidence.blame(scope, d.worker, d.verdict)
		if here {
			x.observeScope(d.holder, scope, fleet.OutcomeFailed, d.verdict, now)
		}
		if everywhere {
			x.observeScope(d.holder, fleet.EveryScope, fleet.OutcomeFailed, d.verdict, now)
		}
		if !here && !everywhere {
			x.observeScopes(d.holder, fleet.OutcomeUnknown, d.verdict, now)
		}
	}
	if len(x.doubts) > 0 {
		for ; x.opinions > 0; x.opinions-- {
			x.g.opinions.giveBack()
		}
	}
	x.doubts = x.doubts[:0]
}

// knows reports whether an answer is acceptable although it names another model than the request. The answer is
// acceptable if the worker serves the same model under several names, if no other worker could do better, or if other
// workers use that name, too.
func (x *exchange) knows(name []byte) bool {
	d := x.decision
	if d == nil {
		return true
	}
	pool, ok := x.g.Fleet.Snapshot().Pool(string(name))
	if ok && pool.Model == d.Base && pool.LoRA == d.LoRA {
		return true
	}
	x.otherModel = !x.othersCan(d.Worker) || x.known(d.Worker, useless) ||
		len(x.doubts) > 0 && !x.mayAskOn(d.Worker)
	if x.otherModel {
		if len(x.doubts) > 0 {
			x.doubts = append(x.doubts, doubt{d.Holder, d.Worker, useless})
		}
		x.acquit(time.Now().UnixNano())
	}
	return x.otherModel
}

// othersCan reports whether a worker that was not tried yet could take the request now.
func (x *exchange) othersCan(at *fleet.Worker) bool {
	q := &x.prepared.route
	snap := x.g.Fleet.Snapshot()
	pool, ok := snap.Pool(q.Model)
	if !ok || q.Target != "" || q.Rank.Asked() && len(at.Holders) > 1 {
		return false
	}
	now := time.Now().UnixNano()
	for _, h := range x.legPool(pool).Holders {
		w := snap.Worker(h)
		full := x.g.MaxRequests > 0 && snap.Load(h).Requests >= int64(x.g.MaxRequests)
		if w.ID != at.ID && !full && !slices.Contains(q.Exclude, w.ID) && snap.Standing(h, q.Scope, q.Tenant, now).Bar == fleet.BarNone {
			return true
		}
	}
	return false
}

// better returns the result that is more useful for the client, from two results that did not serve the request. An
// engine's answer is better than no answer. Of two answers 429, the answer with the smaller Retry-After is better.
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

// limitedError returns the client's error when all workers for the request asked for a pause. It returns nil if err is
// another error.
func (x *exchange) limitedError(err error) error {
	if !errors.Is(err, warmpath.ErrLimited) {
		return nil
	}
	return api.Limited(x.g.limitedFor(&x.prepared.route))
}
