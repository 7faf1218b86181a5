package report

import "time"

// steps is the greatest number of steps of a series, because a plot has no more columns. firstStep is the initial
// length of a step.
const (
	steps     = 240
	firstStep = 100 * time.Millisecond
)

// series sums values over equal steps of time. When a run becomes longer than the series, pairs of neighbouring steps
// are joined. So the memory does not depend on the length of the run.
type series struct {
	step     time.Duration
	arrivals [steps]float64
	output   [steps]float64
	prompt   [steps]float64
	cached   [steps]float64
	ttft     [steps]float64 // ms, summed
	first    [steps]float64 // number of requests
	ready    integral
	workers  []workerSeries
}

// workerSeries has a worker's gauges: the numbers of running and waiting requests, and the share of the cache in use.
type workerSeries struct{ gauges [3]integral }

// integral is a value over time, summed as value × seconds.
type integral struct {
	area  [steps]float64
	value float64
	since time.Duration
}

func (s *series) addWorker() { s.workers = append(s.workers, workerSeries{}) }

// at returns the step that contains the time t. If t is after the last step, it first joins neighbouring steps.
func (s *series) at(t time.Duration) int {
	if s.step == 0 {
		s.step = firstStep
	}
	for t >= s.step*steps {
		s.step *= 2
		for _, line := range s.lines() {
			halve(line)
		}
	}
	return max(int(t/s.step), 0)
}

func (s *series) lines() []*[steps]float64 {
	lines := []*[steps]float64{&s.arrivals, &s.output, &s.prompt, &s.cached, &s.ttft, &s.first, &s.ready.area}
	for i := range s.workers {
		for g := range s.workers[i].gauges {
			lines = append(lines, &s.workers[i].gauges[g].area)
		}
	}
	return lines
}

func halve(a *[steps]float64) {
	for i := range steps / 2 {
		a[i] = a[2*i] + a[2*i+1]
	}
	clear(a[steps/2:])
}

func (s *series) arrive(t time.Duration) { s.arrivals[s.at(t)]++ }

func (s *series) answer(a *Answer) {
	i := s.at(a.First)
	s.first[i]++
	s.ttft[i] += float64(a.First-a.Arrival) / 1e6
	s.prompt[i] += float64(a.Prompt)
	s.cached[i] += float64(a.Cached)
	// The answer's tokens are spread evenly from the first to the last.
	from, to := s.at(a.First), s.at(a.End)
	for i := from; i <= to; i++ {
		s.output[i] += float64(a.Output) / float64(to-from+1)
	}
}

// gauge sets a worker's gauges from time t on. It returns how long the worker had running requests since its gauges
// were set last, up to t; 0 if it had none.
func (s *series) gauge(worker int, t time.Duration, running, waiting, kv float64) (busy time.Duration) {
	g := &s.workers[worker].gauges
	if g[0].value > 0 {
		busy = max(t-g[0].since, 0)
	}
	s.move(&g[0], t, running)
	s.move(&g[1], t, waiting)
	s.move(&g[2], t, kv)
	return busy
}

func (s *series) setReady(t time.Duration, n float64) { s.move(&s.ready, t, n) }

// move adds the area under the old value until t to g, and sets the new value.
func (s *series) move(g *integral, t time.Duration, value float64) {
	if last := s.at(t); t > g.since && g.value != 0 {
		i := s.at(g.since)
		for at := g.since; at < t; i++ {
			end := t
			if i < last {
				end = time.Duration(i+1) * s.step
			}
			g.area[i] += g.value * (end - at).Seconds()
			at = end
		}
	}
	g.value, g.since = value, max(t, g.since)
}

// means returns the mean of a worker's gauges over a run of the given length.
func (s *series) means(worker int, length time.Duration) (mean [3]float64) {
	for g := range s.workers[worker].gauges {
		sum := 0.0
		for _, v := range s.workers[worker].gauges[g].area {
			sum += v
		}
		mean[g] = share(sum, length.Seconds())
	}
	return mean
}

// maxLines bounds the number of workers whose gauges a report shows one by one. More lines cannot be distinguished in a
// plot, and a thousand workers would make a page of tens of megabytes.
const maxLines = 64

func (s *series) result(end time.Duration) Series {
	n := s.at(end) + 1
	for i := range s.workers {
		for g := range s.workers[i].gauges {
			in := &s.workers[i].gauges[g]
			s.move(in, end, in.value)
		}
	}
	s.move(&s.ready, end, s.ready.value)
	width := s.step.Seconds()
	per := func(a *[steps]float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			w := width
			if i == n-1 { // the last step may be shorter than the others
				w = max(end.Seconds()-float64(i)*width, 1e-3)
			}
			out[i] = round(a[i] / w)
		}
		return out
	}
	quotient := func(a, b *[steps]float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = -1
			if b[i] > 0 {
				out[i] = round(a[i] / b[i])
			}
		}
		return out
	}
	r := Series{
		Step: width, Arrivals: per(&s.arrivals), Output: per(&s.output), Ready: per(&s.ready.area),
		HitRate: quotient(&s.cached, &s.prompt), TTFT: quotient(&s.ttft, &s.first),
	}
	for i := range s.workers[:min(len(s.workers), maxLines)] {
		g := &s.workers[i].gauges
		r.Running = append(r.Running, per(&g[0].area))
		r.Waiting = append(r.Waiting, per(&g[1].area))
		r.KV = append(r.KV, per(&g[2].area))
	}
	return r
}
