package workload

import (
	"cmp"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// StatsOptions say what [Measure] measures. With the zero value Measure returns lengths, rates and the hit rate of an
// infinite cache.
type StatsOptions struct {
	// Capacities are cache sizes in tokens. For each size, Measure plays all requests through an LRU, a FIFO and an
	// optimal cache of this size.
	Capacities []int
	Block      int // tokens in a block; 0: as in the trace, or 16 if the trace has no blocks
	// HeadFirst is the order in which a request touches the blocks of its prompt. If true, the first block is touched
	// first, as in the published curves of kvcache-ai. If false, the last block is touched first. Engines free blocks in
	// this order, so that the beginning of a prompt stays cached longer than its end.
	HeadFirst bool
}

// Stats describe a workload. A hit rate is the share of prompt tokens that a cache holds. All requests go through one
// cache in the order of the workload, and the blocks of a request are stored before the next request.
type Stats struct {
	Name     string   `json:"name"`
	Source   string   `json:"source"`
	Requests int      `json:"requests"`
	Sessions int      `json:"sessions"`
	Closed   int      `json:"closed_loop_requests"` // number of requests that wait for another request
	Stages   int      `json:"stages"`
	Span     float64  `json:"span_s"`
	Rate     float64  `json:"rate_per_s"`
	Peak     float64  `json:"peak_rate_per_s"` // requests a second in the busiest minute
	Input    Lengths  `json:"input_tokens"`
	Output   Lengths  `json:"output_tokens"`
	Turns    Lengths  `json:"turns"`   // number of turns of each session
	Think    Lengths  `json:"think_s"` // think times of closed-loop requests
	Block    int      `json:"block_tokens"`
	Blocks   int      `json:"blocks"`
	Unique   int      `json:"unique_blocks"`
	Infinite Hit      `json:"infinite_cache_hit"`
	Capacity []Curve  `json:"capacity"`
	Notes    []string `json:"notes"`
}

// Lengths describes the distribution of a quantity.
type Lengths struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	Sum  float64 `json:"sum"`
}

// Hit is a hit rate, 0..1.
type Hit struct {
	All float64 `json:"all"`
	// SecondHalf is the hit rate of the second half of the requests, after the first half has filled the cache.
	SecondHalf float64 `json:"second_half"`
}

// Curve has the hit rates for one cache size. They are 0 if no request has segments, or if the cache is smaller than a
// block.
type Curve struct {
	Tokens int `json:"tokens"`
	Blocks int `json:"blocks"`
	LRU    Hit `json:"lru"`
	FIFO   Hit `json:"fifo"`
	// Optimal is the hit rate of Belady's optimal cache, which evicts the block whose next use is latest.
	Optimal Hit `json:"optimal"`
}

// Measure returns w's statistics.
func Measure(w *Workload, o StatsOptions) *Stats {
	s := &Stats{Name: w.Name, Source: w.Source, Requests: len(w.Requests), Stages: len(w.Stages), Notes: w.Notes}
	s.Block = cmp.Or(o.Block, w.Block, 16)
	s.measureLengths(w)
	t := newTouches(w, s.Block)
	s.Blocks, s.Unique = t.total(), t.unique
	s.Infinite = t.replay(&unbounded{seen: make([]bool, t.unique)})
	for _, tokens := range o.Capacities {
		c := Curve{Tokens: tokens, Blocks: tokens / s.Block}
		if t.shared && c.Blocks > 0 {
			c.LRU = t.replay(newQueueCache(t.unique, c.Blocks, true, o.HeadFirst))
			c.FIFO = t.replay(newQueueCache(t.unique, c.Blocks, false, o.HeadFirst))
			c.Optimal = t.replay(newOptimalCache(t, c.Blocks))
		}
		s.Capacity = append(s.Capacity, c)
	}
	return s
}

func (s *Stats) measureLengths(w *Workload) {
	n := len(w.Requests)
	input, output, think := make([]float64, 0, n), make([]float64, 0, n), []float64(nil)
	turns := map[int]int{}
	var span time.Duration
	for i := range w.Requests {
		r := &w.Requests[i]
		input, output = append(input, float64(r.Input)), append(output, float64(r.Output))
		if r.Session >= 0 {
			turns[r.Session]++
		}
		if r.After >= 0 {
			think = append(think, r.Think.Seconds())
			s.Closed++
		}
		span = max(span, r.Arrival)
	}
	s.Sessions = len(turns)
	lengths := make([]float64, 0, len(turns))
	for _, t := range turns {
		lengths = append(lengths, float64(t))
	}
	s.Input, s.Output, s.Turns, s.Think = newLengths(input), newLengths(output), newLengths(lengths), newLengths(think)
	s.Span = span.Seconds()
	if span > 0 {
		s.Rate = float64(n) / s.Span
	}
	s.Peak = peakRate(w.Requests, span)
}

// peakRate returns the arrivals a second in the busiest minute. If span is less than a minute, peakRate uses the whole
// workload.
func peakRate(requests []Request, span time.Duration) float64 {
	from, most := 0, 0
	for i := range requests {
		for requests[i].Arrival-requests[from].Arrival > time.Minute {
			from++
		}
		most = max(most, i-from+1)
	}
	return float64(most) / min(max(span, time.Second), time.Minute).Seconds()
}

func newLengths(values []float64) Lengths {
	if len(values) == 0 {
		return Lengths{}
	}
	slices.Sort(values)
	var l Lengths
	for _, v := range values {
		l.Sum += v
	}
	at := func(q float64) float64 { return values[min(int(q*float64(len(values))), len(values)-1)] }
	l.Mean, l.P50, l.P95, l.P99, l.Max = l.Sum/float64(len(values)), at(.5), at(.95), at(.99), values[len(values)-1]
	return l
}

// touches has the blocks of all requests, each block with an id from 0 to unique-1. The last block of a prompt may be
// partly full. If shared is false, ids and from are not filled.
type touches struct {
	block  int
	ids    []int32
	from   []int   // request i has ids[from[i]:from[i+1]]
	prompt []int32 // by request: number of prompt blocks; the request's other blocks belong to the answer
	input  []int   // by request: number of prompt tokens
	unique int
	shared bool // some request has segments, so blocks can occur more than once
}

func newTouches(w *Workload, block int) *touches {
	t := &touches{block: block, from: make([]int, 1, len(w.Requests)+1)}
	known := map[uint64]int32{}
	for i := range w.Requests {
		t.shared = t.shared || w.Requests[i].Segments != nil
	}
	for i := range w.Requests {
		r := &w.Requests[i]
		t.input = append(t.input, r.Input)
		if !t.shared {
			// Without segments no block occurs twice, so only the number of blocks matters.
			n := (r.Input + block - 1) / block
			t.prompt = append(t.prompt, int32(n))
			t.unique += n
			continue
		}
		c := cutter{block: block, emit: func(key uint64) {
			id, ok := known[key]
			if !ok {
				id = int32(len(known))
				known[key] = id
			}
			t.ids = append(t.ids, id)
		}}
		if r.Segments == nil {
			c.add(Segment{ID: ownID(r.ID, ownPrompt), Tokens: r.Input})
		}
		for _, s := range r.Segments {
			c.add(s)
		}
		full := c // the answer continues the partly full last block of the prompt
		c.flush()
		t.prompt = append(t.prompt, int32(len(t.ids)-t.from[i]))
		if r.OutputSegment != 0 {
			full.add(Segment{ID: r.OutputSegment, Tokens: r.Output})
			full.flush()
		}
		t.from = append(t.from, len(t.ids))
	}
	if t.shared {
		t.unique = len(known)
	}
	return t
}

// total returns the number of prompt blocks of all requests.
func (t *touches) total() int {
	n := 0
	for _, p := range t.prompt {
		n += int(p)
	}
	return n
}

// cutter cuts segments into blocks, and calls emit with a hash of each block and all content before the block.
type cutter struct {
	block int
	emit  func(key uint64)
	chain uint64
	fill  int // number of tokens in the partly full block
}

func (c *cutter) add(s Segment) {
	for at := 0; at < s.Tokens; {
		n := min(c.block-c.fill, s.Tokens-at)
		c.chain = mix(c.chain ^ mix(s.ID^uint64(at)*block.Golden) ^ uint64(n)<<32)
		at += n
		if c.fill += n; c.fill == c.block {
			c.emit(c.chain)
			c.fill = 0
		}
	}
}

// flush emits the partly full last block.
func (c *cutter) flush() {
	if c.fill > 0 {
		c.emit(c.chain)
	}
}

// cache is a modelled cache. hit gets the blocks of a prompt in order, and returns how many of them are cached from the
// first on, without a gap. store caches the blocks of a request: those of its prompt and then those of its answer.
type cache interface {
	hit(ids []int32) int
	store(request int, ids []int32)
}

// replay plays all requests through c and returns the hit rate, or 0 if shared is false.
func (t *touches) replay(c cache) Hit {
	if !t.shared {
		return Hit{}
	}
	half := len(t.input) / 2
	var hits, tokens [2]float64
	for i, input := range t.input {
		ids := t.ids[t.from[i]:t.from[i+1]]
		h := min(c.hit(ids[:t.prompt[i]])*t.block, input)
		c.store(i, ids)
		part := 0
		if i >= half {
			part = 1
		}
		hits[part] += float64(h)
		tokens[part] += float64(input)
	}
	var out Hit
	if all := tokens[0] + tokens[1]; all > 0 {
		out.All = (hits[0] + hits[1]) / all
	}
	if tokens[1] > 0 {
		out.SecondHalf = hits[1] / tokens[1]
	}
	return out
}
