package fleet

import "math"

// The terms of a Timing as the estimator numbers them.
const (
	termBase = iota
	termSequence
	termContext
	termToken
	termAttention
	terms
)

// estimator learns a Timing from measured durations: a regression of the duration on the amounts that were computed in
// it, one measurement at a time. It is a Kalman filter. Its state is the coefficients as multiples of the first
// assumption, and it may drift slowly [Kalman 1960; recursive least squares with a random walk in place of forgetting,
// so that coefficients that no measurement concerns stay as they are]. A measurement beyond a bound moves it no more
// than one at the bound [Huber, Robust Estimation of a Location Parameter, 1964]: a request that waited for memory, or
// behind another router's requests, gives such a measurement.
//
// A slow machine is slow in everything: the multiples covary before anything is measured. So coefficients that
// measurements cannot separate keep the assumed ratio, such as a pass's base and its part for each sequence where the
// number of sequences does not change [ridge regression towards a prior mean, Hoerl and Kennard 1970].
type estimator struct {
	assumed [terms]float64
	factor  [terms]float64        // of assumed
	spread  [terms][terms]float64 // covariance of factor
	scale   float64               // mean error of measurements, in units of their expected error
	samples int
}

// Constants of the estimator.
const (
	firstSpread = 1.0  // variance of a factor to begin with: a coefficient is often half or twice the assumption
	common      = 0.8  // the part of firstSpread that all factors share
	drift       = 1e-5 // its growth with each measurement: a thousand measurements fade over ten thousand
	clip        = 1.5  // expected errors beyond which a measurement counts as at the bound: Huber's constant for 95 % efficiency is 1.345
	leastFactor = 0.02 // bounds a coefficient from below: none of them is 0
	greatest    = 100  // bounds it from above
	// mostLeverage bounds the weight of a measurement relative to everything known without it, in its own direction. A
	// worker reports how many passes there were, and may report anything: an answer of 100,000 tokens in a second would
	// decide alone and for good. Beyond a half, one measurement outweighs all others, which is to be avoided [Huber,
	// Robust Statistics, 1981, §7.2]. A smaller bound would also lower the weight of the first correct measurements.
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

// coefficients returns the learned coefficients.
func (e *estimator) coefficients() (c [terms]float64) {
	for i := range c {
		c[i] = e.assumed[i] * e.factor[i]
	}
	return c
}

// predict returns how many milliseconds amounts of the terms take, and the variance of a measurement of them: the
// variance of its own expected error plus that of the coefficients.
func (e *estimator) predict(amounts *[terms]float64, expected float64) (predicted, variance float64) {
	predicted, variance, _ = e.project(amounts)
	noise := expected * e.scale
	return predicted, variance + noise*noise
}

// project returns how many milliseconds amounts of the terms take, the variance that the coefficients contribute, and
// the covariance with each factor.
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

// observe learns that amounts of the terms took this many milliseconds, with an expected error. weight is the number of
// measurements that it counts for, above 0.
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

// loosen lets the coefficients drift while they are known better than at the beginning.
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

// sampleTokens is how many tokens of an answer make a measurement: enough that the arrival of single chunks does not
// matter.
const sampleTokens = 16

// sample is the state at the beginning of a measured interval of an answer.
type sample struct {
	at, output int64
	decoding   int64   // requests
	context    int64   // tokens that these requests had
	computed   int64   // prompt tokens that the holder had computed
	guesses    int64   // prompts whose computed tokens are unknown
	pairs      float64 // the same for attention

	// Only of an answer in one piece:
	decoded, resident float64 // see passes
	pending           float64 // milliseconds that prompts of such answers still took, as predicted
	queued            bool    // other prompts waited, too
}

// passes is the estimator's own state of a ledger, in addition to the figures that readers see; the ledger's mutex
// guards it.
type passes struct {
	decoding, context int64   // requests that decode, and their prompt tokens
	computed          int64   // prompt tokens computed so far
	pairs             float64 // the same for attention
	guesses           int64   // prompts whose computed tokens are unknown

	// Sums over the time until at: nanoseconds times decoding requests, and nanoseconds times their tokens. For an
	// answer in one piece this is the only way to know how many requests decoded at the same time.
	decoded, resident float64
	at                int64

	// The prompts whose first tokens came at the same time. One pass computed the last part of all these prompts.
	group struct {
		open            bool
		start, end      int64
		decoding        int64
		context, tokens int64
		pairs           float64
		busy            bool // the engine was in the middle of a pass when it began
		guess           bool // how much was computed is unknown
	}
}

// sameTime is how far apart first tokens of one pass come: the engine writes them one after the other.
const sameTime = 2e6 // nanoseconds

// elapse adds what decoded until now, where output is the tokens of answers.
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
	p.elapse(now, l.output.Load())
	p.computed += int64(w.UncachedTokens)
	p.pairs += pairsOf(w)
	p.decoding++
	p.context += int64(w.PromptTokens)
	if w.Guess {
		p.guesses++
	}
}

func pairsOf(w *Work) float64 {
	n := float64(w.UncachedTokens)
	return n * (float64(max(w.PromptTokens-w.UncachedTokens, 0)) + n/2)
}

func (l *ledger) sampleAt(r *Reservation, now int64) sample {
	return sample{
		at: now, output: r.output, decoding: l.passes.decoding, context: l.passes.context + l.output.Load(),
		computed: l.passes.computed, pairs: l.passes.pairs, guesses: l.passes.guesses,
	}
}

// wholeAt is sampleAt for an answer in one piece.
func (l *ledger) wholeAt(r *Reservation, now int64) sample {
	s := l.sampleAt(r, now)
	l.passes.elapse(now, l.output.Load())
	s.decoded, s.resident = l.passes.decoded, l.passes.resident
	s.pending, s.queued = max(float64(l.whole.Load()-now)/1e6, 0), l.queue.first != nil
	return s
}

// observePrompt records a first token. mu is held, r waits.
func (l *ledger) observePrompt(r *Reservation, now int64) {
	p := &l.passes
	g := &p.group
	if g.open && now-g.end > sameTime {
		l.finishGroup()
	}
	if !g.open {
		g.open = true
		// The prompt before it in the queue may never show a first token. This prompt began after its own dispatch, and
		// after the latest first token of another prompt.
		g.start = max(l.since.Load(), g.end, r.dispatched)
		g.busy = g.start == r.dispatched && p.decoding > 0
		g.decoding, g.context, g.tokens, g.pairs, g.guess = p.decoding, p.context+l.output.Load(), 0, 0, false
	}
	g.end = now
	g.tokens += int64(r.work.UncachedTokens)
	g.pairs += pairsOf(&r.work)
	g.guess = g.guess || r.work.Guess
	l.join(&r.work, now)
}

// finishGroup learns from the prompts whose first tokens came together.
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

// observeSteps learns from an interval of r's answer. mu is held, r decodes.
func (l *ledger) observeSteps(r *Reservation, now int64) {
	s := &r.sample
	p := &l.passes
	if now <= s.at {
		r.sample = l.sampleAt(r, now)
		return
	}
	// While a prompt is partly computed, its part in this interval is unknown: measure later.
	if l.queue.first != nil && now-p.group.end > sameTime {
		return
	}
	if l.mayLearn(now) && s.guesses == p.guesses && r.work.Choices <= 1 {
		l.learnAt = now + learnEvery
		n := float64(r.output - s.output)
		decoding := float64(s.decoding+p.decoding) / 2
		context := float64(s.context+p.context+l.output.Load()) / 2
		took := float64(now-s.at) / 1e6
		t := l.timing()
		l.learn(&[terms]float64{n, n * decoding, n * context, float64(p.computed - s.computed), p.pairs - s.pairs}, took,
			0.5*t.Step(int64(decoding), int64(context))+0.05*took, now)
	}
	r.sample = l.sampleAt(r, now)
}

// observeWhole learns from an answer of n tokens that came in one piece. Its duration from dispatch is the time of its
// prompt, of other prompts computed meanwhile, and of its own passes. Many such answers, with different prompts and
// lengths, show how much each of them took. Prompts that were half computed when it began count too little, and prompts
// that were half computed when it ended count too much. In the long run these errors cancel, so such a measurement is
// worth less but not wrong. mu is held.
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
	context := (e.resident-s.resident)/float64(e.at-s.at) + float64(n)/2 // its own growing answer was not counted
	t := l.timing()
	l.learn(&[terms]float64{passes, passes * decoding, passes * context, float64(e.computed - s.computed), e.pairs - s.pairs}, took,
		0.5*t.Step(int64(decoding), int64(context))+0.1*took+s.pending+e.pending, e.at)
}

// learnEvery is the time between two measurements of answers: answers that run together share passes, so that each
// would repeat the same measurement.
const learnEvery = 100e6 // nanoseconds

// mayLearn reports whether answers may be learned from at now. A clock that was set back does not stop learning.
func (l *ledger) mayLearn(now int64) bool { return now >= l.learnAt || now < l.learnAt-learnEvery }

// learn updates the kind and the holder's pace. mu is held.
func (l *ledger) learn(amounts *[terms]float64, took, expected float64, now int64) {
	l.kind.Load().learn(&l.pace, amounts, took, expected, now)
}
