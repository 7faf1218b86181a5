package policy

import (
	"math/bits"

	"github.com/warmpath/warmpath/block"
)

// HashText returns a hash of several texts that is the same in every router: FNV-1a with a zero byte after each text,
// and [block.Mix64].
func HashText(parts ...string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, part := range parts {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * 0x100000001b3
		}
		h *= 0x100000001b3
	}
	return block.Mix64(h)
}

// Uniform returns a number in (0, 1) that depends only on the request and the holder, not on the order of candidates.
func Uniform(q *Query, c *Candidate) float64 {
	return (float64(block.Mix64(c.Hash^block.Mix64(q.Random))>>11) + 0.5) / (1 << 53)
}

// Best returns the candidate with the highest Score. Among equals it takes the one with the least work, the request's
// own uncached tokens included; then the one with the fewest turns, the fewest requests so far, and the lowest hash.
func Best(q *Query, c []Candidate) int {
	b := 0
	for i := 1; i < len(c); i++ {
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && lighter(q, &c[i], &c[b])) {
			b = i
		}
	}
	return b
}

// AnyBest returns the candidate with the highest Score, and among equals each with the same probability.
func AnyBest(q *Query, c []Candidate) int {
	b := 0
	for i := 1; i < len(c); i++ {
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && Uniform(q, &c[i]) > Uniform(q, &c[b])) {
			b = i
		}
	}
	return b
}

// Any returns each candidate with the same probability.
func Any(q *Query, c []Candidate) int { return below(block.Mix64(q.Random), len(c)) }

// below maps the uniformly random r to 0..n-1 [Lemire, Fast Random Integer Generation in an Interval, 2019, without the
// rejection step: the bias is n/2^64].
func below(r uint64, n int) int {
	hi, _ := bits.Mul64(r, uint64(n))
	return int(hi)
}
