package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
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
	unbounded := cfg.Policies[0].Parameters.(*policy.KVAware)
	if unbounded.ImbalanceTokens != 0 || unbounded.TierWeights.CPU != 0.5 || !unbounded.EnableSpeculative {
		t.Errorf("unbounded: %+v", unbounded)
	}
	gentle := cfg.Policies[1].Parameters.(*policy.KVAware)
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

func TestPoliciesKeepTheirParametersHoweverTheyAreWritten(t *testing.T) {
	const parameters = "{type: kv_aware, imbalance_tokens: 7}"
	for _, text := range []string{
		"policies: [" + parameters + "]",
		"policies: &a\n  - " + parameters,
		"policies: !!seq\n  - " + parameters,
		"policies: [&a " + parameters + "]",
		"<<: {policies: [" + parameters + "]}",
		"&a {policies: [" + parameters + "]}",
		"policies:\n  - {type: random, name: x}\n  - <<: " + parameters,
		"policies:\n  - &a " + parameters + "\n  - {<<: *a, name: y}",
		"policy: &a " + parameters + "\npolicies: [{<<: *a, name: z, imbalance_tokens: 8}]",
		"routing: {kv_aware: {imbalance_tokens: 7}}",
	} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if p, ok := cfg.Parameters()["kv_aware"].(*policy.KVAware); !ok || p.ImbalanceTokens != 7 {
			t.Errorf("%q: %+v", text, cfg.Parameters()["kv_aware"])
		}
	}
	for text, want := range map[string]string{
		"policies: !\n  -\n": "f:1:11: ",
		"<<: {nothing: 1, policies: [{type: random, by: x}]}\n":        "f:1:44: policies[0]: random has no \"by\"",
		"routing: {kv_aware: {imbalance_tokens: -1}}":                  "f:1:40: policies[0].imbalance_tokens: -1 is",
		"policies:\n  - &a {type: kv_aware, imbalance_token: 7}\n":     "f:2:25: policies[0]: kv_aware has no",
		"routing: {policy: best}":                                      "f:1:19: policy: \"best\" is none of",
		"policies: {type: random}":                                     "f:1:11: keys with values stand where a list is expected",
		"policy: {kv: {prefill_load_scale: 16}}":                       "f:1:9: policy has no type: write type: NAME beside its parameters",
		"policy: [random]":                                             "f:1:9: a list stands where a text is expected",
		"policies: [{type: kv_aware, tier_weights: {gpuu: 1}}]":        "unknown field policies.tier_weights.gpuu; did you mean policies.tier_weights.gpu?",
		"policies: [{type: least_load, by: seconds}]":                  "policies[0].by: seconds is the policy smg_least_load",
		"policies: [{type: least_load, throughput: 1000}]":             `least_load has no "throughput": the policy smg_least_load has this setting`,
		"policies: [{type: power_of_two, by: requests}]":               `power_of_two has no "by": the policy smg_power_of_two has this setting`,
		"policies: [{type: mix, picker: power_of_two_requests}]":       `policies[0].picker: "power_of_two_requests" is the policy smg_power_of_two`,
		"policies: [{type: mix, scorers: [{scorer: load, weigh: 1}]}]": "unknown field policies.scorers.weigh; did you mean policies.scorers.weight?",
	} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

func TestAPolicyMayBeWrittenInPlace(t *testing.T) {
	cfg := load(t, "other_kv_aware.yaml")
	spec := cfg.Spec()
	if cfg.Policy != "kv_aware" || spec.SpeculativeTTL != 2*time.Second || spec.BlockSize != 16 || spec.ImbalanceTokens != policy.DefaultImbalanceTokens {
		t.Errorf("policy %s: %+v", cfg.Policy, spec)
	}
}

func TestSectionsOfOtherRoutersAreRead(t *testing.T) {
	for file, want := range map[string]struct{ policy, key, value string }{
		"other_kv_aware.yaml":              {"kv_aware", "speculative_ttl_ms", "2000"},
		"other_vllm_cache_aware.yaml":      {"vllm_cache_aware", "max_blocks_per_backend", "50000"},
		"other_kv.yaml":                    {"kv", "router_temperature", "0.5"},
		"other_precise_prefix_cache.yaml":  {"precise_prefix_cache", "tier_weights.cpu", "0.8"},
		"other_prefix_cache_affinity.yaml": {"prefix_cache_affinity", "eviction_target_chars", "400000"},
		"other_hashing.yaml":               {"rendezvous_hash", "fallback", "prompt"},
	} {
		cfg := load(t, file)
		if cfg.Policy != want.policy || cfg.Spec().Name != want.policy {
			t.Errorf("%s: policy %s", file, cfg.Policy)
			continue
		}
		for _, p := range cfg.Policies {
			if got := policy.ParameterText(p.Parameters, want.key); p.Name == want.policy && got != want.value {
				t.Errorf("%s: %s is %s, want %s", file, want.key, got, want.value)
			}
		}
		if _, err := policy.Build(cfg.Spec()); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		// The file has only policies in the section routing. All other settings of the section must keep their
		// defaults.
		if diff := cmp.Diff(Default().Routing, cfg.Routing); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestANameMayContainParameters(t *testing.T) {
	cfg, err := Load("testdata/good/workers.yaml", func(c *Config) {
		c.Policy = "kv_aware:imbalance_tokens=7"
		c.ModelPolicies = map[string]string{"llama": "kv:prefill_load_scale=16"}
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := cfg.Spec()
	if spec.Name != "kv_aware:imbalance_tokens=7" || spec.ImbalanceTokens != 7 || spec.TierWeights[1] != 0.8 {
		t.Errorf("%+v", spec)
	}
	o := cfg.Options()
	if !slices.ContainsFunc(o.Policies, func(s policy.Spec) bool { return s.Name == o.ModelPolicies["llama"] }) {
		t.Error("the model's policy is not among those of the router")
	}
	for name, want := range map[string]string{
		"kv_awear:imbalance_tokens=7":                       `policy: "kv_awear" is none of`,
		"kv_aware:imbalance_token=7":                        `policy: there is no "imbalance_token" (known: tier_weights.gpu,`,
		"kv_aware:imbalance_tokens":                         `policy: "imbalance_tokens" is not NAME=VALUE (known: tier_weights.gpu, `,
		"lmcache_aware:controller_api_key=s3cret":           "policy: controller_api_key cannot be a part of a policy",
		"lmcache_aware:controller_url=http://u:s3cret@host": "policy: controller_url cannot be a part of a policy",
		"mix":                         "; in the file, for example: policy: {type: mix, ",
		"foo":                         ", mix, ",
		"scripts":                     "script:file=FILE, ",
		"kv_aware:tier_weights.cpu=3": "policy: tier_weights.cpu: 3 is outside 0..1",
	} {
		if _, err := Load("", func(c *Config) { c.Policy = name }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEachPolicyWithTierWeightsTakesRoutings: routing.tier_weights is the default for every policy with tier weights.
func TestEachPolicyWithTierWeightsTakesRoutings(t *testing.T) {
	r := Default().Routing
	r.TierWeights.CPU = 0.5
	weigh := 0
	for _, k := range warmpath.PolicyKinds() {
		p := r.defaults(k)
		if !slices.Contains(policy.ParameterKeys(p), "tier_weights.cpu") {
			continue
		}
		weigh++
		got := reflect.ValueOf(p).Elem().FieldByName("TierWeights").Interface().(policy.TierWeights)
		if got != r.TierWeights {
			t.Errorf("%s weighs tiers by %+v, routing has %+v", k.Name, got, r.TierWeights)
		}
	}
	if weigh < 5 {
		t.Errorf("only %d kinds weigh tiers", weigh)
	}
}

// TestAWrongTierWeightIsReportedOnce: the error must name routing. It must not name the policies, because these only
// take the weight as a default.
func TestAWrongTierWeightIsReportedOnce(t *testing.T) {
	c := Default()
	c.Routing.TierWeights.GPU = 3
	err := c.Validate()
	if err == nil || strings.Contains(err.Error(), "is none of") || !strings.Contains(err.Error(), "routing.tier_weights.gpu: 3 is outside") {
		t.Errorf("%v", err)
	}
}
