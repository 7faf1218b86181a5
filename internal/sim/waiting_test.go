package sim

import (
	"context"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// mixedLengths returns requests that arrive faster than two workers can serve them. Every eighth prompt has 12,000
// tokens, and all other prompts have 500 tokens.
func mixedLengths(requests int) *workload.Workload {
	w := &workload.Workload{Name: "unlike", Block: 64}
	for i := range requests {
		n := 500
		if i%8 == 0 {
			n = 12_000
		}
		w.Requests = append(w.Requests, workload.Request{
			ID: i, Arrival: time.Duration(i) * 40 * time.Millisecond, Session: -1, After: -1, Input: n, Output: 20,
			Segments: []workload.Segment{{ID: uint64(1 + i), Tokens: n}},
		})
	}
	return w
}

// On a saturated fleet, the order shortest shortens the wait of most requests. A second of waiting counts as 500 tokens
// less, so no prompt waits more than 23 s longer than the longest wait with fcfs.
func TestTheOrderOfTheRouterQueueMatters(t *testing.T) {
	in := func(order string) *report.Run {
		return run(t, config(mixedLengths(600), "least_load", func(c *Config) {
			c.Groups[0].Count, c.MaxRequests, c.Queue, c.QueueOrder = 2, 4, 1000, order
		}))
	}
	fcfs, shortest := in("fcfs"), in("shortest")
	t.Logf("TTFT, ms: fcfs mean %.0f, p50 %.0f, max %.0f; shortest mean %.0f, p50 %.0f, max %.0f",
		fcfs.TTFT.Mean, fcfs.TTFT.P50, fcfs.TTFT.Max, shortest.TTFT.Mean, shortest.TTFT.P50, shortest.TTFT.Max)
	if fcfs.Requests.Answered != 600 || shortest.Requests.Answered != 600 {
		t.Fatalf("answered %d and %d of 600", fcfs.Requests.Answered, shortest.Requests.Answered)
	}
	if shortest.TTFT.P50 > .7*fcfs.TTFT.P50 || shortest.TTFT.Mean > .9*fcfs.TTFT.Mean {
		t.Errorf("shortest first has a median time to first token of %.0f ms and a mean of %.0f; first come first served %.0f and %.0f",
			shortest.TTFT.P50, shortest.TTFT.Mean, fcfs.TTFT.P50, fcfs.TTFT.Mean)
	}
	if most := fcfs.TTFT.Max + 1000*(12_000-500)/500; shortest.TTFT.Max > most {
		t.Errorf("somebody waited %.0f ms, with ageing at most %.0f", shortest.TTFT.Max, most)
	}
}

// Waiting requests are sent as soon as a worker has room, for any reason. If a request stayed in the queue after the
// last answer, the run would never end.
func TestHeldRequestsNeverWaitForever(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"an engine refuses a prompt": func(c *Config) {
			c.Workload.Requests[0].Input = 64_000
			c.Workload.Requests[0].Segments[0].Tokens = 64_000
			c.Hop = time.Second // the refused request occupies the worker until it arrives at the engine
		},
		"all workers die":      func(c *Config) { c.Faults = []Fault{{At: time.Second}} },
		"a worker comes back":  func(c *Config) { c.Faults = []Fault{{At: time.Second, Down: time.Minute}} },
		"another router's end": func(c *Config) { c.Routers = 2 },
		"prompts are handed over": func(c *Config) {
			decode := c.Groups[0]
			c.Groups[0].Role, decode.Role, decode.Count = fleet.RolePrefill, fleet.RoleDecode, 8
			c.Groups = append(c.Groups, decode)
			c.Disaggregation = &Disaggregation{Legs: warmpath.Legs{Mode: policy.ModeAlways}}
		},
	} {
		c := config(mixedLengths(8), "least_load", func(c *Config) { c.Groups[0].Count, c.MaxRequests, c.Queue = 1, 1, 1000 })
		change(&c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		r, err := Run(ctx, c, nil)
		cancel()
		if err != nil || r.Stopped || r.Requests.Sent != r.Requests.Answered+r.Requests.Failed+r.Requests.Rejected {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// The order shortest compares prompts by their uncached tokens at the worker with the longest match.
func TestTheRouterQueueCountsUncachedTokens(t *testing.T) {
	c := config(families(3, 60, 200*time.Millisecond), "kv_aware", nil)
	w, err := newWorld(c)
	if err != nil {
		t.Fatal(err)
	}
	known, unknown := w.newFlight(59), w.newFlight(59)
	if n := w.uncached(unknown, w.prepare(unknown)); n != 2304 {
		t.Errorf("with empty caches %d tokens are uncached, want all 2304", n)
	}
	w.play(context.Background(), nil)
	w.now += time.Minute // a minute later the router no longer expects unconfirmed blocks
	if n := w.uncached(known, w.prepare(known)); n > 256+64 {
		t.Errorf("%d tokens of a prompt whose prefix is cached are uncached, want 256 or a block more", n)
	}
}
