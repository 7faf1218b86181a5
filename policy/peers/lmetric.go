package peers

import "github.com/warmpath/warmpath/policy"

// LMetric takes the lowest (uncached tokens queued + the request's own uncached tokens) × (requests + 1). So a
// holder with many requests under way is protected from long prompts. It has no parameter [LMetric, arXiv
// 2603.15202].
//
// Where nothing is queued and everything is cached, all products are 0. Ties then go by work, requests so far and
// hash.
type LMetric struct{}

// Validate finds nothing: there are no parameters.
func (LMetric) Validate() error { return nil }

// Spec returns the policy.
func (LMetric) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Chooser: func() policy.Chooser { return policy.Ranked(lmetric) }, NeedsMatches: true,
		Terms: []string{"tokens", "requests"}, Reasons: policy.ReasonsBy("the lowest product of tokens to compute and requests"),
	}
}

// lmetric sets scores to the negated product of its two terms.
func lmetric(q *policy.Query, c []policy.Candidate) {
	for i := range c {
		tokens := float64(c[i].Load.PrefillTokens + c[i].Uncached(q))
		requests := float64(c[i].Load.Requests + 1)
		c[i].Terms[0], c[i].Terms[1] = tokens, requests
		c[i].Score = 0 - tokens*requests // not the -0 of a negation
	}
}
