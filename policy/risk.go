package policy

import (
	"math"
	"sync"

	"github.com/warmpath/warmpath/fleet"
)

// The risk of a candidate is the price of the service levels ([fleet.ServiceLevel]) that are probably broken if the
// request goes there. For each request that runs or waits at the candidate, and for each of its levels, it is
//
//	Risk · V · (P(broken with the new request) − P(broken without it))
//
// and for each level of the new request Risk · V · P(broken). V is the level's limit for the first token in
// milliseconds, at most a minute, and Risk is the parameter. P is a logistic function of the predicted time divided by
// the limit.
//
// docs/marginal.md explains the risk, and docs/design/0039 has the variants that were tried.
const (
	// riskWidth is the width of the logistic function: the usual error of a predicted time, as a share of the allowed
	// time.
	riskWidth = 0.05
	// riskReach is how far from the allowed time P still differs from 0 and 1, in widths.
	riskReach = 8
	// mostValue bounds V, in milliseconds. Levels with a longer limit for the first token are for batches. They must
	// not count more than the levels of people who wait.
	mostValue = 60_000
	// riskCandidates is how many candidates get a risk: those with the lowest price without it. A candidate with a high
	// price is rarely saved by its risk.
	riskCandidates = 8
	// riskRequests bounds how many requests of a candidate are looked at. If there are more, every second one, every
	// third one and so on is looked at, and counts twice, three times and so on.
	riskRequests = 128
	// riskLater bounds how much later the request's own first token may come because of the risk, as a share. Without
	// this bound the longest prompts gather where no level is left to lose, and wait for each other: p99 of the first
	// token is 20 % later on the public conversation trace (docs/design/0039).
	riskLater = 0.05
	// riskSlack is added to this bound, in milliseconds: a few engine steps, which no level notices.
	riskSlack = 50
)

// riskScratch is the memory of one decision.
type riskScratch struct {
	requests []fleet.Underway
	lengths  []int32
	listed   [riskCandidates]int
}

var riskScratches = sync.Pool{New: func() any { return new(riskScratch) }}

// addRisk adds the risk to the prices of the candidates whose price is lowest, and returns the index of the candidate
// with the lowest sum. The other candidates get a note.
func (m *marginal) addRisk(q *Query, c []Candidate, usual *typical) (picked int) {
	s := riskScratches.Get().(*riskScratch)
	defer riskScratches.Put(s)
	listed := s.list(q, c)
	best := listed[0]
	latest := ownFirstToken(&c[best])*(1+riskLater) + riskSlack
	picked = -1
	for _, i := range listed {
		if ownFirstToken(&c[i]) > latest {
			c[i].Note = noteLater
			continue
		}
		s.requests = q.Requests.AppendUnderway(s.requests[:0], c[i].Holder, q.Now)
		risk := m.risk(q, &c[i], usual, s)
		c[i].Terms[costRisk] = risk
		c[i].Score -= risk
		if picked < 0 || c[i].Score > c[picked].Score || c[i].Score == c[picked].Score && TieWork.Before(q, &c[i], &c[picked]) {
			picked = i
		}
	}
	return picked
}

// Why a candidate got no risk and was passed over.
const (
	noteCostly = "higher cost, even without the risk"
	noteLater  = "its first token would come too late"
)

// list returns the indexes of the candidates with the highest scores, the highest first. The other candidates get a
// note.
func (s *riskScratch) list(q *Query, c []Candidate) []int {
	n := 0
	for i := range c {
		at := n
		for at > 0 && (c[i].Score > c[s.listed[at-1]].Score || c[i].Score == c[s.listed[at-1]].Score && TieWork.Before(q, &c[i], &c[s.listed[at-1]])) {
			at--
		}
		if at == riskCandidates {
			c[i].Note = noteCostly
			continue
		}
		if n == riskCandidates {
			c[s.listed[n-1]].Note = noteCostly
		} else {
			n++
		}
		copy(s.listed[at+1:n], s.listed[at:])
		s.listed[at] = i
	}
	return s.listed[:n]
}

// ownFirstToken returns the predicted milliseconds until the request's own first token at c.
func ownFirstToken(c *Candidate) float64 {
	return c.Terms[costWait] + c.Terms[costMemory] + c.Terms[costPrefill]
}

// risk returns the risk of c in milliseconds. s.requests are the requests under way at c, and s.lengths is
// overwritten.
//
// A request that waits before the new one gets its first token as if the new one did not exist, because engines compute
// prompts in the order of their arrival. But its answer is delayed: it runs when the new prompt is computed. All
// answers are delayed by the prompts that wait now, with and without the new request.
func (m *marginal) risk(q *Query, c *Candidate, usual *typical, s *riskScratch) (risk float64) {
	l, own := &c.Load, timing(c)
	n := max(q.PromptTokens-int(m.reach(c)), 1)
	prompt := own.Prompt(n, max(q.PromptTokens, n))
	step := own.Step(l.Requests, l.ContextTokens+l.OutputTokens)
	longer := own.Context*float64(q.PromptTokens) + own.Sequence // how much longer a step takes with the new answer in it
	backlog := float64(l.Backlog) / 1e6
	every := (len(s.requests) + riskRequests - 1) / riskRequests
	for i := 0; i < len(s.requests); i += max(every, 1) {
		u := &s.requests[i]
		first := float64(u.First-u.Arrived) / 1e6
		since := float64(q.Now-u.First) / 1e6 // milliseconds since the first token; negative before it
		took := max(since, 0) + max(backlog-max(-since, 0), 0)
		s.lengths = m.lengths.append(s.lengths[:0], q.Model, u.Class)
		lengths := quantiles(s.lengths, u.Output, u.Most)
		for _, level := range u.Levels {
			limit := float64(level.FirstToken) / 1e6
			kept := 1 - broken(first/limit)
			if !u.Waiting {
				kept = 0
				if first <= limit {
					kept = 1
				}
			}
			if kept == 0 || level.PerToken == 0 {
				continue
			}
			sum := 0.0
			for _, length := range lengths {
				rest := length - float64(u.Output)
				without := took + rest*step
				with := without + prompt + min(rest, usual.answer)*longer
				allowed := float64(level.PerToken) / 1e6 * max(length-1, 1)
				sum += broken(with/allowed) - broken(without/allowed)
			}
			risk += min(limit, mostValue) * kept * sum
		}
	}
	risk *= float64(max(every, 1)) / lengthQuantiles
	// The new request's own risk uses the mean timing, as its own time does: a slow holder must get its part of the
	// work.
	usually := usual.timing.Step(l.Requests+1, l.ContextTokens+l.OutputTokens+int64(q.PromptTokens))
	first := ownFirstToken(c)
	if q.Arrived > 0 {
		first += max(float64(q.Now-q.Arrived)/1e6, 0)
	}
	for _, level := range q.Levels {
		limit := float64(level.FirstToken) / 1e6
		kept := 1 - broken(first/limit)
		if level.PerToken > 0 {
			kept *= 1 - broken(usually*1e6/float64(level.PerToken))
		}
		risk += min(limit, mostValue) * (1 - kept)
	}
	return m.Risk * risk
}

// broken returns the probability that a limit is broken. ratio is the predicted time divided by the limit.
func broken(ratio float64) float64 {
	x := (ratio - 1) / riskWidth
	switch {
	case x < -riskReach:
		return 0
	case x > riskReach:
		return 1
	}
	return 1 / (1 + math.Exp(-x))
}
