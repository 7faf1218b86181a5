package peers

import (
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// LMCacheAware is lmcache_aware of bet0x/vllm-router 0.11.0 (src/policies/lmcache_aware.rs). It asks the controller of
// an LMCache deployment.
//
//   - With lookup_mode "occupancy", vllm-router's default, it asks how many chunks each worker has cached, of any
//     prompt, and weighs this number against load. So it prefers workers with full caches, even if they have nothing of
//     the prompt.
//   - With lookup_mode "prefix_lookup", it asks for each request which worker has the longest beginning of the prompt.
//     If no worker has any part, the rule of "occupancy" decides. The controller names only the first holder of each
//     chunk: if two workers have the same prefix, the second one seems to have nothing.
//
// If the controller does not answer, or knows of no chunk at the candidates, the fallback policy decides. The policy's
// [policy.Source] asks the controller; package internal/discovery makes this Source.
type LMCacheAware struct {
	// ControllerURL is the controller's HTTP address. The controller is asked only if the policy is in use or listed in
	// the configuration's policies.
	ControllerURL string `yaml:"controller_url"`
	// PollIntervalSecs is the time in seconds between two polls of the controller's list of workers. A list that is
	// older than three polls is forgotten.
	PollIntervalSecs int `yaml:"poll_interval_secs"`
	// CacheWeight is the share of occupancy in the score, 0 to 1; the rest is load.
	CacheWeight float64 `yaml:"cache_weight"`
	// FallbackPolicy decides if the controller does not answer: power_of_two, random, round_robin, or least_load (the
	// fewest requests).
	FallbackPolicy string `yaml:"fallback_policy"`
	// ControllerTimeoutMs is how long the controller may take to answer, in milliseconds. A lookup, for which a
	// request waits, gets at most 200 milliseconds.
	ControllerTimeoutMs int `yaml:"controller_timeout_ms"`
	// LookupMode is "occupancy" or "prefix_lookup".
	LookupMode string `yaml:"lookup_mode"`
	// ControllerAPIKey is sent as a bearer token; "" sends none.
	ControllerAPIKey string `yaml:"controller_api_key"`
	// LMCacheWorkerMap has the worker's URL for the id of each LMCache instance. An instance without an entry belongs
	// to the worker at the address from which the instance registered, if there is exactly one such worker.
	LMCacheWorkerMap map[string]string `yaml:"lmcache_worker_map"`
}

// The values of LookupMode.
const (
	LookupOccupancy = "occupancy"
	LookupPrefix    = "prefix_lookup"
)

// DefaultLMCacheAware returns vllm-router's defaults.
func DefaultLMCacheAware() LMCacheAware {
	return LMCacheAware{
		ControllerURL: "http://localhost:9000", PollIntervalSecs: 10, CacheWeight: 0.7, FallbackPolicy: "power_of_two",
		ControllerTimeoutMs: 2000, LookupMode: LookupOccupancy, LMCacheWorkerMap: map[string]string{},
	}
}

// Validate returns all problems.
func (p LMCacheAware) Validate() error {
	var wrong policy.Problems
	if !httpURL(p.ControllerURL) {
		wrong.Add("controller_url", "%q is not a URL such as http://lmcache-controller:9000", p.ControllerURL)
	}
	wrong.Within("poll_interval_secs", float64(p.PollIntervalSecs), 1, 1e6)
	wrong.Within("cache_weight", p.CacheWeight, 0, 1)
	wrong.OneOf("fallback_policy", p.FallbackPolicy, slices.Sorted(maps.Keys(fallbacks))...)
	wrong.Within("controller_timeout_ms", float64(p.ControllerTimeoutMs), 1, 60_000)
	wrong.OneOf("lookup_mode", p.LookupMode, LookupOccupancy, LookupPrefix)
	for _, instance := range slices.Sorted(maps.Keys(p.LMCacheWorkerMap)) {
		if !httpURL(p.LMCacheWorkerMap[instance]) {
			wrong.Add("lmcache_worker_map."+instance, "%q is not a worker's URL", p.LMCacheWorkerMap[instance])
		}
	}
	return wrong.Join()
}

func httpURL(s string) bool {
	scheme, place, ok := strings.Cut(s, "://")
	return ok && (scheme == "http" || scheme == "https") && place != "" && !strings.ContainsAny(place, " \t?#")
}

// Spec returns the policy.
func (p LMCacheAware) Spec(name string) policy.Spec {
	looks := p.LookupMode == LookupPrefix
	weight, fall := p.CacheWeight, fallbacks[p.FallbackPolicy]
	return policy.Spec{
		Name: name, Terms: []string{"cached", "idle"}, NeedsMatches: looks, Reasons: lmcacheReasons,
		Reach:   policy.ReachAll, // the controller may know any worker
		Chooser: func() policy.Chooser { return &lmcacheAware{looks, weight, fall} },
	}
}

var lmcacheReasons = map[policy.Branch]string{
	policy.BranchAffinity:    "the longest beginning of the prompt by LMCache, fewest requests among equals",
	policy.BranchMiss:        "LMCache has nothing of the prompt: the fullest cache weighed against load",
	policy.BranchFallback:    "the worker with the longest beginning by LMCache cannot be used: the next longest, fewest requests among equals",
	policy.BranchSilent:      "the LMCache controller gave no answer: fallback_policy",
	policy.BranchMatchUnused: "the fullest cache by LMCache weighed against load",
}

// fallbacks are the values of FallbackPolicy: rules that choose without knowledge of caches. Only round_robin depends
// on the order of candidates.
var fallbacks = map[string]func(q *policy.Query, c []policy.Candidate) int{
	"least_load": func(q *policy.Query, c []policy.Candidate) int { return idlest(q, c).Index },
	"power_of_two": func(q *policy.Query, c []policy.Candidate) int {
		first, second := twoOf(q, c)
		if c[second].Load.Requests < c[first].Load.Requests {
			return second
		}
		return first
	},
	"random":      func(q *policy.Query, c []policy.Candidate) int { first, _ := twoOf(q, c); return first },
	"round_robin": func(q *policy.Query, c []policy.Candidate) int { return int(q.Turn % uint64(len(c))) },
}

// lmcacheAware remembers nothing: its facts come with each request.
type lmcacheAware struct {
	looks    bool // lookup_mode is prefix_lookup
	weight   float64
	fallback func(q *policy.Query, c []policy.Candidate) int
}

// The terms of lmcache_aware, 0 to 1. If prefix_lookup decides, the first term is the share of the prompt that the
// worker has cached. If occupancy decides, the first term is the worker's number of chunks divided by the greatest
// number of chunks of any worker. The second term is then (most requests of any candidate − the candidate's requests) /
// most requests; if prefix_lookup decides, it is 1 / (requests + 1).
const termCached = 0

func (x *lmcacheAware) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	if x.looks {
		if pick, ok := x.longest(q, c); ok {
			return pick
		}
	}
	fullest := int64(0)
	for i := range c {
		fullest = max(fullest, q.CachedAt(c[i].Worker.ID).Keys)
	}
	if fullest == 0 {
		return policy.Pick{Index: x.fallback(q, c), Branch: policy.BranchSilent}
	}
	_, most := spread(c)
	best := 0
	for i := range c {
		c[i].Terms = [policy.MaxTerms]float64{termCached: float64(q.CachedAt(c[i].Worker.ID).Keys) / float64(fullest), termIdle: 1}
		if most > 0 {
			c[i].Terms[termIdle] = float64(most-c[i].Load.Requests) / float64(most)
		}
		c[i].Score = x.weight*c[i].Terms[termCached] + (1-x.weight)*c[i].Terms[termIdle]
		if i > 0 && (c[i].Score > c[best].Score || c[i].Score == c[best].Score && policy.TieRequests.Before(q, &c[i], &c[best])) {
			best = i
		}
	}
	branch := policy.BranchMatchUnused
	if x.looks {
		branch = policy.BranchMiss
	}
	return policy.Pick{Index: best, Branch: branch, Ranked: true, Tie: policy.TieRequests}
}

// longest picks the candidate whose worker has the longest cached beginning of the prompt. Among several such
// candidates it picks the one with the fewest requests. It returns false if no candidate's worker has any part of the
// prompt.
func (x *lmcacheAware) longest(q *policy.Query, c []policy.Candidate) (policy.Pick, bool) {
	best := 0
	for i := range c {
		c[i].Score = 0
		if q.PromptTokens > 0 {
			c[i].Score = min(float64(q.CachedAt(c[i].Worker.ID).Tokens)/float64(q.PromptTokens), 1)
		}
		c[i].Terms = [policy.MaxTerms]float64{termCached: c[i].Score, termIdle: 1 / float64(1+max(c[i].Load.Requests, 0))}
		if i > 0 && (c[i].Score > c[best].Score || c[i].Score == c[best].Score && policy.TieRequests.Before(q, &c[i], &c[best])) {
			best = i
		}
	}
	if c[best].Score == 0 {
		return policy.Pick{}, false
	}
	pick := policy.Pick{Index: best, Branch: policy.BranchAffinity, Ranked: true, Tie: policy.TieRequests}
	found := q.CachedAt(c[best].Worker.ID).Tokens
	for i := range q.Cached {
		if q.Cached[i].Tokens > found {
			pick.Branch = policy.BranchFallback
		}
	}
	return pick, true
}

func (*lmcacheAware) Routed(*policy.Query, *policy.Candidate) {}
func (*lmcacheAware) Finished(*policy.Finished)               {}
func (*lmcacheAware) Forget(fleet.Holder)                     {}
