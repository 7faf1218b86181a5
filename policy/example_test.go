package policy_test

import (
	"fmt"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Build makes a policy from filters and scorers. This policy leaves out workers that are too busy, and weighs match and
// load against each other.
func ExampleBuild() {
	p, err := policy.Build(policy.Spec{
		Name:            "mixed",
		Scorers:         []policy.Weighted{{Scorer: "match", Weight: 0.7}, {Scorer: "load", Weight: 0.3}},
		Picker:          "best",
		ImbalanceTokens: policy.DefaultImbalanceTokens,
	})
	if err != nil {
		panic(err)
	}
	a := policy.Candidate{Worker: &fleet.Worker{URL: "http://a"}, Available: true, Load: fleet.Load{PrefillTokens: 9000}}
	a.Match, a.Predicted, a.Tier[0] = 100, 100, 100
	b := policy.Candidate{Worker: &fleet.Worker{URL: "http://b"}, Available: true, Holder: 1}

	c := []policy.Candidate{a, b}
	choice := p.Choose(&policy.Query{PromptTokens: 1000, Known: true, Rank: -1}, c)
	fmt.Printf("%s, %.2f: %s\n", c[choice.Index].Worker.URL, c[choice.Index].Score, choice.Branch)
	// Output:
	// http://b, 0.30: spill
}
