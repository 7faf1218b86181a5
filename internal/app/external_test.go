package app

import (
	"maps"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/policy/peers"
)

// TestControllersAreAskedForThePoliciesThatWantThem: those that the file describes, and the built-in one where it is
// used.
func TestControllersAreAskedForThePoliciesThatWantThem(t *testing.T) {
	described := config.Policy{Name: "warm", Type: "lmcache_aware", Parameters: &peers.LMCacheAware{ControllerURL: "http://c:9000"}}
	other := config.Policy{Name: "mine", Type: "cache_aware", Parameters: &peers.CacheAware{}}
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"nobody wants to":    {func(*config.Config) {}, nil},
		"described":          {func(c *config.Config) { c.Policies = []config.Policy{other, described} }, []string{"warm"}},
		"the fleet's policy": {func(c *config.Config) { c.Policy = "lmcache_aware" }, []string{"lmcache_aware"}},
		"a model's policy":   {func(c *config.Config) { c.ModelPolicies = map[string]string{"m": "lmcache_aware"} }, []string{"lmcache_aware"}},
		"with parameters":    {func(c *config.Config) { c.Policy = "lmcache_aware:cache_weight=0.5" }, []string{"lmcache_aware:cache_weight=0.5"}},
		"the shadow":         {func(c *config.Config) { c.Shadow = "lmcache_aware" }, []string{"lmcache_aware"}},
		"a request's policy": {func(c *config.Config) { c.RequestPolicies = []string{"lmcache_aware"} }, []string{"lmcache_aware"}},
	} {
		cfg := config.Default()
		test.change(&cfg)
		got := slices.Sorted(maps.Keys(asking(&cfg)))
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
