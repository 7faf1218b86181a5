package loadgen

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// simulated bounds the number of rows that a fit plays through the engine model, because the fit plays all of them many
// times.
const simulated = 2000

// batchBudgets are the usual token budgets of engines. The fit uses the budget with which the modelled times are
// nearest to the measured times.
var batchBudgets = []int{512, 1024, 2048, 4096, 8192, 16384}

// FitMeasured returns base with timing, batch budget and sequence limit fitted to the requests that an engine served.
// It begins with a regression on the load during each request. Then it plays the requests through the engine model and
// improves the coefficients. FitMeasured assumes that no two prompts share a prefix.
func FitMeasured(rows []Measured, base engine.Profile) (engine.Profile, Quality, error) {
	if len(rows) < 10 {
		return base, Quality{}, fmt.Errorf("fit profile: %d measured requests, want 10 at least", len(rows))
	}
	rows = rows[:min(len(rows), simulated)]
	p := base
	if n := sequenceLimit(rows); n > 0 {
		p.MaxSequences = n
	}
	f := fitting{rows: rows}
	best := math.Inf(1)
	x := regress(rows)
	if b, ok := base.Timing.(engine.Linear); ok && x[2] == 0 && b.Token > 0 {
		// The prompts are too short to show the cost of attention, and with a coefficient of 0 long prompts would be too
		// cheap. So begin with base's ratio of Attention to Token.
		x[2] = x[1] * b.Attention / b.Token
	}
	for _, budget := range batchBudgets {
		trial := p
		trial.MaxBatchTokens, trial.Timing = budget, linear(x)
		if loss, _, err := f.loss(trial); err == nil && loss < best {
			best, p = loss, trial
		}
	}
	if math.IsInf(best, 1) {
		return base, Quality{}, errors.New("fit profile: the model cannot serve these requests: is the cache or the model length too small?")
	}
	p.Timing = linear(f.improve(p, x, best))
	_, q, err := f.loss(p)
	return p, q, err
}

func linear(x []float64) engine.Linear {
	return engine.Linear{Base: x[0], Token: x[1], Attention: x[2], Sequence: x[3], Context: x[4]}
}

// sequenceLimit returns the largest number of requests that ran when a request got its first token. It returns 0 if at
// that time no request waited that was scheduled more than a second later, because then the engine's limit was not
// reached.
func sequenceLimit(rows []Measured) int {
	most, waited := 0, false
	for i := range rows {
		running, waiting := 0, 0
		at := rows[i].First
		for j := range rows {
			switch {
			case rows[j].Scheduled <= at && at < rows[j].Last:
				running++
			case rows[j].Arrival < at && at < rows[j].Scheduled-1:
				waiting++
			}
		}
		if running > most {
			most, waited = running, false
		}
		waited = waited || running == most && waiting > 0
	}
	if !waited {
		return 0
	}
	return most
}

// regress fits coefficients so that the load during each request explains the request's prefill time and decode time.
func regress(rows []Measured) []float64 {
	var features [][]float64
	var want []float64
	add := func(from, to, passes float64) {
		if to-from < 1e-4 { // too short to measure
			return
		}
		b := beside(rows, from, to)
		features = append(features, []float64{passes, b.tokens, b.pairs / 2, passes * b.decodes, passes * b.context})
		want = append(want, 1000*(to-from))
	}
	for _, r := range rows {
		add(r.Scheduled, r.First, 1)
		if r.Output > 1 {
			add(r.First, r.Last, float64(r.Output-1))
		}
	}
	x := nonNegative(features, want)
	if x[0] <= 0 { // improve multiplies coefficients, so a base of 0 would stay 0
		x[0] = 1
	}
	return x
}

// company is the load in a time span: the mean number of decoding requests, the mean sum of their contexts, and the
// sums of prompt tokens and of squared prompt lengths. A prefill that is only partly in the span counts in part.
type company struct{ decodes, context, tokens, pairs float64 }

func beside(rows []Measured, from, to float64) company {
	var c company
	for i := range rows {
		r := &rows[i]
		if r.Scheduled > to { // no break: rows are ordered by Arrival, so a later row may have an earlier Scheduled
			continue
		}
		if o := min(r.First, to) - max(r.Scheduled, from); o > 0 {
			share := o / (r.First - r.Scheduled)
			c.tokens += share * float64(r.Input)
			c.pairs += share * float64(r.Input) * float64(r.Input)
		}
		if o := min(r.Last, to) - max(r.First, from); o > 0 {
			share := o / (to - from)
			middle := max(r.First, from) + o/2
			c.decodes += share
			c.context += share * (float64(r.Input) + float64(r.Output)*(middle-r.First)/(r.Last-r.First))
		}
	}
	return c
}

// fitting plays the measured requests through the engine model.
type fitting struct{ rows []Measured }

// improve changes one coefficient at a time, and keeps a change if it brings the modelled times nearer to the measured
// times. best is the loss at x.
func (f *fitting) improve(p engine.Profile, x []float64, best float64) []float64 {
	x = append([]float64(nil), x...)
	for _, step := range []float64{1.3, 1.1, 1.03} {
		for range 3 {
			better := false
			for i := range x {
				for _, factor := range []float64{step, 1 / step} {
					old := x[i]
					x[i] *= factor
					p.Timing = linear(x)
					loss, _, err := f.loss(p)
					if err == nil && loss < best*(1-1e-4) {
						best, better = loss, true
						break
					}
					x[i] = old
				}
			}
			if !better {
				break
			}
		}
	}
	return x
}

// shortest is a lower bound: shorter times to the first token count as this time, because the client itself takes most
// of such a time.
const shortest = 20 // milliseconds

// loss plays the requests with profile p, and returns how far the modelled times are from the measured times. The time
// to the first token and the time between tokens have the same weight.
func (f *fitting) loss(p engine.Profile) (float64, Quality, error) {
	times, err := playMeasured(f.rows, p)
	if err != nil {
		return 0, Quality{}, err
	}
	var ttft, tpot, e2e residuals
	for i, r := range f.rows {
		ttft.add(max(1000*(r.First-r.Arrival), shortest), max(1000*times[i].first, shortest))
		e2e.add(1000*(r.Last-r.Arrival), 1000*times[i].last)
		if n := float64(r.Output - 1); n > 0 && r.Last > r.First {
			tpot.add(1000*(r.Last-r.First)/n, 1000*(times[i].last-times[i].first)/n)
		}
	}
	q := Quality{Points: len(f.rows), Errors: []Residual{ttft.result("time to first token"), tpot.result("time per output token"), e2e.result("end to end")}}
	return q.Errors[0].Absolute + q.Errors[1].Absolute + math.Abs(q.Errors[0].Bias) + math.Abs(q.Errors[1].Bias), q, nil
}

// served has the times of the first and the last token of a modelled answer, in seconds after the request's arrival.
type served struct{ first, last float64 }

func playMeasured(rows []Measured, p engine.Profile) ([]served, error) {
	e, err := engine.New(p.Config(0, 0))
	if err != nil {
		return nil, err
	}
	out := make([]served, len(rows))
	begin := time.Duration(rows[0].Arrival * float64(time.Second))
	now := begin
	next := 0
	var step engine.Step
	for next < len(rows) || !e.Idle() {
		if e.Idle() {
			now = max(now, time.Duration(rows[next].Arrival*float64(time.Second)))
		}
		for next < len(rows) && time.Duration(rows[next].Arrival*float64(time.Second)) <= now {
			r := workload.Request{ID: next, Session: -1, After: -1, Input: rows[next].Input, Output: rows[next].Output}
			if err := e.Submit(&engine.Request{Prompt: r.AppendTokens(nil), Output: r.AppendOutput(nil), Owner: next}); err != nil {
				return nil, err
			}
			next++
		}
		if !e.Step(&step) {
			return nil, errors.New("the model makes no progress")
		}
		now += step.Duration
		for _, o := range step.Outputs {
			i := o.Request.Owner.(int)
			since := now.Seconds() - rows[i].Arrival
			if o.First {
				out[i].first = since
			}
			if o.Last {
				out[i].last = since
			}
		}
		if now-begin > 30*24*time.Hour {
			return nil, errors.New("the model is far slower than the measured engine")
		}
	}
	return out, nil
}
