package policy

// LMetric takes the lowest (uncached tokens queued + the request's own uncached tokens) × (requests + 1): who has many
// requests under way is protected from long prompts. It has no parameter [LMetric, arXiv 2603.15202; facts/routing.md §3.1].
//
// Where nothing is queued and everything is cached all products are 0: ties then go by work, requests so far and hash.
type LMetric struct{}

// Validate finds nothing: there are no parameters.
func (LMetric) Validate() error { return nil }

// Spec returns the policy.
func (LMetric) Spec(name string) Spec {
	return Spec{
		Name: name, Chooser: func() Chooser { return Ranked(lmetric) }, NeedsMatches: true,
		Terms: []string{"tokens", "requests"}, Reasons: ReasonsBy("the lowest product of tokens to compute and requests"),
	}
}

// lmetric sets scores to the negated product of its two terms.
func lmetric(q *Query, c []Candidate) {
	for i := range c {
		tokens := float64(c[i].Load.PrefillTokens + c[i].Uncached(q))
		requests := float64(c[i].Load.Requests + 1)
		c[i].Terms[0], c[i].Terms[1] = tokens, requests
		c[i].Score = 0 - tokens*requests // not the -0 of a negation
	}
}
