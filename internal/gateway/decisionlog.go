package gateway

import (
	"hash/maphash"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// choiceOf copies what the policy saw when it made d, because d is used again for other requests.
func (g *Gateway) choiceOf(d *warmpath.Decision, p *prepared) *telemetry.Choice {
	q := &p.route
	c := &telemetry.Choice{
		At: d.Now, Arrived: q.Arrived, Random: q.Random, Base: d.Base, LoRA: d.LoRA, Class: d.Class(),
		Prompt: d.PromptTokens, Known: d.TokensKnown, BlockSize: d.BlockSize, Target: q.Target, MaxRequests: g.waiting.most,
		Terms: d.Terms, Chosen: d.Chosen, Candidates: make([]telemetry.Candidate, len(d.Candidates)),
	}
	if q.Session.Key != "" {
		c.Session = strconv.FormatUint(maphash.String(g.identity.seed, q.Session.Key), 16)
	}
	for _, l := range q.Levels {
		c.Levels = append(c.Levels, l.String())
	}
	if !d.FromText { // without token ids, the keys are of the prompt's text, which no engine hashes
		c.Keys = telemetry.EncodeKeys(d.Keys())
	}
	if q.Rank.Asked() {
		rank := q.Rank.Number()
		c.Rank = &rank
	}
	for i := range d.Candidates {
		c.Candidates[i] = candidateOf(&d.Candidates[i], len(d.Terms))
		if slices.Contains(q.Exclude, d.Candidates[i].Worker.ID) {
			c.Tried = append(c.Tried, d.Candidates[i].Worker.URL)
		}
	}
	if first := d.Prefill; first != nil {
		c.Prefill = &telemetry.LegChoice{Policy: first.Policy, Terms: first.Terms, Chosen: first.Chosen}
		for i := range first.Candidates {
			c.Prefill.Candidates = append(c.Prefill.Candidates, candidateOf(&first.Candidates[i], len(first.Terms)))
		}
	}
	return c
}

func candidateOf(c *policy.Candidate, terms int) telemetry.Candidate {
	out := telemetry.Candidate{
		Worker: c.Worker.URL, Rank: c.Rank, Holder: uint32(c.Holder), Hash: c.Hash, Trust: c.Trust.String(), Bar: c.Bar, Down: !c.Available, Withheld: c.Withheld, BlockSize: c.BlockSize,
		Match: c.Match, Predicted: c.Predicted, Active: c.Active, AtRisk: c.AtRisk, Full: c.Full,
		Load: telemetry.LoadOf(&c.Load), Score: telemetry.Finite(c.Score), LeftOut: c.Reason,
		Fetched: c.Fetched, TransferMS: telemetry.Finite(c.Transfer), Unpaired: c.Unpaired,
	}
	if c.Source != nil {
		out.Source = c.Source.URL
	}
	for t, n := range c.Tier {
		if n > 0 {
			if out.Tiers == nil {
				out.Tiers = map[string]int{}
			}
			out.Tiers[block.Tier(t).String()] = n
		}
	}
	if c.Reason == "" {
		for _, v := range c.Terms[:terms] {
			out.Terms = append(out.Terms, telemetry.Finite(v))
		}
	}
	return out
}

// Sizes of a line of the decision log in memory, about: of the record, and of each candidate.
const (
	decidedBytes   = 1200
	candidateBytes = 700
)

// logDecision writes the request's line of the decision log.
func (x *exchange) logDecision() {
	if x.choice == nil {
		return
	}
	candidates := len(x.choice.Candidates)
	if x.choice.Prefill != nil {
		candidates += len(x.choice.Prefill.Candidates)
	}
	x.g.DecisionLog.Add(&telemetry.Decided{Record: x.rec, Choice: x.choice}, decidedBytes+len(x.choice.Keys)+candidateBytes*candidates)
}
