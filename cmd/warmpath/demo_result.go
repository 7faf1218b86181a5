package main

import (
	"slices"
	"sync"
	"time"
)

// demoResult has the measurements of one run, as its clients see them. It is safe for concurrent use.
type demoResult struct {
	Policy string
	total  int       // number of requests in the run
	began  time.Time // set before the run

	mu      sync.Mutex    // guards the fields below
	took    time.Duration // time until all requests were answered; 0 until then
	answers []demoAnswer
}

func newDemoResult(policy string, total int) *demoResult {
	return &demoResult{Policy: policy, total: total}
}

func (r *demoResult) add(a *demoAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, *a)
}

func (r *demoResult) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = time.Since(r.began)
}

// demoTotals has sums over the answers so far.
type demoTotals struct {
	answered       int
	prompt, cached int // tokens, as the engines report them
	predicted      int // sum of the answers' match
	firstToken     time.Duration
	took           time.Duration
	perWorker      map[string]int // number of requests of each worker
}

func (r *demoResult) totals() demoTotals {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := demoTotals{answered: len(r.answers), took: r.took, perWorker: map[string]int{}}
	for i := range r.answers {
		a := &r.answers[i]
		t.prompt += a.prompt
		t.cached += a.cached
		t.predicted += a.match
		t.firstToken += a.firstToken
		t.perWorker[a.worker]++
	}
	return t
}

// computed is the number of prompt tokens that engines had to compute.
func (t *demoTotals) computed() int { return t.prompt - t.cached }

// hitRate is the share of prompt tokens that the engines reported as cached.
func (t *demoTotals) hitRate() float64 {
	if t.prompt == 0 {
		return 0
	}
	return float64(t.cached) / float64(t.prompt)
}

// meanFirstToken is the mean time from a request to its first token.
func (t *demoTotals) meanFirstToken() time.Duration {
	return t.firstToken / time.Duration(max(t.answered, 1))
}

// busiest returns the number of requests of the worker that got the most requests.
func (t *demoTotals) busiest() int {
	most := 0
	for _, n := range t.perWorker {
		most = max(most, n)
	}
	return most
}

// Over is the number of requests with more predicted than cached tokens.
func (r *demoResult) Over() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range r.answers {
		if r.answers[i].match > r.answers[i].cached {
			n++
		}
	}
	return n
}

// firstTokens returns quantiles of the time to the first token.
func (r *demoResult) firstTokens(qs ...float64) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	sorted := make([]time.Duration, 0, len(r.answers))
	for i := range r.answers {
		sorted = append(sorted, r.answers[i].firstToken)
	}
	slices.Sort(sorted)
	out := make([]time.Duration, len(qs))
	for i, q := range qs {
		if len(sorted) > 0 {
			out[i] = sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
		}
	}
	return out
}

// perConversation sums a cost over the answers of each conversation.
func (r *demoResult) perConversation(cost func(*demoAnswer) float64) map[int]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := map[int]float64{}
	for i := range r.answers {
		sums[r.answers[i].conversation] += cost(&r.answers[i])
	}
	return sums
}
