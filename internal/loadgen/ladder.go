package loadgen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/workload"
)

// Ladder is a series of measurements of a live engine, with growing lengths and numbers of requests. Start from
// [DefaultLadder].
type Ladder struct {
	Prompts   []int // lengths of single prompts, in tokens
	Sequences []int // numbers of requests in the measured decode passes
	Contexts  []int // prompt lengths of the requests in the measured decode passes, in tokens
	Output    int   // in a decode measurement with n requests, each request generates Output + 4·n tokens
	Repeats   int   // number of measurements of each point; the result is their median
	Nonce     uint64
	Progress  func(done, total int, what string)
}

// DefaultLadder returns a ladder that takes about a minute on a current engine. Each number in Prompts and Sequences is
// twice the number before, because the fit minimizes relative errors.
func DefaultLadder() Ladder {
	return Ladder{
		Prompts:   []int{128, 256, 512, 1024, 2048, 4096, 8192, 16384},
		Sequences: []int{1, 2, 4, 8, 16, 32},
		Contexts:  []int{128, 2048},
		Output:    48,
		Repeats:   3,
	}
}

// Climb measures an engine that has no other requests: the time to the first token for each prompt length, and the time
// of a decode pass for each number of requests and each context. Each prompt is new, so the engine has no cached blocks
// of it.
func (l Ladder) Climb(ctx context.Context, cfg Config) ([]Point, error) {
	cfg.MaxOpen = max(cfg.MaxOpen, slices.Max(append(slices.Clone(l.Sequences), 1)))
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("measure engine: %w", err)
	}
	c := newClient(cfg.Targets[0], &cfg)
	defer c.close()
	model := cfg.Model
	if model == "" {
		var err error
		if model, err = c.model(ctx); err != nil {
			return nil, fmt.Errorf("measure engine: %w", err)
		}
	}
	cfg.Prompt = Tokens
	m := &climb{ladder: l, client: c, prompts: newPrompter(&cfg, model, &workload.Workload{})}
	m.total = len(l.Prompts) + len(l.Sequences)*len(l.Contexts)
	// The first request is not measured, because a new connection and lazy initialization make it slow.
	if _, err := m.ask(ctx, 16, 2); err != nil {
		return nil, fmt.Errorf("measure engine: %w", err)
	}
	var out []Point
	for _, n := range l.Prompts {
		p, err := m.prefill(ctx, n)
		if err != nil {
			return out, fmt.Errorf("measure a prompt of %d tokens: %w", n, err)
		}
		out = append(out, p)
	}
	for _, n := range l.Sequences {
		for _, context := range l.Contexts {
			p, err := m.decode(ctx, n, context)
			if err != nil {
				return out, fmt.Errorf("measure %d requests with %d tokens: %w", n, context, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

type climb struct {
	ladder      Ladder
	client      *client
	prompts     *prompter
	asked       uint64
	done, total int
}

func (m *climb) tell(what string) {
	m.done++
	if m.ladder.Progress != nil {
		m.ladder.Progress(m.done, m.total, what)
	}
}

// ask sends a new prompt.
func (m *climb) ask(ctx context.Context, input, output int) (*exchange, error) {
	m.asked++
	return m.send(ctx, m.asked, input, output)
}

func (m *climb) send(ctx context.Context, number uint64, input, output int) (*exchange, error) {
	id := m.ladder.Nonce ^ number*block.Golden
	path, body := m.prompts.body(&workload.Request{
		Session: -1, After: -1, Input: input, Output: output, Segments: []workload.Segment{{ID: id, Tokens: input}},
	})
	x := m.client.do(ctx, path, body)
	if x.err == nil && x.first.IsZero() {
		x.err = errors.New("the answer has no token")
	}
	if x.err == nil && x.cached > input/10 {
		x.err = errors.New("the engine had the prompt cached: measure with another nonce")
	}
	return x, x.err
}

func (m *climb) prefill(ctx context.Context, n int) (Point, error) {
	var times []float64
	for range max(m.ladder.Repeats, 1) {
		sent := time.Now()
		x, err := m.ask(ctx, n, 2)
		if err != nil {
			return Point{}, err
		}
		times = append(times, inMS(x.first.Sub(sent)))
	}
	m.tell(strconv.Itoa(n) + " prompt tokens")
	return Point{Prompt: n, Sequences: 1, MS: median(times)}, nil
}

// decode lets n requests generate at the same time. Most times between two tokens are the times of a pass with all n
// requests. The other times include the prefill of another request; there are too few of them to change the median.
func (m *climb) decode(ctx context.Context, n, context int) (Point, error) {
	var times []float64
	for range max(m.ladder.Repeats, 1) {
		results := make([]*exchange, n)
		errs := make([]error, n)
		// The first request must still generate when the last request begins, so outputs grow with n.
		output := m.ladder.Output + 4*n
		var all sync.WaitGroup
		for i := range n {
			m.asked++
			number := m.asked
			all.Go(func() { results[i], errs[i] = m.send(ctx, number, context, output) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return Point{}, err
		}
		// Count only the time in which all requests generate: from the latest first token to the earliest end of a request.
		var begun, over time.Time
		for _, x := range results {
			if x.first.After(begun) {
				begun = x.first
			}
			if over.IsZero() || x.end.Before(over) {
				over = x.end
			}
		}
		for _, x := range results {
			at := x.first
			for _, g := range x.gaps {
				if at.Compare(begun) >= 0 && at.Add(g).Compare(over) <= 0 {
					times = append(times, inMS(g))
				}
				at = at.Add(g)
			}
		}
	}
	if len(times) == 0 {
		return Point{}, errors.New("the requests did not run at the same time")
	}
	m.tell(fmt.Sprintf("%d requests with %d tokens", n, context))
	return Point{Sequences: n, Context: n * (context + (m.ladder.Output+4*n)/2), MS: median(times)}, nil
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}
