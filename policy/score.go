package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Scorer rates candidates from 0 to 1; higher is better. It adds weight times the rating to each candidate's Score. It
// is called concurrently, must not keep c, and must not allocate.
type Scorer interface {
	Score(q *Query, c []Candidate, weight float64)
}

// scorers by name.
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

// match rates the share of the prompt that a candidate has. Each token is weighted by the tier of its block. Predicted
// tokens beyond the confirmed blocks were computed a moment ago, and count as on the GPU.
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

// loadHalf is the work in tokens at which the load rating is one half. The scale only matters where load is mixed with
// other scorers. It is the work of one pass: with more, requests wait for each other.
const loadHalf = fleet.PassTokens

// load rates an idle candidate 1, and less with more work, never 0. Different loads always get different ratings,
// which a rating normalised by the maximum does not give.
type load struct{}

func (load) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * loadHalf / float64(loadHalf+max(c[i].Work(), 0))
	}
}

// requests rates an idle candidate 1, and less with more requests.
type requests struct{}

func (requests) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight / float64(1+max(c[i].Load.Requests, 0))
	}
}

// fewest rates the candidate with the least of a figure 1 and the one with the most 0, and all 1 if they are equal,
// as llm-d rates queues. One request and a hundred get the same rating if they are the extremes.
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

// kvFree rates by the free share of the KV cache.
type kvFree struct{}

func (kvFree) Score(q *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * (1 - c[i].KVUsed(q.Now))
	}
}
