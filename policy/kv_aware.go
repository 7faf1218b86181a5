package policy

import "time"

// KVAware takes the holder with the longest match from the prompt's beginning on, weighted by tier. Among holders with
// the same match it takes the holder with the least work, which includes the request's own uncached tokens. If no
// holder has a match, it takes the holder with the least work.
type KVAware struct {
	// TierWeights are the worth of a matched token, 0 to 1, by its tier: the memory in which its block lies.
	TierWeights TierWeights `yaml:"tier_weights"`
	// ImbalanceTokens bounds how far a match is followed. For each worker that can be used, the policy adds two numbers
	// of tokens: the worker's work (prompt tokens that it has to compute, and a quarter of the context in use), and the
	// request's uncached tokens there. It leaves out workers whose sum exceeds the least sum by more than this number.
	// 0 is no bound.
	ImbalanceTokens int `yaml:"imbalance_tokens"`
	// EnableSpeculative counts a dispatched prompt as cached before events confirm it.
	EnableSpeculative bool `yaml:"enable_speculative"`
	// SpeculativeTTLMs is how long a dispatched prompt counts as cached before events confirm it, in milliseconds. 0
	// means the router's setting routing.speculative_ttl.
	SpeculativeTTLMs int `yaml:"speculative_ttl_ms"`
	// BlockSize is the number of tokens in a block of the index. All policies share one index, so this value has an
	// effect only in the fleet's default policy, and only if routing.block_size is not set. 0 means the engines' block
	// size.
	BlockSize int `yaml:"block_size"`
}

// DefaultKVAware returns kv_aware without a bound.
func DefaultKVAware() KVAware {
	w := DefaultTierWeights
	return KVAware{TierWeights: TierWeights{w[0], w[1], w[2], w[3]}, EnableSpeculative: true}
}

// Validate returns all problems.
func (p KVAware) Validate() error {
	var wrong Problems
	wrong.Section("tier_weights", p.TierWeights.Validate())
	if p.TierWeights == (TierWeights{}) {
		wrong.Add("tier_weights", "all weights are 0: nothing would ever match")
	}
	wrong.AtLeast("imbalance_tokens", float64(p.ImbalanceTokens), 0)
	wrong.AtLeast("speculative_ttl_ms", float64(p.SpeculativeTTLMs), 0)
	wrong.Within("block_size", float64(p.BlockSize), 0, 65536)
	return wrong.Join()
}

// Spec returns the policy.
func (p KVAware) Spec(name string) Spec {
	s := Spec{
		Name:            name,
		Scorers:         []Weighted{{"match", 1}},
		TierWeights:     p.TierWeights.ByTier(),
		ImbalanceTokens: p.ImbalanceTokens,
		SpeculativeTTL:  time.Duration(p.SpeculativeTTLMs) * time.Millisecond,
		BlockSize:       p.BlockSize,
	}
	if !p.EnableSpeculative {
		s.SpeculativeTTL = -1
	}
	return s
}
