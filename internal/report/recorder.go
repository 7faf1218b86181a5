package report

import (
	"fmt"
	"math"
	"time"
)

// Options sets what a [Recorder] keeps.
type Options struct {
	Workers int   // number of workers that are known at the start; more may appear
	SLOs    []SLO // nil: DefaultSLOs
	Samples int   // number of single requests that are kept for the timeline; 0: 1,500, negative: none
	Stages  []StageInfo
}

// StageInfo describes a stage of the workload.
type StageInfo struct {
	Name  string
	Rate  float64
	First int // index of the stage's first request
}

// Answer is one request that was answered to its end. Times are since the start of the run.
type Answer struct {
	Request   int // number of the request in the workload
	Worker    int // number of the worker; -1: not known
	Prefill   int // of a divided request: the number of the prefill leg's worker, plus 1; 0: not divided
	Arrival   time.Duration
	Started   time.Duration // the engine began to work on the request; negative: not known
	First     time.Duration // time of the first token
	End       time.Duration // time of the last token
	Prompt    int           // number of prompt tokens
	Cached    int           // number of cached prompt tokens, as the engine reports it
	Loaded    int           // number of the tokens in Cached that came from host memory
	Predicted int           // prompt tokens that the router expected to be cached
	Output    int           // number of tokens of the answer
}

// Recorder collects a run. It is not safe for concurrent use.
type Recorder struct {
	options           Options
	counts            Counts
	answers           tally
	stages            []tally
	queue             Histogram
	itl               Histogram
	e2e               Histogram
	loaded, predicted int64
	above             int64         // number of requests with more predicted than cached tokens
	last              time.Duration // end of the run so far

	workers   []workerTally
	series    series
	samples   []Sample
	every     int // one answer out of this number becomes a sample
	seen      int
	transfers Transfers
	handover  Histogram
}

// tally has the figures that exist both for a run and for a stage.
type tally struct {
	requests, answered     int
	prompt, cached, output int64
	first, end             time.Duration
	ttft, tpot             Histogram
	good                   []int // good[i] is the number of requests that kept the i-th SLO
}

type workerTally struct {
	Worker
	cached int64
	busy   time.Duration
}

// NewRecorder returns an empty recorder.
func NewRecorder(o Options) *Recorder {
	if o.SLOs == nil {
		o.SLOs = DefaultSLOs
	}
	if o.Samples == 0 {
		o.Samples = 1500
	}
	r := &Recorder{options: o, every: 1, stages: make([]tally, len(o.Stages))}
	r.answers.init(len(o.SLOs))
	for i := range r.stages {
		r.stages[i].init(len(o.SLOs))
	}
	if o.Workers > 0 {
		r.worker(o.Workers - 1)
	}
	return r
}

func (t *tally) init(slos int) { t.good, t.first = make([]int, slos), math.MaxInt64 }

func (r *Recorder) worker(i int) *workerTally {
	for i >= len(r.workers) {
		r.workers = append(r.workers, workerTally{Worker: Worker{Name: fmt.Sprintf("worker %d", len(r.workers)+1)}})
		r.series.addWorker()
	}
	return &r.workers[i]
}

// Name gives a worker a name. Workers without a name are numbered.
func (r *Recorder) Name(worker int, name string) { r.worker(worker).Name = name }

// Arrive counts a request that is taken from the workload.
func (r *Recorder) Arrive(request int, at time.Duration) {
	r.counts.Sent++
	r.series.arrive(at)
	r.answers.first = min(r.answers.first, at)
	if s := r.stage(request); s != nil {
		s.requests++
		s.first = min(s.first, at)
	}
	r.last = max(r.last, at)
}

// Fail counts a request whose answer ended too early, or that no worker could take.
func (r *Recorder) Fail(at time.Duration) { r.counts.Failed++; r.last = max(r.last, at) }

// Reject counts a request that was refused.
func (r *Recorder) Reject(at time.Duration) { r.counts.Rejected++; r.last = max(r.last, at) }

// Retry counts a request that is sent to another worker after a worker failed.
func (r *Recorder) Retry() { r.counts.Retried++ }

// Gap counts n pauses of length d between two tokens of a request.
func (r *Recorder) Gap(d time.Duration, n int) { r.itl.AddN(d, int64(n)) }

// Finish counts an answered request.
func (r *Recorder) Finish(a *Answer) {
	r.counts.Answered++
	r.last = max(r.last, a.End)
	r.loaded += int64(a.Loaded)
	r.predicted += int64(a.Predicted)
	if a.Predicted > a.Cached {
		r.above++
	}
	if a.Started >= 0 {
		r.queue.Add(a.Started - a.Arrival)
	}
	r.e2e.Add(a.End - a.Arrival)
	r.answers.add(a, r.options.SLOs)
	if s := r.stage(a.Request); s != nil {
		s.add(a, r.options.SLOs)
	}
	if a.Worker >= 0 {
		w := r.worker(a.Worker)
		w.Requests++
		w.OutputTokens += int64(a.Output)
		if a.Prefill > 0 {
			w = r.worker(a.Prefill - 1)
		}
		w.PromptTokens += int64(a.Prompt)
		w.cached += int64(a.Cached)
		w.ComputedTokens += int64(a.Prompt - a.Cached)
	}
	r.series.answer(a)
	r.sample(a)
}

func (t *tally) add(a *Answer, slos []SLO) {
	t.answered++
	t.prompt += int64(a.Prompt)
	t.cached += int64(a.Cached)
	t.output += int64(a.Output)
	t.end = max(t.end, a.End)
	ttft := a.First - a.Arrival
	t.ttft.Add(ttft)
	tpot := time.Duration(0)
	if a.Output > 1 {
		tpot = (a.End - a.First) / time.Duration(a.Output-1)
		t.tpot.Add(tpot)
	}
	for i, s := range slos {
		if ttft <= s.TTFT && (s.TPOT <= 0 || tpot <= s.TPOT) {
			t.good[i]++
		}
	}
}

// stage returns the stage to which a request belongs, or nil if there is none.
func (r *Recorder) stage(request int) *tally {
	for i := len(r.options.Stages) - 1; i >= 0; i-- {
		if request >= r.options.Stages[i].First {
			return &r.stages[i]
		}
	}
	return nil
}

// sample keeps every r.every-th answer. When there is no more room, it drops every second sample and doubles r.every.
// So the samples are spread evenly over the run.
func (r *Recorder) sample(a *Answer) {
	r.seen++
	if r.options.Samples <= 0 || r.seen%r.every != 0 {
		return
	}
	if len(r.samples) == r.options.Samples {
		kept := r.samples[:0]
		for i := 1; i < len(r.samples); i += 2 {
			kept = append(kept, r.samples[i])
		}
		r.samples = kept
		r.every *= 2
		if r.seen%r.every != 0 {
			return
		}
	}
	r.samples = append(r.samples, Sample{
		Worker: a.Worker, Arrival: round(a.Arrival.Seconds()), First: round(a.First.Seconds()), End: round(a.End.Seconds()),
		Prompt: a.Prompt, Cached: a.Cached,
	})
}

// Gauge sets the state of a worker from the time at on: the number of running requests, the number of waiting requests,
// and the share of the cache in use.
func (r *Recorder) Gauge(worker int, at time.Duration, running, waiting int, kv float64) {
	w := r.worker(worker)
	w.KVMax = max(w.KVMax, kv)
	w.busy += r.series.gauge(worker, at, float64(running), float64(waiting), kv)
	r.last = max(r.last, at)
}

// Ready sets the number of workers that take requests. It is valid from the time at on.
func (r *Recorder) Ready(at time.Duration, workers int) { r.series.setReady(at, float64(workers)) }

// Handover counts KV that was sent from one worker to another.
func (r *Recorder) Handover(tokens int, took time.Duration) {
	r.transfers.Handovers++
	r.transfers.HandoverTokens += int64(tokens)
	r.handover.Add(took)
}

// Divided counts a request that could be divided into a prefill leg and a decode leg. bypass is why it was not; "" if
// it was.
func (r *Recorder) Divided(bypass string) {
	if bypass == "" {
		r.transfers.Divided++
		return
	}
	if r.transfers.Bypassed == nil {
		r.transfers.Bypassed = map[string]int{}
	}
	r.transfers.Bypassed[bypass]++
}

// Preempted counts n requests that a worker preempted and has to compute again.
func (r *Recorder) Preempted(worker, n int) { r.worker(worker).Preemptions += n }

// Restarted counts a restart of a worker, after which its cache is empty.
func (r *Recorder) Restarted(worker int) { r.worker(worker).Restarts++ }

// Evicted counts blocks that were evicted from accelerators' caches.
func (r *Recorder) Evicted(blocks int) { r.transfers.EvictedBlocks += int64(blocks) }

// Events counts KV events that routers applied, and KV events that were lost.
func (r *Recorder) Events(applied, lost int) {
	r.transfers.EventsApplied += int64(applied)
	r.transfers.EventsLost += int64(lost)
}

// Counts returns the counts of requests so far.
func (r *Recorder) Counts() Counts { return r.counts }

// HitRate returns the share, 0 to 1, of the prompt tokens of all answers so far that were cached.
func (r *Recorder) HitRate() float64 {
	return share(float64(r.answers.cached), float64(r.answers.prompt))
}

// Run returns the result so far. The recorder can record more after that, and Run can be called again.
func (r *Recorder) Run(s Setup) *Run {
	t := &r.answers
	began := t.first
	if r.counts.Sent == 0 {
		began = 0
	}
	seconds := (r.last - began).Seconds()
	run := &Run{
		Setup: s, Seconds: round(seconds), Requests: r.counts,
		PromptTokens: t.prompt, CachedTokens: t.cached, LoadedTokens: r.loaded, PredictedTokens: r.predicted, PredictedAbove: r.above, OutputTokens: t.output,
		HitRate: round(share(float64(t.cached), float64(t.prompt))), OutputPerSecond: round(share(float64(t.output), seconds)),
		TTFT: t.ttft.Latency(true), ITL: r.itl.Latency(true), TPOT: t.tpot.Latency(true), E2E: r.e2e.Latency(true), Queue: r.queue.Latency(false),
		SLO:    t.slo(r.options.SLOs, r.counts.Answered+r.counts.Failed+r.counts.Rejected),
		Series: r.series.result(r.last), Samples: r.samples,
	}
	for i := range r.workers {
		w := r.workers[i]
		w.HitRate = round(share(float64(w.cached), float64(w.PromptTokens)))
		mean := r.series.means(i, r.last-began)
		w.Running, w.Waiting, w.KV = round(mean[0]), round(mean[1]), round(mean[2])
		w.Busy = round(min(share(w.busy.Seconds(), seconds), 1))
		w.KVMax = round(w.KVMax)
		run.Workers = append(run.Workers, w.Worker)
	}
	run.Balance = balance(run.Workers)
	run.Transfers = r.transfers
	run.Transfers.LoadedTokens = r.loaded
	run.Transfers.HandoverMS = r.handover.Latency(false)
	for i := range r.stages {
		run.Stages = append(run.Stages, r.stages[i].result(r.options.Stages[i], r.options.SLOs))
	}
	return run
}

// slo returns the shares of the requests that kept each SLO. of is the number of all requests.
func (t *tally) slo(slos []SLO, of int) []SLOShare {
	out := make([]SLOShare, len(slos))
	for i, s := range slos {
		good := float64(t.good[i])
		out[i] = SLOShare{
			TTFT: inMS(s.TTFT), TPOT: inMS(s.TPOT),
			Share: round(share(good, float64(of))), AnsweredShare: round(share(good, float64(t.answered))),
		}
	}
	return out
}

func (t *tally) result(info StageInfo, slos []SLO) Stage {
	seconds := 0.0
	if t.requests > 0 {
		seconds = max(t.end-t.first, 0).Seconds()
	}
	return Stage{
		Name: info.Name, Rate: info.Rate, Seconds: round(seconds), Requests: t.requests,
		HitRate: round(share(float64(t.cached), float64(t.prompt))), OutputPerSecond: round(share(float64(t.output), seconds)),
		TTFT: t.ttft.Latency(false), TPOT: t.tpot.Latency(false), SLO: t.slo(slos, t.requests),
	}
}

func balance(workers []Worker) Balance {
	spread := func(value func(*Worker) float64) (cv, peak float64) {
		sum, squares, most := 0.0, 0.0, 0.0
		for i := range workers {
			v := value(&workers[i])
			sum, squares, most = sum+v, squares+v*v, max(most, v)
		}
		n := float64(len(workers))
		mean := sum / n
		if !(mean > 0) {
			return 0, 0
		}
		return round(math.Sqrt(max(squares/n-mean*mean, 0)) / mean), round(most / mean)
	}
	var b Balance
	b.RequestsCV, b.RequestsSpread = spread(func(w *Worker) float64 { return float64(w.Requests) })
	b.ComputedCV, b.ComputedSpread = spread(func(w *Worker) float64 { return float64(w.ComputedTokens) })
	return b
}

// share returns part/whole, or 0 if whole is 0.
func share(part, whole float64) float64 {
	if !(whole > 0) {
		return 0
	}
	return part / whole
}
