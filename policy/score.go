package policy

import (
	"github.com/warmpath/warmpath/block"
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

// match rates the share of the prompt that a candidate has, each token weighted by the tier it is on. What is predicted
// beyond the confirmed blocks was computed a moment ago and counts as on the GPU: speculative entries are merged with
// confirmed ones by maximum.
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

// loadHalf is the work in tokens at which the load rating is one half: the scale only matters where load is mixed with
// other scorers. 8,192 is the token budget of one step in vLLM and SGLang: from there on requests wait for each other.
const loadHalf = 8192

// load rates an idle candidate 1 and falls with its work, never reaching 0: no two different loads look alike, which a
// rating normalised by the maximum does not give.
type load struct{}

func (load) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * loadHalf / float64(loadHalf+max(c[i].Work(), 0))
	}
}

// requests rates an idle candidate 1 and falls with the requests it has.
type requests struct{}

func (requests) Score(_ *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight / float64(1+max(c[i].Load.Requests, 0))
	}
}
