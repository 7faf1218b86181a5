package peers

import (
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// Mix is a policy that the operator composes of filters, weighted scorers and a picker, by their names.
type Mix struct {
	// Filters leave workers out, in this order, after the common filter.
	Filters []string `yaml:"filters"`
	// Scorers score workers from 0 to 1; the sum of scores times weights decides.
	Scorers []policy.Weighted `yaml:"scorers"`
	// Picker chooses by the scores.
	Picker string `yaml:"picker"`
	// TierWeights are the worth of a matched token, 0 to 1, by its tier (the memory in which its block lies), for the
	// match scorer.
	TierWeights policy.TierWeights `yaml:"tier_weights"`
	// ImbalanceTokens bounds how far a match is followed, as in kv_aware. 0 is no bound.
	ImbalanceTokens int `yaml:"imbalance_tokens"`
	// Locality is where this router runs, for the locality filter.
	Locality Locality `yaml:"locality"`
}

// DefaultMix returns a mix without filters and scorers.
func DefaultMix() Mix {
	return Mix{Filters: []string{}, Scorers: []policy.Weighted{}, Picker: "best", TierWeights: policy.DefaultKVAware().TierWeights}
}

// Validate returns all problems.
func (p Mix) Validate() error {
	var wrong policy.Problems
	for _, f := range p.Filters {
		wrong.OneOf("filters", f, filterNames()...)
	}
	for _, s := range p.Scorers {
		wrong.OneOf("scorers", s.Scorer, policy.ScorerNames()...)
		if !(s.Weight > 0 && s.Weight <= policy.MaxNumber) {
			wrong.Add("scorers", "weight %v of %s is not above 0", s.Weight, s.Scorer)
		}
	}
	if len(p.Scorers) == 0 && p.Picker == "best" {
		wrong.Add("scorers", "none are given (known: %v)", policy.ScorerNames())
	}
	if len(p.Scorers) > policy.MaxTerms {
		wrong.Add("scorers", "%d of them, at most %d", len(p.Scorers), policy.MaxTerms)
	}
	if p.Picker == "power_of_two_requests" {
		wrong.Add("picker", "%q is the policy smg_power_of_two", p.Picker)
	} else {
		wrong.OneOf("picker", p.Picker, policy.PickerNames()...)
	}
	wrong.Section("tier_weights", p.TierWeights.Validate())
	wrong.AtLeast("imbalance_tokens", float64(p.ImbalanceTokens), 0)
	return wrong.Join()
}

// Spec returns the policy.
func (p Mix) Spec(name string) policy.Spec {
	return policy.Spec{
		Name:    name,
		Filters: filtersOf(p.Filters, filterSettings{p.ImbalanceTokens, p.Locality}), Reach: reachOf(p.Filters, p.Locality),
		Scorers: slices.Clone(p.Scorers), Picker: p.Picker,
		TierWeights: p.TierWeights.ByTier(), ImbalanceTokens: p.ImbalanceTokens,
	}
}
