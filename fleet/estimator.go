package fleet

import "math"

// The indexes of a Timing's terms in the estimator's arrays.
const (
	termBase = iota
	termSequence
	termContext
	termToken
	termAttention
	terms
)

// estimator learns a Timing from measured durations. A measurement is a duration and the amounts of work in it: passes,
// sequences, tokens. The estimator is a linear regression that takes one measurement at a time.
//
// The regression is a Kalman filter [Kalman 1960]. Its state is one factor for each coefficient: the learned
// coefficient divided by the assumed one. The factors drift slowly, as a random walk. So old measurements fade, but a
// coefficient that no measurement concerns stays as it is. A measurement beyond a bound changes the state no more than
// a measurement at the bound [Huber, Robust Estimation of a Location Parameter, 1964]. A request that waited for
// memory, or behind another router's requests, gives such an outlier.
//
// A slow machine is slow in everything. So the factors count as correlated before anything is measured. Where
// measurements cannot separate two coefficients, the two keep their assumed ratio [ridge regression towards a prior
// mean, Hoerl and Kennard 1970]. For example, while the number of sequences does not change, the base of a pass cannot
// be separated from the part for each sequence.
type estimator struct {
	assumed [terms]float64        // the assumed coefficients
	factor  [terms]float64        // each learned coefficient divided by the assumed one
	spread  [terms][terms]float64 // the covariance of the factors
	scale   float64               // the mean error of measurements, in units of their expected error
	samples int                   // the number of measurements
}

// Constants of the estimator.
const (
	firstSpread = 1.0  // the variance of a factor before any measurement: half or twice the assumption is usual
	common      = 0.8  // the part of firstSpread that all factors share
	drift       = 1e-5 // how much the variance grows with each measurement, so that old measurements fade
	clip        = 1.5  // the bound of a measurement, in expected errors; Huber's constant for 95 % efficiency is 1.345
	leastFactor = 0.02 // the least factor: no coefficient is 0
	greatest    = 100  // the greatest factor
	// mostLeverage bounds the weight of one measurement, as a share: the rest is the weight of all earlier knowledge. The
	// bound is needed because the number of passes comes from the token count that a worker reports, and the worker may
	// report any count. Without a bound, an answer of 100,000 tokens in a second would determine the coefficients alone.
	// With a bound above one half, one measurement would outweigh all others [Huber, Robust Statistics, 1981, §7.2]. A
	// smaller bound would also lower the weight of the first correct measurements.
	mostLeverage = 0.5
)

// assumedSpread returns the covariance of two factors before anything is measured.
func assumedSpread(i, j int) float64 {
	if i == j {
		return firstSpread
	}
	return firstSpread * common
}

func newEstimator(t Timing) estimator {
	e := estimator{scale: 1}
	e.assumed = [terms]float64{t.Base, t.Sequence, t.Context, t.Token, t.Attention}
	for i := range terms {
		e.factor[i] = 1
		for j := range terms {
			e.spread[i][j] = assumedSpread(i, j)
		}
	}
	return e
}

// coefficients returns the learned coefficients of a Timing: the assumed coefficients times the learned factors.
func (e *estimator) coefficients() (c [terms]float64) {
	for i := range c {
		c[i] = e.assumed[i] * e.factor[i]
	}
	return c
}

// predict returns how many milliseconds the given amounts of the terms take, and the variance of a measurement of these
// milliseconds. This variance is the sum of two: the variance of the measurement's expected error, and the variance
// that comes from the coefficients.
func (e *estimator) predict(amounts *[terms]float64, expected float64) (predicted, variance float64) {
	predicted, variance, _ = e.project(amounts)
	noise := expected * e.scale
	return predicted, variance + noise*noise
}

// project returns how many milliseconds the given amounts of the terms take, the variance that comes from the
// coefficients, and the covariance with each factor.
func (e *estimator) project(amounts *[terms]float64) (predicted, variance float64, covariance [terms]float64) {
	var x [terms]float64
	for i := range x {
		x[i] = amounts[i] * e.assumed[i]
		predicted += x[i] * e.factor[i]
	}
	for i := range x {
		for j := range x {
			covariance[i] += e.spread[i][j] * x[j]
		}
		variance += x[i] * covariance[i]
	}
	return predicted, variance, covariance
}

// observe learns from one measurement: the given amounts of the terms needed `took` milliseconds. expected is the
// expected error of the measurement in milliseconds. weight is above 0 and says how much the measurement counts; 1 is
// usual.
func (e *estimator) observe(amounts *[terms]float64, took, expected, weight float64) {
	e.loosen()
	predicted, variance, covariance := e.project(amounts)
	noise := expected * e.scale
	total := max(variance+noise*noise/weight, variance/mostLeverage)
	if !(total > 0) || math.IsInf(total, 0) {
		return
	}
	off := took - predicted
	e.scale += weight * (min(math.Abs(off)/math.Sqrt(variance+expected*expected), 4) - e.scale) / 64
	e.scale = min(max(e.scale, 0.25), 4)
	bound := clip * math.Sqrt(variance+noise*noise)
	off = min(max(off, -bound), bound)
	for i := range e.factor {
		e.factor[i] = min(max(e.factor[i]+covariance[i]/total*off, leastFactor), greatest)
	}
	for i := range e.spread {
		for j := range e.spread {
			e.spread[i][j] -= covariance[i] * covariance[j] / total
		}
	}
	e.samples++
}

// loosen raises the variance of the factors by their drift. It does nothing while the factors are known no better than
// at the beginning.
func (e *estimator) loosen() {
	trace := 0.0
	for i := range e.spread {
		trace += e.spread[i][i]
	}
	if trace >= terms*firstSpread {
		return
	}
	for i := range e.spread {
		for j := range e.spread {
			e.spread[i][j] += drift * assumedSpread(i, j)
		}
	}
}

// sampleTokens is the least number of answer tokens between two measurements of an answer. With 16 tokens, the arrival
// time of a single chunk hardly matters.
const sampleTokens = 16

// sample is the state of a holder and of one answer, at the beginning or at the end of a measured interval.
type sample struct {
	at       int64   // the time, Unix nanoseconds
	output   int64   // tokens of the answer so far
	decoding int64   // requests that decode at the holder
	context  int64   // tokens of the decoding requests: prompts and answers
	computed int64   // prompt tokens that the holder has computed so far
	guesses  int64   // prompts for which the number of computed tokens is unknown
	pairs    float64 // pairs of tokens that attention has computed so far, see pairsOf

	// Set only if the answer comes in one piece (not streamed):
	decoded, resident float64 // see passes
	pending           float64 // predicted milliseconds until the prompts of all answers in one piece are computed
	queued            bool    // prompts of streamed answers wait, too
}

// passes holds what a ledger (the load of one holder) counts only for the estimator. The ledger's mutex guards passes.
type passes struct {
	decoding int64   // requests that decode
	context  int64   // prompt tokens of the requests that decode
	computed int64   // prompt tokens computed so far
	pairs    float64 // pairs of tokens that attention has computed so far, see pairsOf
	guesses  int64   // prompts for which the number of computed tokens is unknown

	// Integrals over time, in nanoseconds: decoded is the integral of the number of decoding requests, and resident is the
	// integral of their tokens. The growth of an integral during an interval, divided by the length of the interval, is a
	// mean. For an answer in one piece, only this mean shows how many requests decoded at the same time.
	decoded, resident float64
	at                int64 // the time up to which decoded and resident are summed, Unix nanoseconds

	// The prompts whose first tokens came at the same time. One pass computed the last part of all these prompts.
	group struct {
		open       bool    // more prompts may still join the group
		start, end int64   // when the holder began to compute these prompts, and the latest first token; Unix nanoseconds
		decoding   int64   // requests that decoded between start and end
		context    int64   // tokens of the decoding requests
		tokens     int64   // computed tokens of the prompts
		pairs      float64 // pairs of tokens that attention computed for the prompts
		busy       bool    // the engine was in the middle of a pass at the time start
		guess      bool    // the number of computed tokens is unknown
	}
}

// sameTime is the greatest time between two first tokens of one pass. The two are not exactly simultaneous, because the
// engine writes one after the other.
const sameTime = 2e6 // nanoseconds

// elapse continues the sums decoded and resident until now. output is the number of tokens of all answers under way.
func (p *passes) elapse(now, output int64) {
	if d := float64(now - p.at); d > 0 {
		p.decoded += d * float64(p.decoding)
		p.resident += d * float64(p.context+output)
		p.at = now
	}
}

// join records that a prompt is computed, or assumed to be, and that its answer decodes.
func (l *ledger) join(w *Work, now int64) {
	p := &l.passes
	p.elapse(now, l.answered(now))
	p.computed += int64(w.UncachedTokens)
	p.pairs += pairsOf(w)
	p.decoding++
	p.context += int64(w.PromptTokens)
	if w.Guess {
		p.guesses++
	}
}

// pairsOf returns how many pairs of a computed prompt token and a token before it attention has to compute.
func pairsOf(w *Work) float64 {
	n := float64(w.UncachedTokens)
	return n * (float64(max(w.PromptTokens-w.UncachedTokens, 0)) + n/2)
}

func (l *ledger) sampleAt(r *Reservation, now int64) sample {
	return sample{
		at: now, output: r.output, decoding: l.passes.decoding, context: l.passes.context + l.answered(now),
		computed: l.passes.computed, pairs: l.passes.pairs, guesses: l.passes.guesses,
	}
}

// wholeAt is sampleAt for an answer in one piece.
func (l *ledger) wholeAt(r *Reservation, now int64) sample {
	s := l.sampleAt(r, now)
	l.passes.elapse(now, l.answered(now))
	s.decoded, s.resident = l.passes.decoded, l.passes.resident
	s.pending, s.queued = max(float64(l.whole.Load()-now)/1e6, 0), l.queue.first != nil
	return s
}

// observePrompt records r's first token. mu is held, and r is in stageWaiting.
func (l *ledger) observePrompt(r *Reservation, now int64) {
	p := &l.passes
	g := &p.group
	if g.open && now-g.end > sameTime {
		l.finishGroup()
	}
	if !g.open {
		g.open = true
		// The holder began to compute this prompt after its dispatch, and after the latest first token of another prompt.
		g.start = max(l.since.Load(), g.end, r.dispatched)
		g.busy = g.start == r.dispatched && p.decoding > 0
		g.decoding, g.context, g.tokens, g.pairs = p.decoding, p.context+l.answered(now), 0, 0
		g.guess = l.blurred && g.start == l.since.Load()
	}
	g.end = now
	g.tokens += int64(r.work.UncachedTokens)
	g.pairs += pairsOf(&r.work)
	g.guess = g.guess || r.work.Guess
	l.join(&r.work, now)
}

// finishGroup learns from the prompts of one pass: their first tokens came at the same time.
func (l *ledger) finishGroup() {
	g := &l.passes.group
	g.open = false
	took := float64(g.end-g.start) / 1e6
	if g.tokens <= 0 || took <= 0 || g.guess {
		return
	}
	n := max(1, float64(g.tokens)/PassTokens)
	if g.busy {
		n += 0.5 // half of the pass that was under way
	}
	t := l.timing()
	l.learn(&[terms]float64{n, n * float64(g.decoding), n * float64(g.context), float64(g.tokens), g.pairs}, took,
		0.5*t.Step(g.decoding, g.context)+0.1*took, g.end)
}

// observeSteps learns from an interval of r's answer. mu is held, and r is in stageRunning.
func (l *ledger) observeSteps(r *Reservation, now int64) {
	s := &r.sample
	p := &l.passes
	if now <= s.at {
		r.sample = l.sampleAt(r, now)
		return
	}
	// A waiting prompt may be partly computed, and how much of it falls into this interval is unknown: measure later.
	if l.queue.first != nil && now-p.group.end > sameTime {
		return
	}
	if l.mayLearn(now) && s.guesses == p.guesses && r.work.Choices <= 1 {
		l.learnAt = now + learnEvery
		n := float64(r.output - s.output)
		decoding := float64(s.decoding+p.decoding) / 2
		context := float64(s.context+p.context+l.answered(now)) / 2
		took := float64(now-s.at) / 1e6
		t := l.timing()
		l.learn(&[terms]float64{n, n * decoding, n * context, float64(p.computed - s.computed), p.pairs - s.pairs}, took,
			0.5*t.Step(int64(decoding), int64(context))+0.05*took, now)
	}
	r.sample = l.sampleAt(r, now)
}

// observeWhole learns from an answer of n tokens that came in one piece. The time from dispatch to answer has three
// parts: the time of the request's own prompt, the time of other prompts that were computed meanwhile, and the time of
// the decode passes. Many such answers, with different prompts and lengths, show how long each part took.
//
// The prompt of an answer in one piece counts as computed at its dispatch. So another such prompt counts too little if
// it was half computed at the beginning of the measured time, and too much if it was half computed at the end. In the
// long run these errors cancel. So the measurement counts less than others, but it is not biased. mu is held.
func (l *ledger) observeWhole(r *Reservation, n int64) {
	s, e := &r.sample, &r.came
	took := float64(e.at-s.at) / 1e6
	if s.queued || e.queued || r.work.Guess || s.guesses != e.guesses || r.work.Choices > 1 || took <= 0 || !l.mayLearn(e.at) {
		return
	}
	l.learnAt = e.at + learnEvery
	passes := max(1, float64(r.work.UncachedTokens)/PassTokens) + float64(n-1)
	if s.decoding > 0 {
		passes += 0.5 // half of the pass that was under way
	}
	decoding := (e.decoded - s.decoded) / float64(e.at-s.at)
	context := (e.resident-s.resident)/float64(e.at-s.at) + float64(n)/2 // n/2: this answer's own tokens
	t := l.timing()
	l.learn(&[terms]float64{passes, passes * decoding, passes * context, float64(e.computed - s.computed), e.pairs - s.pairs}, took,
		0.5*t.Step(int64(decoding), int64(context))+0.1*took+s.pending+e.pending, e.at)
}

// learnEvery is the least time between two measurements of a holder's answers. Answers that run at the same time share
// their passes, so each of them would give the same measurement again.
const learnEvery = 100e6 // nanoseconds

// mayLearn reports whether learnEvery has passed at now, so that the next measurement of an answer may be taken. It
// also reports true if the clock was set back, because otherwise learning would stop.
func (l *ledger) mayLearn(now int64) bool { return now >= l.learnAt || now < l.learnAt-learnEvery }

// learn passes a measurement to the holder's kind. The kind updates its own times and the holder's pace. mu is held.
func (l *ledger) learn(amounts *[terms]float64, took, expected float64, now int64) {
	l.kind.Load().learn(&l.pace, amounts, took, expected, now)
}
