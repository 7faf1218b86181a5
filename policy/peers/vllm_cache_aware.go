package peers

import (
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// VLLMCacheAware is vllm_cache_aware, from the design document "vLLM Cache-Aware Load Balancing Design" of the SGLang
// model gateway. A tracker records the blocks of the requests that were sent to each holder, and so estimates how much
// of a prompt each holder has. A holder is preferred if it has a large enough share of the prompt and is not much
// busier than the average candidate. The preferred holder with the longest beginning of the prompt is taken. If no
// holder is preferred, the holder with the fewest requests is taken.
//
// This port differs from the document in three points, because the rules of the document would not serve its purpose.
// The port identifies a block by a key that covers all tokens before the block, too, and not by position and content.
// The port evicts the deepest blocks of the least recently used request first, so that the remaining blocks of a holder
// are always prefixes. If the best holder is overloaded, the port tries the next best preferred holders before it takes
// the holder with the fewest requests.
type VLLMCacheAware struct {
	// BlockSize is the number of tokens in a unit. The prompt's length and the tracked part of the prompt are counted in
	// whole units. The tracker itself stores blocks of the index, which may have another size.
	BlockSize int `yaml:"block_size"`
	// MaxBlocksPerBackend is how many blocks of the index are tracked for each holder. Between two evictions there may
	// be up to twice this number.
	MaxBlocksPerBackend int `yaml:"max_blocks_per_backend"`
	// EvictionIntervalSecs is the time in seconds between two evictions, which cut holders to MaxBlocksPerBackend
	// blocks. The least recently used blocks are evicted.
	EvictionIntervalSecs int `yaml:"eviction_interval_secs"`
	// CacheThreshold is the share of the prompt's blocks, 0 to 1, above which a holder is preferred.
	CacheThreshold float64 `yaml:"cache_threshold"`
	// LoadFactor bounds the requests of a preferred holder, as a multiple of the candidates' average.
	LoadFactor float64 `yaml:"load_factor"`
}

// DefaultVLLMCacheAware returns the defaults of the design document.
func DefaultVLLMCacheAware() VLLMCacheAware {
	return VLLMCacheAware{BlockSize: 16, MaxBlocksPerBackend: 100_000, EvictionIntervalSecs: 60, CacheThreshold: 0.3, LoadFactor: 1.25}
}

// Validate returns all problems.
func (p VLLMCacheAware) Validate() error {
	var wrong policy.Problems
	wrong.Within("block_size", float64(p.BlockSize), 1, block.MaxSize)
	wrong.Within("max_blocks_per_backend", float64(p.MaxBlocksPerBackend), 1, 1e9)
	wrong.Within("eviction_interval_secs", float64(p.EvictionIntervalSecs), 1, 1e6)
	wrong.Within("cache_threshold", p.CacheThreshold, 0, 1)
	wrong.AtLeast("load_factor", p.LoadFactor, 0)
	return wrong.Join()
}

// Spec returns the policy.
func (p VLLMCacheAware) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Terms: []string{"hits", "idle"}, NeedsMatches: true, Reasons: blockTrackerReasons,
		Chooser: func() policy.Chooser { return newBlockTracker(p) },
	}
}

var blockTrackerReasons = map[policy.Branch]string{
	policy.BranchAffinity: "the most blocks of the prompt as tracked, fewest requests among equals",
	policy.BranchMiss:     "no block of the prompt is tracked: fewest requests",
	policy.BranchShort:    "too few blocks of the prompt are tracked to follow them: fewest requests",
	policy.BranchFallback: "the worker with the most tracked blocks cannot be used: the next most, fewest requests among equals",
	policy.BranchSpill:    "workers with more tracked blocks have too many requests: the next most, else the fewest requests",
	policy.BranchNoTokens: "tokens are not known: fewest requests",
}

// blockTracker is the chooser of a VLLMCacheAware. Keys of different models differ, so one store has all models.
type blockTracker struct {
	VLLMCacheAware
	blocks *placement.Store
	spare  sync.Pool // *placement.Matches
}

// trackerStep is the greatest number of blocks that one request evicts; this takes about 200 µs. The next requests
// continue the eviction until it has visited all holders.
const trackerStep = 2048

func newBlockTracker(p VLLMCacheAware) *blockTracker {
	x := &blockTracker{VLLMCacheAware: p, blocks: placement.New(placement.Config{
		Keys:        placement.Blocks,
		HolderUnits: int64(p.MaxBlocksPerBackend),
		Interval:    time.Duration(p.EvictionIntervalSecs) * time.Second,
		Step:        trackerStep,
	})}
	x.spare.New = func() any { return &placement.Matches{} }
	return x
}

// The terms of vllm_cache_aware. The first term is the hits: the tracked share of the prompt's units, 0 to 1. The
// second term is termIdle, as for cache_aware.
const termHits = 0

func (x *blockTracker) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	longest := x.noteHits(q, c)
	limit := x.limit(c)
	best, any, most := -1, false, 0.0
	for i := range c {
		hits := c[i].Terms[termHits]
		c[i].Score = hits
		most = max(most, hits)
		if !(hits > x.CacheThreshold) {
			continue
		}
		any = true
		if float64(c[i].Load.Requests) > limit {
			continue
		}
		if best < 0 || hits > c[best].Terms[termHits] || hits == c[best].Terms[termHits] && policy.TieRequests.Before(q, &c[i], &c[best]) {
			best = i
		}
	}
	if best < 0 {
		pick := idlest(q, c)
		switch {
		case any:
			pick.Branch = policy.BranchSpill
		case most > 0:
			pick.Branch = policy.BranchShort
		case !q.Known:
			pick.Branch = policy.BranchNoTokens
		default:
			pick.Branch = policy.BranchMiss
		}
		return pick
	}
	pick := policy.Pick{Index: best, Branch: policy.BranchAffinity, Ranked: true, Tie: policy.TieRequests}
	switch hits := c[best].Terms[termHits]; {
	case hits < most:
		// A busier holder with more hits was passed over because of its load. So the highest score was not taken.
		pick.Branch, pick.Ranked = policy.BranchSpill, false
	case hits < longest:
		pick.Branch = policy.BranchFallback
	}
	return pick
}

// noteHits sets the candidates' terms. It returns the greatest hits of any holder, even of a holder that is no
// candidate.
func (x *blockTracker) noteHits(q *policy.Query, c []policy.Candidate) (longest float64) {
	total := q.PromptTokens / x.BlockSize
	for i := range c {
		c[i].Terms[termIdle] = 1 / float64(1+max(c[i].Load.Requests, 0))
	}
	if total == 0 || len(q.Prompt.Keys) == 0 {
		return 0
	}
	hits := func(blocks int) float64 {
		return min(float64(blocks*q.Prompt.BlockSize/x.BlockSize)/float64(total), 1)
	}
	m := x.spare.Get().(*placement.Matches)
	defer x.spare.Put(m)
	x.blocks.Match(placement.First, placement.BlockBytes(q.Prompt.Keys), q.Now, m)
	for i := range c {
		c[i].Terms[termHits] = hits(m.Of(c[i].Holder))
	}
	return hits(m.Best())
}

// limit returns the greatest number of requests that a preferred candidate may have.
func (x *blockTracker) limit(c []policy.Candidate) float64 {
	sum := int64(0)
	for i := range c {
		sum += c[i].Load.Requests
	}
	return float64(sum) / float64(len(c)) * x.LoadFactor
}

func (x *blockTracker) Routed(q *policy.Query, c *policy.Candidate) {
	if len(q.Prompt.Keys) == 0 {
		return
	}
	x.blocks.LearnAt(placement.First, c.Holder, placement.BlockBytes(q.Prompt.Keys), placement.Moment{Now: q.Now, Age: q.Age})
	x.blocks.Evict(q.Now)
}

// Nominate names the holders of the longest runs of tracked blocks.
func (x *blockTracker) Nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	if len(q.Prompt.Keys) == 0 {
		return dst
	}
	m := x.spare.Get().(*placement.Matches)
	defer x.spare.Put(m)
	x.blocks.Match(placement.First, placement.BlockBytes(q.Prompt.Keys), q.Now, m)
	longest := m.Longest()
	return append(dst, longest[:min(len(longest), nominees)]...)
}

func (x *blockTracker) Finished(*policy.Finished) {}
func (x *blockTracker) Forget(h fleet.Holder)     { x.blocks.Forget(h) }
