package policy

import (
	"math"

	"github.com/warmpath/warmpath/fleet"
)

// stateless is the part of a chooser that remembers nothing.
type stateless struct{}

func (stateless) Routed(*Query, *Candidate) {}
func (stateless) Finished(*Finished)        {}
func (stateless) Forget(fleet.Holder)       {}

// ranked is a chooser that takes the highest score; among equals the least work, as [Candidate] ties go.
type ranked struct {
	stateless
	score func(q *Query, c []Candidate) // sets Score and Terms of all
}

func (r *ranked) Choose(q *Query, c []Candidate) Pick {
	r.score(q, c)
	return Pick{Index: best{}.Pick(q, c), Ranked: true}
}

// uniform returns a number in (0, 1) that belongs to this request and holder, whatever the order of candidates.
func uniform(q *Query, c *Candidate) float64 {
	return (float64(mix(c.Hash^mix(q.Random))>>11) + 0.5) / (1 << 53)
}

// anyBest takes the highest score, and among equals any with the same probability.
func anyBest(q *Query, c []Candidate) int {
	b := 0
	for i := 1; i < len(c); i++ {
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && uniform(q, &c[i]) > uniform(q, &c[b])) {
			b = i
		}
	}
	return b
}

// softmax draws a candidate with a probability in proportion to exp(score / ((max − min)·temperature)): scores are
// normalised by their range, so that temperature has no unit. Equal scores are drawn alike. It adds to each exponent a number
// of the Gumbel distribution and takes the highest sum, which draws so without a pass in order [Gumbel, Statistical theory
// of extreme values, 1954].
func softmax(q *Query, c []Candidate, temperature float64) int {
	low, high := math.Inf(1), math.Inf(-1)
	for i := range c {
		low, high = min(low, c[i].Score), max(high, c[i].Score)
	}
	scale := (high - low) * temperature
	if !(scale > 0) {
		scale = 1 // all are equal
	}
	b, most := 0, math.Inf(-1)
	for i := range c {
		sum := (c[i].Score-high)/scale - math.Log(-math.Log(uniform(q, &c[i])))
		if sum > most {
			b, most = i, sum
		}
	}
	return b
}

// unit returns the tokens of a block in which costs are counted: the index's, else the smallest of the candidates' engines.
func unit(q *Query, c []Candidate) float64 {
	if q.Prompt.BlockSize > 0 {
		return float64(q.Prompt.BlockSize)
	}
	size := c[0].BlockSize
	for i := range c {
		size = min(size, c[i].BlockSize)
	}
	return float64(max(size, 1))
}
