package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Scorer rates candidates from 0 to 1; higher is better. It adds weight times the rating to each candidate's Score.
// Score is called concurrently. It must not keep c, and must not allocate.
type Scorer interface {
	Score(q *Query, c []Candidate, weight float64)
}

// scorers has the constructors of all scorers by name.
var scorers = map[string]func(*Spec) Scorer{
	"match":    func(s *Spec) Scorer { return match(s.tierWeights()) },
	"load":     func(*Spec) Scorer { return load{} },
	"requests": func(*Spec) Scorer { return requests{} },
	"queue":    func(*Spec) Scorer { return fewest(waiting) },
	"running":  func(*Spec) Scorer { return fewest(running) },
	"kv_cache": func(*Spec) Scorer { return kvFree{} },
}

// ScorerNames returns the names of all scorers that a [Spec] may name, sorted.
func ScorerNames() []string { return known(scorers) }

// match rates the share of the prompt that a candidate has cached. Each token is weighted by the tier of its block.
// Predicted tokens beyond the confirmed match count as on the GPU, because they were computed a moment ago.
type match [block.NumTiers]float64

func (m match) Score(q *Query, c []Candidate, weight float64) {
	if q.PromptTokens <= 0 {
		return
	}
	for i := range c {
		tokens := m[block.TierGPU] * float64(c[i].Predicted-c[i].Match)
		for t, n := range c[i].Tier {
			tokens += m[t] * float64(n)
		}
		c[i].Score += weight * tokens / float64(q.PromptTokens)
	}
}

// loadHalf is the work, in tokens, at which the rating of load is one half. It is the work of one pass: with more work,
// requests wait for each other. The value only matters if load is combined with other scorers.
const loadHalf = fleet.PassTokens

// load rates an idle candidate 1. With more work the rating falls, but never to 0. Different work always gets a
// different rating; a rating that is normalised by the maximum would not have this property.
type load struct{}

func (load) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * loadHalf / float64(loadHalf+max(c[i].Work(), 0))
	}
}

// requests rates an idle candidate 1. With more requests the rating falls.
type requests struct{}

func (requests) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight / float64(1+max(c[i].Load.Requests, 0))
	}
}

// fewest rates candidates by a figure, as llm-d rates queues: the candidate with the smallest figure gets 1, and the
// candidate with the greatest figure gets 0. If all figures are equal, all candidates get 1. The rating does not depend
// on how far apart the smallest and the greatest figure are.
type fewest func(q *Query, x *Candidate) int64

func (f fewest) Score(q *Query, c []Candidate, weight float64) {
	least, most := f(q, &c[0]), f(q, &c[0])
	for i := range c[1:] {
		n := f(q, &c[i+1])
		least, most = min(least, n), max(most, n)
	}
	for i := range c {
		rating := 1.0
		if most > least {
			rating = float64(most-f(q, &c[i])) / float64(most-least)
		}
		c[i].Score += weight * rating
	}
}

// kvFree rates a candidate by the free share of its KV cache.
type kvFree struct{}

func (kvFree) Score(q *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * (1 - c[i].KVUsed(q.Now))
	}
}
