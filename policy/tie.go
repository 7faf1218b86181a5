package policy

import "github.com/warmpath/warmpath/block"

// Tie is a rule that decides between candidates with the same Score. Most rules compare several figures, one after the
// other, until a figure differs. The candidate with the smaller figure is taken.
type Tie uint8

const (
	// TieOther is any rule that is not in this list. Explanations of such a choice name no figure.
	TieOther Tie = iota
	// TieWork compares the work, which includes the request's own uncached tokens; the turns; the requests so far; and a
	// hash. [Best] uses this rule.
	TieWork
	// TieRequests compares the requests under way, the requests so far, and a hash.
	TieRequests
	// TieHash compares only a hash of the candidate and of the request's random number, so that each candidate has the
	// same probability. [AnyBest] uses this rule.
	TieHash
)

// The reasons why a candidate with the highest score was not taken.
const (
	tieWork      = "as good, with more work"
	tieTurns     = "as good, with more requests so far for its pace"
	tieRequests  = "as good, with more requests"
	tieProcessed = "as good, with more requests so far"
	tieHash      = "as good: decided by hash"
	tieOther     = "as good: the policy's own rule decided"
)

// Before reports whether candidate a is taken before candidate b if both have the same score.
func (t Tie) Before(q *Query, a, b *Candidate) bool {
	before, _ := t.decide(q, a, b)
	return before
}

// decide reports whether candidate a is taken before candidate b. The reason says why the candidate that comes second
// is not taken.
func (t Tie) decide(q *Query, a, b *Candidate) (before bool, reason string) {
	switch t {
	case TieWork:
		if wa, wb := a.Work()+a.Uncached(q), b.Work()+b.Uncached(q); wa != wb {
			return wa < wb, tieWork
		}
		if a.Load.Turns != b.Load.Turns {
			return a.Load.Turns < b.Load.Turns, tieTurns
		}
	case TieRequests:
		if a.Load.Requests != b.Load.Requests {
			return a.Load.Requests < b.Load.Requests, tieRequests
		}
	case TieHash:
		return Uniform(q, a) > Uniform(q, b), tieHash
	default:
		return false, tieOther
	}
	if a.Load.Processed != b.Load.Processed {
		return a.Load.Processed < b.Load.Processed, tieProcessed
	}
	return block.Mix64(a.Hash^q.Random) < block.Mix64(b.Hash^q.Random), tieHash
}

// first returns the index of the candidate with the highest Score. Among candidates with the same Score, t decides.
func (t Tie) first(q *Query, c []Candidate) int {
	b := 0
	for i := 1; i < len(c); i++ {
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && t.Before(q, &c[i], &c[b])) {
			b = i
		}
	}
	return b
}
