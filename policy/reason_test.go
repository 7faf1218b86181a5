package policy_test

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

func parsed(t testing.TB, text string) *policy.Policy {
	spec, err := kinds.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, spec)
}

// TestEachPolicySaysWhatItTakes: only a policy that takes the longest match may give the reason "longest match, least
// work among equals".
func TestEachPolicySaysWhatItTakes(t *testing.T) {
	longest := policy.BranchAffinity.Reason()
	for text, want := range map[string]string{
		"kv_aware":                         longest,
		"marginal":                         "the lowest predicted cost",
		"kv":                               "the lowest cost in blocks",
		"lmetric":                          "product",
		"predicted_ttft":                   "first token",
		"precise_prefix_cache":             "the highest score",
		"estimated":                        "the highest score",
		"estimated:picker=weighted_random": "at random",
		"cache_aware":                      "sent the longest beginning",
		"prefix_cache_affinity":            "sent the longest beginning",
		"vllm_cache_aware":                 "tracked",
		"lmcache_aware":                    "LMCache",
	} {
		p := parsed(t, text)
		got := p.ReasonOf(policy.BranchAffinity)
		if !strings.Contains(got, want) {
			t.Errorf("%s follows a match and gives the reason %q, want %q in it", text, got, want)
		}
		if p.ReasonOf(policy.BranchNone) != policy.BranchNone.Reason() {
			t.Errorf("%s has words of its own where no worker can be used: %q", text, p.ReasonOf(policy.BranchNone))
		}
	}
	for text, want := range map[string]string{
		"least_load": "the least load", "least_load:by=requests": "the fewest requests", "smg_least_load": "queue", "smg_power_of_two": "two",
		"round_robin": "turn", "random": "at random", "power_of_two": "two",
	} {
		if got := parsed(t, text).ReasonOf(policy.BranchMatchUnused); !strings.Contains(got, want) {
			t.Errorf("%s gives the reason %q, want %q in it", text, got, want)
		}
	}
}

// TestAChoiceExplainsItsWinner: the reason of a choice equals Why of the chosen candidate.
func TestAChoiceExplainsItsWinner(t *testing.T) {
	for _, spec := range kinds.BuiltIn() {
		p := build(t, spec)
		q := policy.Query{Rank: -1, PromptTokens: 100, Known: true, Model: "m"}
		if p.NeedsTarget() {
			q.Target = "http://w0"
		}
		c := three()
		choice := p.Choose(&q, c)
		if choice.Reason == "" || choice.Why(&q, c, choice.Index) != choice.Reason {
			t.Errorf("%s: reason %q, why %q", spec.Name, choice.Reason, choice.Why(&q, c, choice.Index))
		}
	}
}

// last is a chooser that names neither branches nor reasons.
type last struct{ policy.Stateless }

func (last) Choose(_ *policy.Query, c []policy.Candidate) policy.Pick {
	return policy.Pick{Index: len(c) - 1}
}

func TestAChooserOfUnknownRuleDoesNotClaimTheRuleOfAnother(t *testing.T) {
	p := build(t, policy.Spec{Name: "last", NeedsMatches: true, Chooser: func() policy.Chooser { return last{} }})
	for name, c := range map[string]struct {
		change func(a, b *policy.Candidate)
		branch policy.Branch
		want   string
	}{
		"a match":         {func(_, b *policy.Candidate) { b.Predicted = 4000 }, policy.BranchAffinity, "the policy's own rule, and no worker"},
		"no match":        {func(_, _ *policy.Candidate) {}, policy.BranchMiss, "of the prompt: the policy's own rule"},
		"a match at risk": {func(a, _ *policy.Candidate) { a.Predicted, a.AtRisk = 4000, 4000 }, policy.BranchMiss, "scheduled: the policy's own rule"},
	} {
		got := p.Choose(&policy.Query{PromptTokens: 5000, Known: true}, alikeHolders(c.change))
		if got.Branch != c.branch || !strings.Contains(got.Reason, c.want) {
			t.Errorf("%s: %s: %q, want %q", name, got.Branch, got.Reason, c.want)
		}
	}
}

// TestAMissWithoutTrustClaimsNothing: if no cache is known, such as while an index service is down, a miss says nothing
// about what the workers have. Policies that decide by what they sent themselves keep their words.
func TestAMissWithoutTrustClaimsNothing(t *testing.T) {
	for text, want := range map[string]string{
		"kv_aware":             policy.ReasonUnknown + ": least load",
		"marginal":             policy.ReasonUnknown + ": the lowest predicted cost",
		"kv":                   policy.ReasonUnknown + ": the lowest cost in blocks",
		"precise_prefix_cache": policy.ReasonUnknown + ": the highest score",
		"cache_aware":          "no worker was sent a part of the prompt before",
	} {
		p := parsed(t, text)
		unknown := three()
		for i := range unknown {
			unknown[i].Trust = fleet.TrustNone
		}
		if got := p.ReasonAmong(policy.BranchMiss, unknown); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		one := three()
		one[1].Trust, one[2].Trust = fleet.TrustNone, fleet.TrustNone
		if got := p.ReasonAmong(policy.BranchMiss, one); strings.Contains(got, policy.ReasonUnknown) {
			t.Errorf("%s: one cache is known: %q", text, got)
		}
	}
}
