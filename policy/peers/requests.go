package peers

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/policy"
)

// spread returns the fewest and the most requests that any candidate has.
func spread(c []policy.Candidate) (least, most int64) {
	least = c[0].Load.Requests
	for i := range c {
		least, most = min(least, c[i].Load.Requests), max(most, c[i].Load.Requests)
	}
	return least, most
}

// idlest picks the candidate with the fewest requests, and sets scores to the term termIdle. The caller sets the
// branch.
func idlest(q *policy.Query, c []policy.Candidate) policy.Pick {
	best := 0
	for i := range c {
		c[i].Score = c[i].Terms[termIdle]
		if i > 0 && policy.TieRequests.Before(q, &c[i], &c[best]) {
			best = i
		}
	}
	return policy.Pick{Index: best, Ranked: true, Tie: policy.TieRequests}
}

// twoOf draws two different candidates at random, independent of their order. If there is only one candidate, first and
// second are both this candidate.
func twoOf(q *policy.Query, c []policy.Candidate) (first, second int) {
	second = -1
	for i := 1; i < len(c); i++ {
		switch lot := block.Mix64(c[i].Hash ^ q.Random); {
		case lot < block.Mix64(c[first].Hash^q.Random):
			first, second = i, first
		case second < 0 || lot < block.Mix64(c[second].Hash^q.Random):
			second = i
		}
	}
	return first, max(second, 0)
}
