package workload

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// MaxTokens bounds a prompt and an answer: sixteen times the longest context that models have. It keeps a wrong number in a
// trace from taking all memory.
const MaxTokens = 1 << 24

// builder collects requests in the file's order and makes a workload of them.
type builder struct {
	o        Options
	path     string
	w        Workload
	bytes    int64
	sessions map[string]int
	skipped  map[string]int // rows that were left out, by reason
	silent   int            // requests with an empty answer
	clocked  bool           // arrivals are since the workload's start already
}

func newBuilder(o Options, path string) *builder {
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	return &builder{o: o, path: path, sessions: map[string]int{}, skipped: map[string]int{}}
}

// request returns a request that nothing is known of, with the next id.
func (b *builder) request() Request {
	return Request{ID: len(b.w.Requests), Session: -1, After: -1}
}

// requestBytes is what a request takes without its segments and text: twice its own size, as lists that grow are copied.
const requestBytes = 2 * 184

// add keeps r. It returns errEnough when no more are wanted.
func (b *builder) add(r Request) error {
	if r.Input < 1 {
		b.skipped["because their prompt is empty"]++
		return nil
	}
	if r.Output < 1 {
		b.silent++
		r.Output = 1
	}
	if r.Arrival.Abs() > century {
		return fmt.Errorf("its time lies %.0f years from where the trace counts from", r.Arrival.Abs().Hours()/24/365)
	}
	if r.Input > MaxTokens || r.Output > MaxTokens {
		return fmt.Errorf("%d prompt and %d output tokens: more than %d cannot be meant", r.Input, r.Output, MaxTokens)
	}
	b.bytes += requestBytes + int64(cap(r.Segments))*16
	if t := r.Text; t != nil {
		b.bytes += int64(128 + len(t.Prompt) + len(t.Messages) + len(t.Tools) + 4*cap(t.Tokens) + len(t.Answer))
	}
	if b.bytes > b.o.Bytes {
		return fmt.Errorf("%w: the requests take more than %d MiB; read fewer of them with a limit", errWhole, b.o.Bytes>>20)
	}
	r.ID = len(b.w.Requests)
	b.w.Requests = append(b.w.Requests, r)
	if b.o.Limit > 0 && len(b.w.Requests) >= b.o.Limit {
		return errEnough
	}
	return nil
}

// session returns the number of a session by its name in the file, and whether it is new.
func (b *builder) session(name string) (number int, fresh bool) {
	n, ok := b.sessions[name]
	if !ok {
		n = len(b.sessions)
		b.sessions[name] = n
	}
	return n, !ok
}

// note adds a sentence to the assumptions.
func (b *builder) note(format string, args ...any) {
	b.w.Notes = append(b.w.Notes, fmt.Sprintf(format, args...))
}

// finish puts the requests in the order of their arrival, the first at 0.
func (b *builder) finish() (*Workload, error) {
	w := &b.w
	if len(w.Requests) == 0 {
		return nil, errors.New("there are no requests in it")
	}
	for _, reason := range slices.Sorted(maps.Keys(b.skipped)) {
		b.note("%d requests were left out %s", b.skipped[reason], reason)
	}
	if b.silent > 0 {
		b.note("%d requests have an empty answer, which is played as one token", b.silent)
	}
	if !b.clocked && w.span() > longest {
		return nil, fmt.Errorf("%w: its first and its last request lie %.0f years apart", errWhole, w.span().Hours()/24/365)
	}
	if !b.o.Raw {
		b.spread()
	}
	if !b.clocked {
		w.beginAtZero()
	}
	w.arrange()
	w.numberTurns()
	return w, nil
}

// century bounds a time in a file, longest how far a trace's first and last request lie apart: twice that, which jitter may make
// of it, is still a time that [Write] writes and [Read] takes.
const (
	century = 100 * 366 * 24 * time.Hour
	longest = 40 * 366 * 24 * time.Hour
)

// span is how far the first and the last arrival lie apart. Both lie within a century of 0.
func (w *Workload) span() time.Duration {
	first, last := w.Requests[0].Arrival, w.Requests[0].Arrival
	for i := range w.Requests {
		first, last = min(first, w.Requests[i].Arrival), max(last, w.Requests[i].Arrival)
	}
	return last - first
}

// beginAtZero shifts the first arrival to 0.
func (w *Workload) beginAtZero() {
	first := w.Requests[0].Arrival
	for i := range w.Requests {
		first = min(first, w.Requests[i].Arrival)
	}
	for i := range w.Requests {
		w.Requests[i].Arrival -= first
	}
}

// arrange orders the requests and renumbers them. A request that follows another arrives no earlier than that one, so it
// stands behind it.
func (w *Workload) arrange() {
	for i := range w.Requests {
		r := &w.Requests[i]
		if r.After >= 0 { // an earlier row: its arrival is already final
			r.Arrival = max(r.Arrival, w.Requests[r.After].Arrival)
		}
		for _, j := range r.Join {
			r.Arrival = max(r.Arrival, w.Requests[j].Arrival)
		}
	}
	slices.SortStableFunc(w.Requests, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	place := make([]int, len(w.Requests))
	for i := range w.Requests {
		place[w.Requests[i].ID] = i
	}
	for i := range w.Requests {
		r := &w.Requests[i]
		r.ID = i
		if r.After >= 0 {
			r.After = place[r.After]
		}
		for j := range r.Join {
			r.Join[j] = place[r.Join[j]]
		}
	}
}

// numberTurns numbers the sessions by their first request, and the turns of each.
func (w *Workload) numberTurns() {
	numbers, turns := map[int]int{}, []int(nil)
	for i := range w.Requests {
		r := &w.Requests[i]
		if r.Session < 0 {
			continue
		}
		n, known := numbers[r.Session]
		if !known {
			n = len(turns)
			numbers[r.Session] = n
			turns = append(turns, 0)
		}
		r.Session, r.Turn = n, turns[n]
		turns[n]++
	}
}

// binned is the least share of requests per distinct timestamp, and the least bin, that make a trace's clock coarse. The
// Mooncake recordings have 10 to 17 requests in each bin of 3 s; a Poisson trace in milliseconds has 1.0.
const (
	binnedRequests = 3
	binnedWidth    = 500 * time.Millisecond
)

// spread adds uniform jitter to timestamps that a coarse clock has put in bins: whole bins arriving at once would measure the
// recorder, not the router.
func (b *builder) spread() {
	w := &b.w
	times := make([]time.Duration, 0, len(w.Requests))
	for i := range w.Requests {
		if w.Requests[i].After >= 0 {
			return
		}
		times = append(times, w.Requests[i].Arrival)
	}
	slices.Sort(times)
	distinct := slices.Compact(times)
	if len(distinct) < 3 || len(w.Requests) < binnedRequests*len(distinct) {
		return
	}
	gaps := make([]time.Duration, len(distinct)-1)
	for i := range gaps {
		gaps[i] = distinct[i+1] - distinct[i]
	}
	slices.Sort(gaps)
	width := gaps[len(gaps)/2].Round(time.Second)
	if width < binnedWidth || w.span() > longest {
		return
	}
	random := rand.New(rand.NewPCG(b.o.Seed, uint64(width)))
	for i := range w.Requests {
		w.Requests[i].Arrival += time.Duration(random.Int64N(int64(width)))
	}
	b.note("timestamps sit on bins of %s: uniform jitter of one bin was added, seed %d", width, b.o.Seed)
}

// followSessions makes each session a closed loop: a request follows the session's previous one, after the recorded gap
// less the time that service says the recorded engine took.
func (b *builder) followSessions(service func(*Request) time.Duration) {
	w := &b.w
	order := make([]int, len(w.Requests))
	for i := range order {
		order[i] = i
	}
	// Rows may be out of order; a request may only follow one that stands before it.
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(w.Requests[x].Arrival, w.Requests[y].Arrival) })
	sorted := make([]Request, len(order))
	for i, at := range order {
		sorted[i] = w.Requests[at]
		sorted[i].ID = i
	}
	w.Requests = sorted
	last := map[int]int{}
	for i := range sorted {
		r := &sorted[i]
		if r.Session < 0 {
			continue
		}
		if before, ok := last[r.Session]; ok {
			r.After = before
			r.Think = max(0, r.Arrival-sorted[before].Arrival-service(&sorted[before]))
		}
		last[r.Session] = i
	}
}

// seconds converts a number of seconds in a file; it refuses what is no time.
func seconds(v float64) (time.Duration, error) {
	if !(math.Abs(v) < century.Seconds()) {
		return 0, fmt.Errorf("%s s is not a time", strconv.FormatFloat(v, 'g', -1, 64))
	}
	return time.Duration(math.Round(v * float64(time.Second))), nil
}
