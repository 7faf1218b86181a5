package peers

import "github.com/warmpath/warmpath/policy"

// LMetric takes the holder with the lowest product: (queued uncached tokens + the request's own uncached tokens) ×
// (requests + 1) [LMetric, arXiv 2603.15202]. So long prompts avoid a holder with many requests under way. It has no
// parameter.
//
// If nothing is queued and the whole prompt is cached everywhere, all products are 0, and the rule for equal scores
// decides: see policy.Best.
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
