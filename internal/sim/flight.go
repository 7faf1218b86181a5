package sim

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// model is the name of the served model for requests that name no model.
const model = "model"

// epoch is the Unix time at which runs begin, in nanoseconds. It is not 0, because the router takes 0 for "never".
const epoch = int64(1e18)

// flight is a request of the workload from its arrival to its end. Flights are recycled. With decode workers a flight
// has two parts: a prefill worker serves the prefill leg, then a decode worker serves the decode leg.
type flight struct {
	id       int
	req      *workload.Request
	engine   engine.Request
	hashed   cursor // end of the content whose block hashes are already computed
	decision *warmpath.Decision
	router   int
	rank     *rank // rank to which the router sent the request; nil: none
	place    int   // index of the flight in rank.live

	arrival, started, first, last time.Duration // started is -1 until an engine starts the request
	predicted                     int
	cached, loaded                int // prompt tokens that the engine (of the prefill leg) found in caches
	reported                      int // number of answer tokens that were reported to the router
	decoding                      bool
	tries                         int
	exclude                       []fleet.WorkerID
}

func (w *world) newFlight(id int) *flight {
	var f *flight
	if n := len(w.spareFlights); n > 0 {
		f = w.spareFlights[n-1]
		w.spareFlights = w.spareFlights[:n-1]
	} else {
		f = &flight{}
	}
	*f = flight{id: id, req: &w.requests[id], engine: f.engine, arrival: w.now, started: -1, exclude: f.exclude[:0]}
	return f
}

// prompt returns the tokens of f's prompt. The next call of prompt overwrites the returned slice.
func (w *world) prompt(f *flight) []block.Token {
	w.tokens = f.req.AppendTokens(w.tokens[:0])
	return w.tokens
}

// sequence returns the tokens that the engine gets: prompt and answer. If the engine hashes runs of content instead of
// tokens (w.runs), all requests share one slice of zero tokens, because making tens of thousands of tokens for each
// request would take long. In this case describe makes the tokens that KV events contain.
func (w *world) sequence(f *flight) (prompt, answer []block.Token) {
	if n := f.req.Input; w.runs {
		return w.blank[:n], w.blank[n : n+f.req.Output]
	}
	all := f.req.AppendTokens(make([]block.Token, 0, f.req.Input+f.req.Output))
	n := len(all)
	all = f.req.AppendOutput(all)
	return all[:n], all[n:]
}

// ask returns the request in the form that the router takes. It sets no MaxTokens, because a trace has only the true
// length of an answer. A policy that could read this length would predict better than with any real client. The router
// uses MaxTokens to refuse false counts of tokens, which modelled engines do not report, and as a bound of the lengths
// that it predicts.
func (w *world) ask(f *flight) warmpath.Request {
	req := warmpath.Request{
		Model: model, Tokens: w.prompt(f), Exclude: f.exclude,
		Now: epoch + int64(w.now), Random: w.random.Uint64(),
	}
	if f.req.Session >= 0 {
		req.Session = policy.Session{Key: strconv.Itoa(f.req.Session), Source: "workload"}
	}
	if w.cfg.Policy.NeedsText {
		w.text = appendText(w.text[:0], req.Tokens)
		req.Text = w.text
	}
	switch {
	case f.req.LoRA != "":
		req.Model = f.req.LoRA
	case f.req.Model != "":
		req.Model = f.req.Model
	}
	return req
}

// release ends a flight. The client notices the end when the last token has arrived at the client.
func (w *world) release(f *flight) {
	f.engine.Recycle()
	if end := f.last + w.cfg.Hop; f.last > 0 && end > w.now {
		w.agenda.plan(moment{at: end, kind: atEnd, a: int32(f.id)})
	} else {
		w.over(f.id)
	}
	w.spareFlights = append(w.spareFlights, f)
}

// arrive sends request id of the workload. If Config.InFlight requests are under way, the request waits at the client
// instead.
func (w *world) arrive(id int) {
	if w.cfg.InFlight > 0 && w.live >= w.cfg.InFlight {
		w.unsent = append(w.unsent, id)
		return
	}
	f := w.newFlight(id)
	w.live++
	w.rec.Arrive(id, w.now)
	w.askEngines()
	if w.cfg.Routers > 1 {
		f.router = w.random.IntN(w.cfg.Routers)
	}
	w.dispatch(f)
}

// dispatch sends a request to the worker that the router chooses. If all workers are saturated, the request waits in
// the router's queue. If the queue is full, the request is rejected.
func (w *world) dispatch(f *flight) {
	asked := w.prepare(f)
	defer asked.Recycle()
	if w.place(f, asked) || w.hold(f, asked) {
		return
	}
	w.rec.Reject(w.now)
	w.release(f)
}

// pool returns the workers for f's current leg.
func (w *world) pool(f *flight) *pool {
	if f.decoding {
		return &w.decode
	}
	return &w.main
}

// prepare returns f's request in the form from which the router decides. The result is valid until the next call of
// ask.
func (w *world) prepare(f *flight) *warmpath.Prepared {
	req := w.ask(f)
	return w.pool(f).views[f.router].router.Prepare(&req)
}

// place asks the router for a worker and sends the request there. It returns false when all workers are saturated.
func (w *world) place(f *flight, asked *warmpath.Prepared) bool {
	p := w.pool(f)
	d, err := asked.Route(context.Background())
	switch {
	case errors.Is(err, warmpath.ErrSaturated):
		return false
	case err != nil:
		w.rec.Fail(w.now)
		w.release(f)
		return true
	}
	f.decision = d
	f.rank = p.rank(w, d.Holder)
	f.predicted = d.PredictedTokens
	if w.cfg.Hop > 0 {
		w.agenda.plan(moment{at: w.now + w.cfg.Hop, kind: atDispatch, with: f})
		return true
	}
	w.receive(f)
	return true
}

// submit gives a routed request to its engine.
func (w *world) submit(f *flight) {
	r := f.rank
	if r.dead {
		w.retry(f)
		return
	}
	q := &f.engine
	q.Recycle()
	q.Prompt, q.Output = w.sequence(f)
	q.Owner = f
	q.Scope.LoRA = f.req.LoRA
	switch {
	case f.decoding:
		q.Received = len(q.Prompt)
	case len(w.decode.workers) > 0:
		q.Output = q.Output[:1]
	}
	if err := r.engine.Submit(q); err != nil {
		// The engine answers 400. The prompt is the cause, so the worker counts as healthy.
		w.freed = true
		w.finishDecision(f, fleet.OutcomeServed)
		w.rec.Reject(w.now)
		w.release(f)
		return
	}
	r.add(f)
	w.notify(r)
}

func (w *world) finishDecision(f *flight, o fleet.Outcome) {
	f.decision.Done(o, epoch+int64(w.now))
	f.decision.Recycle()
	f.decision = nil
}

// maxTries is the number of workers to which a request is sent before the request fails. It equals the gateway's
// default.
const maxTries = 3

// retry sends a request to another worker. The gateway also does this while no byte of the answer has arrived.
func (w *world) retry(f *flight) {
	f.exclude = append(f.exclude, f.decision.Worker.ID)
	w.finishDecision(f, fleet.OutcomeFailed)
	w.freed = true
	f.rank = nil
	if f.tries++; f.tries >= maxTries {
		w.rec.Fail(w.now)
		w.release(f)
		return
	}
	w.rec.Retry()
	w.dispatch(f)
}

// output counts a token. The token leaves the engine's API server at time at. The router learns of the token at time
// w.now.
func (w *world) output(f *flight, first bool, at time.Duration) {
	if first && !f.decoding {
		f.decision.FirstToken(epoch + int64(w.now))
	}
	if first && len(w.decode.workers) == 0 || first && f.decoding {
		f.first = at
	}
	f.last = at
	f.tell(1, w.now)
}

// tell reports n more tokens of the answer to the router.
func (f *flight) tell(n int, at time.Duration) {
	f.reported += n
	f.decision.Tokens(f.reported, epoch+int64(at))
}

// finish ends a request, or its prefill leg.
func (w *world) finish(f *flight) {
	f.rank.remove(f)
	if len(w.decode.workers) > 0 && !f.decoding {
		w.handOver(f)
		return
	}
	if !f.decoding {
		f.cached, f.loaded = f.engine.Cached, f.engine.Loaded
	}
	w.rec.Finish(&report.Answer{
		Request: f.id, Worker: f.rank.index, Arrival: f.arrival, Started: f.started, First: f.first + w.cfg.Hop, End: f.last + w.cfg.Hop,
		Prompt: f.req.Input, Cached: f.cached, Loaded: f.loaded, Predicted: f.predicted, Output: f.req.Output,
	})
	w.finishDecision(f, fleet.OutcomeServed)
	router := f.router
	w.release(f)
	w.admitHeld(router)
}

// handOver sends the KV blocks of a prefilled prompt to a decode worker. Blocks that the router knows in the decode
// worker's cache are not sent.
func (w *world) handOver(f *flight) {
	f.cached, f.loaded = f.engine.Cached, f.engine.Loaded
	prefillWorker := f.rank
	w.finishDecision(f, fleet.OutcomeServed)
	w.freed = true
	f.decoding, f.exclude = true, f.exclude[:0]
	g := prefillWorker.group
	// In this model transfers do not share a link, so transfers do not delay each other.
	predicted := f.predicted
	w.routeDecode(f)
	if f.rank == nil {
		return
	}
	tokens := max(f.req.Input-f.decision.MatchTokens, 0)
	took := time.Duration(float64(tokens) * g.Profile.KVBytes / max(g.Profile.HandoverGBs, 1e-3))
	f.predicted = predicted
	w.rec.Handover(tokens, took)
	w.agenda.plan(moment{at: w.now + took, kind: atHandover, with: f})
}

// routeDecode chooses the decode worker. If no decode worker is available, the request fails and f.rank is nil.
func (w *world) routeDecode(f *flight) {
	f.rank = nil
	req := w.ask(f)
	d, err := w.decode.views[f.router].router.Route(context.Background(), &req)
	if err != nil {
		w.rec.Fail(w.now)
		w.release(f)
		return
	}
	d.FirstToken(epoch + int64(w.now)) // the prompt is computed already, so the decode worker has no prefill work
	f.decision, f.rank = d, w.decode.rank(w, d.Holder)
}

// decodeLeg begins the decode leg when the KV blocks have arrived.
func (w *world) decodeLeg(f *flight) { w.submit(f) }
