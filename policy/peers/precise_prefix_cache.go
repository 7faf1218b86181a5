package peers

import (
	"time"

	"github.com/warmpath/warmpath/policy"
)

// PrecisePrefixCache is llm-d's scheduler with its precise prefix cache. It adds three scores from 0 to 1: the matched
// share of the prompt with weight 3, the waiting queue with weight 2, and the free share of the KV cache with weight 2
// [llm-d-kv-cache, benchmarking/73-capacity; the endpoint picker's queue-scorer, kv-cache-utilization-scorer and
// max-score-picker].
type PrecisePrefixCache struct {
	// PrefixWeight is how much the matched share of the prompt counts.
	PrefixWeight float64 `yaml:"prefix_weight"`
	// QueueWeight is how much the waiting queue counts: the shortest queue scores 1, the longest 0. If all queues are
	// equal, each scores 1.
	QueueWeight float64 `yaml:"queue_weight"`
	// KVCacheWeight is how much the free share of the KV cache counts.
	KVCacheWeight float64 `yaml:"kv_cache_weight"`
	// TierWeights are the worth of a matched token by its tier: the memory in which its block lies. llm-d weighs only
	// the GPU's memory and host memory; the weights of the other tiers are Warmpath's.
	TierWeights policy.TierWeights `yaml:"tier_weights"`
	// SpeculativeIndexing counts a dispatched prompt as cached for 2 s, until events confirm it.
	SpeculativeIndexing bool `yaml:"speculative_indexing"`
	// Picker is max_score, random, or weighted_random.
	Picker string `yaml:"picker"`
}

// DefaultPrecisePrefixCache returns the weights of llm-d's published measurement.
func DefaultPrecisePrefixCache() PrecisePrefixCache {
	return PrecisePrefixCache{
		PrefixWeight: 3, QueueWeight: 2, KVCacheWeight: 2, TierWeights: policy.DefaultKVAware().TierWeights, SpeculativeIndexing: true,
		Picker: "max_score",
	}
}

// Validate returns all problems.
func (p PrecisePrefixCache) Validate() error {
	var wrong policy.Problems
	wrong.AtLeast("prefix_weight", p.PrefixWeight, 0)
	wrong.AtLeast("queue_weight", p.QueueWeight, 0)
	wrong.AtLeast("kv_cache_weight", p.KVCacheWeight, 0)
	if p.PrefixWeight+p.QueueWeight+p.KVCacheWeight == 0 {
		wrong.Add("prefix_weight", "all weights are 0: nothing would be rated")
	}
	wrong.Section("tier_weights", p.TierWeights.Validate())
	wrong.OneOf("picker", p.Picker, "max_score", "random", "weighted_random")
	return wrong.Join()
}

// Spec returns the policy.
func (p PrecisePrefixCache) Spec(name string) policy.Spec {
	s := policy.Spec{
		Name: name, Picker: p.Picker, TierWeights: p.TierWeights.ByTier(), SpeculativeTTL: 2 * time.Second,
		Scorers: weighted("match", p.PrefixWeight, "queue", p.QueueWeight, "kv_cache", p.KVCacheWeight),
	}
	if !p.SpeculativeIndexing {
		s.SpeculativeTTL = -1
	}
	return s
}

// weighted returns the pairs of a scorer and its weight, without the scorers of weight 0.
func weighted(pairs ...any) []policy.Weighted {
	var list []policy.Weighted
	for i := 0; i < len(pairs); i += 2 {
		if w := pairs[i+1].(float64); w > 0 {
			list = append(list, policy.Weighted{Scorer: pairs[i].(string), Weight: w})
		}
	}
	return list
}
