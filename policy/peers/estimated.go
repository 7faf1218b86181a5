package peers

import "github.com/warmpath/warmpath/policy"

// Estimated is llm-d's approximate prefix cache. It scores as [PrecisePrefixCache] does, but estimates the matches from
// the prompts that were sent to each holder most recently. llm-d compares its precise plugin with this policy
// [llm-d-kv-cache, benchmarking/73-capacity].
type Estimated struct {
	// PrefixWeight is how much the matched share of the prompt counts.
	PrefixWeight float64 `yaml:"prefix_weight"`
	// QueueWeight is how much the waiting queue counts: the shortest queue scores 1, the longest 0.
	QueueWeight float64 `yaml:"queue_weight"`
	// KVCacheWeight is how much the free share of the KV cache counts.
	KVCacheWeight float64 `yaml:"kv_cache_weight"`
	// LRUCapacityPerServer is how many blocks of 16 tokens are remembered for each worker. The least recently used blocks
	// are dropped first.
	LRUCapacityPerServer int `yaml:"lru_capacity_per_server"`
	// MaxPrefixTokens is how many tokens of a prompt are compared.
	MaxPrefixTokens int `yaml:"max_prefix_tokens"`
	// Picker is max_score, random, or weighted_random.
	Picker string `yaml:"picker"`
}

// estimatedBlock is the number of tokens in a block. llm-d's blocks have 64 characters, which count as 16 tokens.
const estimatedBlock = 16

// DefaultEstimated returns the weights and the capacity of llm-d's published measurement.
func DefaultEstimated() Estimated {
	return Estimated{PrefixWeight: 1, QueueWeight: 1, KVCacheWeight: 1, LRUCapacityPerServer: 31250, MaxPrefixTokens: 128 << 10, Picker: "max_score"}
}

// Validate returns all problems.
func (p Estimated) Validate() error {
	var wrong policy.Problems
	wrong.AtLeast("prefix_weight", p.PrefixWeight, 0)
	wrong.AtLeast("queue_weight", p.QueueWeight, 0)
	wrong.AtLeast("kv_cache_weight", p.KVCacheWeight, 0)
	if p.PrefixWeight+p.QueueWeight+p.KVCacheWeight == 0 {
		wrong.Add("prefix_weight", "all weights are 0: nothing would be rated")
	}
	wrong.Within("lru_capacity_per_server", float64(p.LRUCapacityPerServer), 1, 1<<27)
	wrong.Within("max_prefix_tokens", float64(p.MaxPrefixTokens), estimatedBlock, 1<<30)
	wrong.OneOf("picker", p.Picker, "max_score", "random", "weighted_random")
	return wrong.Join()
}

// Spec returns the policy.
func (p Estimated) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Picker: p.Picker,
		Scorers: weighted("match", p.PrefixWeight, "queue", p.QueueWeight, "kv_cache", p.KVCacheWeight),
		Learned: &policy.Learned{HolderTokens: p.LRUCapacityPerServer * estimatedBlock, MaxPrefixTokens: p.MaxPrefixTokens},
	}
}
