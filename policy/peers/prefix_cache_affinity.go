package peers

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// PrefixCacheAffinity is the PrefixCacheAffinityRouter of Ray Serve [Ray documentation, "PrefixCacheAffinityRouter for
// LLM inference optimization"]. The queue of a holder is the number of this router's requests under way there.
//
// If the queues have similar lengths, the policy considers the holders to which the longest beginning of the prompt was
// sent before. If this beginning is short, it considers the holders for which the fewest characters are remembered
// instead. Among these holders it takes the shortest queue. If the queues differ too much, or if neither text nor
// tokens of the prompt are known, it draws two holders at random and takes the shorter queue.
type PrefixCacheAffinity struct {
	// ImbalancedThreshold is by how many requests the longest queue may exceed the shortest. If the difference is
	// greater, only queues count.
	ImbalancedThreshold int `yaml:"imbalanced_threshold"`
	// MatchRateThreshold is the share of the prompt, 0 to 1, from which the longest beginning is followed.
	MatchRateThreshold float64 `yaml:"match_rate_threshold"`
	// DoEviction cuts holders with more than EvictionThresholdChars to EvictionTargetChars every EvictionIntervalSecs
	// seconds. The least recently used parts of prompts are dropped first. Where tokens are compared, one token counts
	// as four characters.
	DoEviction             bool `yaml:"do_eviction"`
	EvictionThresholdChars int  `yaml:"eviction_threshold_chars"`
	EvictionTargetChars    int  `yaml:"eviction_target_chars"`
	EvictionIntervalSecs   int  `yaml:"eviction_interval_secs"`
	// Filters leave workers out before the choice, in this order; Ray's are multiplex and locality.
	Filters []string `yaml:"filters"`
	// Locality is where this router runs, for the locality filter.
	Locality Locality `yaml:"locality"`
	// By is the form of prompts that is compared: "text" or "tokens". The router first has to make
	// tokens from the text. If the chosen form of a prompt is not known, the other form is used. Ray Serve compares only
	// text.
	By string `yaml:"by"`
	// MaxBytes bounds the memory for texts. The memory for tokens has a second bound of the same size. The source has
	// no such bounds.
	MaxBytes int64 `yaml:"max_bytes"`
}

// DefaultPrefixCacheAffinity returns the defaults of the documentation: no eviction.
func DefaultPrefixCacheAffinity() PrefixCacheAffinity {
	return PrefixCacheAffinity{
		ImbalancedThreshold: 10, MatchRateThreshold: 0.1,
		EvictionThresholdChars: 400_000, EvictionTargetChars: 360_000, EvictionIntervalSecs: 10,
		Filters: []string{"multiplex", "locality"}, By: byText, MaxBytes: defaultPromptBytes,
	}
}

// Validate returns all problems.
func (p PrefixCacheAffinity) Validate() error {
	var wrong policy.Problems
	wrong.AtLeast("imbalanced_threshold", float64(p.ImbalancedThreshold), 0)
	wrong.Within("match_rate_threshold", p.MatchRateThreshold, 0, 1)
	wrong.AtLeast("eviction_threshold_chars", float64(p.EvictionThresholdChars), 1)
	if p.EvictionTargetChars > p.EvictionThresholdChars || p.EvictionTargetChars < 1 {
		wrong.Add("eviction_target_chars", "%d is outside 1..%d, the threshold", p.EvictionTargetChars, p.EvictionThresholdChars)
	}
	wrong.Within("eviction_interval_secs", float64(p.EvictionIntervalSecs), 1, 1e6)
	for _, f := range p.Filters {
		wrong.OneOf("filters", f, filterNames()...)
	}
	wrong.OneOf("by", p.By, byText, byTokens)
	wrong.AtLeast("max_bytes", float64(p.MaxBytes), 1<<16)
	return wrong.Join()
}

// charsPerToken is how many characters a token counts as: English and code have 3.5 to 4.5.
const charsPerToken = 4

// Spec returns the policy.
func (p PrefixCacheAffinity) Spec(name string) policy.Spec {
	c := placement.Config{
		Bytes:        p.MaxBytes,
		HolderUnits:  int64(p.EvictionThresholdChars),
		HolderTarget: int64(p.EvictionTargetChars),
	}
	if p.DoEviction {
		c.Interval = time.Duration(p.EvictionIntervalSecs) * time.Second
	}
	return policy.Spec{
		Name: name, Terms: []string{"sent before", "idle"}, Filters: filtersOf(p.Filters, filterSettings{locality: p.Locality}), Reach: reachOf(p.Filters, p.Locality),
		Reasons:   prefixAffinityReasons,
		NeedsText: p.By == byText, NeedsMatches: p.By == byTokens, Learns: learnsBy(p.By),
		Chooser: func() policy.Chooser { return &prefixAffinity{p, newPrompts(p.By == byTokens, c, charsPerToken)} },
	}
}

var prefixAffinityReasons = map[policy.Branch]string{
	policy.BranchAffinity: "it was sent the longest beginning of the prompt before, shortest queue among equals",
	policy.BranchMiss:     "no worker was sent a part of the prompt before: the one sent the fewest characters, or the shorter queue of two",
	policy.BranchShort:    "no worker was sent enough of the prompt before to follow it: the one sent the fewest characters",
	policy.BranchFallback: "the worker that was sent the longest beginning cannot be used: the next longest, or the shorter queue of two",
	policy.BranchSpill:    "queues are too unlike: the shorter of two drawn at random",
	policy.BranchNoTokens: "nothing of the prompt is known: the shorter queue of two",
}

type prefixAffinity struct {
	PrefixCacheAffinity
	prompts *prompts
}

func (x *prefixAffinity) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	m := x.prompts.match(q)
	defer x.prompts.done(m)
	noteTerms(m, c)
	best := 0
	for i := range c {
		if c[i].Terms[termSent] > c[best].Terms[termSent] {
			best = i
		}
	}
	least, most := spread(c)
	if m == nil || most-least > int64(x.ImbalancedThreshold) {
		return x.shorterOfTwo(m, q, c, best)
	}
	switch sent := c[best].Terms[termSent]; {
	case sent < x.MatchRateThreshold:
		return x.fill(m, q, c, best)
	case sent == 0: // the threshold is 0, and no holder has any part of the prompt
		return x.shorterOfTwo(m, q, c, best)
	default:
		return x.follow(m, q, c, sent)
	}
}

// follow picks the shortest queue among the holders of the longest beginning.
func (x *prefixAffinity) follow(m *placement.Matches, q *policy.Query, c []policy.Candidate, longest float64) policy.Pick {
	picked := -1
	for i := range c {
		c[i].Score = c[i].Terms[termSent]
		if c[i].Score == longest && (picked < 0 || policy.TieRequests.Before(q, &c[i], &c[picked])) {
			picked = i
		}
	}
	return policy.Pick{Index: picked, Branch: given(m, c, picked, picked), Ranked: true, Tie: policy.TieRequests}
}

// fill picks the shortest queue among the holders for which the fewest characters are remembered. If no characters are
// remembered for any holder, it takes the shorter queue of two drawn at random.
func (x *prefixAffinity) fill(m *placement.Matches, q *policy.Query, c []policy.Candidate, best int) policy.Pick {
	fewest, any := int64(0), false
	for i := range c {
		n := x.prompts.characters(q, c[i].Holder)
		if i == 0 || n < fewest {
			fewest = n
		}
		any = any || n > 0
		c[i].Score = 1 / float64(1+n)
	}
	if !any {
		return x.shorterOfTwo(m, q, c, best)
	}
	picked := -1
	for i := range c {
		if c[i].Score == 1/float64(1+fewest) && (picked < 0 || policy.TieRequests.Before(q, &c[i], &c[picked])) {
			picked = i
		}
	}
	b := policy.BranchMiss
	if c[best].Terms[termSent] > 0 {
		b = policy.BranchShort
	}
	return policy.Pick{Index: picked, Branch: b, Ranked: true, Tie: policy.TieRequests}
}

// shorterOfTwo picks the shorter queue of two candidates drawn at random, the first when they are equal.
func (x *prefixAffinity) shorterOfTwo(m *placement.Matches, q *policy.Query, c []policy.Candidate, best int) policy.Pick {
	first, second := twoOf(q, c)
	if c[second].Load.Requests < c[first].Load.Requests {
		first = second
	}
	for i := range c {
		c[i].Score = c[i].Terms[termIdle]
	}
	return policy.Pick{Index: first, Branch: given(m, c, first, best)}
}

func (x *prefixAffinity) Routed(q *policy.Query, c *policy.Candidate) { x.prompts.sent(q, c.Holder) }
func (x *prefixAffinity) Finished(*policy.Finished)                   {}

// Nominate names the holders to which the longest beginnings of the prompt were sent.
func (x *prefixAffinity) Nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	return x.prompts.nominate(q, dst)
}

func (x *prefixAffinity) Forget(h fleet.Holder) { x.prompts.forget(h) }
