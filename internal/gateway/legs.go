package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/connector"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// prefillGrace is how long a prefill leg may go on after the whole answer of the decode leg came. Usually it has
// ended long before. A leg that has not counts as a failed transfer: a worker that never ends its legs would delay each
// answer by this time.
const prefillGrace = 2 * time.Second

// legs is one attempt to serve a divided request at two workers. It belongs to the request's goroutine. If both legs
// are sent together, a second goroutine writes first and broke: see together.
type legs struct {
	x         *exchange
	d         *warmpath.Decision
	connector *connector.Connector
	pair      connector.Pair
	answer    capture   // of the prefill leg
	usage     api.Usage // of the prefill leg
	whole     *wholeAnswer

	// Used if both legs are sent together:
	attempt proxy.Attempt // the prefill leg
	first   proxy.Result  // the result of the prefill leg; valid after its goroutine has ended
	at      time.Time     // when the prefill leg ended; valid after its goroutine has ended
	broke   atomic.Bool   // the prefill leg failed while the decode leg was under way
}

// blame is the worker that the result of an attempt is about.
type blame struct {
	holder fleet.Holder
	worker *fleet.Worker
}

// newLegs returns the legs of a decision for a divided request. An error means that the workers lack a fact that the
// connector needs.
func (x *exchange) newLegs(d *warmpath.Decision) (*legs, error) {
	first := d.Prefill
	c, known := connector.Find(first.Worker.Facts.Transfer.Connector)
	if !known {
		return nil, fmt.Errorf("%s: this router knows no KV connector %q", first.Worker.URL, first.Worker.Facts.Transfer.Connector)
	}
	p := &x.prepared.read
	l := &legs{x: x, d: d, connector: c, pair: connector.Pair{
		RequestID: x.rec.RequestID, Room: rand.Uint64() >> 1, Prefill: endOf(first), Decode: endOf(&d.Record),
		Batch: max(p.Prompts, 1), Chat: x.dialect == api.OpenAIChat, Stream: p.Stream,
	}}
	if x.rec.Attempts > 1 {
		// Engines that push blocks find them by the request's id. The new id keeps this attempt from using blocks that
		// an earlier attempt left at an engine.
		l.pair.RequestID += "-" + strconv.Itoa(x.rec.Attempts)
		x.attempt.RequestID, x.attempt.ShownID = l.pair.RequestID, x.rec.RequestID
	}
	return l, c.Ready(&l.pair)
}

func endOf(r *warmpath.Record) connector.End { return endAt(r.Worker, r.Rank) }

// endAt returns a rank of a worker as connectors see it.
func endAt(w *fleet.Worker, rank int) connector.End {
	return connector.End{URL: w.URL, Rank: rank, Ranks: len(w.Holders), FirstRank: w.Facts.FirstRank, Transfer: w.Facts.Transfer}
}

// serveLegs serves a divided request. Before the call, the attempt of x is prepared for a whole request at the decode
// worker. It returns the result for the client, and the worker that the result is about.
func (x *exchange) serveLegs(ctx context.Context, d *warmpath.Decision) (proxy.Result, blame) {
	decode, prefill := blame{d.Holder, d.Worker}, blame{d.Prefill.Holder, d.Prefill.Worker}
	l, err := x.newLegs(d)
	if err != nil {
		return unable(err), decode
	}
	if l.connector.Together() {
		return l.together(ctx, prefill, decode)
	}
	if result := l.prefill(ctx); result.Class != proxy.Success {
		return result, prefill
	}
	body, err := l.connector.AppendDecode(nil, x.attempt.Body, &l.pair, l.answer.body)
	if err != nil {
		x.g.Telemetry.LegFailed(fleet.LegPrefill.String(), telemetry.PhasePrefill)
		return proxy.Result{Class: proxy.Useless, Retryable: true, Sent: time.Now(), Err: api.WorkerUseless(fmt.Errorf("%s: %w", prefill.worker.URL, err))}, prefill
	}
	x.attempt.Body = body
	result := l.decode(ctx)
	l.release(&result)
	return result, decode
}

// release gives the client an answer in one piece that was held back until both legs ended.
func (l *legs) release(result *proxy.Result) {
	if l.whole != nil {
		l.whole.end(result, l.trimmed)
	}
}

// unable returns the result of an attempt that cannot be sent as it was decided. The next attempt is at one worker.
func unable(err error) proxy.Result {
	return proxy.Result{Class: proxy.BadAttempt, Retryable: true, Err: api.Internal(err)}
}

// prefill sends the prefill leg, and waits for its answer.
func (l *legs) prefill(ctx context.Context) proxy.Result {
	body, err := l.prefillBody()
	if err != nil {
		return unable(err)
	}
	began := time.Now()
	result, sent := l.prefillTurn(ctx, body)
	if !sent {
		result = l.sendPrefill(ctx, body)
	}
	at := time.Now()
	l.free(&result, at)
	l.ended(&result, began, at)
	return result
}

// sendPrefill sends the prefill leg with this body once. The attempt of x is used for it, so that the leg can be moved
// if its worker freezes, and is restored afterwards.
func (l *legs) sendPrefill(ctx context.Context, own []byte) proxy.Result {
	x, a := l.x, &l.x.attempt
	url, body, writer, knows, whole, set := a.Worker, a.Body, a.Writer, a.Knows, a.Whole, a.Set
	onFirst, onTokens, onAlive, onID := a.OnFirstToken, a.OnTokens, a.OnAlive, a.OnID
	a.Worker, a.Body, a.Writer, a.Knows, a.Whole, a.Set = l.pair.Prefill.URL, own, &l.answer, nil, true, l.prefillFields()
	a.OnFirstToken, a.OnTokens, a.OnAlive, a.OnID = nil, nil, nil, nil
	span := x.callWorker(a.Worker, l.d.Prefill.Worker.Facts.Engine.String())
	x.at = l.d.Prefill.Worker
	limit := l.limit(fleet.LegPrefill, time.Now())
	result := x.ask(ctx, x.g.roster(x.at.ID))
	limit.end(&result)
	x.at = l.d.Worker
	x.endCall(span, &result)
	a.Worker, a.Body, a.Writer, a.Knows, a.Whole, a.Set = url, body, writer, knows, whole, set
	a.OnFirstToken, a.OnTokens, a.OnAlive, a.OnID = onFirst, onTokens, onAlive, onID
	return result
}

// prefillBody returns the body of the prefill leg.
func (l *legs) prefillBody() ([]byte, error) {
	body, err := l.connector.AppendPrefill(nil, l.x.outgoing(l.d.Prefill.Worker), &l.pair)
	if err != nil {
		return nil, err
	}
	return l.x.fetching(body, l.d.Prefill), nil
}

// fetching returns body with the fields by which the worker of r reads KV blocks of another worker, if the decision
// says so. If the connector cannot write them, the worker computes the whole prompt.
func (x *exchange) fetching(body []byte, r *warmpath.Record) []byte {
	if r.Fetched == 0 || r.Source == nil {
		return body
	}
	c, known := connector.Find(r.Source.Facts.Transfer.Connector)
	if !known {
		return body
	}
	edited, err := c.AppendFetch(nil, body, &connector.Pair{
		RequestID: x.rec.RequestID, Room: rand.Uint64() >> 1, Prefill: endAt(r.Source, r.SourceRank), Decode: endOf(r), Batch: 1, Chat: x.dialect == api.OpenAIChat,
	}, nil)
	if err != nil {
		return body
	}
	x.rec.FetchedTokens, x.rec.FetchedFrom = r.Fetched, r.Source.URL
	x.g.Telemetry.Fetched(r.Fetched)
	return edited
}

// prefillFields returns the header fields that the prefill leg has in place of the client's.
func (l *legs) prefillFields() []proxy.Field {
	var set []proxy.Field
	if l.d.Prefill.Pinned {
		set = append(set, proxy.Field{Name: headerRank, Value: strconv.Itoa(l.d.Prefill.Rank)})
	}
	return set
}

// free reports to the router that the prefill leg has ended, so that its load is gone. The client has got nothing of
// this leg: all its bytes are in l.answer. free may be called from another goroutine than the request's.
func (l *legs) free(result *proxy.Result, at time.Time) {
	result.FirstByte, result.Abort = false, false
	if l.answer.over {
		result.Class, result.Retryable = proxy.Useless, true
		result.Err = api.WorkerUseless(fmt.Errorf("%s answered a prefill leg with more than %d bytes", l.pair.Prefill.URL, maxPrefillAnswer))
	}
	o := outcome(result)
	if result.Class == proxy.Success {
		o = fleet.OutcomeServed
	}
	if result.Sent.IsZero() || notComputed(result.Status) {
		l.d.PrefillUnsent()
	}
	l.d.PrefillDone(o, at.UnixNano())
	l.x.g.waiting.freed()
}

// ended records how the prefill leg ended at the time at. free was called before.
func (l *legs) ended(result *proxy.Result, began, at time.Time) {
	x := l.x
	if result.Class == proxy.Success {
		x.observeScopes(l.d.Prefill.Holder, fleet.OutcomeServed, good, at.UnixNano())
		x.g.roster(l.d.Prefill.Worker.ID).prefilled.Store(at.UnixNano())
		x.g.Telemetry.Leg(fleet.LegPrefill.String(), at.Sub(began))
		x.rec.PrefillMS = milliseconds(at.Sub(began))
		l.usage = result.Usage
	} else if result.Class != proxy.ClientGone {
		x.g.Telemetry.LegFailed(fleet.LegPrefill.String(), telemetry.PhasePrefill)
	}
	if result.Class == proxy.Refused && errors.Is(result.Err, syscall.ECONNREFUSED) {
		x.g.Fleet.Refused(l.d.Prefill.Worker.ID)
	}
}

// decode sends the decode leg, whose body is in the attempt of x. If nothing comes in time, the transfer is given up:
// see transferLimit.
func (l *legs) decode(ctx context.Context) proxy.Result {
	x := l.x
	// An engine may begin a stream before it knows whether the blocks came: vLLM 0.32.0 sends the role and the ids of
	// the prompt, and then the error.
	x.attempt.HoldStart, x.attempt.EditEvents = l.pair.Stream, withoutTransfer
	if !l.pair.Stream {
		l.whole = &wholeAnswer{w: x.attempt.Writer}
		x.attempt.Writer = l.whole
	}
	span := x.callWorker(x.attempt.Worker, l.d.Worker.Facts.Engine.String())
	began := time.Now()
	limit := l.limit(fleet.LegDecode, began)
	l.traceTransfer()
	result := x.send(ctx, l.d)
	limit.end(&result)
	x.endTransfer(&result)
	x.endCall(span, &result)
	l.decoded(ctx, &result, began)
	return result
}

// decoded records the end of the decode leg, and aborts what it left behind.
func (l *legs) decoded(ctx context.Context, result *proxy.Result, began time.Time) {
	x := l.x
	if result.Class == proxy.Success {
		if l.whole != nil && !l.whole.passed && l.connector.Keeps() {
			l.keepTurn(l.whole.body, time.Now())
		}
		if l.usage.HasCached {
			result.Usage.Cached, result.Usage.HasCached = l.usage.Cached, true
		}
		if !result.FirstTokenAt.IsZero() {
			x.g.Telemetry.Leg(fleet.LegDecode.String(), result.FirstTokenAt.Sub(began))
		}
		tokens, took, measured := l.d.Transfer()
		x.rec.TransferTokens = tokens
		if measured {
			x.rec.TransferMS = milliseconds(took)
		} else {
			took = -1
		}
		x.g.Telemetry.Transfer(tokens, tokens*l.d.Prefill.Worker.Facts.Transfer.TokenBytes, took)
		return
	}
	if ctx.Err() == nil && result.Class != proxy.ClientGone && verdictOf(result) != refused && !l.broke.Load() {
		phase := telemetry.PhaseDecode
		if !x.begun.Load() {
			phase = telemetry.PhaseTransfer
			if !errors.Is(result.Err, syscall.ECONNREFUSED) {
				l.transferFailed()
			}
		}
		x.g.Telemetry.LegFailed(fleet.LegDecode.String(), phase)
	}
	l.abort(ctx, fleet.LegDecode)
	l.abort(ctx, fleet.LegPrefill)
}

// transferFailed notes a transfer that failed. If the pair is left alone from now on, the log says so.
func (l *legs) transferFailed() {
	if alone := l.d.TransferFailed(time.Now().UnixNano()); alone > 0 {
		l.x.g.Log.Warn("several transfers between two workers failed in a row: the pair gets none for a while",
			"prefill", l.pair.Prefill.URL, "decode", l.pair.Decode.URL, "for", alone.String())
	}
}

// together sends both legs at once. If one fails, the other is ended.
func (l *legs) together(ctx context.Context, prefill, decode blame) (proxy.Result, blame) {
	x := l.x
	own, err := l.prefillBody()
	if err != nil {
		return unable(err), decode
	}
	body, err := l.connector.AppendDecode(nil, x.attempt.Body, &l.pair, nil)
	if err != nil {
		return unable(err), decode
	}
	x.attempt.Body = body
	// sent is closed when the prefill leg is written, and ended when its goroutine ends: then first and broke are set.
	sent, ended := make(chan struct{}), make(chan struct{})
	l.attempt.Worker, l.attempt.Method, l.attempt.Path, l.attempt.Header = l.pair.Prefill.URL, http.MethodPost, x.attempt.Path, x.attempt.Header
	l.attempt.Body, l.attempt.Writer, l.attempt.Dialect, l.attempt.RequestID = own, &l.answer, x.dialect, l.pair.RequestID
	l.attempt.Set, l.attempt.Unchecked, l.attempt.OnSent, l.attempt.ShownID = l.prefillFields(), true, sync.OnceFunc(func() { close(sent) }), x.rec.RequestID
	prefillCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	decodeCtx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	began := time.Now()
	go func() { // ends with the attempt, which prefillCtx ends; the select at the end of this function waits for it
		defer close(ended)
		l.first = x.g.Client.Forward(prefillCtx, &l.attempt)
		l.at = time.Now()
		l.free(&l.first, l.at)
		if l.first.Class != proxy.Success && prefillCtx.Err() == nil {
			l.broke.Store(true)
			giveUp() // the decode worker would wait for blocks that never come
		}
	}()
	// If the prefill leg never arrives, the decode engine may keep its blocks for minutes. So the decode leg is sent
	// only when the prefill worker has received its leg.
	select {
	case <-sent:
	case <-ended:
	case <-ctx.Done():
	}
	var result proxy.Result
	if !l.broke.Load() {
		result = l.decode(decodeCtx)
	}
	if result.Class != proxy.Success || !result.FirstByte {
		cancel()
	}
	select {
	case <-ended:
	case <-time.After(prefillGrace):
		cancel()
		if <-ended; l.first.Class != proxy.Success {
			l.transferFailed()
			l.first.Class, l.first.Err = proxy.HeaderTimeout, api.WorkerTimeout(fmt.Errorf("%s did not end a prefill leg whose answer was complete", l.pair.Prefill.URL))
		}
	}
	l.ended(&l.first, began, l.at)
	if l.broke.Load() && (l.whole != nil || !result.FirstByte) {
		return l.first, prefill
	}
	l.release(&result)
	return result, decode
}
