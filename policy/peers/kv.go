package peers

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/policy"
)

// KV takes the holder with the lowest cost of NVIDIA Dynamo's KV router, in blocks [ai-dynamo/dynamo,
// lib/kv-router/src/scheduling/selector/default.rs]. With the defaults, the cost is the formula of Dynamo's first
// routers: overlap_score_weight × blocks to prefill + blocks of the requests under way.
type KV struct {
	// OverlapScoreWeight is the weight of a block to prefill, relative to a block of a request under way. A higher
	// weight favours the time to first token, a lower weight the time between tokens. At 0 neither prefill nor matches
	// count.
	OverlapScoreWeight float64 `yaml:"overlap_score_weight"`
	// RouterTemperature above 0 draws a worker at random. The probability falls with the worker's cost: it is a softmax
	// over costs that are normalised by their range. At 0 the lowest cost is taken; among workers with the same lowest
	// cost, each has the same probability.
	RouterTemperature float64 `yaml:"router_temperature"`
	// UseKVEvents takes matches from the blocks that engines announced. false takes matches from the prompts that were
	// dispatched in the last router_ttl, for engines without events.
	UseKVEvents bool `yaml:"use_kv_events"`
	// RouterTTL is how long a dispatched prompt counts as cached if use_kv_events is false.
	RouterTTL time.Duration `yaml:"router_ttl"`

	// PrefillLoadScale multiplies the blocks to prefill, too, in addition to overlap_score_weight. Newer versions of
	// Dynamo use this name instead of overlap_score_weight. On traces of long prompts, first tokens come sooner with 16
	// than with 1.
	PrefillLoadScale float64 `yaml:"prefill_load_scale"`
	// OverlapScoreCredit is how many blocks of prefill a matched block on the GPU is worth. Above 1, a match lowers the
	// cost by more than the prefill that it saves.
	OverlapScoreCredit float64 `yaml:"overlap_score_credit"`
	// OverlapScoreCreditDecay lowers overlap_score_credit for a worker with queued prefill. The factor is 1/(1 + decay
	// × excess/request). excess is the number of queued blocks beyond those of the shortest queue, and request is the
	// number of blocks of the request's prompt.
	OverlapScoreCreditDecay float64 `yaml:"overlap_score_credit_decay"`
	// HostCacheHitWeight is how many blocks of prefill a matched block in host memory is worth.
	HostCacheHitWeight float64 `yaml:"host_cache_hit_weight"`
	// DiskCacheHitWeight is how many blocks of prefill a matched block on disk or in remote storage is worth.
	DiskCacheHitWeight float64 `yaml:"disk_cache_hit_weight"`
	// DecodeActiveRequestWeight is the cost of each request under way in addition to its blocks, in blocks.
	DecodeActiveRequestWeight float64 `yaml:"decode_active_request_weight"`
	// TrackPrefillTokens counts blocks to prefill. If it is false, their part of the cost is 0.
	TrackPrefillTokens bool `yaml:"track_prefill_tokens"`
	// TrackActiveBlocks counts the blocks of requests under way, and the blocks of the prompt. If it is false, their
	// part of the cost is 0.
	TrackActiveBlocks bool `yaml:"track_active_blocks"`
	// TrackOutputBlocks counts the blocks of growing answers as blocks of requests under way, too.
	TrackOutputBlocks bool `yaml:"track_output_blocks"`
	// PrefillLoadModel is none or timing. With none, a queued prompt counts in full until its first token. With timing,
	// a prompt counts less while it is computed, as the times predict that the router learned.
	PrefillLoadModel string `yaml:"prefill_load_model"`
}

// DefaultKV returns Dynamo's defaults.
func DefaultKV() KV {
	return KV{
		OverlapScoreWeight: 1, UseKVEvents: true, RouterTTL: 2 * time.Minute, PrefillLoadScale: 1, OverlapScoreCredit: 1,
		HostCacheHitWeight: 0.75, DiskCacheHitWeight: 0.25, TrackPrefillTokens: true, TrackActiveBlocks: true,
		PrefillLoadModel: "none",
	}
}

// Validate returns all problems.
func (p KV) Validate() error {
	var wrong policy.Problems
	wrong.AtLeast("overlap_score_weight", p.OverlapScoreWeight, 0)
	wrong.AtLeast("router_temperature", p.RouterTemperature, 0)
	if p.RouterTTL <= 0 {
		wrong.Add("router_ttl", "%v is not positive", p.RouterTTL)
	}
	wrong.AtLeast("prefill_load_scale", p.PrefillLoadScale, 0)
	wrong.AtLeast("overlap_score_credit", p.OverlapScoreCredit, 0)
	wrong.AtLeast("overlap_score_credit_decay", p.OverlapScoreCreditDecay, 0)
	wrong.AtLeast("host_cache_hit_weight", p.HostCacheHitWeight, 0)
	wrong.AtLeast("disk_cache_hit_weight", p.DiskCacheHitWeight, 0)
	wrong.AtLeast("decode_active_request_weight", p.DecodeActiveRequestWeight, 0)
	wrong.OneOf("prefill_load_model", p.PrefillLoadModel, "none", "timing")
	return wrong.Join()
}

// Spec returns the policy.
func (p KV) Spec(name string) policy.Spec {
	s := policy.Spec{
		Name: name, Chooser: func() policy.Chooser { return &kvCost{KV: p} }, NeedsMatches: true, NeedsActive: p.TrackActiveBlocks,
		Terms: []string{"prefill", "decode", "requests", "credit"}, Reasons: policy.ReasonsBy("the lowest cost in blocks"),
	}
	if !p.UseKVEvents {
		s.Learned = &policy.Learned{TTL: p.RouterTTL, MaxBlocks: 1 << 20}
	}
	return s
}

// kvCost is the chooser of a KV. Scores are negated costs. The match lowers the term prefill; the term credit says by
// how much.
type kvCost struct {
	policy.Stateless
	KV
}

func (k *kvCost) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	k.score(q, c)
	if k.RouterTemperature == 0 {
		return policy.Pick{Index: policy.AnyBest(q, c), Ranked: true, Tie: policy.TieHash}
	}
	lowest, drawn := policy.AnyBest(q, c), softmax(q, c, k.RouterTemperature)
	if c[drawn].Score < c[lowest].Score {
		return policy.Pick{Index: drawn, Branch: policy.BranchDraw}
	}
	return policy.Pick{Index: drawn}
}

func (k *kvCost) score(q *policy.Query, c []policy.Candidate) {
	size := unit(q, c)
	request := math.Ceil(float64(q.PromptTokens) / size)
	shortest := int64(math.MaxInt64)
	for i := range c {
		shortest = min(shortest, k.queued(&c[i]))
	}
	scale := k.OverlapScoreWeight * k.PrefillLoadScale
	for i := range c {
		x := &c[i]
		var prefill, credit, decode float64
		if k.TrackPrefillTokens {
			queued := k.queued(x)
			prefill = float64(queued+int64(q.PromptTokens)) / size
			excess := float64(queued-shortest) / size
			credit = k.credit(x, size, 1/(1+k.OverlapScoreCreditDecay*excess/max(request, 1)))
			credit = min(credit, prefill)
		}
		if k.TrackActiveBlocks {
			decode = float64(x.Load.ContextBlocks)*float64(x.BlockSize)/size + request - float64(x.Active)/size
			if k.TrackOutputBlocks {
				decode += float64(x.Load.OutputTokens) / size
			}
		}
		x.Terms[0] = scale * (prefill - credit)
		x.Terms[1] = decode
		x.Terms[2] = k.DecodeActiveRequestWeight * float64(x.Load.Requests)
		x.Terms[3] = scale * credit
		x.Score = 0 - (x.Terms[0] + x.Terms[1] + x.Terms[2])
	}
}

// queued returns the number of prompt tokens that wait at x.
func (k *kvCost) queued(x *policy.Candidate) int64 {
	if k.PrefillLoadModel == "timing" {
		return x.Load.PendingTokens
	}
	return x.Load.PrefillTokens
}

// credit returns how many blocks of prefill x's match is worth. Predicted tokens beyond the confirmed match were
// computed a moment ago, so they count as blocks on the GPU.
func (k *kvCost) credit(x *policy.Candidate, size, decay float64) float64 {
	device := float64(x.Tier[block.TierGPU] + x.Predicted - x.Match)
	return (k.OverlapScoreCredit*decay*device + k.HostCacheHitWeight*float64(x.Tier[block.TierCPU]) +
		k.DiskCacheHitWeight*float64(x.Tier[block.TierDisk]+x.Tier[block.TierRemote])) / size
}

// softmax draws a candidate with a probability in proportion to exp(score / ((max − min)·temperature)). Scores are
// normalised by their range, so that temperature has no unit. Equal scores have the same probability.
//
// To draw, softmax adds a random number of the Gumbel distribution to each exponent, and takes the candidate with the
// highest sum. So the result does not depend on the order of the candidates [Gumbel, Statistical theory of extreme
// values, 1954].
func softmax(q *policy.Query, c []policy.Candidate, temperature float64) int {
	low, high := math.Inf(1), math.Inf(-1)
	for i := range c {
		low, high = min(low, c[i].Score), max(high, c[i].Score)
	}
	scale := (high - low) * temperature
	if !(scale > 0) {
		scale = 1 // all scores are equal
	}
	b, most := 0, math.Inf(-1)
	for i := range c {
		sum := (c[i].Score-high)/scale - math.Log(-math.Log(policy.Uniform(q, &c[i])))
		if sum > most {
			b, most = i, sum
		}
	}
	return b
}

// unit returns the size, in tokens, of the blocks in which costs are counted. It is the block size of the index, or the
// smallest engine block size of the candidates if the prompt's keys are not known.
func unit(q *policy.Query, c []policy.Candidate) float64 {
	if q.Prompt.BlockSize > 0 {
		return float64(q.Prompt.BlockSize)
	}
	size := c[0].BlockSize
	for i := range c {
		size = min(size, c[i].BlockSize)
	}
	return float64(max(size, 1))
}
