package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

func TestPoliciesAreWrittenAsTheirSourcesWriteThem(t *testing.T) {
	cfg := load(t, "other_cache_policies.yaml")
	aware := peers.DefaultCacheAware()
	aware.CacheThreshold, aware.BalanceAbsThreshold, aware.BalanceRelThreshold = 0.5, 32, 1.1
	aware.EvictionIntervalSecs, aware.MaxTreeSize = 30, 10000
	affinity := peers.DefaultPrefixCacheAffinity()
	affinity.ImbalancedThreshold, affinity.MatchRateThreshold, affinity.DoEviction = 5, 0.15, true
	affinity.EvictionThresholdChars, affinity.EvictionTargetChars, affinity.EvictionIntervalSecs = 500_000, 400_000, 30
	affinity.Filters, affinity.Locality = []string{"locality"}, peers.Locality{Node: "n1", Zone: "b"}
	tracker := peers.DefaultVLLMCacheAware()
	lmcache := peers.DefaultLMCacheAware()
	lmcache.ControllerURL, lmcache.LookupMode = "http://lmcache-controller:9000", peers.LookupPrefix
	lmcache.LMCacheWorkerMap = map[string]string{"vllm-001": "http://vllm-worker-001:8000", "vllm-002": "http://vllm-worker-002:8000"}
	near := peers.DefaultMix()
	near.Filters, near.Scorers, near.Locality = []string{"multiplex", "locality"}, []policy.Weighted{{Scorer: "load", Weight: 1}}, peers.Locality{Zone: "b"}
	want := []policy.Parameters{&tracker, &aware, &affinity, &lmcache, &near}
	for i, p := range cfg.Policies {
		if diff := cmp.Diff(want[i], p.Parameters); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p.Type, diff)
		}
	}
	if cfg.Spec().Name != "vllm_cache_aware" {
		t.Errorf("the fleet's policy is %s", cfg.Spec().Name)
	}
}
