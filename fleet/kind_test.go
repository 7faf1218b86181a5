package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// machines are holders of one kind. There are no engines: the test makes the measurements, each of a decode of 16
// passes or of a prompt.
type machines struct {
	kind   *kind
	paces  []*pace
	random *rand.Rand
	truth  Timing
	now    int64
}

func newMachines(n int, truth Timing) *machines {
	m := &machines{kind: newKind(kindKey{}, DefaultTiming), random: rand.New(rand.NewPCG(7, uint64(n))), truth: truth, now: 1e18}
	for range n {
		p := &pace{}
		m.kind.join(p)
		m.paces = append(m.paces, p)
	}
	return m
}

// measure gives holder i a measurement of a random decode or prompt. The measured duration is factor times the true
// duration.
func (m *machines) measure(i int, factor float64) {
	requests, context := float64(1+m.random.IntN(30)), float64(m.random.IntN(50_000))
	x := [terms]float64{16, 16 * requests, 16 * context, 0, 0}
	expected := 1.3 * m.truth.Base
	if m.random.IntN(4) == 0 {
		n, before := float64(100+m.random.IntN(6000)), float64(m.random.IntN(6000))
		x = [terms]float64{1, requests, context, n, n * (before + n/2)}
		expected = 0.5 * m.truth.Base
	}
	m.kind.learn(m.paces[i], &x, factor*m.take(&x)*(0.95+0.1*m.random.Float64()), expected, m.now)
}

func (m *machines) take(x *[terms]float64) float64 {
	t := &m.truth
	return x[termBase]*t.Base + x[termSequence]*t.Sequence + x[termContext]*t.Context + x[termToken]*t.Token + x[termAttention]*t.Attention
}

// each lets the duration d pass in steps, and gives each holder one measurement in each step.
func (m *machines) each(d, step time.Duration, factor func(i int) float64) {
	for end := m.now + int64(d); m.now < end; m.now += int64(step) {
		for i := range m.paces {
			m.measure(i, factor(i))
		}
	}
}

func (m *machines) pace(i int) Pace { return m.paces[i].current }

var cpu = Timing{Base: 60, Sequence: 0.05, Context: 2e-4, Token: 0.18, Attention: 8e-6}

// slow returns a function of factors for each: machine number which has the factor, and all other machines have 1.
func slow(which int, factor float64) func(int) float64 {
	return func(i int) float64 {
		if i == which {
			return factor
		}
		return 1
	}
}

// TestASlowMachineIsFound: one of n machines takes twice as long as the others. Each machine gets 25 requests of 12
// measurements each.
func TestASlowMachineIsFound(t *testing.T) {
	for _, n := range []int{3, 8, 64} {
		for _, d := range []time.Duration{10 * time.Second, time.Minute, time.Hour} {
			t.Run(fmt.Sprintf("of %d in %v", n, d), func(t *testing.T) {
				m := newMachines(n, cpu)
				requests := 200 / 8
				step := d / time.Duration(requests)
				for range requests {
					for range 12 { // the measurements of one answer, at most 100 ms apart
						for i := range m.paces {
							m.measure(i, slow(1, 2)(i))
						}
						m.now += int64(min(step/12, 100*time.Millisecond))
					}
					m.now += int64(max(step-1200*time.Millisecond, 0))
				}
				p := m.pace(1)
				if !p.Believed || p.Factor <= alike || p.Factor > 2.1 {
					t.Errorf("the slow machine has the pace %+v", p)
				}
				for i := range m.paces {
					if p := m.pace(i); i != 1 && p.Factor != 1 {
						t.Errorf("machine %d, which is not slow, has the pace %+v", i, p)
					}
				}
				got := m.kind.times.load()
				if got.Step(10, 20_000) < 0.9*cpu.Step(10, 20_000) || got.Step(10, 20_000) > 1.2*cpu.Step(10, 20_000) {
					t.Errorf("the learned time of a pass of the kind is %.1f ms, the true time is %.1f ms", got.Step(10, 20_000), cpu.Step(10, 20_000))
				}
			})
		}
	}
}

// TestNoiseIsNoPace: a pace other than 1 means that a machine is slower or faster for long. Neither independent noise
// nor some minutes of other work on one machine make such a pace.
func TestNoiseIsNoPace(t *testing.T) {
	for _, n := range []int{2, 4, 8, 32} {
		believed, judged := 0, 0
		for seed := range uint64(5) {
			m := newMachines(n, DefaultTiming)
			m.random = rand.New(rand.NewPCG(seed, 3))
			busy, until := 0, int64(0)
			for range 3600 {
				if m.now >= until {
					busy, until = m.random.IntN(n), m.now+int64(time.Minute)+m.random.Int64N(int64(2*time.Minute))
				}
				for i := range m.paces {
					m.measure(i, slow(busy, 1.3)(i)*max(1+0.3*m.random.NormFloat64(), 0.1))
					judged++
					if m.paces[i].current.Believed {
						believed++
					}
				}
				m.now += int64(time.Second)
			}
		}
		if share := float64(believed) / float64(judged); share > 0.01 {
			t.Errorf("of %d equal machines, the router believes that one differs in %.1f %% of the judgements", n, 100*share)
		}
	}
}

func TestABurstPasses(t *testing.T) {
	m := newMachines(2, DefaultTiming)
	m.each(10*time.Minute, time.Second, slow(0, 1))
	m.each(2*time.Minute, time.Second, slow(0, 2))
	m.each(5*time.Minute, time.Second, slow(0, 1))
	for i := range m.paces {
		if p := m.pace(i); p.Factor != 1 {
			t.Errorf("five minutes after a burst of two minutes the pace is %+v", p)
		}
	}
	m = newMachines(2, DefaultTiming) // this time the other work on the machine runs at the very beginning
	m.each(2*time.Minute, time.Second, slow(0, 2))
	m.each(10*time.Minute, time.Second, slow(0, 1))
	for i := range m.paces {
		if p := m.pace(i); p.Factor != 1 {
			t.Errorf("ten minutes after a burst of two minutes at the beginning the pace is %+v", p)
		}
	}
}

func TestAPaceFadesWithoutEvidence(t *testing.T) {
	m := newMachines(8, DefaultTiming)
	m.each(10*time.Minute, time.Second, slow(3, 2))
	if p := m.pace(3); !p.Believed || p.Factor < 1.6 {
		t.Fatalf("after ten minutes: %+v", p)
	}
	idle := m.paces[3]
	for range 4 * 3600 {
		m.now += int64(time.Second)
		m.measure(0, 1)
	}
	if idle.current.Factor != 1 {
		t.Errorf("after four hours without a measurement: %+v", idle.current)
	}
}

// TestOneBadWorkerTeachesTheOthersLittle: one of eight workers reports nonsense. It reports ten times as often as each
// of the other workers.
func TestOneBadWorkerTeachesTheOthersLittle(t *testing.T) {
	for name, lie := range map[string]func(r *rand.Rand, k int) float64{
		"answers at once":        func(*rand.Rand, int) float64 { return 1e-3 },
		"takes forever":          func(*rand.Rand, int) float64 { return 1e3 },
		"draws its times":        func(r *rand.Rand, _ int) float64 { return math.Exp(3 * r.NormFloat64()) },
		"stalls and bursts":      func(_ *rand.Rand, k int) float64 { return []float64{500, 1e-2, 1e-2, 1e-2}[k%4] },
		"half the time is right": func(_ *rand.Rand, k int) float64 { return []float64{1, 5}[k%2] },
		"stalls for minutes":     func(_ *rand.Rand, k int) float64 { return []float64{1, 100}[k/3000%2] },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachines(8, cpu)
			for k := range 1800 {
				for i := range m.paces {
					m.measure(i, 1)
					for j := 0; i == 7 && j < 10; j++ {
						m.measure(i, lie(m.random, 10*k+j))
					}
				}
				m.now += int64(time.Second)
				for i := 0; i < 7 && k > 60; i++ {
					if p := m.pace(i); p.Factor != 1 {
						t.Fatalf("second %d: an honest worker has the pace %+v", k, p)
					}
				}
			}
			got, want := m.kind.times.load(), cpu
			for what, ratio := range map[string]float64{
				"a pass of 10 with 20,000": got.Step(10, 20_000) / want.Step(10, 20_000),
				"a prompt of 4,000":        got.Prompt(4000, 4000) / want.Prompt(4000, 4000),
			} {
				if ratio < 0.92 || ratio > 1.08 {
					t.Errorf("the learned time of %s is %.2f times the true time", what, ratio)
				}
			}
			if f := m.paces[7].believed(); f < 1 || f > farthest {
				t.Errorf("its pace is %v: it must not draw requests", f)
			}
		})
	}
}

// TestOfTwoThatAreTooFarApartNeitherIsBelieved: two machines of one kind differ by far. One of them has false times,
// but the router cannot know which one.
func TestOfTwoThatAreTooFarApartNeitherIsBelieved(t *testing.T) {
	m := newMachines(2, cpu)
	m.each(10*time.Minute, time.Second, slow(1, 1e-3))
	for i := range m.paces {
		if f := m.paces[i].believed(); f != 1 {
			t.Errorf("machine %d has a pace of %v", i, f)
		}
	}
}

// TestWhatTheDataCannotSeparateStaysAsAssumed: thousands of passes with the same batch show only the time of that
// batch. For other batches the assumed proportions stay.
func TestWhatTheDataCannotSeparateStaysAsAssumed(t *testing.T) {
	for name, truth := range map[string]Timing{"slow": DefaultTiming.at(3), "fast": DefaultTiming.at(0.3), "all base": {Base: 24.9, Token: 0.06}} {
		e := newEstimator(DefaultTiming)
		random := rand.New(rand.NewPCG(1, 2))
		assumed := DefaultTiming
		for k := range 20_000 {
			x := [terms]float64{16, 16 * 20, 16 * 20_000, 0, 0}
			took := 16 * truth.Step(20, 20_000)
			if k%5 == 0 { // each fifth measurement is a prompt, always the same prompt
				x = [terms]float64{1, 0, 0, 2000, 2000 * 5000}
				took = truth.Base + truth.Token*2000 + truth.Attention*2000*5000
			}
			e.observe(&x, took*(1+0.3*random.NormFloat64()/4), 0.1*took, 1)
		}
		c := e.coefficients()
		got := Timing{Base: c[termBase], Sequence: c[termSequence], Context: c[termContext], Token: c[termToken], Attention: c[termAttention]}
		if r := got.Step(20, 20_000) / truth.Step(20, 20_000); r < 0.95 || r > 1.05 {
			t.Errorf("%s: the learned time of the measured pass is %.2f times the true time", name, r)
		}
		if r := got.Step(200, 200_000) / got.Step(20, 20_000) / (assumed.Step(200, 200_000) / assumed.Step(20, 20_000)); r < 0.9 || r > 1.1 {
			t.Errorf("%s: a batch ten times as large takes longer by %.2f times the assumed factor", name, r)
		}
		ratio := func(t *Timing) float64 { return t.Attention * 5000 / t.Token }
		if r := ratio(&got) / ratio(&assumed); r < 0.7 || r > 1.4 {
			t.Errorf("%s: the ratio of attention time to token time is %.2f times the assumed ratio", name, r)
		}
	}
}

func TestAClockThatJumpsBreaksNothing(t *testing.T) {
	m := newMachines(4, DefaultTiming)
	day := int64(24 * time.Hour)
	for _, jump := range []int64{0, -day, 30 * day, -60 * day} {
		m.now += jump
		m.each(5*time.Minute, time.Second, slow(2, 2))
		if p := m.pace(2); !p.Believed {
			t.Errorf("five minutes after a jump by %v the slow one is %+v", time.Duration(jump), p)
		}
		if p := m.pace(1); p.Factor != 1 || math.IsNaN(p.Measured) {
			t.Errorf("after a jump by %v: %+v", time.Duration(jump), p)
		}
	}
}

func TestWorkersOfOneKindLearnTogether(t *testing.T) {
	f := New(Config{})
	facts := func(change func(*Facts)) Facts {
		x := Facts{Engine: EngineVLLM, Version: "1", Models: []Model{{ID: "m"}}, BlockSize: 16, Ranks: 1}
		if change != nil {
			change(&x)
		}
		return x
	}
	same := f.Put("http://a", facts(nil))
	f.Put("http://b", facts(nil))
	f.Put("http://other-version", facts(func(x *Facts) { x.Version = "2" }))
	f.Put("http://other-model", facts(func(x *Facts) { x.Models = []Model{{ID: "n"}} }))
	f.Put("http://labelled", facts(func(x *Facts) { x.Labels = map[string]string{LabelHardware: "h100"} }))
	f.Put("http://labelled-too", facts(func(x *Facts) { x.Version, x.Labels = "2", map[string]string{LabelHardware: "h100"} }))
	teach := func(h Holder, times int) {
		l := &f.Snapshot().state(h).work
		for range times {
			l.learn(&[terms]float64{16, 16, 0, 0, 0}, 16*60, 24, 1e18)
		}
	}
	teach(0, 100)
	teach(4, 50)
	samples := func(h Holder) int { return f.Snapshot().Timing(h).Samples }
	if a, b, c, d, e, g := samples(0), samples(1), samples(2), samples(3), samples(4), samples(5); a != 100 || b != 100 || c != 0 || d != 0 || e != 50 || g != 50 {
		t.Errorf("measurements: %d %d of one kind, %d of another version, %d of another model, %d %d by label", a, b, c, d, e, g)
	}
	kinds, of := f.Snapshot().Kinds()
	if len(kinds) != 4 || of[0] != of[1] || of[4] != of[5] || of[0] == of[2] || kinds[of[4]].Name != "m on h100" || kinds[of[0]].Name != "m on vllm 1, blocks of 16" {
		t.Errorf("%+v of %v", kinds, of)
	}

	// The next worker at the URL of a worker that left has its kind's timing, as long as the kind has workers. A worker
	// with a new version begins with the timing of its former version.
	base := f.Snapshot().Timing(0).Base
	f.Remove(same)
	same = f.Put("http://a", facts(nil))
	holder := f.Snapshot().ByID(same).Holders[0]
	if got := f.Snapshot().Timing(holder); got.Base != base || got.Samples != 100 {
		t.Errorf("a returned worker has the timing %+v", got)
	}
	f.Put("http://a", facts(func(x *Facts) { x.Version = "3" }))
	if got := f.Snapshot().Timing(holder); got.Base != base || got.Samples != 0 {
		t.Errorf("a worker with a new version begins with the timing %+v, want a base of %v", got, base)
	}

	// A worker that reports a new version each time leaves no kinds behind.
	for i := range 1000 {
		f.Put("http://a", facts(func(x *Facts) { x.Version = fmt.Sprint(i) }))
	}
	if n := len(f.kinds); n > 6 {
		t.Errorf("%d kinds", n)
	}
	if n := len(f.kinds[0].members); n != 1 {
		t.Errorf("%d holders are left in the first kind", n)
	}
}

func TestANewProcessStartsAtItsKindsPace(t *testing.T) {
	f := New(Config{})
	for _, url := range []string{"http://a", "http://b", "http://c"} {
		f.Put(url, serving("m", 1))
	}
	s := f.Snapshot()
	now := int64(1e18)
	for range 600 {
		for h := range Holder(3) {
			took := 16 * 24.0
			if h == 1 {
				took *= 2
			}
			s.state(h).work.learn(&[terms]float64{16, 16, 0, 0, 0}, took, 24, now)
		}
		now += int64(time.Second)
	}
	if p := s.Pace(1); !p.Believed || p.Low < alike || p.High < p.Low || p.Samples < 550 {
		t.Fatalf("after ten minutes: %+v", p)
	}
	if got, want := s.Timing(1).Base, s.Timing(0).Base*s.Pace(1).Factor; math.Abs(got/want-1) > 1e-9 {
		t.Errorf("its passes take %v ms, want %v", got, want)
	}
	var r Reservation
	f.Reserve(&r, 1, Work{UncachedTokens: 100, PromptTokens: 100}, now)
	if turns := s.Load(1).Turns; turns < 1600 || turns > 2100 {
		t.Errorf("a request takes %d thousandths of a turn", turns)
	}
	r.Release(now)
	f.Answered(1, Signs{Started: 1})
	if !f.Answered(1, Signs{Started: 100}) {
		t.Fatal("no restart was seen")
	}
	if p := f.Snapshot().Pace(1); p.Believed || p.Factor != 1 || p.Samples != 0 {
		t.Errorf("a new process has %+v", p)
	}
}

func TestLearningAndReadingAllocateNothing(t *testing.T) {
	m := newMachines(64, DefaultTiming)
	m.each(10*time.Second, time.Second, slow(1, 1))
	if n := testing.AllocsPerRun(200, func() {
		m.now += int64(time.Second)
		m.measure(3, 1)
	}); n != 0 {
		t.Errorf("a measurement allocates %v times", n)
	}
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	s := f.Snapshot()
	if n := testing.AllocsPerRun(200, func() { _ = s.LoadAt(0, 1e18) }); n != 0 {
		t.Errorf("a look at a load allocates %v times", n)
	}
}

func BenchmarkLearn(b *testing.B) {
	for _, n := range []int{1, 8, 64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := newMachines(n, DefaultTiming)
			m.each(5*time.Second, time.Second, slow(1, 1))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				m.now += 1e8 / int64(n)
				m.measure(i%n, 1)
			}
		})
	}
}

func BenchmarkLoadAt(b *testing.B) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	s := f.Snapshot()
	b.ReportAllocs()
	for b.Loop() {
		_ = s.LoadAt(0, 1e18)
	}
}
