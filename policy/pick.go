package policy

import (
	"math"
	"math/bits"
)

// Picker chooses one of the candidates that passed the filters and returns its index; c is not empty. It is called
// concurrently, must not keep c, and must not allocate.
type Picker interface {
	Pick(q *Query, c []Candidate) int
}

// pickers by name.
var pickers = map[string]Picker{
	"best":                  best{},
	"max_score":             maxScore{},
	"power_of_two":          powerOfTwo{lessWork},
	"power_of_two_requests": powerOfTwo{fewerRequests},
	"random":                random{},
	"round_robin":           roundRobin{},
	"weighted_random":       weightedRandom{},
}

// best takes the highest score; among equals the least work with the request's own, and so on as lighter says.
type best struct{}

func (best) Pick(q *Query, c []Candidate) int {
	b := 0
	for i := 1; i < len(c); i++ {
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && lighter(q, &c[i], &c[b])) {
			b = i
		}
	}
	return b
}

// maxScore takes the highest score; equal ones are drawn alike.
type maxScore struct{}

func (maxScore) Pick(q *Query, c []Candidate) int { return anyBest(q, c) }

// weightedRandom takes any with a probability in proportion to its score, which is not negative: the highest u^(1/score)
// [Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006]. Where all scores are 0 all are alike.
type weightedRandom struct{}

func (weightedRandom) Pick(q *Query, c []Candidate) int {
	b, most := 0, math.Inf(-1)
	for i := range c {
		key := math.Log(uniform(q, &c[i])) / max(c[i].Score, 1e-300) // the logarithm orders alike
		if key > most {
			b, most = i, key
		}
	}
	return b
}

// roundRobin takes the candidates in turn.
type roundRobin struct{}

func (roundRobin) Pick(q *Query, c []Candidate) int { return int(q.Turn % uint64(len(c))) }

// random takes any with the same probability.
type random struct{}

func (random) Pick(q *Query, c []Candidate) int { return below(mix(q.Random), len(c)) }

// powerOfTwo takes two different ones at random and of them the one with less load; the first when both have the same.
// [Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001]
type powerOfTwo struct {
	less func(q *Query, a, b *Candidate) bool
}

func lessWork(_ *Query, a, b *Candidate) bool { return a.Work() < b.Work() }

// fewerRequests compares the used share of KV caches where both engines report it, as SMG does.
func fewerRequests(q *Query, a, b *Candidate) bool {
	if fresh(q, a) && fresh(q, b) {
		return kvUsed(q, a) < kvUsed(q, b)
	}
	return a.Load.Requests < b.Load.Requests
}

func (p powerOfTwo) Pick(q *Query, c []Candidate) int {
	first := below(mix(q.Random), len(c))
	if len(c) == 1 {
		return first
	}
	second := below(mix(q.Random+1), len(c)-1)
	if second >= first {
		second++
	}
	if p.less(q, &c[second], &c[first]) {
		return second
	}
	return first
}

// below maps the uniformly random r to 0..n-1 [Lemire, Fast Random Integer Generation in an Interval, 2019, without the
// rejection step: the bias is n/2^64].
func below(r uint64, n int) int {
	hi, _ := bits.Mul64(r, uint64(n))
	return int(hi)
}
