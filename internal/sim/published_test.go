package sim_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/test/testenv"
)

// sweep plays the default experiment after change has changed it, and returns the runs by policy.
func sweep(t *testing.T, change func(*sim.Experiment)) map[string]*report.Run {
	t.Helper()
	x := sim.DefaultExperiment()
	change(&x)
	for _, p := range x.Policies {
		if _, err := sim.ParsePolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	by := map[string]*report.Run{}
	for _, r := range playAll(t, x) {
		by[r.Policy] = r
		t.Logf("%-40s hit %.3f, TTFT mean %.0f p90 %.0f ms, TPOT mean %.1f ms, E2E mean %.1f s, SLO %.3f", r.Policy, r.HitRate, r.TTFT.Mean, r.TTFT.P90, r.TPOT.Mean, r.E2E.Mean/1000, r.SLO[0].Share)
	}
	return by
}

// playAll plays all runs of an experiment.
func playAll(t *testing.T, x sim.Experiment) []*report.Run {
	t.Helper()
	w, err := workload.Load(x.Workload, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	configs, err := x.Configs(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := sim.Sweep(context.Background(), configs, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// conversation changes an experiment to Mooncake's conversation trace near saturation: the arrival rate is 1.75 times
// the recorded rate, and 8 workers have caches of 1.5 million tokens each.
func conversation(t *testing.T) func(*sim.Experiment) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: each policy takes a second of a core")
	}
	path := testenv.Path(t, "traces/mooncake_conversation.jsonl.gz")
	return func(x *sim.Experiment) {
		x.Workload, x.Rate, x.KVTokens = "mooncake:"+path, []string{"1.75"}, []int{1_500_000}
	}
}

// The LMetric paper (arXiv 2603.15202) says that near saturation the product of two terms is better than linear or
// weighted sums of these terms.
func TestLMetricBeatsLinearAndWeightedNearSaturation(t *testing.T) {
	linear, weighted := "kv", "precise_prefix_cache"
	runs := sweep(t, func(x *sim.Experiment) {
		conversation(t)(x)
		x.Policies = []string{"lmetric", linear, weighted, "random"}
	})
	l := runs["lmetric"]
	for _, name := range []string{linear, weighted, "random"} {
		if o := runs[name]; l.SLO[0].Share <= o.SLO[0].Share || l.TTFT.Mean >= o.TTFT.Mean && l.E2E.Mean >= o.E2E.Mean {
			t.Errorf("lmetric keeps the SLO for %.3f with a mean TTFT of %.0f ms, %s for %.3f with %.0f ms", l.SLO[0].Share, l.TTFT.Mean, name, o.SLO[0].Share, o.TTFT.Mean)
		}
	}
}

// The documentation of DynoSim (ai-dynamo/dynamo) has this sweep. A larger prefill_load_scale helps up to a value of 16
// to 32; larger values do not help more.
func TestThePrefillLoadScaleSaturates(t *testing.T) {
	scales := []string{"1", "4", "16", "32", "64"}
	runs := sweep(t, func(x *sim.Experiment) {
		conversation(t)(x)
		x.Policies = nil
		for _, s := range scales {
			x.Policies = append(x.Policies, "kv:prefill_load_scale="+s)
		}
	})
	at := func(i int) *report.Run { return runs["kv:prefill_load_scale="+scales[i]] }
	for i := 1; i < 3; i++ {
		if a, b := at(i-1), at(i); b.TTFT.Mean > .98*a.TTFT.Mean || b.HitRate < a.HitRate {
			t.Errorf("from scale %s to %s: mean TTFT %.0f to %.0f ms, hit %.3f to %.3f: it should still help", scales[i-1], scales[i], a.TTFT.Mean, b.TTFT.Mean, a.HitRate, b.HitRate)
		}
	}
	whole := at(0).TTFT.Mean - at(4).TTFT.Mean
	if gain := at(2).TTFT.Mean - at(4).TTFT.Mean; gain > .15*whole {
		t.Errorf("beyond scale 16 mean TTFT still falls by %.0f of %.0f ms: it should have saturated", gain, whole)
	}
}

// bursts is a workload with bursts of 24 requests within two seconds. The requests of a burst share a new prefix, which
// is the worst case for event lag.
const bursts = "gen:burst,size=24,spread=2,bursts=16,every=4,system=16000,seed=1"

// Event lag costs hits and lengthens tail latency. If the router expects the blocks of sent prompts before their events
// arrive (speculative entries), event lag costs almost nothing.
func TestEventLagCostsHitsAndTails(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it takes ten seconds of a core")
	}
	lags := []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}
	measure := func(lag, speculative time.Duration) *report.Run {
		runs := sweep(t, func(x *sim.Experiment) {
			x.Workload, x.Policies, x.Lag, x.Speculative = bursts, []string{"kv_aware"}, lag, speculative
		})
		return runs["kv_aware"]
	}
	var without, with []*report.Run
	for _, lag := range lags {
		without, with = append(without, measure(lag, -1)), append(with, measure(lag, 0))
	}
	for i, lag := range lags {
		t.Logf("lag %v: without hit %.3f, TTFT p50 %.0f p95 %.0f p99 %.0f ms; with %.3f, %.0f, %.0f, %.0f", lag, without[i].HitRate, without[i].TTFT.P50, without[i].TTFT.P95,
			without[i].TTFT.P99, with[i].HitRate, with[i].TTFT.P50, with[i].TTFT.P95, with[i].TTFT.P99)
	}
	falling := func(a, b *report.Run) int {
		switch {
		case a.HitRate < b.HitRate:
			return 1
		case a.HitRate > b.HitRate:
			return -1
		}
		return 0
	}
	if !slices.IsSortedFunc(without, falling) {
		t.Error("without speculative entries the hit rate should fall as lag grows")
	}
	last := len(lags) - 1
	if without[0].HitRate-without[last].HitRate < .01 || without[last].TTFT.P95 < 1.1*without[0].TTFT.P95 {
		t.Errorf("a second of lag takes hit from %.3f to %.3f and p95 from %.0f to %.0f ms: too little to matter", without[0].HitRate, without[last].HitRate, without[0].TTFT.P95, without[last].TTFT.P95)
	}
	if d := with[0].HitRate - with[last].HitRate; d > .005 || with[last].TTFT.P99 > 1.05*with[0].TTFT.P99 {
		t.Errorf("with speculative entries a second of lag still takes hit from %.3f to %.3f and p99 from %.0f to %.0f ms", with[0].HitRate, with[last].HitRate, with[0].TTFT.P99, with[last].TTFT.P99)
	}
}
