package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
)

// Progress is the state of a sweep.
type Progress struct {
	Runs, RunsDone     int
	Requests, Ended    int64         // numbers of requests in all runs; Ended counts requests that have ended
	Elapsed, Remaining time.Duration // Remaining is an estimate; 0: no estimate yet
}

// progressEvery is how often Sweep reports progress.
const progressEvery = 200 * time.Millisecond

// Sweep plays all configurations and returns their results in the order of configs. parallel is the number of runs at
// the same time; 0 means one for each core. When ctx ends, Sweep returns the results so far, with nil for runs that
// have not begun. Sweep calls tell, if not nil, every progressEvery from one goroutine. All goroutines have ended when
// Sweep returns.
func Sweep(ctx context.Context, configs []Config, parallel int, tell func(Progress)) ([]*report.Run, error) {
	if parallel <= 0 {
		parallel = runtime.GOMAXPROCS(0)
	}
	parallel = min(parallel, len(configs))
	results := make([]*report.Run, len(configs))
	errs := make([]error, len(configs))
	ended := make([]atomic.Int64, len(configs))
	var next, done atomic.Int64
	stop, cancel := context.WithCancel(ctx)
	defer cancel()

	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() { // ends when all runs are taken or the context ends
			for stop.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(configs) {
					return
				}
				results[i], errs[i] = Run(stop, configs[i], func(n int) { ended[i].Store(int64(n)) })
				done.Add(1)
				if errs[i] != nil {
					cancel()
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { // ends when all workers have ended
		workers.Wait()
		close(finished)
	}()
	watch(finished, tell, func(began time.Time) Progress {
		p := Progress{Runs: len(configs), RunsDone: int(done.Load()), Elapsed: time.Since(began)}
		for i := range configs {
			p.Requests += int64(len(configs[i].Workload.Requests))
			p.Ended += ended[i].Load()
		}
		if p.Ended > 0 {
			p.Remaining = time.Duration(float64(p.Elapsed) * float64(p.Requests-p.Ended) / float64(p.Ended))
		}
		return p
	})
	for _, err := range errs {
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// watch calls tell with the progress until finished is closed.
func watch(finished <-chan struct{}, tell func(Progress), measure func(began time.Time) Progress) {
	if tell == nil {
		<-finished
		return
	}
	began := time.Now()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-finished:
			return
		case <-ticker.C:
			tell(measure(began))
		}
	}
}

// Describe returns the summary of a workload that a report shows.
func Describe(w *workload.Workload) report.Workload {
	d := report.Workload{Name: w.Name, Source: w.Source, Requests: len(w.Requests)}
	for i := range w.Requests {
		d.PromptTokens += int64(w.Requests[i].Input)
		d.OutputTokens += int64(w.Requests[i].Output)
	}
	if n := len(w.Requests); n > 0 {
		d.SpanSeconds = (w.Requests[n-1].Arrival - w.Requests[0].Arrival).Seconds()
	}
	return d
}
