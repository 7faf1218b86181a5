package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy"
)

// A request is divided as the file says. Without a word about it, the router decides each request by its cost.
func TestTheFileSaysWhichRequestsAreDivided(t *testing.T) {
	for text, want := range map[string]warmpath.Legs{
		"": {UncachedTokenThreshold: 256},
		"disaggregation: {mode: never, pd_uncached_token_threshold: 0}":                                         {Mode: policy.ModeNever, UncachedTokenThreshold: -1},
		"disaggregation: {mode: always, prefill_policy: 'kv:prefill_load_scale=2', decode_policy: round_robin}": {Mode: policy.ModeAlways, UncachedTokenThreshold: 256, PrefillPolicy: "kv:prefill_load_scale=2", DecodePolicy: "round_robin"},
	} {
		cfg := Default()
		if err := fill(&cfg, "f", []byte(text), nil); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		options := cfg.Options()
		if diff := cmp.Diff(want, options.Legs); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		if diff := cmp.Diff(want, cfg.PolicyChange(&cfg).Legs); diff != "" {
			t.Errorf("%s: a reload: %s", text, diff)
		}
		options.Fleet = fleet.New(fleet.Config{})
		if _, err := warmpath.New(options); err != nil { // the policies are there under these names
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestADivisionThatCannotBeIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"disaggregation: {mode: sometimes}":                             `f:1:24: disaggregation.mode: "sometimes" is none of auto, always, never`,
		"disaggregation: {pd_uncached_token_threshold: -1}":             "disaggregation.pd_uncached_token_threshold: -1 is below 0",
		"disaggregation: {prefill_policy: least_lod}":                   "did you mean least_load?",
		"disaggregation: {decode_policy: 'kv:prefill_load_scale=lots'}": "disaggregation.decode_policy: ",
		"disaggregation: {threshold: 3}":                                "unknown field disaggregation.threshold",
		"pd_uncached_token_threshold: 3":                                "did you mean disaggregation.pd_uncached_token_threshold?",
	} {
		if err := Check("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The command line of another router for prefill and decode workers becomes workers with roles.
func TestForeignPrefillAndDecodeWorkers(t *testing.T) {
	c := Default()
	mapped, err := ApplyForeign(&c, []GivenFlag{{"pd-disaggregation", []string{"true"}}, {"kv-connector", []string{"mooncake"}},
		{"decode", []string{"http://d:1"}}, {"prefill", []string{"http://p:1", "8998", "http://q:2", "none", "http://r:3"}}})
	want := []discovery.Target{{URL: "http://p:1", Role: "prefill", Connector: "mooncake", TransferPort: 8998}, {URL: "http://q:2", Role: "prefill", Connector: "mooncake"},
		{URL: "http://r:3", Role: "prefill", Connector: "mooncake"}, {URL: "http://d:1", Role: "decode", Connector: "mooncake"}}
	if diff := cmp.Diff(want, c.Workers); diff != "" || err != nil || len(mapped) != 4 {
		t.Errorf("%s, %+v, %v", diff, mapped, err)
	}
	for _, bad := range [][]string{{"http://p:1", "0"}, {"http://p:1", "many"}, {"p"}, {"grpc://p:1"}, {"none"}} {
		if _, err := ApplyForeign(&c, []GivenFlag{{"prefill", bad}}); err == nil {
			t.Errorf("--prefill %q is taken", bad)
		}
	}
	if _, err := ApplyForeign(&c, []GivenFlag{{"kv-connector", []string{"moriio"}}}); err == nil || !strings.Contains(err.Error(), `"moriio" is none of mooncake, nixl, `) {
		t.Errorf("%v", err)
	}
}

// The names of other routers' policies are read for prefill and decode, too.
func TestForeignPoliciesOfPrefillAndDecode(t *testing.T) {
	c := withWorkers()
	mapped, err := ApplyForeign(&c, []GivenFlag{{"prefill-policy", []string{"consistent_hashing"}}, {"decode-policy", []string{"power_of_two"}}})
	if d := c.Disaggregation; err != nil || d.PrefillPolicy != "consistent_hash" || d.DecodePolicy != "power_of_two" || len(mapped) != 1 || mapped[0].Setting != "disaggregation.prefill_policy: consistent_hash" {
		t.Errorf("%+v, %+v, %v", d, mapped, err)
	}
}
