package loadgen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"time"
)

// kind returns the kind of error by which reports count the failure of x.
func kind(x *exchange) string {
	var network net.Error
	var op *net.OpError
	switch {
	case x.status != 0 && x.status != 200:
		return "HTTP " + strconv.Itoa(x.status)
	case errors.Is(x.err, errNotWhole):
		return "answer cut short"
	case errors.Is(x.err, context.DeadlineExceeded), errors.As(x.err, &network) && network.Timeout():
		return "timeout"
	case x.status == 0 && errors.As(x.err, &op) && op.Op == "dial":
		return "no connection"
	case x.status == 0:
		return "no answer"
	}
	return "stream broken"
}

// lateness is a bound: a report mentions that the load generator itself sent requests late if the delay of 1 % of the
// requests is longer. On a busy machine timers are one or two milliseconds late, and shorter delays than lateness are
// shorter than a step of an engine.
const lateness = 5 * time.Millisecond

// remarks returns the sentences that the report shows with the numbers.
func (p *player) remarks() []string {
	out := []string{"latencies count from the time at which a request was meant to be sent"}
	if p.cfg.Concurrency > 0 {
		out[0] = fmt.Sprintf("closed loop of %d requests: the workload's clock is not used, and latency says nothing of a rate", p.cfg.Concurrency)
	}
	if p.cfg.Whole {
		out = append(out, "answers came in one piece: the time to the first token is that to the last")
	}
	if p.dropped > 0 {
		out = append(out, fmt.Sprintf("%d requests were not sent and count as failed: %d were open already", p.dropped, p.cfg.MaxOpen))
	}
	if len(p.late) > 0 {
		slices.Sort(p.late)
		if p99 := p.late[len(p.late)*99/100]; p99 > lateness {
			out = append(out, fmt.Sprintf("the load generator was late itself: by %s for one request in a hundred (mostly its own CPU); that is part of the latencies", p99.Round(100*time.Microsecond)))
		}
	}
	for _, l := range p.lanes {
		of := ""
		if l.client.target.Name != "" {
			of = l.client.target.Name + ": "
		}
		if n := l.rec.Counts().Answered; n > 0 && l.silent == n {
			out = append(out, of+"no answer says how many tokens were cached: the hit rate is unknown, not 0 (vLLM: --enable-prompt-tokens-details)")
		}
		for _, k := range slices.Sorted(maps.Keys(l.failures)) {
			out = append(out, fmt.Sprintf("%s%d requests failed: %s", of, l.failures[k], k))
		}
	}
	return out
}

// Comparison is the latency of one target (Of) minus the latency of the first target (Against), in milliseconds. It
// covers the requests that both targets answered.
type Comparison struct {
	Of      string `json:"of"`
	Against string `json:"against"`
	Pairs   int    `json:"pairs"`
	TTFT    Added  `json:"ttft_ms"`
	E2E     Added  `json:"e2e_ms"`
}

// Added has statistics of latency differences. For each request, the difference is the time at one target minus the
// time at the first target.
type Added struct {
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	Low    float64 `json:"median_low"` // lower end of the median's 95 % interval
	High   float64 `json:"median_high"`
	P90    float64 `json:"p90"` // p90 of the target minus p90 of the first target
	P99    float64 `json:"p99"`
}

// pair has the times of one request, in milliseconds, by target. A negative time means that the target did not answer.
type pair struct {
	request   int
	ttft, e2e []float64
	seen      int
}

// compare adds an exchange to the pair of its request. It searches from the end of p.pairs, because the pair of a
// request under way is among the last pairs.
func (p *player) compare(r *result) {
	i := len(p.pairs) - 1
	for i >= 0 && p.pairs[i].request != r.request {
		i--
	}
	if i < 0 {
		n := len(p.lanes)
		p.pairs = append(p.pairs, pair{request: r.request, ttft: slices.Repeat([]float64{-1}, n), e2e: slices.Repeat([]float64{-1}, n)})
		i = len(p.pairs) - 1
	}
	q := &p.pairs[i]
	q.seen++
	if r.x.err == nil {
		sent := p.begin.Add(r.due)
		q.e2e[r.lane] = inMS(r.x.end.Sub(sent))
		if !r.x.first.IsZero() {
			q.ttft[r.lane] = inMS(r.x.first.Sub(sent))
		}
	}
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (p *player) comparisons() []Comparison {
	var out []Comparison
	for i := 1; i < len(p.lanes); i++ {
		c := Comparison{Of: p.lanes[i].client.target.Name, Against: p.lanes[0].client.target.Name}
		var ttft, e2e [2][]float64
		for _, q := range p.pairs {
			if q.e2e[0] >= 0 && q.e2e[i] >= 0 {
				c.Pairs++
				e2e[0], e2e[1] = append(e2e[0], q.e2e[0]), append(e2e[1], q.e2e[i])
			}
			if q.ttft[0] >= 0 && q.ttft[i] >= 0 {
				ttft[0], ttft[1] = append(ttft[0], q.ttft[0]), append(ttft[1], q.ttft[i])
			}
		}
		c.TTFT, c.E2E = added(ttft), added(e2e)
		out = append(out, c)
	}
	return out
}

// added returns the statistics for a target. sides[1] has the times of the target, and sides[0] has the times of the
// first target for the same requests, in milliseconds.
func added(sides [2][]float64) Added {
	n := len(sides[0])
	if n == 0 {
		return Added{}
	}
	differences := make([]float64, n)
	var a Added
	for i := range differences {
		differences[i] = sides[1][i] - sides[0][i]
		a.Mean += differences[i] / float64(n)
	}
	slices.Sort(differences)
	slices.Sort(sides[0])
	slices.Sort(sides[1])
	at := func(v []float64, q float64) float64 { return v[min(int(q*float64(n)), n-1)] }
	// For any distribution, the sorted values at the indexes n/2 ± 0.98·√n enclose the median in 95 % of samples.
	half := 0.98 * math.Sqrt(float64(n))
	low, high := max(int(float64(n)/2-half), 0), min(int(float64(n)/2+half)+1, n-1)
	a.Median, a.Low, a.High = at(differences, .5), differences[low], differences[high]
	a.P90, a.P99 = at(sides[1], .9)-at(sides[0], .9), at(sides[1], .99)-at(sides[0], .99)
	return a
}
