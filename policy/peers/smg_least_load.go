package peers

import "github.com/warmpath/warmpath/policy"

// SMGLeastLoad is least_load of SMG [SMG 1.9.0]. It takes the holder with the shortest predicted queue, in seconds,
// plus a penalty that grows with the used share of the KV cache.
type SMGLeastLoad struct {
	// Throughput is the number of tokens that a worker computes in a second. SMG uses the generation rate that the
	// engine reports instead.
	Throughput float64 `yaml:"throughput"`
}

// DefaultSMGLeastLoad returns SMG's throughput for engines that report none.
func DefaultSMGLeastLoad() SMGLeastLoad { return SMGLeastLoad{Throughput: 2000} }

// Validate returns all problems.
func (p SMGLeastLoad) Validate() error {
	var wrong policy.Problems
	wrong.Within("throughput", p.Throughput, 1, policy.MaxNumber)
	return wrong.Join()
}

// Spec returns the policy.
func (p SMGLeastLoad) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, Reach: policy.ReachAll, Terms: []string{"queue", "memory"}, Reasons: policy.ReasonsBy("the shortest predicted queue"),
		Chooser: func() policy.Chooser { return policy.Ranked(p.score) },
	}
}

// score sets each score to the negated sum of two terms. The first term is the holder's uncached prompt tokens without
// a first token / throughput. The second term is 0.15·k/(1−k), where k is the used share of the KV cache. If a worker
// does not report its load and other workers do, each of its requests counts as 1,024 tokens. If no worker reports, the
// number of requests is the load.
func (p SMGLeastLoad) score(q *policy.Query, c []policy.Candidate) {
	const (
		tokensARequest = 1024
		barrier        = 0.15
		almostFull     = 0.999
	)
	reports := false
	for i := range c {
		reports = reports || c[i].Reports(q.Now)
	}
	for i := range c {
		x := &c[i]
		switch {
		case x.Reports(q.Now):
			k := min(x.KVUsed(q.Now), almostFull)
			x.Terms[0] = float64(x.Load.PrefillTokens) / p.Throughput
			x.Terms[1] = barrier * k / (1 - k)
		case reports:
			x.Terms[0] = float64(x.Load.Requests) * tokensARequest / p.Throughput
		default:
			x.Terms[0] = float64(x.Load.Requests)
		}
		x.Score = 0 - (x.Terms[0] + x.Terms[1])
	}
}
