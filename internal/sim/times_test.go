package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/test/testenv"
)

// timesSeeds returns the number of seeds in the environment variable WARMPATH_TIMES_SEEDS, or 0 if the variable is not
// set. `make times` sets the variable to 3. With 0 the tests of this file take some seconds in total. Otherwise they
// play whole hours with more fleet sizes and more rates.
func timesSeeds() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("WARMPATH_TIMES_SEEDS"), 10, 64)
	return n
}

// apart returns requests without a common prefix. rate is in requests a second.
func apart(t *testing.T, requests int, rate float64, seed uint64) *workload.Workload {
	t.Helper()
	w, err := workload.Load(fmt.Sprintf("gen:independent,rate=%g,requests=%d,question=1000,output=60", rate, requests), workload.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// unsteady returns a run of w on n equal engines. The durations of their passes have a standard deviation of 30 %.
func unsteady(w *workload.Workload, n int, seed uint64) Config {
	return config(w, "marginal", func(c *Config) {
		c.Seed = seed
		c.Groups = []Group{{Count: n, Profile: engine.Profiles()[0], BlockSize: 64, KVTokens: 64 * 1000, Noise: 0.3}}
	})
}

// oneOfEight is like unsteady with eight engines, but the last engine runs at half speed.
func oneOfEight(w *workload.Workload, seed uint64) Config {
	c := unsteady(w, 7, seed)
	slow := c.Groups[0]
	slow.Count, slow.Speed = 1, 0.5
	c.Groups = append(c.Groups, slow)
	return c
}

// bursts returns disturbances of one to three minutes each, on one of n machines at a time. Passes take 30 % longer
// during a disturbance.
func bursts(n int, seed uint64, span time.Duration) (all []Disturbance) {
	random := rand.New(rand.NewPCG(seed, 0xb0))
	for at := time.Duration(0); at < span; {
		d := Disturbance{At: at, For: time.Minute + time.Duration(random.Int64N(int64(2*time.Minute))), Worker: random.IntN(n), Factor: 1.3}
		all = append(all, d)
		at += d.For + time.Duration(random.Int64N(int64(time.Minute)))
	}
	return all
}

// shares returns each worker's number of requests as a multiple of the mean.
func shares(t *testing.T, c Config) (all []float64) {
	t.Helper()
	r := run(t, c)
	for _, w := range r.Workers {
		all = append(all, float64(w.Requests)*float64(len(r.Workers))/float64(r.Requests.Answered))
	}
	return all
}

// TestNoiseOnLikeMachinesIsNoPreference plays equal engines with noise in each pass and bursts of other work. The
// number of requests of each engine must stay within 0.8 to 1.25 times the mean. Rates stay at or below 10 requests a
// second for each engine, because an engine cannot serve 16. bench/results/learned_times.md has the results of `make
// times` for all tests of this file.
func TestNoiseOnLikeMachinesIsNoPreference(t *testing.T) {
	testenv.SkipRaced(t)
	sizes, rates, seeds, span := []int{2, 8, 16}, []float64{0.02, 0.5}, uint64(1), 20*time.Minute
	if n := timesSeeds(); n > 0 {
		sizes, rates, seeds, span = []int{2, 4, 8, 16, 32, 64}, []float64{0.02, 0.5, 4, 10}, n, time.Hour
	}
	for _, n := range sizes {
		for _, rate := range rates { // requests a second for each engine
			least, most := 1.0, 1.0
			for seed := uint64(1); seed <= seeds; seed++ {
				total := rate * float64(n)
				c := unsteady(apart(t, int(total*span.Seconds()), total, seed), n, seed)
				c.Disturbances = bursts(n, seed, span)
				all := shares(t, c)
				least, most = min(least, slices.Min(all)), max(most, slices.Max(all))
			}
			t.Logf("%d engines, %g requests/s each: shares from %.3f to %.3f of the mean", n, rate, least, most)
			if least < 0.8 || most > 1.25 {
				t.Errorf("%d engines, %g requests/s each: shares from %.3f to %.3f of the mean", n, rate, least, most)
			}
		}
	}
}

// TestASlowMachineIsFound plays eight engines, one of them at half speed. The pace of an engine is a factor: how much
// longer its passes take than those of the median engine. After 200 requests in total the router must have found the
// slow engine: the confidence interval of its pace lies above 1.1, and the router uses the pace in its scores.
func TestASlowMachineIsFound(t *testing.T) {
	seeds := cmp.Or(100*timesSeeds(), 5)
	// rate is in requests a second for all engines together: 200 requests take 10 s, 100 s and 56 min.
	for _, rate := range []float64{20, 2, 0.06} {
		found, wronged, least, most := 0, 0, 10.0, 0.0
		for seed := uint64(1); seed <= seeds; seed++ {
			w, err := newWorld(oneOfEight(apart(t, 200, rate, seed), seed))
			if err != nil {
				t.Fatal(err)
			}
			w.play(context.Background(), nil)
			s := w.main.views[0].fleet.Snapshot()
			if p := s.Pace(7); p.Believed && p.Low > 1.1 {
				found++
				least, most = min(least, p.Factor), max(most, p.Factor)
			}
			for h := range fleet.Holder(7) {
				if s.Pace(h).Believed {
					wronged++
				}
			}
		}
		t.Logf("%g requests/s: found in %d of %d seeds, at factors from %.2f to %.2f; %d of %d others believed unlike",
			rate, found, seeds, least, most, wronged, 7*seeds)
		// By the statistical model, the router takes an engine of normal speed for a slow or fast engine with a probability
		// of at most 2.5 %.
		if float64(found) < 0.99*float64(seeds) || float64(wronged) > 0.025*7*float64(seeds) {
			t.Errorf("%g requests/s: found in %d of %d seeds, %d of %d others believed unlike", rate, found, seeds, wronged, 7*seeds)
		}
	}
}

// TestASlowMachineGetsAboutHalf plays eight engines, one of them at half speed. The slow engine must get about half as
// many requests as another engine. With service levels it gets less under load: its answers take about 50 ms for each
// token, so many of them would break the strict level.
func TestASlowMachineGetsAboutHalf(t *testing.T) {
	testenv.SkipRaced(t)
	requests, rates, seeds := 2000, []float64{0.1, 2, 20, 60}, uint64(1)
	if n := timesSeeds(); n > 0 {
		requests, rates, seeds = 20_000, []float64{0.1, 0.5, 2, 5, 10, 20, 40, 60, 80}, n
	}
	for _, rate := range rates {
		for _, levels := range [][]fleet.ServiceLevel{{}, fleet.DefaultServiceLevels()} {
			least, most, want := 1.0, 0.0, 0.35
			if len(levels) > 0 && rate > 20 {
				want = 0.25
			}
			for seed := uint64(1); seed <= seeds; seed++ {
				c := oneOfEight(apart(t, requests, rate, seed), seed)
				c.Levels = levels
				all := shares(t, c)
				got := all[7] * 7 / (8 - all[7])
				least, most = min(least, got), max(most, got)
			}
			t.Logf("%g requests/s, levels %v: from %.2f to %.2f of another's share", rate, levels, least, most)
			if least < want || most > 0.65 {
				t.Errorf("%g requests/s, levels %v: the slow one gets from %.2f to %.2f of another's share, want %.2f to 0.65", rate, levels, least, most, want)
			}
		}
	}
}

// TestAShareReturnsAfterABurst plays several engines. For one minute the passes of one engine take twice as long. A few
// minutes later this engine must get its full share of the requests again. A burst in the first minute looks like a
// slow machine, so the router needs longer to correct its estimate.
func TestAShareReturnsAfterABurst(t *testing.T) {
	testenv.SkipRaced(t)
	sizes, rates, seeds := []int{2, 8}, []float64{0.25, 1.5}, uint64(1)
	if n := timesSeeds(); n > 0 {
		sizes, rates, seeds = []int{2, 8, 32}, []float64{0.02, 0.25, 1.5, 8}, n
	}
	for _, n := range sizes {
		for _, rate := range rates { // requests a second for each engine
			for _, at := range []time.Duration{0, 5 * time.Minute} {
				from := at + 4*time.Minute
				if at == 0 {
					from = 10 * time.Minute
				}
				least, most := 9.0, 0.0
				for seed := uint64(1); seed <= seeds; seed++ {
					total := rate * float64(n)
					w := apart(t, int(total*(from+15*time.Minute).Seconds()), total, seed)
					c := unsteady(w, n, seed)
					c.Disturbances = []Disturbance{{At: at, For: time.Minute, Worker: 0, Factor: 2}}
					c.Samples = len(w.Requests)
					got, all := 0, 0
					for _, s := range run(t, c).Samples {
						if s.Arrival > from.Seconds() {
							all++
							if s.Worker == 0 {
								got++
							}
						}
					}
					share := float64(got) * float64(n) / float64(all)
					least, most = min(least, share), max(most, share)
				}
				t.Logf("%d engines, %g requests/s each, a burst at %v: from %.3f to %.3f of the mean after %v", n, rate, at, least, most, from)
				if least < 0.8 || most > 1.25 {
					t.Errorf("%d engines, %g requests/s each, a burst at %v: from %.3f to %.3f of the mean after %v", n, rate, at, least, most, from)
				}
			}
		}
	}
}
