package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Each of four routers sees a quarter of the load. A router knows the rest of the load only from the engines' reports.
func TestRoutersLearnFromEnginesTheLoadOfOtherRouters(t *testing.T) {
	w := families(400, 800, 45*time.Millisecond)
	several := func(c *Config) { c.Routers = 4 }
	without := run(t, config(w, "least_load:by=requests", func(c *Config) { several(c); c.Metrics = -1 }))
	fresh := run(t, config(w, "least_load:by=requests", func(c *Config) { several(c); c.Metrics = 50 * time.Millisecond }))
	stale := run(t, config(w, "least_load:by=requests", func(c *Config) { several(c); c.Metrics, c.MetricsLag = time.Second, 4*time.Second }))
	t.Logf("mean time to first token: without metrics %.0f ms, every 50 ms %.0f ms, 4 s old %.0f ms", without.TTFT.Mean, fresh.TTFT.Mean, stale.TTFT.Mean)
	if fresh.TTFT.Mean >= without.TTFT.Mean || stale.TTFT.Mean < 1.5*fresh.TTFT.Mean {
		t.Error("fresh metrics should help, and more than stale ones")
	}
}

func TestClientsSendNoMoreThanTheyMay(t *testing.T) {
	w := families(12, 200, 5*time.Millisecond)
	free, bound := run(t, config(w, "round_robin", nil)), run(t, config(w, "round_robin", func(c *Config) { c.InFlight = 8 }))
	if free.E2E.Mean < 1.5*bound.E2E.Mean {
		t.Errorf("mean end to end: %.0f ms with 8 under way, %.0f ms without a limit", bound.E2E.Mean, free.E2E.Mean)
	}
	if bound.Requests.Answered != len(w.Requests) || bound.Seconds < free.Seconds {
		t.Errorf("with 8 under way %d were answered in %.0f s, without a limit it took %.0f s", bound.Requests.Answered, bound.Seconds, free.Seconds)
	}
}

// Policies that use the prompt's text get a text that is made from the tokens. Equal tokens give equal text, so these
// policies find common prefixes.
func TestPoliciesOnTextFindPrefixes(t *testing.T) {
	w := families(12, 200, 40*time.Millisecond)
	random := run(t, config(w, "random", nil))
	for _, name := range []string{"cache_aware", "prefix_cache_affinity"} {
		if !slices.Contains(Policies(), name) {
			t.Errorf("policy %s is not there", name)
			continue
		}
		if r := run(t, config(w, name, nil)); r.HitRate < random.HitRate+.05 {
			t.Errorf("%s: hit rate %.3f, random %.3f", name, r.HitRate, random.HitRate)
		}
	}
}

func TestPoliciesTakeParameters(t *testing.T) {
	names := SplitPolicies([]string{"random", "kv:prefill_load_scale=16", "router_temperature=0.5", "kv_aware:imbalance=0"})
	if diff := cmp.Diff([]string{"random", "kv:prefill_load_scale=16,router_temperature=0.5", "kv_aware:imbalance=0"}, names); diff != "" {
		t.Error(diff)
	}
	for _, name := range names {
		if spec, err := ParsePolicy(name); err != nil || spec.Name != name {
			t.Errorf("%s: %v, called %q", name, err, spec.Name)
		}
	}
	for _, bad := range []string{"kv:nonsense=1", "kv:prefill_load_scale", "nobody", "direct"} {
		if _, err := ParsePolicy(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if spec, err := ParsePolicy("kv_aware"); err != nil || spec.ImbalanceTokens == 0 {
		t.Errorf("kv_aware: %v, a bound of %d tokens", err, spec.ImbalanceTokens)
	}
}
