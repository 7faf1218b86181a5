package policy

import (
	"math"
	"sync"

	"github.com/warmpath/warmpath/fleet"
)

// The risk of a candidate is the price of the service levels ([fleet.ServiceLevel]) that are probably broken if the
// request goes there. For each request that runs or waits at the candidate, and for each of its levels with a limit for
// further tokens, it is
//
//	Risk · V · K · (P(broken with the new request) − P(broken without it))
//
// and for each level of the new request Risk · V · P(broken). Risk is the parameter, V is the level's limit for the
// first token in milliseconds, at most 5,000, and K is the probability that the limit for the first token is kept. P
// is a logistic function of the predicted time of the further tokens divided by the time that the level allows for
// them.
//
// docs/marginal.md explains the risk, and docs/design/0039 has the variants that were tried.
const (
	// riskWidth is the width of the logistic function, as a share of the allowed time. Widths from 0.03 to 0.2 keep
	// about the same shares of the levels.
	riskWidth = 0.05
	// riskReach is how far from the allowed time P still differs from 0 and 1, in widths.
	riskReach = 8
	// mostValue bounds V, and mostValues the sum of V over the levels of one request, in milliseconds. Without these
	// bounds, levels with a long limit for the first token, or many levels, would buy the fleet: one request in eight
	// with four levels of a minute made the answers of the others a third slower.
	mostValue, mostValues = 5000, 7000
	// riskCandidates is how many candidates get a risk: those with the lowest price without it. A candidate with a high
	// price is rarely saved by its risk.
	riskCandidates = 8
	// riskRequests bounds how many requests of a candidate are looked at. If the candidate has more, addRisk looks at
	// every n-th request, and counts it n times.
	riskRequests = 64
	// riskLater bounds how much later the request's own first token may come because of the risk, as a share. Without
	// this bound the longest prompts gather where no level is left to lose, and wait for each other: on the public
	// conversation trace p99 of the first token is 3 to 20 % later, the more a level is worth (docs/design/0039).
	riskLater = 0.05
	// riskSlack is added to this bound, in milliseconds: a few engine steps, which no level notices.
	riskSlack = 50
)

// riskScratch is the memory of one decision.
type riskScratch struct {
	requests []fleet.Underway
	every    int     // the n of riskRequests: each of requests stands for n requests under way
	lengths  []int32 // the last lengths of answers of class
	class    uint64
	listed   [riskCandidates]int
}

var riskScratches = sync.Pool{New: func() any { return new(riskScratch) }}

// addRisk adds the risk to the lowest prices. It returns the index of the candidate with the lowest sum, without the
// candidates at which the request's own first token would come too late.
func (m *marginal) addRisk(q *Query, c []Candidate, usual *typical) (picked int) {
	s := riskScratches.Get().(*riskScratch)
	defer riskScratches.Put(s)
	listed := s.list(q, c)
	latest := ownFirstToken(&c[listed[0]])*(1+riskLater) + riskSlack
	picked = listed[0]
	for _, i := range listed {
		s.requests, s.every = q.Requests.AppendUnderway(s.requests[:0], c[i].Holder, q.Now, riskRequests)
		risk := m.risk(q, &c[i], usual, s)
		c[i].Terms[costRisk] = risk
		c[i].Score -= risk
		if ownFirstToken(&c[i]) <= latest && better(q, &c[i], &c[picked]) {
			picked = i
		}
	}
	note(c, picked, latest)
	return picked
}

// Why a candidate was not picked although its score is higher than that of the picked one.
const (
	noteLater    = "higher score, but its first token would come too late"
	noteUnlisted = "higher score only because its risk was not computed: eight others cost less without the risk"
)

// note gives a note to each candidate with a higher score than the picked one. latest is the bound of the own first
// token.
func note(c []Candidate, picked int, latest float64) {
	for i := range c {
		switch {
		case c[i].Score <= c[picked].Score:
		case ownFirstToken(&c[i]) > latest:
			c[i].Note = noteLater
		default:
			c[i].Note = noteUnlisted
		}
	}
}

// better reports whether candidate a is taken before candidate b.
func better(q *Query, a, b *Candidate) bool {
	return a.Score > b.Score || a.Score == b.Score && TieWork.Before(q, a, b)
}

// list returns the indexes of the candidates with the highest scores, the highest first.
func (s *riskScratch) list(q *Query, c []Candidate) []int {
	n := 0
	for i := range c {
		at := n
		for at > 0 && better(q, &c[i], &c[s.listed[at-1]]) {
			at--
		}
		if at == riskCandidates {
			continue
		}
		n = min(n+1, riskCandidates)
		copy(s.listed[at+1:n], s.listed[at:])
		s.listed[at] = i
	}
	return s.listed[:n]
}

// ownFirstToken returns the predicted milliseconds until the request's own first token at c.
func ownFirstToken(c *Candidate) float64 {
	return c.Terms[costWait] + c.Terms[costMemory] + c.Terms[costPrefill]
}

// risk returns the risk of c in milliseconds. s.requests are the requests under way at c.
func (m *marginal) risk(q *Query, c *Candidate, usual *typical, s *riskScratch) float64 {
	return m.Risk * (m.othersRisk(q, c, usual, s) + ownRisk(q, c, usual))
}

// othersRisk returns the part of the risk that the requests under way have, without the factor Risk.
func (m *marginal) othersRisk(q *Query, c *Candidate, usual *typical, s *riskScratch) float64 {
	l, own := &c.Load, c.Load.Times()
	n := max(q.PromptTokens-int(m.reach(c)), 1)
	if q.Leg == fleet.LegDecode {
		n = 1
	}
	d := delay{
		step:    own.Step(l.Requests, l.ContextTokens+l.OutputTokens),
		backlog: float64(l.Backlog) / 1e6,
		prompt:  own.Prompt(n, max(q.PromptTokens, n)),
		longer:  own.Context*float64(q.PromptTokens) + own.Sequence,
		answer:  usual.answer,
	}
	risk := 0.0
	for i := range s.requests {
		u := &s.requests[i]
		if i == 0 || u.Class != s.class {
			s.lengths, s.class = m.lengths.append(s.lengths[:0], q.Model, u.Class), u.Class
		}
		risk += d.risk(u, q.Now, s.lengths)
	}
	return risk * float64(s.every)
}

// delay is what a new request changes for the other requests at a holder. All times are in milliseconds.
type delay struct {
	step    float64 // the time of an engine step now
	backlog float64 // the time until the prompts that wait now are computed
	prompt  float64 // the time to compute the new prompt: all other answers stand still
	longer  float64 // how much longer a step takes while the new answer is generated
	answer  float64 // the steps of the new answer
}

// risk returns the sum of V · (P(broken with the new request) − P(broken without it)) over the levels of u. sorted has
// the lengths of the last answers, ascending.
//
// The new request does not delay the first token of u, because engines compute prompts in the order of their arrival.
// It delays the further tokens. They are also delayed by the prompts that wait now, with and without the new request.
func (d *delay) risk(u *fleet.Underway, now int64, sorted []int32) (risk float64) {
	first := float64(u.First-u.Arrived) / 1e6
	since := float64(now-u.First) / 1e6 // milliseconds since the first token; negative before it
	took := max(since, 0) + max(d.backlog-max(-since, 0), 0)
	lengths := quantiles(sorted, u.Output, u.MostTokens)
	for _, level := range u.Levels {
		limit := float64(level.FirstToken) / 1e6
		kept := 0.0 // the probability that the limit for the first token is kept
		switch {
		case u.Waiting:
			kept = 1 - broken(first/limit)
		case first <= limit:
			kept = 1
		}
		if kept == 0 || level.PerToken == 0 {
			continue
		}
		sum := 0.0
		for _, length := range lengths {
			rest := length - max(float64(u.Output), 1) // the first token counts for the other limit
			if rest <= 0 {
				continue
			}
			without := took + rest*d.step
			with := without + d.prompt + min(rest, d.answer)*d.longer
			allowed := float64(level.PerToken) / 1e6 * (length - 1)
			sum += broken(with/allowed) - broken(without/allowed)
		}
		risk += value(level) * kept * sum / lengthQuantiles
	}
	return risk * share(u.Levels)
}

// ownRisk returns the sum of V · P(broken) over the levels of the new request. It uses the mean timing, as the
// request's own time does: a slow holder must get its part of the work.
func ownRisk(q *Query, c *Candidate, usual *typical) (risk float64) {
	l := &c.Load
	step := usual.timing.Step(l.Requests+1, l.ContextTokens+l.OutputTokens+int64(q.PromptTokens))
	first := ownFirstToken(c) + q.Prefilled
	if q.Arrived > 0 {
		first += max(float64(q.Now-q.Arrived)/1e6, 0)
	}
	for _, level := range q.Levels {
		limit := float64(level.FirstToken) / 1e6
		kept := 1 - broken(first/limit)
		if level.PerToken > 0 && q.Leg != fleet.LegPrefill {
			kept *= 1 - broken(step*1e6/float64(level.PerToken))
		}
		risk += value(level) * (1 - kept)
	}
	return risk * share(q.Levels)
}

// value returns V for a level that is the only one of its request.
func value(level fleet.ServiceLevel) float64 {
	return min(float64(level.FirstToken)/1e6, mostValue)
}

// share returns a factor for the values of a request's levels. The values times this factor sum up to mostValues at
// most.
func share(levels []fleet.ServiceLevel) float64 {
	sum := 0.0
	for _, level := range levels {
		sum += value(level)
	}
	return min(1, mostValues/max(sum, 1))
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
