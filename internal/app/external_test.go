package app

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy/peers"
)

// The policies that the file describes have a source each, and so does a built-in policy in use.
func TestPoliciesWithASource(t *testing.T) {
	described := config.Policy{Name: "warm", Type: "lmcache_aware", Parameters: &peers.LMCacheAware{ControllerURL: "http://c:9000"}}
	other := config.Policy{Name: "mine", Type: "cache_aware", Parameters: &peers.CacheAware{}}
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"none":               {func(*config.Config) {}, nil},
		"described":          {func(c *config.Config) { c.Policies = []config.Policy{other, described} }, []string{"warm"}},
		"the fleet's policy": {func(c *config.Config) { c.Policy = "lmcache_aware" }, []string{"lmcache_aware"}},
		"a model's policy":   {func(c *config.Config) { c.ModelPolicies = map[string]string{"m": "lmcache_aware"} }, []string{"lmcache_aware"}},
		"with parameters":    {func(c *config.Config) { c.Policy = "lmcache_aware:cache_weight=0.5" }, []string{"lmcache_aware:cache_weight=0.5"}},
		"the shadow":         {func(c *config.Config) { c.Shadow = "lmcache_aware" }, []string{"lmcache_aware"}},
		"a request's policy": {func(c *config.Config) { c.RequestPolicies = []string{"lmcache_aware"} }, []string{"lmcache_aware"}},
	} {
		cfg := config.Default()
		test.change(&cfg)
		got := slices.Sorted(maps.Keys(withSource(&cfg)))
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestTheControllerIsAskedAsThePolicySays(t *testing.T) {
	p := peers.LMCacheAware{
		ControllerURL: "http://c:9000", ControllerAPIKey: "key", PollIntervalSecs: 3, ControllerTimeoutMs: 40,
		LookupMode: peers.LookupPrefix, LMCacheWorkerMap: map[string]string{"one": "http://w:8000"},
	}
	want := discovery.LMCacheConfig{
		URL: "http://c:9000", APIKey: "key", PollInterval: 3 * time.Second, Timeout: 40 * time.Millisecond, Lookup: true,
		Workers: map[string]string{"one": "http://w:8000"},
	}
	if diff := cmp.Diff(want, controllerOf(&p)); diff != "" {
		t.Error(diff)
	}
	p.LookupMode = peers.LookupOccupancy
	if controllerOf(&p).Lookup {
		t.Error("with lookup_mode occupancy, the controller is asked about prompts")
	}
}

// The policy's parameters stay the same; only the source is new.
func TestAPolicyGetsItsSourceWhenItIsUsed(t *testing.T) {
	cfg := config.Default()
	a, err := New(&cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	has := func() bool {
		t.Helper()
		p, err := a.router.Policy("lmcache_aware", "")
		if err != nil {
			t.Fatal(err)
		}
		return p.Source() != nil
	}
	for _, used := range []string{"kv_aware", "lmcache_aware", "kv_aware"} {
		next := config.Default()
		next.Policy = used
		if _, err := a.changePolicies(&next); err != nil {
			t.Fatal(err)
		}
		take(a.cfg, &next)
		if want := used == "lmcache_aware"; has() != want {
			t.Errorf("the fleet's policy is %s, and that lmcache_aware has a source is %v", used, has())
		}
	}
}
