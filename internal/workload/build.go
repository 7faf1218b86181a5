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

// MaxTokens bounds the length of a prompt and of an answer, so that a wrong number in a trace cannot take all memory.
// The bound is sixteen times a context of one million tokens.
const MaxTokens = 1 << 24

// builder collects the requests of a file and makes a workload of them.
type builder struct {
	o        Options
	path     string
	w        Workload
	bytes    int64
	sessions map[string]int
	skipped  map[string]int // by reason: number of rows that were left out
	silent   int            // number of requests with an empty answer
	clocked  bool           // the file's arrival times count from the workload's start, so finish does not shift them
}

func newBuilder(o Options, path string) *builder {
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	return &builder{o: o, path: path, sessions: map[string]int{}, skipped: map[string]int{}}
}

// request returns an empty request with the next id.
func (b *builder) request() Request {
	return Request{ID: len(b.w.Requests), Session: -1, After: -1}
}

// requestBytes is the memory of a request in bytes, without its segments and text. It is more than twice the size of a
// Request (160 bytes), because a growing list exists twice while it is copied.
const requestBytes = 2 * 184

// add adds r to the workload. It leaves out a request with an empty prompt, and gives an empty answer one token. It
// returns errEnough when Options.Limit is reached.
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
		return fmt.Errorf("%d prompt and %d output tokens: the limit of each is %d", r.Input, r.Output, MaxTokens)
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

// session returns the number of the session with this name in the file, and whether the session is new.
func (b *builder) session(name string) (number int, fresh bool) {
	n, ok := b.sessions[name]
	if !ok {
		n = len(b.sessions)
		b.sessions[name] = n
	}
	return n, !ok
}

// note adds a sentence to the workload's assumptions.
func (b *builder) note(format string, args ...any) {
	b.w.Notes = append(b.w.Notes, fmt.Sprintf(format, args...))
}

// finish returns the workload. Its requests are in the order of arrival. The first request arrives at time 0, unless
// clocked is set.
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

// century bounds each time in a file. longest bounds the time from a trace's first request to its last. Twice this time
// is still less than century, so [Load] accepts the times of a trace that was stretched by jitter and written by
// [Write].
const (
	century = 100 * 366 * 24 * time.Hour
	longest = 40 * 366 * 24 * time.Hour
)

// span returns the time from the first arrival to the last. It cannot overflow, because every arrival is within a
// century of time 0.
func (w *Workload) span() time.Duration {
	first, last := w.Requests[0].Arrival, w.Requests[0].Arrival
	for i := range w.Requests {
		first, last = min(first, w.Requests[i].Arrival), max(last, w.Requests[i].Arrival)
	}
	return last - first
}

// beginAtZero shifts all arrivals so that the first arrival is at time 0.
func (w *Workload) beginAtZero() {
	first := w.Requests[0].Arrival
	for i := range w.Requests {
		first = min(first, w.Requests[i].Arrival)
	}
	for i := range w.Requests {
		w.Requests[i].Arrival -= first
	}
}

// arrange sorts the requests by arrival and renumbers them. It first gives a request that waits for other requests an
// arrival that is not earlier than theirs, so that such a request stands after them in the list.
func (w *Workload) arrange() {
	for i := range w.Requests {
		r := &w.Requests[i]
		if r.After >= 0 { // After is the index of an earlier row, so the arrival of that row is final
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

// numberTurns numbers the sessions in the order of their first requests, and numbers the turns of each session.
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

// A trace's clock counts as coarse if there are on average at least binnedRequests requests for each distinct
// timestamp, and the median distance between timestamps (the bin) is at least binnedWidth. Mooncake's conversation
// trace has 10 requests for each timestamp, and bins of 3 s. A Poisson trace with timestamps in milliseconds has about
// one request for each timestamp.
const (
	binnedRequests = 3
	binnedWidth    = 500 * time.Millisecond
)

// spread adds uniform jitter to timestamps from a coarse clock, unless a request waits for another request. Without
// jitter all requests of a bin would arrive at the same time, and a run would measure the recorder's clock instead of
// the router.
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

// followSessions makes each session a closed loop: a request follows the previous request of its session. Think is the
// recorded time between the two arrivals minus service(previous), which is the time that the recorded engine took for
// the previous request. Think is at least 0.
func (b *builder) followSessions(service func(*Request) time.Duration) {
	w := &b.w
	order := make([]int, len(w.Requests))
	for i := range order {
		order[i] = i
	}
	// Rows may be out of order, but a request may only follow an earlier request.
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

// seconds converts a number of seconds from a file. It refuses NaN and times beyond a century.
func seconds(v float64) (time.Duration, error) {
	if !(math.Abs(v) < century.Seconds()) {
		return 0, fmt.Errorf("%s s is not a time", strconv.FormatFloat(v, 'g', -1, 64))
	}
	return time.Duration(math.Round(v * float64(time.Second))), nil
}
