package policy_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/policy"
)

func TestParseReadsParameters(t *testing.T) {
	s, err := kinds.Parse("kv:prefill_load_scale=16,use_kv_events=false,router_ttl=30s")
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "kv:prefill_load_scale=16,use_kv_events=false,router_ttl=30s" || s.Learned == nil || s.Learned.TTL != 30*time.Second {
		t.Errorf("%+v", s)
	}
	if s, err = kinds.Parse("kv_aware:tier_weights.cpu=0.25,imbalance_tokens=7"); err != nil || s.TierWeights[1] != 0.25 || s.ImbalanceTokens != 7 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"best":                             `no policy is called "best" (known: bucket, `,
		"kv:scale=16":                      `there is no "scale" (known: overlap_score_weight, `,
		"kv:prefill_load_scale":            `"prefill_load_scale" is not KEY=VALUE (known: overlap_score_weight, `,
		"kv:prefill_load_scale=lots":       `prefill_load_scale: "lots" is not a number`,
		"kv:prefill_load_scale=-1":         "prefill_load_scale: -1 is not a number from 0",
		"kv:prefill_load_scale=NaN":        "prefill_load_scale: NaN is not a number from 0",
		"kv:router_ttl=5":                  `router_ttl: "5" is not a duration`,
		"kv:use_kv_events=maybe":           `use_kv_events: "maybe" is not true or false`,
		"kv_aware:imbalance_tokens=x":      `imbalance_tokens: "x" is not a whole number`,
		"cache_aware:max_bytes=1GB":        `max_bytes: "1GB" is not a number of bytes, without a unit`,
		"manual:assignment_mode=best":      `assignment_mode: "best" is none of random, min_load, min_group`,
		"mix:scorers=match":                "scorers: cannot be given as text",
		"least_load:by=seconds":            "by: seconds is the policy smg_least_load",
		"least_load:throughput=1000":       `there is no "throughput": the policy smg_least_load has this setting`,
		"power_of_two:by=requests":         `there is no "by": the policy smg_power_of_two has this setting`,
		"mix:picker=power_of_two_requests": `picker: "power_of_two_requests" is the policy smg_power_of_two`,
		"mix":                              "scorers: none are given",
	} {
		if _, err := kinds.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error does not say %q: %v", text, want, err)
		}
	}
}

// FuzzParse: a policy that Parse accepts can be built, and its scores are finite.
func FuzzParse(f *testing.F) {
	for _, k := range kinds {
		f.Add(k.Name)
		p := k.Defaults()
		for _, key := range policy.ParameterKeys(p) {
			f.Add(k.Name + ":" + key + "=" + policy.ParameterText(p, key))
			f.Add(k.Name + ":" + key + "=1e300")
			f.Add(k.Name + ":" + key + "=0")
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := kinds.Parse(text)
		if err != nil {
			return
		}
		if s.Name == "" {
			t.Fatal("a policy without a name")
		}
		p, err := policy.Build(s)
		if err != nil {
			t.Fatalf("accepted, and cannot be built: %v", err)
		}
		q, c := field(8)
		q.Session.Key, q.Now = "alice", 1e18
		if s.NeedsTarget {
			q.Target = c[1].Worker.URL
		}
		choice := p.Choose(&q, c)
		if choice.Index < 0 || choice.Index >= choice.Passed {
			t.Fatalf("chose %d of %d (%s)", choice.Index, choice.Passed, choice.Branch)
		}
		for i := range c[:choice.Passed] {
			if math.IsNaN(c[i].Score) || math.IsInf(c[i].Score, 0) {
				t.Fatalf("score %v", c[i].Score)
			}
		}
		p.Routed(&q, &c[choice.Index])
	})
}
