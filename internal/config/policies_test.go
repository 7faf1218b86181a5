package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/policy"
)

func load(t *testing.T, file string) *Config {
	t.Helper()
	cfg, err := Load("testdata/good/"+file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestPoliciesTakeTheirDefaultsFromRouting(t *testing.T) {
	cfg := load(t, "policies.yaml")
	unbounded := cfg.Policies[0].Parameters.(*policy.LongestMatch)
	if unbounded.ImbalanceTokens != 0 || unbounded.TierWeights.CPU != 0.5 || !unbounded.EnableSpeculative {
		t.Errorf("unbounded: %+v", unbounded)
	}
	gentle := cfg.Policies[1].Parameters.(*policy.LongestMatch)
	if want := (policy.TierWeights{GPU: 1, CPU: 0.5, Disk: 0.05, Remote: 0.1}); gentle.ImbalanceTokens != 1000 || gentle.TierWeights != want {
		t.Errorf("gentle: %+v", gentle)
	}
	spec := cfg.Spec()
	want := []policy.Weighted{{Scorer: "match", Weight: 3}, {Scorer: "load", Weight: 2}}
	if diff := cmp.Diff(want, spec.Scorers); diff != "" || spec.Name != "mixed" || spec.ImbalanceTokens != 4096 {
		t.Errorf("%+v %s", spec, diff)
	}
}

func TestPoliciesReachTheRouterByModel(t *testing.T) {
	o := load(t, "policies.yaml").Options()
	if o.Policy.Name != "mixed" || o.ModelPolicies["sql"] != "round_robin" {
		t.Errorf("%+v", o)
	}
	for _, s := range o.Policies {
		if _, err := policy.Build(s); err != nil {
			t.Error(err)
		}
	}
}

func TestAPolicyMayBeWrittenInPlace(t *testing.T) {
	cfg := load(t, "seed_kv_aware.yaml")
	spec := cfg.Spec()
	if cfg.Policy != "kv_aware" || spec.SpeculativeTTL != 2*time.Second || spec.BlockSize != 16 || spec.ImbalanceTokens != policy.DefaultImbalanceTokens {
		t.Errorf("policy %s: %+v", cfg.Policy, spec)
	}
}
