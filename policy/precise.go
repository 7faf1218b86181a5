package policy

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// PrecisePrefixCache is llm-d's filter → score → pick with its precise prefix cache: match, waiting queue and KV cache in
// use, each rated 0 to 1 and weighted 3, 2, 2 [llm-d-kv-cache benchmarking/73-capacity; the endpoint picker's queue-scorer,
// kv-cache-utilization-scorer and max-score-picker; facts/llm-d.md §1.5].
type PrecisePrefixCache struct {
	// PrefixWeight is how much the matched share of the prompt counts.
	PrefixWeight float64 `yaml:"prefix_weight"`
	// QueueWeight is how much the waiting queue counts: the shortest is rated 1, the longest 0, all 1 where they are alike.
	QueueWeight float64 `yaml:"queue_weight"`
	// KVCacheWeight is how much the free share of the KV cache counts.
	KVCacheWeight float64 `yaml:"kv_cache_weight"`
	// TierWeights are the worth of a matched token by where its block lies. The source knows the GPU and host memory.
	TierWeights TierWeights `yaml:"tier_weights"`
	// SpeculativeIndexing counts a dispatched prompt as cached for 2 s before its events confirm it.
	SpeculativeIndexing bool `yaml:"speculative_indexing"`
	// Picker is max_score, random, or weighted_random.
	Picker string `yaml:"picker"`
}

// DefaultPrecisePrefixCache returns the weights of llm-d's published measurement.
func DefaultPrecisePrefixCache() PrecisePrefixCache {
	return PrecisePrefixCache{
		PrefixWeight: 3, QueueWeight: 2, KVCacheWeight: 2, TierWeights: DefaultLongestMatch().TierWeights, SpeculativeIndexing: true,
		Picker: "max_score",
	}
}

// Validate returns all that is wrong.
func (p PrecisePrefixCache) Validate() error {
	var wrong check
	wrong.atLeast("prefix_weight", p.PrefixWeight, 0)
	wrong.atLeast("queue_weight", p.QueueWeight, 0)
	wrong.atLeast("kv_cache_weight", p.KVCacheWeight, 0)
	if p.PrefixWeight+p.QueueWeight+p.KVCacheWeight == 0 {
		wrong.add("prefix_weight", "all weights are 0: nothing would be rated")
	}
	wrong.section("tier_weights", p.TierWeights.Validate())
	wrong.oneOf("picker", p.Picker, "max_score", "random", "weighted_random")
	return wrong.join()
}

// Spec returns the policy.
func (p PrecisePrefixCache) Spec(name string) Spec {
	s := Spec{
		Name: name, Picker: p.Picker, TierWeights: p.TierWeights.ByTier(), SpeculativeTTL: 2 * time.Second,
		Scorers: weighted("match", p.PrefixWeight, "queue", p.QueueWeight, "kv_cache", p.KVCacheWeight),
	}
	if !p.SpeculativeIndexing {
		s.SpeculativeTTL = -1
	}
	return s
}

// weighted pairs scorers with their weights and leaves those out that do not count.
func weighted(pairs ...any) []Weighted {
	var list []Weighted
	for i := 0; i < len(pairs); i += 2 {
		if w := pairs[i+1].(float64); w > 0 {
			list = append(list, Weighted{pairs[i].(string), w})
		}
	}
	return list
}

// fresh reports whether what x's engine said of itself still counts.
func fresh(q *Query, x *Candidate) bool {
	return x.Load.Reported.At != 0 && q.Now-x.Load.Reported.At < int64(fleet.ReportedFor)
}

// waiting returns the requests in x's queue: as its engine reports, else those that this router has there without a first
// token.
func waiting(q *Query, x *Candidate) int64 {
	if fresh(q, x) {
		return x.Load.Reported.Waiting
	}
	return x.Load.Waiting
}

// running returns the requests that x computes: as its engine reports, else those that this router has there.
func running(q *Query, x *Candidate) int64 {
	if fresh(q, x) {
		return x.Load.Reported.Running
	}
	return x.Load.Requests
}

// kvUsed returns the share of x's KV cache that running requests hold: as its engine reports, else what this router put
// there, 0 where neither is known.
func kvUsed(q *Query, x *Candidate) float64 {
	if fresh(q, x) {
		return min(max(x.Load.Reported.KVUsed, 0), 1)
	}
	capacity := x.Worker.Facts.BlocksPerRank
	if capacity <= 0 {
		return 0
	}
	used := float64(x.Load.ContextBlocks) + float64(x.Load.OutputTokens)/float64(max(x.BlockSize, 1))
	return min(max(used/float64(capacity), 0), 1)
}

// fewest rates the candidate with the least of something 1, the one with the most 0, and all 1 where they are alike: what
// llm-d does with queues. One request and a hundred look the same where they are the extremes.
type fewest func(q *Query, x *Candidate) int64

func (f fewest) Score(q *Query, c []Candidate, weight float64) {
	least, most := f(q, &c[0]), f(q, &c[0])
	for i := range c[1:] {
		n := f(q, &c[i+1])
		least, most = min(least, n), max(most, n)
	}
	for i := range c {
		rating := 1.0
		if most > least {
			rating = float64(most-f(q, &c[i])) / float64(most-least)
		}
		c[i].Score += weight * rating
	}
}

// kvFree rates by the free share of the KV cache.
type kvFree struct{}

func (kvFree) Score(q *Query, c []Candidate, weight float64) {
	for i := range c {
		c[i].Score += weight * (1 - kvUsed(q, &c[i]))
	}
}
