package fleet

import (
	"math/rand/v2"
	"testing"
)

// engine is a modelled engine with a timing of its own. It computes prompts one after the other, between decoding
// steps.
type engine struct {
	f       *Fleet
	timing  Timing
	random  *rand.Rand
	now     int64
	waiting []*job
	running []*job
}

type job struct {
	whole        bool // the answer comes in one piece
	r            Reservation
	n, prompt    int // n: the prompt's uncached tokens; prompt: all its tokens
	out, answer  int // out: answer tokens so far; answer: the tokens of the whole answer
	left, before int // left: uncached tokens still to compute; before: prompt tokens cached or computed
}

func (e *engine) submit(n, prompt, answer int, whole bool) {
	j := &job{whole: whole, n: n, prompt: prompt, answer: answer, left: n, before: prompt - n}
	e.f.Reserve(&j.r, 0, Work{UncachedTokens: n, PromptTokens: prompt, Whole: whole}, e.now)
	e.waiting = append(e.waiting, j)
}

// pass computes up to 8,192 tokens of prompts and one token of each answer.
func (e *engine) pass() {
	t := &e.timing
	took, tokens := t.Base, 0
	for _, j := range e.running {
		took += t.Sequence + t.Context*float64(j.prompt+j.out)
	}
	var first []*job
	for budget := PassTokens; budget > 0 && len(e.waiting) > 0; {
		j := e.waiting[0]
		n := min(j.left, budget)
		took += t.Token*float64(n) + t.Attention*float64(n)*(float64(j.before)+float64(n)/2)
		j.left, j.before, budget, tokens = j.left-n, j.before+n, budget-n, tokens+n
		if j.left == 0 {
			first = append(first, j)
			e.waiting = e.waiting[1:]
		}
	}
	took *= 0.97 + 0.06*e.random.Float64()
	e.now += int64(took * 1e6)
	var running []*job
	for _, j := range e.running {
		j.out++
		if !j.whole {
			j.r.Tokens(j.out, e.now)
		}
		if j.out < j.answer {
			running = append(running, j)
			continue
		}
		j.r.FirstToken(e.now)
		j.r.Tokens(j.out, e.now)
		j.r.Release(e.now)
	}
	for _, j := range first {
		if !j.whole {
			j.r.FirstToken(e.now)
		}
		j.out = 1
		running = append(running, j)
	}
	e.running = running
}

func TestTimingIsLearnedFromHardwareUnlikeTheAssumption(t *testing.T) {
	for name, truth := range map[string]Timing{
		"a small model":         {Base: 7, Sequence: 0.02, Context: 4.9e-5, Token: 0.018, Attention: 1.2e-6},
		"the assumption itself": DefaultTiming,
		"old hardware":          {Base: 60, Sequence: 0.05, Context: 2e-4, Token: 0.18, Attention: 8e-6},
	} {
		for answers, pieces := range map[string]struct {
			whole    float64 // share of answers in one piece
			arrivals float64 // mean number of new requests in a pass
			samples  int
		}{"streamed": {0, 0.05, 200}, "in one piece": {1, 0.05, 100}, "of both kinds": {0.5, 0.05, 200}, "in one piece, busy": {1, 0.4, 500}} {
			t.Run(name+", "+answers, func(t *testing.T) {
				f := New(Config{})
				f.Put("http://a", serving("m", 1))
				e := &engine{f: f, timing: truth, random: rand.New(rand.NewPCG(3, 4)), now: 1e18}
				for range 6000 {
					if e.random.Float64() < pieces.arrivals && len(e.waiting) < 4 && len(e.running) < 64 {
						prompt := 200 + int(e.random.ExpFloat64()*6000)
						n, answer := 1+e.random.IntN(prompt), 50+e.random.IntN(300)
						e.submit(n, prompt, answer, pieces.whole == 1 || pieces.whole > 0 && e.random.Float64() < pieces.whole)
					}
					e.pass()
				}
				got := f.Snapshot().Timing(0)
				if got.Samples < pieces.samples {
					t.Fatalf("learned from %d measurements", got.Samples)
				}
				near := func(what string, got, want, within float64) {
					t.Helper()
					if got < want*(1-within) || got > want*(1+within) {
						t.Errorf("%s takes %.4g ms, learned %.4g", what, want, got)
					}
				}
				near("a pass of 20 requests with 100,000 tokens", got.Step(20, 100_000), truth.Step(20, 100_000), 0.15)
				near("a prompt of 1,000 tokens", got.Prompt(1000, 1000), truth.Prompt(1000, 1000), 0.15)
				near("a prompt of 8,000 tokens", got.Prompt(8000, 8000), truth.Prompt(8000, 8000), 0.15)
				near("8,000 tokens after 16,000", got.Prompt(8000, 24_000), truth.Prompt(8000, 24_000), 0.2)
			})
		}
	}
}

// TestAnswersThatSharePassesTeachNothing: several answers to one prompt share the engine's passes. So the number of
// passes cannot be computed from the answers' tokens.
func TestAnswersThatSharePassesTeachNothing(t *testing.T) {
	for name, w := range map[string]Work{"streamed": {}, "in one piece": {Whole: true}} {
		prompts := 10 // measurements from prompts: each of the 10 streams gives one
		if w.Whole {
			prompts = 0
		}
		for choices, teaches := range map[int]bool{0: true, 1: true, 4: false} {
			f := New(Config{})
			f.Put("http://a", serving("m", 1))
			now := int64(1e18)
			for range 10 {
				w.UncachedTokens, w.PromptTokens, w.Choices = 1000, 1000, choices
				var r Reservation
				f.Reserve(&r, 0, w, now)
				if !w.Whole {
					r.FirstToken(now + 60*ms)
				}
				for i := 1; i <= 64 && !w.Whole; i++ {
					r.Tokens(i, now+60*ms+int64(i)*24*ms)
				}
				now += 3000 * ms
				r.FirstToken(now)
				r.Tokens(65, now)
				r.Release(now)
			}
			if got := f.Snapshot().Timing(0).Samples; teaches != (got > prompts) {
				t.Errorf("%s, %d choices: %d measurements", name, choices, got)
			}
		}
	}
}

func TestAnswersInOnePieceHoldNobodyUpAndTeachNothingBesideGuesses(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	s := f.Snapshot()
	now := int64(1e18)
	for range 50 {
		var whole, guess Reservation
		f.Reserve(&whole, 0, Work{UncachedTokens: 1000, PromptTokens: 1000, Whole: true}, now)
		if got := s.LoadAt(0, now); got.PendingTokens < 900 || got.PendingTokens > 1200 {
			t.Fatalf("immediately after the dispatch %d tokens are to be computed, want about 1000", got.PendingTokens)
		}
		now += 100 * ms
		if got := s.LoadAt(0, now); got.PendingTokens != 0 || got.Backlog != 0 {
			t.Fatalf("after 100 ms %d tokens are to be computed", got.PendingTokens)
		}
		f.Reserve(&guess, 0, Work{UncachedTokens: 10, PromptTokens: 10, Guess: true}, now)
		now += 5000 * ms
		whole.FirstToken(now) // the first token arrives together with the rest of the answer
		whole.Tokens(300, now+1)
		guess.FirstToken(now)
		guess.Tokens(30, now+1)
		whole.Release(now + 2)
		guess.Release(now + 2)
	}
	if got := s.Timing(0); got.Samples > 1 {
		t.Errorf("%d measurements were taken", got.Samples)
	}
	if got := s.LoadAt(0, now); got.Requests != 0 || got.ContextTokens != 0 || got.OutputTokens != 0 || got.Backlog != 0 {
		t.Errorf("left: %+v", got)
	}
}

// TestNoMeasurementDecidesByItself: the first measurement of a kind of worker may have a false count of tokens. It must
// not lower the learned times much, and correct measurements must outweigh it soon.
func TestNoMeasurementDecidesByItself(t *testing.T) {
	for _, passes := range []float64{1e4, 1e6, 1e9} {
		e := newEstimator(DefaultTiming)
		lie := func() { e.observe(&[terms]float64{passes, passes, 500 * passes, 500, 500 * 250}, 1000, 112, 1) }
		base := func() float64 { return e.coefficients()[termBase] / DefaultTiming.Base }
		lie()
		if got := base(); got < 0.4 {
			t.Errorf("%v passes in a second: the learned time of a pass is %.2f of the assumed time", passes, got)
		}
		for i := range 50 {
			n, context := float64(50+i), float64(1000*i)
			e.observe(&[terms]float64{n, n, n * context, 500, 500 * 250}, n*DefaultTiming.Step(1, int64(context))+DefaultTiming.Prompt(500, 500), 100, 1)
		}
		if got := base(); got < 0.9 || got > 1.1 {
			t.Errorf("%v passes in a second, then 50 honest answers: the learned time of a pass is %.2f of the true time", passes, got)
		}
	}
}

// TestACountThatNoAnswerCanHaveIsNotBelieved: a report of too many answer tokens shows that the request lives, but
// changes neither the load nor the learned times.
func TestACountThatNoAnswerCanHaveIsNotBelieved(t *testing.T) {
	const now = int64(1e18)
	long := serving("m", 1)
	long.Models[0].MaxModelLen = 4096
	for name, x := range map[string]struct {
		facts Facts
		work  Work
		most  int
	}{
		"the request's bound":              {serving("m", 1), Work{PromptTokens: 1000, MostTokens: 200}, 200},
		"the model's length":               {long, Work{PromptTokens: 1000}, 3096},
		"both":                             {long, Work{PromptTokens: 1000, MostTokens: 5000}, 3096},
		"the prompt's length is estimated": {long, Work{PromptTokens: 1000, Guess: true}, 4096},
		"three choices":                    {long, Work{PromptTokens: 1000, MostTokens: 200, Choices: 3}, 600},
		"a batch of 200 prompts":           {long, Work{PromptTokens: 1000, MostTokens: 16, Choices: 200}, 3200},
		"nothing is known":                 {serving("m", 1), Work{PromptTokens: 1000}, longestContext - 1000},
	} {
		for _, whole := range []bool{true, false} {
			f := New(Config{})
			f.Put("http://a", x.facts)
			var r Reservation
			w := x.work
			w.UncachedTokens, w.Whole = w.PromptTokens, whole
			f.Reserve(&r, 0, w, now)
			r.FirstToken(now + 100*ms)
			prompts := f.Snapshot().Timing(0).Samples
			for _, n := range []int{2_000_000_000, x.most + 1} {
				r.Tokens(n, now+3000*ms)
				if got := f.Snapshot().Load(0).OutputTokens; got != 0 || r.Output() != 0 {
					t.Errorf("%s, whole %v: %d tokens count as %d", name, whole, n, got)
				}
			}
			if got := f.Snapshot().Timing(0).Samples; got != prompts {
				t.Errorf("%s, whole %v: %d measurements of a lie", name, whole, got-prompts)
			}
			r.Tokens(x.most, now+4000*ms)
			if got := r.Output(); got != x.most {
				t.Errorf("%s, whole %v: %d tokens count as %d", name, whole, x.most, got)
			}
			r.Release(now + 5000*ms)
		}
	}
}

func TestSingleStallsTeachLittle(t *testing.T) {
	e := newEstimator(DefaultTiming)
	truth := Timing{Base: 24, Token: 0.0363}
	measure := func(n float64, extra float64) {
		e.observe(&[terms]float64{1, 0, 0, n, 0}, truth.Base+truth.Token*n+extra, 20, 1)
	}
	for i := range 400 {
		measure(float64(500+i*37%8000), 0)
	}
	before := e.coefficients()
	for i := range 20 {
		measure(float64(500+i*37%8000), 30_000) // too long: the request waited for memory
		for j := range 20 {
			measure(float64(500+j*97%8000), 0)
		}
	}
	after := e.coefficients()
	if after[termToken] > before[termToken]*1.15 {
		t.Errorf("stalls of half a minute moved the time of a token from %v to %v ms", before[termToken], after[termToken])
	}
}

func TestNothingThatIsMeasuredBreaksTheEstimate(t *testing.T) {
	e := newEstimator(Timing{Base: 1, Token: 1})
	random := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		var x [terms]float64
		for i := range x {
			x[i] = random.ExpFloat64() * 1e5 * float64(random.IntN(2))
		}
		e.observe(&x, random.ExpFloat64()*1e7, random.ExpFloat64()*10, 1)
	}
	for i, c := range e.coefficients() {
		if !(c >= 0 && c <= greatest) {
			t.Errorf("coefficient %d is %v", i, c)
		}
	}
}
