package policy

import (
	"fmt"

	"github.com/warmpath/warmpath/fleet"
)

// Mode says when a request is divided: its prompt is computed at one worker, and its answer is generated at another
// worker, which receives the KV blocks of the prompt.
type Mode uint8

// The modes.
const (
	ModeAuto   Mode = iota // each request is divided if this is predicted to cost less
	ModeAlways             // each request is divided if it can be
	ModeNever              // no request is divided
)

var modeNames = [...]string{ModeAuto: "auto", ModeAlways: "always", ModeNever: "never"}

// String returns the name of the mode as the configuration writes it.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "unknown"
}

// ParseMode returns the mode of that name.
func ParseMode(name string) (Mode, error) {
	for m, known := range modeNames {
		if name == known {
			return Mode(m), nil
		}
	}
	return ModeAuto, fmt.Errorf("mode %.40q is none of auto, always, never", name)
}

// MarshalText returns the name of the mode.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText sets the mode from its name.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMode(string(text))
	return err
}

// Bypass is the reason, in one word, why a request is not divided. Metrics count requests by it.
type Bypass string

// The reasons for which a request is not divided.
const (
	BypassShort     Bypass = "short"      // too few tokens have to be computed
	BypassCost      Bypass = "cost"       // one worker is predicted to cost less
	BypassNever     Bypass = "never"      // the mode is never
	BypassAnswers   Bypass = "answers"    // several answers or prompts: a prefill can be handed over only once
	BypassRequest   Bypass = "request"    // the caller says that the request cannot be divided
	BypassPinned    Bypass = "pinned"     // the client named the worker or the rank
	BypassNoPrefill Bypass = "no_prefill" // no worker for the prefill leg can be used
	BypassNoDecode  Bypass = "no_decode"  // no worker can be used that exchanges blocks with the prefill worker
	BypassContinued Bypass = "continued"  // the request continues a stream that lost its worker
	BypassOneWorker Bypass = "one_worker" // an attempt with two workers failed: one worker serves the request
	BypassEndpoint  Bypass = "endpoint"   // the endpoint generates no answer
)

var bypasses = map[Bypass]string{
	BypassShort:     "too few tokens have to be computed to divide the request",
	BypassCost:      "one worker costs less than prefill, transfer and decode at two",
	BypassNever:     "the mode is never",
	BypassAnswers:   "it asks for several answers, or has several prompts",
	BypassRequest:   "the request cannot be divided",
	BypassPinned:    "the client named the worker or the rank",
	BypassNoPrefill: "no prefill worker can be used",
	BypassNoDecode:  "no worker can be used that exchanges KV blocks with the prefill worker",
	BypassContinued: "it continues a stream that lost its worker",
	BypassOneWorker: "an attempt with two workers failed",
	BypassEndpoint:  "the endpoint generates no answer",
}

// Reason returns the meaning of b in words.
func (b Bypass) Reason() string { return bypasses[b] }

// Division says whether a request is divided, and why. The times are predicted milliseconds of cost: what the request
// takes, and what it costs others, as the default policy counts them.
type Division struct {
	Considered bool   // some worker serves legs; if not, the other fields are zero
	Bypass     Bypass // why the request is not divided; "" if it is
	Whole      float64
	Prefill    float64
	Decode     float64 // with Transfer
	Transfer   float64 // of Decode: until the blocks are there
	Tokens     int     // tokens whose blocks the decode worker receives
}

// Weigher predicts what it costs to serve a request, whatever policy chose the holders: the cost of the policy marginal
// with the own times of each holder, and with other weights for what the request costs others. It is safe for
// concurrent use.
type Weigher struct{ m marginal }

// The weights of what a request costs others, where Marginal has 0.07 and 2.5. Marginal compares workers of one pool,
// in which each request delays about as many others wherever it goes. A worker that only prefills has no answers to
// delay, so here these weights decide.
const (
	// weigherExternality is the whole exchange rate of the service level 5 s/100 ms, of which Marginal takes half.
	weigherExternality = 0.15
	// weigherEviction counts the evicted blocks once: half of them are needed again.
	weigherEviction = 1
)

// NewWeigher returns a weigher that has seen no answers.
func NewWeigher() *Weigher {
	p := DefaultMarginal()
	p.Externality, p.Eviction = weigherExternality, weigherEviction
	return &Weigher{marginal{Marginal: p, weights: p.TierWeights.ByTier()}}
}

// Cost returns the predicted milliseconds of q at c: the leg q.Leg, or the whole request.
func (w *Weigher) Cost(q *Query, c *Candidate) float64 {
	priced := *c
	usual := w.m.typical(q, []Candidate{priced})
	w.m.price(q, &priced, &usual)
	cost := -priced.Score
	if q.Requests == nil {
		return cost
	}
	s := riskScratches.Get().(*riskScratch)
	defer riskScratches.Put(s)
	s.requests, s.every = q.Requests.AppendUnderway(s.requests[:0], c.Holder, q.Now, riskRequests)
	risk := w.m.othersRisk(q, &priced, &usual, s)
	if q.Leg != fleet.LegPrefill {
		risk += ownRisk(q, &priced, &usual) // of a divided request it counts once, at the first token
	}
	return cost + w.m.Risk*risk
}

// Routed and Finished tell the weigher of each request, so that it knows the usual lengths of answers.
func (w *Weigher) Routed(q *Query, c *Candidate) { w.m.Routed(q, c) }

// Finished reports how a request ended.
func (w *Weigher) Finished(f *Finished) { w.m.Finished(f) }

// Fetch sets c's Fetched, Source, SourceRank and Transfer if fetching tokens of the prompt from a rank of another
// worker takes less time than computing them. has is how many tokens of the prompt the rank has.
func (c *Candidate) Fetch(q *Query, from *fleet.Worker, rank, has int, link *fleet.Link) {
	has = min(has, q.PromptTokens-1)
	has -= has % max(c.BlockSize, 1)
	more := has - c.Kept()
	if more <= max(c.Fetched, 0) || from.ID == c.Worker.ID || !link.Rested(q.Now) {
		return
	}
	t := c.Load.Times()
	took := link.Time(more)
	computed := q.PromptTokens - c.Kept()
	if took >= t.Prompt(computed, q.PromptTokens)-t.Prompt(computed-more, q.PromptTokens) {
		return
	}
	c.Fetched, c.Source, c.SourceRank, c.Transfer = more, from, rank, took
}
