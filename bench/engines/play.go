package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// run is one playing of a set through a router.
type run struct {
	plan   plan
	client *client
	marks  []mark // ascending by after

	mu        sync.Mutex
	gate      *sync.Cond      // condition of mu on which clients wait while the work of a mark is done
	sent      int             // number of requests sent
	open      int             // number of requests sent and not yet answered
	held      bool            // true: a mark's work is being done, so no client may send a request
	paused    time.Duration   // time that the work of marks with drain took; it does not count as time of the run
	firsts    []time.Duration // times to first token of the answered requests
	prompt    int             // prompt tokens of the answered requests, as the engines counted them
	cached    int             // cached tokens among these prompt tokens
	failed    int             // number of attempts that failed
	abandoned int             // number of requests whose attempts all failed
	errors    []string        // the first few errors
	broken    error           // first error of a mark's function do
}

// mark is work to do after a number of sent requests, such as a restart of the router. While the work is done, no
// client sends a request. With drain, the work begins only when all requests under way have ended.
type mark struct {
	after int // number of sent requests
	drain bool
	do    func(context.Context) error
}

// attempts is the number of times that a client sends a request before it gives up. The chat then continues without the
// answer.
const attempts = 5

func (r *run) play(ctx context.Context) (time.Duration, error) {
	r.gate = sync.NewCond(&r.mu)
	stop := context.AfterFunc(ctx, func() { r.mu.Lock(); r.gate.Broadcast(); r.mu.Unlock() })
	defer stop()
	start := time.Now()
	var group sync.WaitGroup
	for _, lane := range r.plan {
		group.Go(func() { r.send(ctx, lane) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return time.Since(start) - r.paused, r.broken
}

// send sends the steps (requests) of one client, one after the other.
func (r *run) send(ctx context.Context, lane []step) {
	talks := map[int][]message{}
	ended := map[int]time.Time{}
	for _, s := range lane {
		if s.pause > 0 {
			if sleep(ctx, time.Until(ended[s.talk].Add(s.pause))) != nil {
				return
			}
		}
		if !r.enter(ctx) {
			return
		}
		messages := append(talks[s.talk], s.adds...)
		a, err := r.ask(ctx, messages, s.output)
		r.leave(a, err)
		if ctx.Err() != nil {
			return
		}
		talks[s.talk] = append(messages, message{"assistant", a.text})
		ended[s.talk] = time.Now()
	}
}

// ask sends a request until it gets a whole answer, at most attempts times. The time to the first token counts from the
// first attempt.
func (r *run) ask(ctx context.Context, messages []message, tokens int) (answer, error) {
	start := time.Now()
	for i := 1; ; i++ {
		began := time.Since(start)
		a, err := r.client.chat(ctx, messages, tokens)
		a.first += began
		if err == nil || ctx.Err() != nil {
			return a, err
		}
		r.mu.Lock()
		r.failed++
		if len(r.errors) < 5 {
			r.errors = append(r.errors, fmt.Sprintf("%.200s", err))
		}
		r.mu.Unlock()
		if i == attempts {
			return a, err
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return a, err
		}
	}
}

// enter counts a request before it is sent. If the next mark is due, enter first does the work of the mark. It returns
// false if ctx has ended or a mark has failed.
func (r *run) enter(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.held && ctx.Err() == nil {
		r.gate.Wait()
	}
	if ctx.Err() != nil || r.broken != nil {
		return false
	}
	if len(r.marks) > 0 && r.sent >= r.marks[0].after {
		m := r.marks[0]
		r.marks = r.marks[1:]
		r.held = true
		for m.drain && r.open > 0 && ctx.Err() == nil {
			r.gate.Wait()
		}
		r.mu.Unlock()
		start := time.Now()
		err := m.do(ctx)
		took := time.Since(start)
		r.mu.Lock()
		if m.drain {
			r.paused += took
		}
		r.held = false
		r.broken = err
		r.gate.Broadcast()
		if err != nil {
			return false
		}
	}
	r.sent++
	r.open++
	return true
}

// leave counts a request that has ended.
func (r *run) leave(a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.gate.Broadcast()
	if err != nil {
		r.abandoned++
		return
	}
	r.firsts = append(r.firsts, a.first)
	r.prompt += a.prompt
	r.cached += a.cached
}

// spread has the mean and the quantiles of a distribution, in milliseconds.
type spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

func spreadOf(d []time.Duration) spread {
	if len(d) == 0 {
		return spread{}
	}
	d = slices.Sorted(slices.Values(d))
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	at := func(q float64) float64 { return ms(d[min(len(d)-1, int(q*float64(len(d))))]) }
	return spread{Mean: ms(sum / time.Duration(len(d))), P50: at(.5), P90: at(.9), P99: at(.99)}
}

func ms(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
