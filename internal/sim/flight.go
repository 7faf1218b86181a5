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

// flight is a request of the workload from its arrival to its end. Flights are recycled. A divided request is first at
// the rank of its prefill leg, then at the rank of its decode leg.
type flight struct {
	id       int
	req      *workload.Request
	engine   engine.Request // at the rank that generates the answer
	prefill  engine.Request // at the rank of the prefill leg
	held     engine.Request // holds the blocks that the flight fetches from another rank
	hashed   cursor         // end of the content whose block hashes are already computed
	decision *warmpath.Decision
	router   int
	leg      fleet.Leg // the leg that is under way
	rank     *rank     // rank to which the router sent the leg; nil: none
	source   *rank     // rank from which the leg gets KV blocks; nil: none
	place    int       // index of the flight in rank.live

	arrival, started, first, last time.Duration // started is -1 until an engine starts the request
	predicted                     int
	cached, loaded                int // prompt tokens that the engine (of the prefill leg) found in caches
	fetched                       int // prompt tokens that were fetched from another rank
	reported                      int // number of answer tokens that were reported to the router
	tries                         int
	leases                        uint32 // number of prefill legs whose blocks were read or given up; see expire
	undivided                     bool   // a transfer failed: one worker serves the request
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
	*f = flight{id: id, req: &w.requests[id], engine: f.engine, prefill: f.prefill, held: f.held, arrival: w.now, started: -1, leases: f.leases + 1, exclude: f.exclude[:0]}
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
	if f.undivided {
		req.Undivided = policy.BypassOneWorker
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
	f.prefill.Recycle()
	f.held.Recycle()
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

// prepare returns f's request in the form from which the router decides. The result is valid until the next call of
// ask.
func (w *world) prepare(f *flight) *warmpath.Prepared {
	req, router := w.ask(f), w.main.views[f.router].router
	if d := w.cfg.Disaggregation; d != nil && d.Rule.Name != "" {
		d.Rule.obey(&req, router)
	}
	return router.Prepare(&req)
}

// place asks the router for a worker and sends the request there. It returns false when all workers are saturated.
func (w *world) place(f *flight, asked *warmpath.Prepared) bool {
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
	first := &d.Record
	if f.leg = fleet.LegWhole; d.Prefill != nil {
		f.leg, first = fleet.LegPrefill, d.Prefill
	}
	if d.Division.Considered {
		w.rec.Divided(string(d.Division.Bypass))
	}
	f.rank, f.source = w.main.rank(w, first.Holder), w.sourceOf(first)
	f.predicted = first.PredictedTokens + first.Fetched
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
	q := f.current()
	q.Recycle()
	q.Prompt, q.Output = w.sequence(f)
	q.Owner = f
	q.Scope.LoRA = f.req.LoRA
	switch {
	case f.leg == fleet.LegDecode:
		q.Received, q.Await = len(q.Prompt), true
	case f.source != nil:
		q.Received, q.Await = f.predicted, true
	}
	if f.leg == fleet.LegPrefill {
		q.Output, q.Pin = q.Output[:1], true
	}
	if err := r.engine.Submit(q); err != nil {
		// The engine answers 400. The prompt is the cause, so the worker counts as healthy.
		w.freed = true
		w.finishDecision(f, fleet.OutcomeServed)
		if f.leg == fleet.LegDecode {
			w.let(f.source, &f.prefill)
		}
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
	if first {
		f.decision.FirstToken(epoch + int64(w.now))
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

// current returns the engine's request of the leg that is under way.
func (f *flight) current() *engine.Request {
	if f.leg == fleet.LegPrefill {
		return &f.prefill
	}
	return &f.engine
}

// sourceOf returns the rank from which the worker of a leg fetches blocks, or nil.
func (w *world) sourceOf(leg *warmpath.Record) *rank {
	if leg.Fetched == 0 || leg.Source == nil {
		return nil
	}
	return w.ranks[w.main.workers[leg.Source.ID].first]
}

// finish ends a request.
func (w *world) finish(f *flight) {
	f.rank.remove(f)
	if f.leg == fleet.LegWhole {
		f.cached, f.loaded = f.engine.Cached, f.engine.Loaded
	}
	prefill := 0
	if f.leg == fleet.LegDecode {
		prefill = f.source.index + 1
	}
	w.rec.Finish(&report.Answer{
		Request: f.id, Worker: f.rank.index, Prefill: prefill, Arrival: f.arrival, Started: f.started, First: f.first + w.cfg.Hop, End: f.last + w.cfg.Hop,
		Prompt: f.req.Input, Cached: f.cached, Loaded: f.loaded, Predicted: f.predicted, Output: f.req.Output,
	})
	w.finishDecision(f, fleet.OutcomeServed)
	router := f.router
	w.release(f)
	w.admitHeld(router)
}

// prefilled ends the prefill leg of a divided request. The prefill engine keeps the blocks of the prompt, and answers
// the router.
func (w *world) prefilled(f *flight) {
	f.rank.remove(f)
	f.cached, f.loaded = f.prefill.Cached, f.prefill.Loaded
	if w.cfg.Hop > 0 {
		w.agenda.plan(moment{at: w.now + w.cfg.Hop, kind: atPrefilled, with: f})
		return
	}
	w.handOver(f)
}

// handOver sends a divided request from the router to its decode worker, after the answer of the prefill worker.
func (w *world) handOver(f *flight) {
	d := f.decision
	d.PrefillDone(fleet.OutcomeServed, epoch+int64(w.now))
	w.freed = true
	f.leg, f.source, f.rank = fleet.LegDecode, f.rank, w.main.rank(w, d.Holder)
	w.agenda.plan(moment{at: w.now + lease, kind: atLease, gen: f.leases, with: f})
	if w.cfg.Hop > 0 {
		w.agenda.plan(moment{at: w.now + w.cfg.Hop, kind: atDispatch, with: f})
		return
	}
	w.receive(f)
}
