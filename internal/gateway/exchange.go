package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
)

// Request headers that the gateway reads, and response headers that it adds.
const (
	// The data-parallel rank, chosen by the client, or set by the gateway for the worker.
	headerRank     = "X-Data-Parallel-Rank"
	headerTarget   = "X-Warmpath-Target"   // URL of the only worker that may get the request; policy direct requires this header
	headerPatience = "X-Warmpath-Max-Wait" // how long the request may wait for a worker
	// In a request: the policy to use, if allowed; in an answer: the policy that decided.
	headerPolicy = "X-Warmpath-Policy"
	headerLevels = "X-Warmpath-Service-Levels" // the service levels of the request, if it may choose them

	headerWorker    = "X-Warmpath-Worker"
	headerPrefill   = "X-Warmpath-Prefill-Worker"
	headerMatch     = "X-Warmpath-Match"
	headerTrust     = "X-Warmpath-Trust"
	headerModel     = "X-Warmpath-Model" // the model that answered, if it is not the one that the request names
	headerHeld      = "X-Warmpath-Held"  // how long the request was held because no worker could take it
	headerRequestID = "X-Request-Id"
)

// statusClientGone is the status for metrics and logs when the client left before the answer's end. nginx uses the same
// number.
const statusClientGone = 499

// exchange is one model request from its arrival to its end. Exchanges are pooled: begin prepares one for a request,
// and end puts it back into the pool. An exchange belongs to the request's goroutine.
type exchange struct {
	g       *Gateway
	w       http.ResponseWriter
	r       *http.Request
	dialect api.Dialect
	path    string // the path of the request's route
	body    *proxy.Body

	visit      visit
	prepared   prepared
	decision   *warmpath.Decision // decision of the attempt under way; nil when its reservation is released
	attempt    proxy.Attempt
	set        [4]proxy.Field
	span       telemetry.Span // of the request
	transfer   telemetry.Span // of the transfer under way
	ids        []byte         // scratch: a body with token ids in place of its text
	rec        telemetry.Record
	choice     *telemetry.Choice // what the policy saw for the last attempt; nil: the request gets no line in the decision log
	logged     bool              // the request gets a line in the decision log
	reports    bool              // the worker reports cached tokens
	at         *fleet.Worker     // the worker that has the attempt under way, for the search for frozen workers
	prefiller  fleet.WorkerID    // the prefill worker of the last attempt, if it was divided
	begun      atomic.Bool       // the first token of the attempt under way has come
	output     int               // number of tokens of the streamed answer so far
	lastToken  time.Time         // time of the last of these tokens; zero if none came, or if the answer came in one piece
	doubts     []doubt
	opinions   int             // extra attempts taken from the budget of second opinions
	granted    bool            // an extra attempt was taken from the budget for the present answer
	judged     bool            // inherent is known for the present answer
	inherent   bool            // the request is at fault for the present useless answer
	peers      []*fleet.Worker // scratch slice for the method others of exchange
	otherModel bool            // the answer names another model than the request, as the other workers' answers do
	most       int             // number of attempts that the request may have
	routed     bool            // a worker was asked: the request counts as finished, not as refused
	next       *exchange       // the next exchange in the worker's roster, guarded by the roster's mutex
	previous   *exchange
	holding
	recovery *recovery // nil if the stream under way cannot continue at another worker
	abort    bool      // cut the client's connection at the end, so that the client sees no complete answer
}

func newExchange(g *Gateway) *exchange {
	x := &exchange{g: g}
	x.attempt.OnFirstToken, x.attempt.OnTokens = x.firstToken, x.tokens
	x.attempt.OnAlive = x.alive
	x.attempt.Knows, x.attempt.OnID = x.knows, x.made
	return x
}

func (x *exchange) begin(w http.ResponseWriter, r *http.Request, to *route) {
	x.w, x.r, x.dialect, x.path = w, r, to.dialect, to.path
	x.rec = telemetry.Record{ID: x.g.Telemetry.Started(), Time: time.Now(), RequestID: proxy.RequestID(r.Header), Dialect: to.dialect.String()}
	x.logged, x.most = x.g.DecisionLog.Takes(), x.g.cfg.Attempts
	x.beginTrace(to)
}

// end releases everything: first the reservation, then the buffers. It runs on every path, also after a panic.
func (x *exchange) end() {
	x.giveUp()
	x.noteRecord()
	x.leave()
	x.g.Telemetry.Ended()
	if x.routed {
		x.rec.TotalMS = x.elapsed()
		x.g.Telemetry.Finished(&x.rec)
		x.reportChanging()
		x.logDecision()
		x.log()
	}
	x.endTransfer(nil) // after a panic
	x.endTrace()
	if x.body != nil {
		x.body.Release()
	}
	abort := x.abort
	x.w, x.r, x.body, x.routed, x.abort, x.reports = nil, nil, nil, false, false, false
	x.attempt.Writer, x.attempt.Header, x.attempt.Body, x.attempt.Set, x.attempt.ShownID = nil, nil, nil, nil, ""
	clear(x.doubts)
	clear(x.peers)
	x.doubts, x.otherModel, x.opinions = x.doubts[:0], false, 0
	x.holding, x.recovery, x.choice = holding{}, nil, nil
	x.prepared.reset()
	x.g.exchanges.Put(x)
	if abort {
		panic(http.ErrAbortHandler)
	}
}

// elapsed is the time since the request's head came, in milliseconds.
func (x *exchange) elapsed() float64 { return milliseconds(time.Since(x.rec.Time)) }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// giveUp releases the reservation of an attempt that was interrupted.
func (x *exchange) giveUp() {
	if x.decision != nil {
		x.decision.Done(fleet.OutcomeUnknown, time.Now().UnixNano())
		x.decision = nil // the decision is not recycled, because after a panic other goroutines may still refer to it
	}
}

func (x *exchange) serve() {
	body, err := x.g.Bodies.Read(x.w, x.r)
	if err != nil {
		x.refuse(err)
		return
	}
	x.body = body
	ctx := x.r.Context()
	if x.g.cfg.RequestTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, x.rec.Time.Add(x.g.cfg.RequestTimeout))
		defer cancel()
	}
	if x.dialect == api.OpenAIResponse {
		x.follow(ctx)
		return
	}
	p := &x.prepared
	err = x.g.prepare(ctx, p, x.dialect, x.path, body.Bytes, x.r.Header)
	fell := err != nil && x.fallBack(ctx, x.fallsBack(err, nil))
	if err != nil && !fell {
		x.noteHeld()
		x.noWorker(err)
		return
	}
	x.noteModel()
	x.noteHeld()
	x.rec.Stream = p.read.Stream
	if p.choice.passed > 0 && !fell {
		x.g.Telemetry.FellBack(p.choice.target, p.read.Model, fellUnavailable)
	}
	x.rec.UsageUnasked = p.read.Stream && !p.read.IncludeUsage
	x.rec.SessionSource, x.rec.Tenant = p.route.Session.Source, p.route.Tenant
	x.rec.TokenSource, x.rec.PromptTokens = string(p.found.Outcome), len(p.found.Tokens)
	x.rec.TokensMissing = string(p.found.Missing)
	x.rec.TokensMS = milliseconds(p.waited)
	x.g.Telemetry.Tokens(x.rec.TokenSource, x.rec.TokensMissing, p.waited, x.rec.TraceID)
	if err := x.admit(); err != nil {
		x.refuse(err)
		return
	}
	x.forward(ctx)
}

// forward tries one worker after another. It stops when a worker answers well, when the attempts are used up, when no
// untried worker is left, when another worker's answer would be no better, or when ctx has ended.
func (x *exchange) forward(ctx context.Context) {
	var last proxy.Result
	for {
		d, err := x.route(ctx)
		if err != nil {
			x.returnOpinion()
			if x.loadElsewhere(ctx, err) {
				continue
			}
			if x.fallBack(ctx, x.fallsBack(err, &last)) {
				continue
			}
			if r := x.recovery; r != nil && r.again != none {
				x.endBroken(&last, reasonNoWorker)
				x.settle(ctx, &last)
				return
			}
			if x.rec.Attempts > 0 {
				// The client gets the result of an attempt, which tells it more than an error without a worker.
				if held := (*api.Error)(nil); !x.holdUntil.IsZero() && errors.As(err, &held) {
					last = proxy.Result{Class: last.Class, Err: held}
				}
				x.settle(ctx, &last)
				return
			}
			x.noWorker(err)
			return
		}
		divided := d.Prefill != nil
		result, about := x.try(ctx, d)
		holder, worker := about.holder, about.worker
		again := x.weigh(holder, worker, &result)
		x.noteMissing(worker, &result)
		if more, ended := x.recover(ctx, worker, &result); more {
			x.prepared.route.Undivided = policy.BypassContinued
			last = result
			continue
		} else if ended {
			x.settle(ctx, &result)
			return
		}
		last = *better(&last, &result)
		if result.Untaken {
			x.unreachable(worker, errors.Is(result.Err, syscall.ECONNREFUSED))
		}
		spent := x.rec.Attempts >= x.most
		fell := again && spent && x.fallBack(ctx, failedBy(&result))
		if !again || ctx.Err() != nil || spent && !fell && !x.mayBeHeld(worker) {
			x.settle(ctx, &last)
			return
		}
		x.g.Telemetry.Retried(worker.URL, retryReason(&result))
		x.rec.Failed = append(x.rec.Failed, worker.URL+": "+redacted(describe(&result, worker.URL), x.r))
		if fell {
			continue
		}
		if divided && x.afterLegs(about, &result) {
			continue
		}
		x.prepared.route.Exclude = append(x.prepared.route.Exclude, worker.ID)
	}
}

// describe returns the reason why an attempt at a worker failed, in two parts: the label as in warmpath_retries_total,
// and the cause.
func describe(r *proxy.Result, worker string) string {
	if r.Err != nil {
		return retryReason(r) + ": " + strings.TrimPrefix(api.CauseOf(r.Err).Error(), worker+" ")
	}
	return fmt.Sprintf("%s: answered %d", retryReason(r), r.Status)
}

// route lets the router choose a worker. While no worker can take the request, the request is held.
func (x *exchange) route(ctx context.Context) (*warmpath.Decision, error) {
	why := warmpath.ErrNoWorker
	if h := x.g.hold; !h.behind(x) {
		d, err := x.choose(ctx)
		if err == nil || !h.takes(x, err) {
			return d, err
		}
		why = err
	}
	return x.g.hold.wait(ctx, x, why)
}

// choose lets the router choose a worker. If all workers are saturated, the request waits in the queue first.
func (x *exchange) choose(ctx context.Context) (*warmpath.Decision, error) {
	w := x.g.waiting
	if !w.on() {
		return x.decide(ctx)
	}
	pool, ok := x.g.Fleet.Snapshot().Pool(x.prepared.route.Model)
	if !ok || !w.mustWait(&x.prepared.route, pool) {
		d, err := x.decide(ctx)
		if !ok || !errors.Is(err, warmpath.ErrSaturated) {
			return d, err
		}
	}
	x.g.hold.queues(x)
	return w.wait(ctx, x, pool)
}

// decide lets the router choose, and asks the shadow policy first.
func (x *exchange) decide(ctx context.Context) (*warmpath.Decision, error) {
	began := time.Now()
	q := &x.prepared.route
	q.Now, q.Random, q.Arrived = began.UnixNano(), rand.Uint64(), x.rec.Time.UnixNano()
	var would opinion
	if x.prepared.shadow != nil {
		would = x.prepared.shadow.ask(ctx, &x.prepared)
		began = time.Now()
	}
	span := x.span.Part("decide")
	d, err := x.routeWatched(ctx)
	traceDecision(span, d, err)
	x.rec.RouteMS += float64(time.Since(began).Nanoseconds()) / 1e6
	if x.prepared.shadow != nil && err == nil {
		x.prepared.shadow = nil // a request is compared only once, also when it is retried
		x.compareShadow(&would, d)
	}
	return d, err
}

// routeWatched routes the request. Telemetry.Deciding records when the decision began: if a decision does not end
// within telemetry.StallAfter, the router counts as stalled. A defer removes the record, so it is also removed after a
// panic.
func (x *exchange) routeWatched(ctx context.Context) (*warmpath.Decision, error) {
	slot := x.g.Telemetry.Deciding.Begin(x.prepared.route.Now)
	defer x.g.Telemetry.Deciding.End(slot)
	return x.prepared.decisions.Route(ctx)
}

// try sends the request to the decision's worker, or to both workers. It returns the worker that the result is about.
// It releases the reservation before it returns.
func (x *exchange) try(ctx context.Context, d *warmpath.Decision) (result proxy.Result, about blame) {
	x.decision, x.routed, x.granted, x.judged = d, true, false, false
	x.output, x.lastToken, x.at = 0, time.Time{}, d.Worker
	x.begun.Store(false)
	if x.rec.Attempts++; x.rec.Attempts == 1 {
		if len(x.prepared.found.Tokens) > 0 {
			x.g.Tokens.Matched(x.prepared.model, d.PredictedTokens > 0)
		}
		x.g.opinions.earn()
		x.g.rescues.earn()
	}
	x.rec.Policy, x.rec.Branch, x.rec.Reason = d.Policy, string(d.Branch), d.Reason
	x.g.Telemetry.Decided(d.Policy, string(d.Branch))
	x.rec.Worker, x.rec.Rank, x.rec.Trust = d.Worker.URL, d.Rank, d.Trust.String()
	x.rec.MatchTokens, x.rec.PredictedTokens, x.rec.AtRiskTokens = d.MatchTokens, d.PredictedTokens, d.AtRiskTokens
	if !d.FromText {
		x.rec.SetPrefix(d.Keys(), d.BlockSize)
	}
	x.rec.ChangingLine = changingLine(&x.prepared, d.Worker)
	x.recordDivision(d)
	if x.logged {
		x.choice = x.g.choiceOf(d, &x.prepared)
	}
	if x.g.cfg.Headers {
		x.showDecision(d)
	}
	a := &x.attempt
	a.Worker, a.Method, a.Path, a.Header, a.Body = d.Worker.URL, http.MethodPost, x.r.URL.RequestURI(), x.r.Header, x.outgoing(d.Worker)
	a.RequestID, a.Dialect, a.Writer, a.Model = x.rec.RequestID, x.dialect, x.w, x.prepared.read.Model
	a.HTTP2 = x.r.ProtoMajor == 2
	a.Unchecked = x.dialect.Unchecked() || x.prepared.read.Bytes
	a.Whole, a.HoldStart, a.EditEvents = !x.prepared.read.Stream && !a.Unchecked, false, nil
	a.Set = x.set[:0]
	if d.Pinned && !x.prepared.rankChosen {
		a.Set = append(a.Set, proxy.Field{Name: headerRank, Value: strconv.Itoa(d.Rank)})
	}
	if q := &x.prepared.route; q.Salt != "" || q.Extra != "" {
		x.g.Scoped(d.Worker.URL, d.Rank, q.Salt, q.Extra)
	}
	if d.Prefill != nil {
		x.prefiller = d.Prefill.Worker.ID
		result, about = x.serveLegs(ctx, d)
	} else {
		x.attempt.Body = x.fetching(x.attempt.Body, &d.Record)
		span := x.callWorker(d.Worker.URL, d.Worker.Facts.Engine.String())
		result, about = x.send(ctx, d), blame{d.Holder, d.Worker}
		x.endCall(span, &result)
	}
	x.decision, x.at = nil, nil
	now := time.Now().UnixNano()
	// An answer without a token count says nothing about the time of a pass.
	if result.Class == proxy.Success && result.Usage.Seen && result.Usage.Completion > 0 {
		d.Tokens(result.Usage.Completion, now)
	}
	here := about.worker.ID == d.Worker.ID
	if !here || result.Sent.IsZero() || notComputed(result.Status) {
		d.Unsent()
	}
	o := fleet.OutcomeUnknown
	if here {
		o = outcome(&result)
	}
	d.Done(o, now)
	if here && result.Class == proxy.Refused && errors.Is(result.Err, syscall.ECONNREFUSED) {
		x.g.Fleet.Refused(d.Worker.ID) // the worker's process has ended: another process gives the next answer
	}
	x.g.waiting.charge(d.Base, x.prepared.route.Tenant, d.Output())
	x.g.waiting.freed()
	x.g.hold.changed()
	if result.Class == proxy.Success {
		x.learnReporting(d.Worker, &result.Usage)
	}
	d.Recycle()
	return result, about
}

// ask forwards the attempt. Meanwhile x is on the roster of its worker, so that rescue can end the attempt.
func (x *exchange) ask(ctx context.Context, here *roster) proxy.Result {
	here.enter(x)
	defer here.leave(x)
	return x.g.Client.Forward(ctx, &x.attempt)
}

// outgoing returns the body for w: the client's own, or the same request with token ids in place of its text. It uses
// token ids only if the engine then gives the same answer.
func (x *exchange) outgoing(w *fleet.Worker) []byte {
	p := &x.prepared
	if w.Facts.Engine != fleet.EngineVLLM && w.Facts.Engine != fleet.EngineSGLang {
		return p.body // other engines may not accept token ids in a chat request
	}
	ids, ok := x.g.Tokens.AppendForwarded(x.ids[:0], &tokens.Forward{Request: &p.read, Model: p.model, Found: &p.found, To: tokens.WorkerOf(w, p.model)})
	if !ok {
		return p.body
	}
	if cap(ids) <= keptIDs {
		x.ids = ids
	}
	return ids
}

// keptIDs and keptText are the largest scratch buffers that a pooled exchange keeps, in bytes. They have room for about
// 20,000 ids, and for the text of about 30,000 tokens.
const (
	keptIDs  = 128 << 10
	keptText = 128 << 10
)

func (x *exchange) showDecision(d *warmpath.Decision) {
	h := x.w.Header()
	h.Set(headerWorker, d.Worker.URL)
	h.Del(headerPrefill) // of an earlier attempt
	if d.Prefill != nil {
		h.Set(headerPrefill, d.Prefill.Worker.URL)
	}
	h.Set(headerMatch, strconv.Itoa(x.rec.MatchTokens))
	h.Set(headerPolicy, d.Policy)
	h.Set(headerTrust, x.rec.Trust)
}

// notComputed reports whether a worker's answer with this status shows that the worker computed nothing of the prompt.
// Engines check a request before they compute it, and give these statuses then. A 408, a 500, a 502 or a 504 may also
// come after a part of the prompt was computed.
func notComputed(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
		http.StatusServiceUnavailable:
		return true
	}
	return false
}

// outcome returns what the end of one attempt shows about the worker by itself. After outcome, weigh compares the
// attempt with other workers' answers.
func outcome(r *proxy.Result) fleet.Outcome {
	switch verdictOf(r) {
	case failed:
		return fleet.OutcomeFailed
	case refused, limited:
		return fleet.OutcomeServed // the worker is alive
	case good:
		if r.Class == proxy.Success || r.Class == proxy.Rejected {
			return fleet.OutcomeServed
		}
	}
	return fleet.OutcomeUnknown
}

func (x *exchange) firstToken(at time.Time) {
	x.begun.Store(true)
	x.endTransfer(nil)
	if d := x.decision; d != nil {
		d.FirstToken(at.UnixNano())
		if len(x.doubts) > 0 {
			x.believe(d.Holder, d.Worker, at.UnixNano())
		}
	}
	x.g.waiting.freed() // the prompt is computed, so the worker may have room for another request
	if r := x.recovery; r == nil || r.first.IsZero() {
		x.rec.FirstTokenMS = milliseconds(at.Sub(x.rec.Time))
	}
}

// tokens reports the length of the answer so far to the router. This report is also the request's sign of life.
func (x *exchange) tokens(n int, at time.Time) {
	x.output, x.lastToken = n, at
	if x.recovery != nil {
		x.output += x.recovery.base
	}
	if x.decision != nil {
		x.decision.Tokens(n, at.UnixNano())
	}
}

// alive notes a sign of life of the worker that is no token. Otherwise a busy worker that sends only comments or empty
// events for a while would seem to be frozen, and its streams would be taken away.
func (x *exchange) alive(at time.Time) {
	if x.decision != nil {
		x.decision.Tokens(0, at.UnixNano())
	}
}

// settle ends the request with the result r of one of its attempts. It answers the client if nothing was written yet,
// and records the result.
func (x *exchange) settle(ctx context.Context, r *proxy.Result) {
	x.giveUpDoubts()
	x.used(r)
	x.rec.Status, x.rec.Finish = r.Status, r.Class.String()
	x.abort = r.Abort
	if u := &r.Usage; u.Seen {
		output := u.Completion
		x.rec.OutputTokens = &output
		x.compare(u)
	}
	x.countLevels(r)
	if r.Err != nil {
		x.rec.Error = redacted(api.CauseOf(r.Err).Error(), x.r)
	}
	timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case r.Class == proxy.ClientGone && !timedOut:
		x.rec.Status, x.abort = statusClientGone, true // the client may still read: see noWorker
	case r.FirstByte:
		if timedOut && r.Class != proxy.Success { // the time may have run out after the last byte
			x.rec.Error, x.abort = "request timeout", true
		}
	case timedOut:
		x.fail(api.WorkerTimeout(ctx.Err()))
	case r.Answer != nil:
		x.rec.Status = r.Answer.Status
		r.Answer.WriteTo(x.w)
	case r.Err != nil:
		x.fail(r.Err)
	}
}

// learnReporting finds out whether a worker reports cached tokens. Some engines leave out a count of zero (SGLang, and
// vLLM before 0.24). So a missing count means zero only for a worker that reported cached tokens before, or when a
// probe of the worker showed that it reports cached tokens.
func (x *exchange) learnReporting(w *fleet.Worker, u *api.Usage) {
	_, reported := x.g.reporting.Load(w.ID)
	if u.HasCached && !reported {
		x.g.reporting.Store(w.ID, struct{}{})
	}
	x.reports = reported || u.HasCached || w.Facts.ReportsCachedTokens
}

// compare records the difference between the predicted and the reported number of cached tokens. If the engine calls
// tools itself, it reports the sum over several prompts.
func (x *exchange) compare(u *api.Usage) {
	if !x.reports || x.prepared.toolCalls {
		return
	}
	reported, difference := u.Cached, x.rec.Claimed()-u.Cached
	x.rec.ReportedTokens = &reported
	if x.rec.PromptTokens > 0 {
		x.rec.Difference = &difference
	}
}

// name puts the request's id into the header of an answer that the gateway itself makes. The proxy puts it into a
// worker's answer.
func (x *exchange) name() { x.w.Header()[headerRequestID] = []string{x.rec.RequestID} }

func (x *exchange) fail(err error) {
	x.rec.Status = api.AsError(err).Status
	x.name()
	api.WriteError(x.w, x.dialect, err)
}

func (x *exchange) log() {
	if x.rec.Error != "" && x.rec.Status != statusClientGone {
		about := []any{"id", x.rec.ID, "request_id", x.rec.RequestID, "worker", x.rec.Worker,
			"status", x.rec.Status, "attempts", x.rec.Attempts, "error", x.rec.Error}
		if x.rec.Unrecovered != "" { // docs/operate.md explains these words in "Streams that lose their worker"
			about = append(about, "not_continued", x.rec.Unrecovered)
		}
		x.g.Log.Warn("request failed", about...)
		return
	}
	if !x.g.Log.Enabled(context.Background(), slog.LevelDebug) {
		return // so that the arguments of Debug are not allocated
	}
	x.g.Log.Debug("request", "id", x.rec.ID, "worker", x.rec.Worker, "rank", x.rec.Rank, "status", x.rec.Status,
		"branch", x.rec.Branch, "match", x.rec.MatchTokens, "prompt", x.rec.PromptTokens, "ms", x.rec.TotalMS)
}
