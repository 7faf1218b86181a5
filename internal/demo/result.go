package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Result is what one run measured, from the client's side. It is safe for concurrent use.
type Result struct {
	Policy  string
	total   int
	workers []string
	began   time.Time

	mu         sync.Mutex // guards what follows
	took       time.Duration
	firstToken []time.Duration
	prompt     int64
	cached     int64
	perWorker  map[string]int
	difference map[int]int // predicted minus reported tokens → requests
	failure    error
}

func newResult(policy string, fleetWorkers []*fleet.Worker, total int) *Result {
	r := &Result{Policy: policy, total: total, began: time.Now(), perWorker: map[string]int{}, difference: map[int]int{}}
	for _, w := range fleetWorkers {
		r.workers = append(r.workers, w.URL)
	}
	return r
}

func (r *Result) add(a *answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.firstToken = append(r.firstToken, a.firstToken)
	r.prompt += int64(a.prompt)
	r.cached += int64(a.cached)
	r.perWorker[a.worker]++
	r.difference[a.match-a.cached]++
}

func (r *Result) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
	}
}

func (r *Result) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

func (r *Result) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = time.Since(r.began)
}

// HitRate is the share of prompt tokens that the engines reported as cached.
func (r *Result) HitRate() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hitRate()
}

func (r *Result) hitRate() float64 {
	if r.prompt == 0 {
		return 0
	}
	return float64(r.cached) / float64(r.prompt)
}

// Requests is how many requests were answered; Equal is for how many of them the prediction was the engine's report.
func (r *Result) Requests() (answered, equal int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.firstToken), r.difference[0]
}

// Over is how many requests were predicted to find more than they found.
func (r *Result) Over() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for d, count := range r.difference {
		if d > 0 {
			n += count
		}
	}
	return n
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (r *Result) quantiles(qs ...float64) []time.Duration {
	sorted := slices.Sorted(slices.Values(r.firstToken))
	out := make([]time.Duration, len(qs))
	for i, q := range qs {
		out[i] = quantile(sorted, q)
	}
	return out
}

// show prints progress until done is closed.
func (r *Result) show(done <-chan struct{}, o *Options) {
	every := 2 * time.Second
	if o.Live {
		every = 100 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	lines := 0
	for running := true; running; {
		select {
		case <-tick.C:
		case <-done:
			running = false
		}
		if o.Live {
			lines = r.redraw(o.Out, lines)
		} else {
			fmt.Fprintln(o.Out, r.line())
		}
	}
	fmt.Fprintln(o.Out)
}

// line is the progress in one line.
func (r *Result) line() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.quantiles(.5)
	var share []string
	for _, w := range r.workers {
		share = append(share, fmt.Sprint(r.perWorker[w]))
	}
	return fmt.Sprintf("%-12s %4.1f s  requests %d/%d  cached %2.0f %%  first token p50 %s  per worker %s",
		r.Policy, r.elapsed().Seconds(), len(r.firstToken), r.total, 100*r.hitRate(), inMS(q[0]), strings.Join(share, "/"))
}

func (r *Result) elapsed() time.Duration {
	if r.took > 0 {
		return r.took
	}
	return time.Since(r.began)
}

// redraw replaces the lines drawn before and returns how many it drew.
func (r *Result) redraw(out io.Writer, lines int) int {
	head := r.line()
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	if lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", lines)
	}
	bar := 30 * len(r.firstToken) / max(r.total, 1)
	fmt.Fprintf(&b, "\x1b[2K%s\n\x1b[2K[%s%s]\n", head, strings.Repeat("#", bar), strings.Repeat(".", 30-bar))
	most := 1
	for _, n := range r.perWorker {
		most = max(most, n)
	}
	for _, w := range r.workers {
		n := r.perWorker[w]
		fmt.Fprintf(&b, "\x1b[2K  %-24s %4d %s\n", w, n, strings.Repeat("=", 40*n/most))
	}
	_, _ = io.WriteString(out, b.String())
	return 2 + len(r.workers)
}

func inMS(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000) }
