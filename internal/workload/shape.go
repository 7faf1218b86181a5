package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Shape changes a workload's arrival rate, order and size, but not its content. The zero value changes nothing.
type Shape struct {
	Rate      float64       // factor on the arrival rate; 0 means 1. Think times do not change
	Jitter    time.Duration // adds a uniform time from [0, Jitter) to each arrival; an error with stages
	Seed      uint64        // seed of the jitter
	Limit     int           // keep only this number of requests, from the first on; 0: all
	Duration  time.Duration // keep only requests whose Arrival in the unchanged workload is before this time; 0: all
	MaxInput  int           // cut the end of prompts that have more tokens than this; 0: no limit
	MaxOutput int           // cut the end of answers that have more tokens than this; 0: no limit
}

// Apply returns a changed copy of w. The copy shares unchanged parts with w. Apply does not change w.
func (s Shape) Apply(w *Workload) (*Workload, error) {
	if s.Rate < 0 || math.IsNaN(s.Rate) || math.IsInf(s.Rate, 0) || s.Jitter < 0 || s.Duration < 0 || min(s.Limit, s.MaxInput, s.MaxOutput) < 0 {
		return nil, errors.New("shape workload: numbers must not be negative")
	}
	out := *w
	out.Requests = slices.Clone(w.Requests)
	out.Stages = slices.Clone(w.Stages)
	out.Notes = slices.Clone(w.Notes)
	if s.Duration > 0 {
		// Requests are ordered by arrival, and each request waits only for earlier requests. So the first n requests can be
		// played without the others.
		n, _ := slices.BinarySearchFunc(out.Requests, s.Duration, func(r Request, d time.Duration) int { return cmp.Compare(r.Arrival, d) })
		out.limit(n)
	}
	if s.Limit > 0 {
		out.limit(s.Limit)
	}
	if len(out.Requests) == 0 {
		return nil, errors.New("shape workload: no request arrives so early")
	}
	if s.Rate > 0 && s.Rate != 1 {
		out.scale(s.Rate)
	}
	for i := range out.Requests {
		out.Requests[i].cut(s.MaxInput, s.MaxOutput)
	}
	if s.Jitter > 0 {
		random := rand.New(rand.NewPCG(s.Seed, uint64(s.Jitter)))
		for i := range out.Requests {
			out.Requests[i].Arrival += time.Duration(random.Int64N(int64(s.Jitter)))
			out.Requests[i].Join = slices.Clone(out.Requests[i].Join)
		}
		if len(out.Stages) > 0 {
			return nil, errors.New("shape workload: stages and jitter exclude each other")
		}
		out.arrange()
	}
	return &out, nil
}

// limit keeps the first n requests.
func (w *Workload) limit(n int) {
	if n < len(w.Requests) {
		w.Requests = w.Requests[:n:n]
		w.cutStages(n)
	}
}

func (w *Workload) scale(rate float64) {
	for i := range w.Requests {
		w.Requests[i].Arrival = time.Duration(float64(w.Requests[i].Arrival) / rate)
	}
	for i := range w.Stages {
		w.Stages[i].Start = time.Duration(float64(w.Stages[i].Start) / rate)
		w.Stages[i].Rate *= rate
	}
}

// cut shortens r's prompt and answer.
func (r *Request) cut(input, output int) {
	if output > 0 && r.Output > output {
		// The prompts of later turns still contain the whole answer, but the engine generates and caches only the answer's
		// beginning.
		r.Output = output
	}
	if input <= 0 || r.Input <= input {
		return
	}
	r.Input = input
	if r.Text != nil {
		r.cutText(input)
	}
	left := input
	for i, s := range r.Segments {
		if s.Tokens >= left {
			r.Segments = append(slices.Clone(r.Segments[:i]), Segment{ID: s.ID, Tokens: left})
			return
		}
		left -= s.Tokens
	}
}

// cutText shortens the recorded text or token ids. The JSON messages of a chat cannot be cut at any place, so cutText
// leaves them out.
func (r *Request) cutText(input int) {
	t := *r.Text
	switch {
	case len(t.Tokens) > input:
		t.Tokens = t.Tokens[:input:input]
	case len(t.Prompt) > input*bytesPerToken:
		t.Prompt = strings.ToValidUTF8(t.Prompt[:input*bytesPerToken], "")
	case t.Messages != nil:
		r.Text = nil
		return
	}
	r.Text = &t
}

// Merge returns one workload with all requests of the given workloads, ordered by arrival. Equal segment ids or session
// numbers in different workloads do not stand for equal content or sessions, so Merge gives them new ids. Merge returns
// an error if it gets several workloads and one of them has stages.
func Merge(workloads ...*Workload) (*Workload, error) {
	if len(workloads) == 0 {
		return nil, errors.New("merge workloads: there is none")
	}
	out := &Workload{Name: workloads[0].Name, Source: workloads[0].Source, Block: workloads[0].Block}
	sessions := 0
	for i, w := range workloads {
		if len(w.Stages) > 0 && len(workloads) > 1 {
			return nil, fmt.Errorf("merge workloads: %s has stages that wait for its earlier requests; another workload would change these waits", w.Name)
		}
		if i > 0 {
			out.Name += "+" + w.Name
			out.Source += " " + w.Source
		}
		out.Notes = append(out.Notes, w.Notes...)
		if w.Block != out.Block {
			out.Block = 0
		}
		sessions = out.append(w, uint64(i), sessions)
	}
	out.arrange()
	out.numberTurns()
	return out, nil
}

// append appends the requests of other to w, with new session numbers, and with new segment ids unless salt is 0.
// sessions is the first free session number; append returns the next free one.
func (w *Workload) append(other *Workload, salt uint64, sessions int) int {
	first, next := len(w.Requests), sessions
	for i := range other.Requests {
		r := other.Requests[i]
		r.ID += first
		if r.Session >= 0 {
			r.Session += sessions
			next = max(next, r.Session+1)
		}
		if r.After >= 0 {
			r.After += first
		}
		r.Join = slices.Clone(r.Join)
		for j := range r.Join {
			r.Join[j] += first
		}
		if salt > 0 {
			r.Segments = slices.Clone(r.Segments)
			for j := range r.Segments {
				r.Segments[j].ID = mix(r.Segments[j].ID ^ salt*block.Golden)
			}
			if r.OutputSegment != 0 {
				r.OutputSegment = mix(r.OutputSegment ^ salt*block.Golden)
			}
		}
		w.Requests = append(w.Requests, r)
	}
	return next
}
