package peers

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// PredictedTTFT takes the holder with the lowest predicted time to first token [Mooncake, FAST'25, algorithm 1; llm-d's
// predicted latency]. The prediction is the time to compute the uncached tokens in the holder's queue, plus the time to
// compute the request's own uncached tokens. A matched token on a slower tier counts in part as uncached, because it
// has to be loaded. Scores are negated milliseconds.
type PredictedTTFT struct {
	// Learned uses the times that the router learned for the worker's kind (workers of the same engine, model and
	// hardware), adjusted to the worker's own speed. While no times are learned, token_ms, attention_ms and base_ms
	// count.
	Learned bool `yaml:"learned"`
	// TokenMs is the milliseconds that an uncached prompt token takes.
	TokenMs float64 `yaml:"token_ms"`
	// AttentionMs is the additional milliseconds of an uncached token for each token before it.
	AttentionMs float64 `yaml:"attention_ms"`
	// BaseMs is the additional milliseconds of each engine step. A step computes 8,192 prompt tokens, so that each
	// uncached token adds 1/8,192 of this time.
	BaseMs float64 `yaml:"base_ms"`
	// TierWeights are the share of a matched token's computation that is saved, by its tier: the memory in which its
	// block lies.
	TierWeights policy.TierWeights `yaml:"tier_weights"`
}

// DefaultPredictedTTFT returns the times of a dense 32B model on two H100.
func DefaultPredictedTTFT() PredictedTTFT {
	t := fleet.DefaultTiming
	return PredictedTTFT{Learned: true, TokenMs: t.Token, AttentionMs: t.Attention, BaseMs: t.Base, TierWeights: policy.DefaultKVAware().TierWeights}
}

// Validate returns all problems.
func (p PredictedTTFT) Validate() error {
	var wrong policy.Problems
	if p.TokenMs <= 0 {
		wrong.Add("token_ms", "%v is not above 0", p.TokenMs)
	}
	wrong.AtLeast("token_ms", p.TokenMs, 0)
	wrong.AtLeast("attention_ms", p.AttentionMs, 0)
	wrong.AtLeast("base_ms", p.BaseMs, 0)
	wrong.Section("tier_weights", p.TierWeights.Validate())
	return wrong.Join()
}

// Spec returns the policy.
func (p PredictedTTFT) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, NeedsMatches: true, Terms: []string{"queue", "prefill"}, Reasons: policy.ReasonsBy("the earliest predicted first token"),
		Chooser: func() policy.Chooser {
			t := &ttft{PredictedTTFT: p, weights: p.TierWeights.ByTier()}
			return policy.Ranked(t.score)
		},
	}
}

type ttft struct {
	PredictedTTFT
	weights [block.NumTiers]float64
}

func (t *ttft) score(q *policy.Query, c []policy.Candidate) {
	assumed := fleet.Timing{Base: t.BaseMs, Token: t.TokenMs, Attention: t.AttentionMs}
	for i := range c {
		x := &c[i]
		timing, queue := assumed, 0.0
		if t.Learned && x.Load.Timing.Token > 0 {
			timing = x.Load.Timing
			queue = x.Load.Backlog.Seconds() * 1e3
		} else {
			queue = timing.Prompt(int(x.Load.PrefillTokens), int(x.Load.PrefillTokens))
		}
		own := float64(x.Uncached(q))
		for tier, n := range x.Tier {
			own += (1 - t.weights[tier]) * float64(n)
		}
		x.Terms[0], x.Terms[1] = queue, timing.Prompt(int(own), q.PromptTokens)
		x.Score = 0 - (x.Terms[0] + x.Terms[1])
	}
}
