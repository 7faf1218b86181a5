package peers

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// CacheAware is cache_aware of SMG and the SGLang router [SMG 1.9.0, model_gateway/src/policies/cache_aware.rs]. It
// takes the holder to which the longest beginning of the prompt was sent before. It learns this from the requests that
// this router sent, not from engines' events. If the fleet is out of balance, or if the beginning is too short, it
// takes the holder with the fewest requests.
//
// This port differs from SMG in the bounds of memory ([CacheAware.MaxBytes]) and in three rules. If the longest
// beginning was sent to several holders, the port takes the holder with the fewest requests; SMG takes the last holder
// to which the beginning was sent. If the chosen holder cannot be used, the port takes the next best holder; SMG takes
// the first healthy worker. If a worker leaves, the port forgets the worker.
type CacheAware struct {
	// CacheThreshold is the share of the prompt, 0 to 1, above which the longest beginning is followed.
	CacheThreshold float64 `yaml:"cache_threshold"`
	// BalanceAbsThreshold and BalanceRelThreshold say when the fleet is out of balance. The greatest number of requests
	// of a holder must exceed the smallest number by more than BalanceAbsThreshold, and it must be more than
	// BalanceRelThreshold times the smallest number.
	BalanceAbsThreshold int     `yaml:"balance_abs_threshold"`
	BalanceRelThreshold float64 `yaml:"balance_rel_threshold"`
	// OverloadTokenUsageThreshold and BalanceTokenUsageThreshold apply to the used share of the KV cache, as engines
	// report it. The fleet is out of balance, too, if the highest share exceeds OverloadTokenUsageThreshold, or if the
	// difference between the highest and the lowest share exceeds BalanceTokenUsageThreshold. 1 is never exceeded.
	OverloadTokenUsageThreshold float64 `yaml:"overload_token_usage_threshold"`
	BalanceTokenUsageThreshold  float64 `yaml:"balance_token_usage_threshold"`
	// EvictionIntervalSecs is the time in seconds between two evictions, which cut holders with more than MaxTreeSize
	// to MaxTreeSize. 0 means that there are no evictions.
	EvictionIntervalSecs int `yaml:"eviction_interval_secs"`
	// MaxTreeSize is how many characters are remembered for each holder, for all models together. If tokens are
	// compared, it is the number of tokens.
	MaxTreeSize int `yaml:"max_tree_size"`
	// By is the form of prompts that is compared: "text" or "tokens". The router first has to make tokens
	// from the text. Tokens also differ if only the chat templates differ. If the chosen form of a prompt is not known,
	// the other form is used.
	By string `yaml:"by"`
	// MaxBytes bounds the memory for texts. The memory for tokens has a second bound of the same size. SMG has no such
	// bounds.
	MaxBytes int64 `yaml:"max_bytes"`
}

// DefaultCacheAware returns the defaults of SMG's command line. SMG's library has other defaults: CacheThreshold 0.5,
// BalanceAbsThreshold 32, BalanceRelThreshold 1.1, EvictionIntervalSecs 30, MaxTreeSize 10,000.
func DefaultCacheAware() CacheAware {
	return CacheAware{
		CacheThreshold: 0.3, BalanceAbsThreshold: 64, BalanceRelThreshold: 1.5,
		OverloadTokenUsageThreshold: 1, BalanceTokenUsageThreshold: 1,
		EvictionIntervalSecs: 120, MaxTreeSize: 1 << 26,
		By: byText, MaxBytes: defaultPromptBytes,
	}
}

// The values of By.
const (
	byText   = "text"
	byTokens = "tokens"
)

// defaultPromptBytes: half a gigabyte holds some 15,000 prompts of 32 KB, more than a fleet's caches do. More memory
// would only add wrong guesses.
const defaultPromptBytes = 512 << 20

// Validate returns all problems.
func (p CacheAware) Validate() error {
	var wrong policy.Problems
	wrong.Within("cache_threshold", p.CacheThreshold, 0, 1)
	wrong.AtLeast("balance_abs_threshold", float64(p.BalanceAbsThreshold), 0)
	wrong.AtLeast("balance_rel_threshold", p.BalanceRelThreshold, 0)
	wrong.Within("overload_token_usage_threshold", p.OverloadTokenUsageThreshold, 0, 1)
	wrong.Within("balance_token_usage_threshold", p.BalanceTokenUsageThreshold, 0, 1)
	wrong.Within("eviction_interval_secs", float64(p.EvictionIntervalSecs), 0, 1e6)
	wrong.AtLeast("max_tree_size", float64(p.MaxTreeSize), 1)
	wrong.OneOf("by", p.By, byText, byTokens)
	wrong.AtLeast("max_bytes", float64(p.MaxBytes), 1<<16)
	return wrong.Join()
}

// Spec returns the policy.
func (p CacheAware) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Terms: []string{"sent before", "idle"}, Reasons: cacheAwareReasons,
		NeedsText: p.By == byText, NeedsMatches: p.By == byTokens, Learns: learnsBy(p.By),
		Chooser: func() policy.Chooser {
			return &cacheAware{p, newPrompts(p.By == byTokens, placement.Config{
				Bytes:       p.MaxBytes,
				HolderUnits: int64(p.MaxTreeSize),
				Interval:    time.Duration(p.EvictionIntervalSecs) * time.Second,
			}, 1)}
		},
	}
}

var cacheAwareReasons = map[policy.Branch]string{
	policy.BranchAffinity: "it was sent the longest beginning of the prompt before, fewest requests among equals",
	policy.BranchMiss:     "no worker was sent a part of the prompt before: fewest requests",
	policy.BranchShort:    "no worker was sent enough of the prompt before to follow it: fewest requests",
	policy.BranchFallback: "the worker that was sent the longest beginning cannot be used: the next longest, fewest requests among equals",
	policy.BranchSpill:    "the fleet is out of balance: fewest requests",
	policy.BranchNoTokens: "nothing of the prompt is known: fewest requests",
}

// learnsBy returns what a policy with this value of By learns from.
func learnsBy(by string) policy.PromptForm {
	if by == byTokens {
		return policy.FormTokens
	}
	return policy.FormText
}

type cacheAware struct {
	CacheAware
	prompts *prompts
}

// The terms of cache_aware and prefix_cache_affinity. The first term is the share of the prompt that was sent to the
// holder before. The second term is 1 / (requests + 1) of the holder. Score is the term that decided.
const (
	termSent = 0
	termIdle = 1
)

func (x *cacheAware) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	m := x.prompts.match(q)
	defer x.prompts.done(m)
	noteTerms(m, c)
	best := 0
	for i := range c {
		sent, longest := c[i].Terms[termSent], c[best].Terms[termSent]
		if sent > longest || sent == longest && i > 0 && policy.TieRequests.Before(q, &c[i], &c[best]) {
			best = i
		}
	}
	switch sent := c[best].Terms[termSent]; {
	case sent == 0 || x.unbalanced(q, c):
		pick := idlest(q, c)
		pick.Branch = given(m, c, pick.Index, best)
		return pick
	case !(sent > x.CacheThreshold):
		pick := idlest(q, c)
		pick.Branch = policy.BranchShort
		return pick
	}
	for i := range c {
		c[i].Score = c[i].Terms[termSent]
	}
	return policy.Pick{Index: best, Branch: given(m, c, best, best), Ranked: true, Tie: policy.TieRequests}
}

// given returns the branch for candidate picked. best is the candidate to which the longest beginning was sent. It is
// fallback if a holder with a longer beginning cannot be used.
func given(m *placement.Matches, c []policy.Candidate, picked, best int) policy.Branch {
	switch sent := c[best].Terms[termSent]; {
	case m == nil:
		return policy.BranchNoTokens
	case sent == 0:
		return policy.BranchMiss
	case c[picked].Terms[termSent] < sent:
		return policy.BranchSpill
	case m.Best() > m.Of(c[best].Holder):
		return policy.BranchFallback
	}
	return policy.BranchAffinity
}

// noteTerms sets the terms by which cache_aware and prefix_cache_affinity decide.
func noteTerms(m *placement.Matches, c []policy.Candidate) {
	for i := range c {
		c[i].Terms[termSent] = share(m, c[i].Holder)
		c[i].Terms[termIdle] = 1 / float64(1+max(c[i].Load.Requests, 0))
	}
}

// unbalanced reports whether load decides alone.
func (x *cacheAware) unbalanced(q *policy.Query, c []policy.Candidate) bool {
	least, most := spread(c)
	if most-least > int64(x.BalanceAbsThreshold) && float64(most) > float64(least)*x.BalanceRelThreshold {
		return true
	}
	low, high := 1.0, 0.0
	for i := range c {
		if c[i].Reports(q.Now) {
			used := c[i].KVUsed(q.Now)
			low, high = min(low, used), max(high, used)
		}
	}
	return high > x.OverloadTokenUsageThreshold || high-low > x.BalanceTokenUsageThreshold
}

func (x *cacheAware) Routed(q *policy.Query, c *policy.Candidate) { x.prompts.sent(q, c.Holder) }
func (x *cacheAware) Finished(*policy.Finished)                   {}

// Nominate names the holders to which the longest beginnings of the prompt were sent.
func (x *cacheAware) Nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	return x.prompts.nominate(q, dst)
}

func (x *cacheAware) Forget(h fleet.Holder) { x.prompts.forget(h) }
