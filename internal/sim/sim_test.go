package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// families returns an open-loop workload. Each prompt has the prefix of a random group and a question of its own.
// groups is the number of prefixes, and gap is the mean time between two arrivals.
func families(groups, requests int, gap time.Duration) *workload.Workload {
	random := rand.New(rand.NewPCG(1, 2))
	w := &workload.Workload{Name: "families", Block: 64}
	at := time.Duration(0)
	for i := range requests {
		group := random.IntN(groups)
		w.Requests = append(w.Requests, workload.Request{
			ID: i, Arrival: at, Session: -1, After: -1, Input: 2048 + 256, Output: 40,
			Segments: []workload.Segment{{ID: uint64(group + 1), Tokens: 2048}, {ID: uint64(1000 + i), Tokens: 256}},
		})
		at += time.Duration(random.Int64N(int64(2 * gap)))
	}
	return w
}

// sessions returns a closed-loop workload. Each turn contains the conversation so far. A turn is sent when the previous
// turn's answer has ended, after the pause think.
func sessions(count, turns int, think time.Duration) *workload.Workload {
	w := &workload.Workload{Name: "sessions", Block: 64}
	last := make([]int, count)
	for turn := range turns {
		for s := range count {
			r := workload.Request{ID: len(w.Requests), Session: s, Turn: turn, After: -1, Arrival: time.Duration(s) * 100 * time.Millisecond, Output: 50}
			if turn > 0 {
				before := &w.Requests[last[s]]
				r.After, r.Think, r.Arrival = last[s], think, before.Arrival+think+time.Second
				r.Segments = append(append(r.Segments, before.Segments...), workload.Segment{ID: before.OutputSegment, Tokens: before.Output})
			}
			r.Segments = append(r.Segments, workload.Segment{ID: uint64(10_000 + len(w.Requests)), Tokens: 700})
			for _, seg := range r.Segments {
				r.Input += seg.Tokens
			}
			r.OutputSegment = uint64(1_000_000 + len(w.Requests))
			last[s] = r.ID
			w.Requests = append(w.Requests, r)
		}
	}
	return w
}

// config returns the configuration of a run of w with policy p, on four workers with small caches. change, if not nil,
// changes the configuration.
func config(w *workload.Workload, p string, change func(*Config)) Config {
	spec, err := ParsePolicy(p)
	if err != nil {
		panic(err)
	}
	c := Config{Workload: w, Policy: spec, Seed: 1, Groups: []Group{{Count: 4, Profile: engine.Profiles()[0], BlockSize: 64, KVTokens: 64 * 400}}}
	if change != nil {
		change(&c)
	}
	return c
}

func run(t testing.TB, c Config) *report.Run {
	t.Helper()
	r, err := Run(context.Background(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Requests; n.Sent != len(c.Workload.Requests) || n.Sent != n.Answered+n.Failed+n.Rejected {
		t.Fatalf("requests do not add up: %+v of %d", n, len(c.Workload.Requests))
	}
	return r
}

func asJSON(t testing.TB, runs ...*report.Run) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := report.WriteJSON(&b, &report.Report{Runs: runs}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// everything adds routers, event lag, lost events, a fault and a CPU tier.
func everything(c *Config) {
	c.Routers, c.Lag, c.LagJitter, c.Loss, c.Replay = 3, 20*time.Millisecond, 50*time.Millisecond, .05, true
	c.Faults = []Fault{{At: 5 * time.Second, Worker: 1, Down: 4 * time.Second}}
	c.Groups[0].CPUTokens = 64 * 200
}

func TestARunIsRepeatableBitForBit(t *testing.T) {
	testenv.SkipRaced(t)
	for _, p := range Policies() {
		for name, change := range map[string]func(*Config){"plain": nil, "everything": everything} {
			c := config(families(12, 200, 40*time.Millisecond), p, change)
			first := asJSON(t, run(t, c))
			if again := asJSON(t, run(t, c)); !bytes.Equal(first, again) {
				t.Errorf("%s, %s: two runs differ", p, name)
			}
		}
	}
}

func TestASweepGivesTheResultsOfSingleRuns(t *testing.T) {
	w := families(12, 300, 40*time.Millisecond)
	var configs []Config
	var want []*report.Run
	for seed := range uint64(6) {
		c := config(w, "random", everything)
		c.Seed = seed
		configs = append(configs, c)
		want = append(want, run(t, c))
	}
	got, err := Sweep(context.Background(), configs, 4, func(Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(asJSON(t, got...), asJSON(t, want...)) {
		t.Error("runs in parallel differ from runs alone")
	}
	if bytes.Equal(asJSON(t, got[0]), asJSON(t, got[1])) {
		t.Error("two seeds gave the same run")
	}
}

func TestAnInterruptedSweepReturnsTheRunsThatAreDone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var configs []Config
	w := families(50, 60_000, 20*time.Millisecond)
	for range 4 {
		configs = append(configs, config(w, "least_load", nil))
	}
	got, err := Sweep(ctx, configs, 1, func(p Progress) {
		if p.Ended > 0 {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got[0] == nil || !got[0].Stopped || got[0].Requests.Answered == 0 || got[3] != nil {
		t.Errorf("got %+v and %+v, want a stopped run and none", got[0], got[3])
	}
}

func TestPoliciesThatFollowTheCacheFindMore(t *testing.T) {
	w := families(24, 1500, 60*time.Millisecond)
	aware, random := run(t, config(w, "kv_aware", nil)), run(t, config(w, "random", nil))
	if aware.HitRate < random.HitRate+.1 {
		t.Errorf("kv_aware hits %.3f, random %.3f", aware.HitRate, random.HitRate)
	}
	// At a low load, routers know the engines' caches well. A prediction is too low only if requests with the same
	// prefix are under way at the same time.
	if aware.PredictedTokens < aware.CachedTokens*97/100 {
		t.Errorf("predicted %d tokens, engines found %d", aware.PredictedTokens, aware.CachedTokens)
	}
}

func TestSessionsWaitForTheirLastAnswer(t *testing.T) {
	w := sessions(10, 6, 3*time.Second)
	r := run(t, config(w, "kv_aware", func(c *Config) { c.Groups[0].KVTokens = 64 * 2000 }))
	// A session has 6 turns with 5 pauses of 3 s. Each answer has 50 tokens, and each token takes about 24 ms.
	if want := 5*3 + 6*1.2; r.Seconds < want || r.Seconds > want+8 {
		t.Errorf("it took %.1f s, want a bit above %.1f", r.Seconds, want)
	}
	// Each turn finds the conversation so far in the cache, except its last block and the new question.
	if r.HitRate < .65 {
		t.Errorf("hit rate %.3f: generated tokens are not found again", r.HitRate)
	}
}

func TestTheModelSeparatesPoolsByAdapter(t *testing.T) {
	w := families(1, 40, time.Second)
	for i := range w.Requests {
		w.Requests[i].LoRA = fmt.Sprint("adapter-", i%2)
	}
	r := run(t, config(w, "kv_aware", func(c *Config) { c.Groups[0].Count = 1 }))
	// 38 of 40 requests find the 2,048 shared tokens of their adapter in the cache.
	if want := 38 * 2048; r.CachedTokens != int64(want) {
		t.Errorf("%d tokens were cached, want %d", r.CachedTokens, want)
	}
}

func TestEventLagCostsHitsAndSpeculationSavesThem(t *testing.T) {
	// The requests of a burst share a new prefix. Such bursts lose the most hits by event lag.
	w := &workload.Workload{Name: "bursts", Block: 64}
	for i := range 600 {
		w.Requests = append(w.Requests, workload.Request{
			ID: i, Session: -1, After: -1, Arrival: time.Duration(i/6)*2*time.Second + time.Duration(i%6)*300*time.Millisecond, Input: 2304, Output: 20,
			Segments: []workload.Segment{{ID: uint64(1 + i/6), Tokens: 2048}, {ID: uint64(5000 + i), Tokens: 256}},
		})
	}
	hit := func(lag, speculative time.Duration) float64 {
		return run(t, config(w, "kv_aware", func(c *Config) { c.Lag, c.Speculative = lag, speculative })).HitRate
	}
	exact, late, saved := hit(0, -1), hit(time.Second, -1), hit(time.Second, 0)
	if !(late < exact-.2) {
		t.Errorf("without speculation: %.3f at once, %.3f a second late", exact, late)
	}
	if saved < exact-.02 {
		t.Errorf("a second late with speculation %.3f, at once %.3f", saved, exact)
	}
}

func TestLostEventsAreReplayedOrForgotten(t *testing.T) {
	w := families(12, 800, 60*time.Millisecond)
	whole := run(t, config(w, "kv_aware", nil))
	with := func(replay bool) *report.Run {
		return run(t, config(w, "kv_aware", func(c *Config) { c.Loss, c.Replay, c.Speculative = .02, replay, -1 }))
	}
	replayed, forgotten := with(true), with(false)
	if replayed.HitRate < whole.HitRate-.03 || forgotten.HitRate > replayed.HitRate-.01 {
		t.Errorf("hit rates: no loss %.3f, replayed %.3f, forgotten %.3f", whole.HitRate, replayed.HitRate, forgotten.HitRate)
	}
	if forgotten.Transfers.EventsLost == 0 || replayed.Transfers.EventsLost == 0 {
		t.Error("no event was lost")
	}
}

func TestRequestsSurviveAWorkersDeathBeforeTheirFirstToken(t *testing.T) {
	w := families(12, 600, 40*time.Millisecond)
	r := run(t, config(w, "least_load", func(c *Config) {
		c.Faults = []Fault{{At: 6 * time.Second, Worker: 2, Down: 5 * time.Second}, {At: 12 * time.Second, Worker: 0}}
	}))
	if r.Requests.Retried == 0 || r.Requests.Failed == 0 || r.Requests.Failed > 60 {
		t.Errorf("%+v: want some retried, and those in the middle of an answer failed", r.Requests)
	}
	if r.Workers[2].Restarts != 1 || r.Workers[0].Restarts != 0 {
		t.Errorf("restarts: %d and %d", r.Workers[2].Restarts, r.Workers[0].Restarts)
	}
	if r.Workers[0].Requests >= r.Workers[1].Requests {
		t.Errorf("the dead worker answered %d requests, a live one %d", r.Workers[0].Requests, r.Workers[1].Requests)
	}
}

func TestHostMemoryGivesBackEvictedBlocks(t *testing.T) {
	w := families(40, 1200, 60*time.Millisecond)
	without := run(t, config(w, "round_robin", nil))
	with := run(t, config(w, "round_robin", func(c *Config) { c.Groups[0].CPUTokens = 64 * 4000 }))
	if with.LoadedTokens == 0 || with.HitRate < without.HitRate+.1 {
		t.Errorf("hit %.3f with %d tokens loaded, %.3f without the tier", with.HitRate, with.LoadedTokens, without.HitRate)
	}
}

func TestDecodeWorkersTakeOverPrefilledPrompts(t *testing.T) {
	w := families(12, 400, 60*time.Millisecond)
	r := run(t, config(w, "kv_aware", func(c *Config) {
		c.Groups[0].Role = fleet.RolePrefill
		c.Groups = append(c.Groups, Group{Count: 2, Role: fleet.RoleDecode, Profile: engine.Profiles()[0], BlockSize: 64, KVTokens: 64 * 2000})
		c.Disaggregation = &Disaggregation{Legs: warmpath.Legs{Mode: policy.ModeAlways}}
	}))
	if r.Transfers.Handovers != 400 || r.Transfers.Divided != 400 || r.Transfers.HandoverTokens == 0 {
		t.Errorf("transfers: %+v", r.Transfers)
	}
	if len(r.Workers) != 6 {
		t.Fatalf("%d workers", len(r.Workers))
	}
	for i, k := range r.Workers {
		if (k.Requests > 0) != (i >= 4) {
			t.Errorf("%s answered %d requests", k.Name, k.Requests)
		}
		if (k.ComputedTokens > 0) != (i < 4) {
			t.Errorf("%s computed %d prompt tokens", k.Name, k.ComputedTokens)
		}
	}
	// Prefills do not delay decodes: the gaps between tokens are not longer than a pass that only decodes.
	if r.ITL.P99 > 40 {
		t.Errorf("p99 of gaps is %.1f ms", r.ITL.P99)
	}
}

func TestTheRouterQueueHoldsRequestsThatNoWorkerCanTake(t *testing.T) {
	w := families(12, 300, 10*time.Millisecond)
	limited := func(queue int) *report.Run {
		return run(t, config(w, "least_load", func(c *Config) { c.MaxRequests, c.Queue = 4, queue }))
	}
	if r := limited(0); r.Requests.Rejected == 0 {
		t.Error("without a queue nothing was rejected")
	}
	if r := limited(1000); r.Requests.Rejected != 0 || r.Requests.Answered != 300 {
		t.Errorf("with a queue: %+v", r.Requests)
	}
}

func TestAutoscalingAddsAndDrainsWorkers(t *testing.T) {
	w := families(12, 3000, 15*time.Millisecond)
	// After many requests in a short time, few requests follow.
	for i := 2500; i < 3000; i++ {
		w.Requests[i].Arrival = w.Requests[2499].Arrival + time.Duration(i-2499)*time.Second
	}
	r := run(t, config(w, "least_load", func(c *Config) {
		c.Groups[0].Count = 2
		c.Autoscale = &Autoscale{Min: 2, Max: 6, High: 8, Low: 1, Interval: 5 * time.Second, Start: 5 * time.Second}
	}))
	most, last := 0.0, r.Series.Ready[len(r.Series.Ready)-1]
	for _, n := range r.Series.Ready {
		most = max(most, n)
	}
	if most < 5 || last > 3 {
		t.Errorf("at most %.1f workers, %.1f at the end", most, last)
	}
	if r.Requests.Failed > 0 {
		t.Errorf("%d requests failed: draining must not break any off", r.Requests.Failed)
	}
}

func TestFasterWorkersAnswerMoreRequests(t *testing.T) {
	w := families(50, 1500, 25*time.Millisecond)
	r := run(t, config(w, "least_load", func(c *Config) {
		slow := c.Groups[0]
		slow.Count, slow.Speed = 2, .25
		c.Groups[0].Count = 2
		c.Groups = append(c.Groups, slow)
	}))
	if fast, slow := r.Workers[0].Requests, r.Workers[3].Requests; fast*2 < 3*slow {
		t.Errorf("a fast worker answered %d requests, one of a quarter of its speed %d", fast, slow)
	}
}

func TestDisturbedWorkersTakeLonger(t *testing.T) {
	w := families(50, 600, 50*time.Millisecond)
	calm := run(t, config(w, "round_robin", nil))
	noisy := run(t, config(w, "round_robin", func(c *Config) { c.Groups[0].Noise = 0.3 }))
	if d := noisy.ITL.Mean / calm.ITL.Mean; d < 0.95 || d > 1.05 || noisy.ITL.P99 < 1.3*calm.ITL.P50 {
		t.Errorf("noise of 30 %% made tokens %.2f times as slow in the mean, p99 %.0f ms", d, noisy.ITL.P99)
	}
	loaded := run(t, config(w, "round_robin", func(c *Config) {
		for i := range 4 {
			c.Disturbances = append(c.Disturbances, Disturbance{For: time.Hour, Worker: i, Factor: 2})
		}
	}))
	if d := loaded.ITL.Mean / calm.ITL.Mean; d < 1.9 {
		t.Errorf("disturbances by 2 made tokens %.2f times as slow", d)
	}
}

func TestStagesDrainBeforeTheNextBegins(t *testing.T) {
	w := families(12, 300, 5*time.Millisecond)
	w.Stages = []workload.Stage{{Name: "first", First: 0}, {Name: "second", First: 150, Start: w.Requests[150].Arrival, Drain: true}}
	r := run(t, config(w, "round_robin", func(c *Config) { c.Samples = 1000 }))
	end, begin := 0.0, 1e9
	for _, s := range r.Samples {
		// This run has fewer requests than Samples, so the result lists all of them.
		if s.Arrival < r.Stages[0].Seconds-1e-3 {
			end = max(end, s.End)
		} else {
			begin = min(begin, s.Arrival)
		}
	}
	if begin < end {
		t.Errorf("the second stage begins at %.2f s, the first ends at %.2f s", begin, end)
	}
	if r.Stages[0].Requests != 150 || r.Stages[1].Requests != 150 {
		t.Errorf("stages: %+v", r.Stages)
	}
}

func TestAThousandWorkersAndManyRanks(t *testing.T) {
	w := families(300, 1500, 2*time.Millisecond)
	r := run(t, config(w, "kv_aware", func(c *Config) { c.Groups[0].Count = 1000 }))
	if len(r.Workers) != 1000 {
		t.Errorf("%d workers", len(r.Workers))
	}
	r = run(t, config(w, "kv_aware", func(c *Config) { c.Groups[0].Count, c.Groups[0].Ranks = 4, 4 }))
	if len(r.Workers) != 16 || r.Workers[5].Requests == 0 {
		t.Errorf("%d ranks, the sixth answered %d requests", len(r.Workers), r.Workers[5].Requests)
	}
}

func TestMistakesAreAllReported(t *testing.T) {
	_, err := Run(context.Background(), Config{Rate: -1, Routers: 100, Loss: 2, Queue: 3, QueueOrder: "fair", Policy: policy.DefaultKVAware().Spec("kv_aware")}, nil)
	if err == nil {
		t.Fatal("a configuration of mistakes was accepted")
	}
	for _, part := range []string{"workload", "rate", "routers", "loss", "queue", "fair", "workers"} {
		if !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("the error does not speak of the %s: %v", part, err)
		}
	}
}

// A run refuses times that are far too long, and rates and speeds that make times far too long. Sums of such times
// would overflow, and the run would never end.
func TestTimesThatAreTooLongAreRefused(t *testing.T) {
	const ever = time.Duration(1 << 62)
	for name, change := range map[string]func(*Config){
		"lag":                func(c *Config) { c.Lag = ever },
		"jitter":             func(c *Config) { c.LagJitter = ever },
		"hop":                func(c *Config) { c.Hop = ever },
		"metrics":            func(c *Config) { c.Metrics = ever },
		"age of metrics":     func(c *Config) { c.MetricsLag = ever },
		"a fault":            func(c *Config) { c.Faults = []Fault{{At: ever}} },
		"how long one lasts": func(c *Config) { c.Faults = []Fault{{Down: ever}} },
		"a rate":             func(c *Config) { c.Rate = 1e-9 },
		"an API server":      func(c *Config) { c.Groups[0].Frontend.Request = ever },
		"noise":              func(c *Config) { c.Groups[0].Noise = 2 },
		"a disturbance":      func(c *Config) { c.Disturbances = []Disturbance{{For: ever, Factor: 1}} },
		"a speed":            func(c *Config) { c.Groups[0].Speed = 1e-9 },
		"think time":         func(c *Config) { c.Workload.Requests[1].Think = ever },
		"looks back":         func(c *Config) { c.Autoscale = &Autoscale{Min: 1, Max: 2, High: 1, Interval: -time.Second} },
		"starts":             func(c *Config) { c.Autoscale = &Autoscale{Min: 1, Max: 2, High: 1, Start: ever} },
	} {
		c := config(families(1, 9, time.Second), "random", change)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if r, err := Run(ctx, c, nil); err == nil {
			t.Errorf("%s: not refused, stopped %v", name, r.Stopped)
		}
		cancel()
	}
	if _, err := parseRate("20/s", &workload.Workload{}); err == nil {
		t.Error("a rate of no requests: not refused")
	}
}
