package peers

import "github.com/warmpath/warmpath/policy"

// SMGPowerOfTwo is power_of_two of SMG [SMG 1.9.0]. It draws two holders at random and takes the one with less load. If
// both have the same load, it takes the one that was drawn first. The load is the used share of the KV cache if both
// engines report it, and the number of requests otherwise.
type SMGPowerOfTwo struct{}

// Validate finds nothing: there are no parameters.
func (SMGPowerOfTwo) Validate() error { return nil }

// Spec returns the policy.
func (SMGPowerOfTwo) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Reach: policy.ReachAny, Terms: []string{"requests"}, Reasons: policy.ReasonsBy("the less loaded of two drawn at random"),
		Chooser: func() policy.Chooser { return smgPowerOfTwo{} },
	}
}

type smgPowerOfTwo struct{ policy.Stateless }

func (smgPowerOfTwo) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	for i := range c {
		c[i].Score = 1 / float64(1+max(c[i].Load.Requests, 0))
		c[i].Terms[0] = c[i].Score
	}
	first, second := policy.Two(q, len(c))
	if lessLoaded(q, &c[second], &c[first]) {
		first = second
	}
	return policy.Pick{Index: first}
}

func lessLoaded(q *policy.Query, a, b *policy.Candidate) bool {
	if a.Reports(q.Now) && b.Reports(q.Now) {
		return a.KVUsed(q.Now) < b.KVUsed(q.Now)
	}
	return a.Load.Requests < b.Load.Requests
}
