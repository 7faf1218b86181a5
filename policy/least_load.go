package policy

// LeastLoad takes the holder with the least load.
type LeastLoad struct {
	// By is what load means: work (prompt tokens to compute and a share of the context), requests, or seconds (SMG's
	// least_load: queued tokens over throughput, and a penalty that grows as the KV cache fills).
	By string `yaml:"by"`
	// Throughput is the tokens a second that a worker computes, for by: seconds.
	Throughput float64 `yaml:"throughput"`
}

// DefaultLeastLoad returns our measure of load, and SMG's throughput.
func DefaultLeastLoad() LeastLoad { return LeastLoad{By: "work", Throughput: 2000} }

// Validate returns all problems.
func (p LeastLoad) Validate() error {
	var wrong Problems
	wrong.OneOf("by", p.By, "work", "requests", "seconds")
	wrong.Within("throughput", p.Throughput, 1, maxNumber)
	return wrong.Join()
}

// Spec returns the policy.
func (p LeastLoad) Spec(name string) Spec {
	switch p.By {
	case "requests":
		return Spec{Name: name, Scorers: []Weighted{{"requests", 1}}}
	case "seconds":
		return Spec{Name: name, Everyone: true, Terms: []string{"queue", "memory"}, Reasons: ReasonsBy("the shortest predicted queue"), Chooser: func() Chooser {
			return &ranked{score: func(q *Query, c []Candidate) { p.seconds(q, c) }}
		}}
	}
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}}
}

// seconds scores as SMG's least_load [SMG 1.9.0]: (uncached tokens in the queue
// + those sent since the report) / throughput + 0.15·k/(1−k), where k is the used share of the KV cache. If a
// worker does not report and others do, each of its requests counts as 1,024 tokens. If none reports, requests are
// counted.
func (p *LeastLoad) seconds(q *Query, c []Candidate) {
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
