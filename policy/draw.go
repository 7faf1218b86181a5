package policy

import (
	"math/bits"

	"github.com/warmpath/warmpath/block"
)

// HashText returns a hash of several texts, which is the same in every router. It is FNV-1a of the texts, with a zero
// byte after each text, followed by [block.Mix64].
func HashText(parts ...string) uint64 {
	h := uint64(block.FNVBasis)
	for _, part := range parts {
		h = block.FNVText(h, part)
	}
	return block.Mix64(h)
}

// Uniform returns a uniformly random number in (0, 1). It depends only on the request and the holder, and not on the
// order of candidates.
func Uniform(q *Query, c *Candidate) float64 {
	return (float64(block.Mix64(c.Hash^block.Mix64(q.Random))>>11) + 0.5) / (1 << 53)
}

// Best returns the index of the candidate with the highest Score. Among candidates with the same Score, [TieWork]
// decides.
func Best(q *Query, c []Candidate) int { return TieWork.first(q, c) }

// AnyBest returns the index of the candidate with the highest Score. Candidates with the same Score have the same
// probability ([TieHash]).
func AnyBest(q *Query, c []Candidate) int { return TieHash.first(q, c) }

// Any returns the index of a candidate at random. Each candidate has the same probability.
func Any(q *Query, c []Candidate) int { return below(block.Mix64(q.Random), len(c)) }

// below maps a uniformly random r to 0..n-1 [Lemire, Fast Random Integer Generation in an Interval, 2019]. It leaves
// out the rejection step of the paper, so the result has a bias of n/2^64.
func below(r uint64, n int) int {
	hi, _ := bits.Mul64(r, uint64(n))
	return int(hi)
}
