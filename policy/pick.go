package policy

import (
	"math"

	"github.com/warmpath/warmpath/block"
)

// Picker chooses one of the candidates that passed the filters, and returns its index. c is not empty. Pick is called
// concurrently. It must not keep c, and must not allocate.
type Picker interface {
	Pick(q *Query, c []Candidate) int
}

// pickers has all pickers by name.
var pickers = map[string]Picker{
	"best":            best{},
	"max_score":       maxScore{},
	"power_of_two":    powerOfTwo{},
	"random":          random{},
	"round_robin":     roundRobin{},
	"weighted_random": weightedRandom{},
}

// PickerNames returns the names of all pickers that a [Spec] may name, sorted.
func PickerNames() []string { return known(pickers) }

// best takes the highest score. If several candidates have it, TieWork decides.
type best struct{}

func (best) Pick(q *Query, c []Candidate) int { return Best(q, c) }

// maxScore takes the highest score. If several candidates have it, TieHash decides: each of them has the same
// probability.
type maxScore struct{}

func (maxScore) Pick(q *Query, c []Candidate) int { return AnyBest(q, c) }

// weightedRandom takes a candidate at random, with a probability in proportion to its score. Scores are not negative.
// It draws a uniformly random u for each candidate and takes the highest u^(1/score) [Efraimidis and Spirakis, Weighted
// random sampling with a reservoir, 2006]. If all scores are 0, each candidate has the same probability.
type weightedRandom struct{}

func (weightedRandom) Pick(q *Query, c []Candidate) int {
	b, most := 0, math.Inf(-1)
	for i := range c {
		key := math.Log(Uniform(q, &c[i])) / max(c[i].Score, 1e-300) // the logarithm keeps the order
		if key > most {
			b, most = i, key
		}
	}
	return b
}

// roundRobin takes the candidates in turn.
type roundRobin struct{}

func (roundRobin) Pick(q *Query, c []Candidate) int { return int(q.Turn % uint64(len(c))) }

// random takes any candidate, each with the same probability.
type random struct{}

func (random) Pick(q *Query, c []Candidate) int { return Any(q, c) }

// powerOfTwo draws two different candidates at random and takes the one with less work. If both have the same work, it
// takes the one that was drawn first. [Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001]
type powerOfTwo struct{}

func (powerOfTwo) Pick(q *Query, c []Candidate) int {
	first, second := Two(q, len(c))
	if c[second].Work() < c[first].Work() {
		return second
	}
	return first
}

// Two draws two different numbers from 0..n-1 at random. If n is 1, both are 0.
func Two(q *Query, n int) (first, second int) {
	first = below(block.Mix64(q.Random), n)
	if n == 1 {
		return first, first
	}
	second = below(block.Mix64(q.Random+1), n-1)
	if second >= first {
		second++
	}
	return first, second
}
