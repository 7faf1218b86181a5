package loadgen

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
)

// Outcome is the result of a run.
type Outcome struct {
	*report.Report
	// Comparison compares each further target with the first target; nil if there is one target.
	Comparison []Comparison `json:"comparison,omitempty"`
}

// lead is the time before a request's due time at which the player begins to build the body. A body of a million tokens
// takes tens of milliseconds.
const lead = 100 * time.Millisecond

// Run plays w to its end or until ctx ends, and returns the measurements. It returns an error for an invalid
// configuration, for a target whose model it cannot find out, or if rows cannot be written. A failed request is no
// error, but a part of the outcome.
func Run(ctx context.Context, w *workload.Workload, cfg Config) (*Outcome, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("play workload: %w", err)
	}
	p := &player{cfg: &cfg, w: w, results: make(chan result, 256)}
	for i, t := range cfg.Targets {
		l := &lane{client: newClient(t, &cfg), number: i, workers: map[string]int{}, failures: map[string]int{}}
		defer l.client.close()
		l.rec = report.NewRecorder(report.Options{SLOs: cfg.SLOs, Stages: stages(w)})
		p.lanes = append(p.lanes, l)
	}
	model := cfg.Model
	if model == "" {
		var err error
		if model, err = p.lanes[0].client.model(ctx); err != nil {
			return nil, fmt.Errorf("play workload: %w", err)
		}
	}
	p.prompts = newPrompter(&cfg, model, w)
	p.play(ctx)
	return p.outcome(ctx.Err() != nil), p.rowsErr
}

func stages(w *workload.Workload) []report.StageInfo {
	var out []report.StageInfo
	for _, s := range w.Stages {
		out = append(out, report.StageInfo{Name: s.Name, Rate: s.Rate, First: s.First})
	}
	return out
}

// lane is the state of one target. Only the player's loop uses the fields, except client and number.
type lane struct {
	client   *client
	number   int
	rec      *report.Recorder
	workers  map[string]int
	policy   string
	failures map[string]int // by kind of error: number of failures
	silent   int            // number of answers that do not report the number of cached tokens
}

// result is an exchange (one request to one target) that has ended.
type result struct {
	request int
	lane    int
	due     time.Duration // due time of the exchange, counted from the beginning of the run
	late    time.Duration // time from the due time to the sending
	x       *exchange
	last    bool // this exchange is the last of its request
}

// player plays one workload. The loop in play schedules and counts all requests. Each request under way has a goroutine
// that ends with the request, and play waits for all these goroutines.
type player struct {
	cfg     *Config
	w       *workload.Workload
	lanes   []*lane
	prompts *prompter
	results chan result
	open    sync.WaitGroup

	begin     time.Time
	shift     time.Duration // delay of all further arrivals, because a stage began late
	next      int           // index from which soonest searches the next request without a predecessor
	stage     int           // index of the next stage to begin
	due       dueHeap       // unsent requests whose predecessors have all ended
	followers map[int][]int // by request: the requests that wait for its end
	missing   map[int]int   // by request: number of predecessors that have not ended
	active    int
	ended     int
	dropped   int
	late      []time.Duration
	pairs     []pair
	rowsErr   error // first error of writing a row
}

func (p *player) play(ctx context.Context) {
	p.followers, p.missing = map[int][]int{}, map[int]int{}
	for i := range p.w.Requests {
		r := &p.w.Requests[i]
		if r.After < 0 {
			continue
		}
		for _, before := range append([]int{r.After}, r.Join...) {
			p.followers[before] = append(p.followers[before], i)
			p.missing[i]++
		}
	}
	p.begin = time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait, more := p.start(ctx)
		if !more && p.active == 0 {
			break
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case r := <-p.results:
			p.finish(r)
		case <-tick.C:
			p.tell()
		}
	}
	// After an interruption, the requests under way end immediately. Receive their results until all have ended, because
	// otherwise a goroutine could block on p.results.
	done := make(chan struct{})
	go func() { p.open.Wait(); close(done) }()
	for {
		select {
		case <-p.results:
		case <-done:
			p.tell()
			return
		}
	}
}

func (p *player) tell() {
	if p.cfg.Progress == nil {
		return
	}
	g := Progress{Elapsed: time.Since(p.begin), Total: len(p.w.Requests) * len(p.lanes), Open: p.active}
	for _, l := range p.lanes {
		c := l.rec.Counts()
		g.Sent, g.Answered, g.Failed = g.Sent+c.Sent, g.Answered+c.Answered, g.Failed+c.Failed+c.Rejected
		g.HitRate += l.rec.HitRate() / float64(len(p.lanes))
	}
	p.cfg.Progress(g)
}

// start calls send for all requests that are due within the next 100 ms (the constant lead), up to Config.Concurrency
// or MaxOpen requests under way. It returns how long the loop may sleep. more is false if no request is due and all
// requests with an arrival time have been sent.
func (p *player) start(ctx context.Context) (wait time.Duration, more bool) {
	const forever = time.Hour
	for {
		at, request, ok := p.soonest()
		if !ok {
			return forever, len(p.due) > 0 || p.next < len(p.w.Requests)
		}
		now := time.Since(p.begin)
		if p.cfg.Concurrency > 0 {
			if p.active >= p.cfg.Concurrency {
				return forever, true
			}
			if p.w.Requests[request].After < 0 {
				at = now
			}
		}
		if wait := at - now - lead; wait > 0 {
			return wait, true
		}
		p.take(request)
		if p.cfg.Concurrency == 0 && p.active >= p.cfg.MaxOpen {
			p.drop(request, at)
			continue
		}
		p.active++
		p.send(ctx, request, at)
	}
}

// soonest returns the request that is due next, and the time at which it is due. This is the next request with an
// arrival time, or a request whose predecessors have ended.
func (p *player) soonest() (at time.Duration, request int, ok bool) {
	for p.next < len(p.w.Requests) && p.w.Requests[p.next].After >= 0 {
		p.next++
	}
	if p.next < len(p.w.Requests) && p.begun(p.next) {
		at, request, ok = p.w.Requests[p.next].Arrival+p.shift, p.next, true
	}
	if len(p.due) > 0 && (!ok || p.due[0].at <= at) {
		return p.due[0].at, p.due[0].request, true
	}
	return at, request, ok
}

// begun reports whether the request's stage has begun or may begin now. A stage with Drain waits until all requests
// before it have ended; if it then begins late, all later arrivals are delayed.
func (p *player) begun(request int) bool {
	for p.stage < len(p.w.Stages) && request >= p.w.Stages[p.stage].First {
		s := &p.w.Stages[p.stage]
		if s.Drain {
			if p.ended < s.First {
				return false
			}
			p.shift += max(0, time.Since(p.begin)-s.Start-p.shift)
		}
		p.stage++
	}
	return true
}

// take removes a request that soonest returned from the unsent requests.
func (p *player) take(request int) {
	if p.w.Requests[request].After >= 0 {
		heap.Pop(&p.due)
		return
	}
	p.next++
}

// drop counts a request as failed, because MaxOpen requests are under way.
func (p *player) drop(request int, at time.Duration) {
	p.dropped++
	for _, l := range p.lanes {
		l.rec.Arrive(request, at)
		l.rec.Fail(at)
	}
	p.over(request, at)
}

// send sends the request at its due time to all targets, one after the other. The first target rotates from request to
// request.
func (p *player) send(ctx context.Context, request int, due time.Duration) {
	p.open.Add(1)
	go func() { // ends with the last exchange or when ctx ends; play waits for it
		defer p.open.Done()
		n := len(p.lanes)
		for turn := range n {
			l := p.lanes[(request+turn)%n]
			r := variant(&p.w.Requests[request], l.number)
			path, body := p.prompts.body(r)
			if turn > 0 { // due now, because the exchange with the previous target has ended
				due = time.Since(p.begin)
			}
			if !sleepUntil(ctx, p.begin.Add(due)) {
				return
			}
			late := time.Since(p.begin) - due
			x := l.client.do(ctx, path, body)
			if ctx.Err() != nil {
				return
			}
			p.prompts.said(r, x.answer)
			p.results <- result{request, l.number, due, late, x, turn == n-1}
		}
	}()
}

func sleepUntil(ctx context.Context, t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// finish counts an exchange. The last exchange of a request ends the request.
func (p *player) finish(r result) {
	l := p.lanes[r.lane]
	p.late = append(p.late, r.late)
	end := r.x.end.Sub(p.begin)
	l.rec.Arrive(r.request, r.due)
	l.count(&r, end, p)
	if len(p.lanes) > 1 {
		p.compare(&r)
	}
	if r.last {
		p.active--
		p.over(r.request, end)
	}
}

// over marks the request as ended. A request that follows it becomes due if all its predecessors have ended.
func (p *player) over(request int, end time.Duration) {
	p.ended++
	p.prompts.ended(&p.w.Requests[request])
	for _, f := range p.followers[request] {
		if p.missing[f]--; p.missing[f] == 0 {
			delete(p.missing, f)
			heap.Push(&p.due, dueRequest{end + p.w.Requests[f].Think, f})
		}
	}
	delete(p.followers, request)
}

// count records an exchange in the results of its target.
func (l *lane) count(r *result, end time.Duration, p *player) {
	x := r.x
	l.policy = cmp.Or(l.policy, x.policy)
	if x.err != nil {
		l.failures[kind(x)]++
		if x.status == 429 || x.status == 503 {
			l.rec.Reject(end)
			return
		}
		l.rec.Fail(end)
		return
	}
	if !x.usage {
		x.prompt, x.output = p.w.Requests[r.request].Input, len(x.gaps)+1
	}
	if !x.saysCached {
		l.silent++
	}
	first := end
	if !x.first.IsZero() {
		first = x.first.Sub(p.begin)
	}
	for _, g := range x.gaps {
		l.rec.Gap(g, 1)
	}
	p.writeRow(r, end)
	l.rec.Finish(&report.Answer{
		Request: r.request, Worker: l.worker(x.worker), Arrival: r.due, Started: -1, First: first, End: end,
		Prompt: x.prompt, Cached: x.cached, Predicted: x.predicted, Output: x.output,
	})
}

// worker returns a number for the worker with this name, which comes from the router's response header. It returns -1
// for "".
func (l *lane) worker(name string) int {
	if name == "" {
		return -1
	}
	i, ok := l.workers[name]
	if !ok {
		i = len(l.workers)
		l.workers[name] = i
		l.rec.Name(i, name)
	}
	return i
}

func (p *player) outcome(interrupted bool) *Outcome {
	rep := &report.Report{Schema: report.Schema, Kind: report.Measured, Interrupted: interrupted, Workload: describe(p.w)}
	for _, l := range p.lanes {
		setup := p.cfg.Setup
		setup.Policy = cmp.Or(l.client.target.Name, l.policy, "live")
		setup.Workers = max(len(l.workers), 1)
		run := l.rec.Run(setup)
		run.Stopped = interrupted
		rep.Runs = append(rep.Runs, run)
	}
	rep.Assumptions = append(slices.Clone(p.w.Notes), p.remarks()...)
	return &Outcome{Report: rep, Comparison: p.comparisons()}
}

func describe(w *workload.Workload) report.Workload {
	d := report.Workload{Name: w.Name, Source: w.Source, Requests: len(w.Requests)}
	for i := range w.Requests {
		d.PromptTokens += int64(w.Requests[i].Input)
		d.OutputTokens += int64(w.Requests[i].Output)
		d.SpanSeconds = max(d.SpanSeconds, w.Requests[i].Arrival.Seconds())
	}
	return d
}
