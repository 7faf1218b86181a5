package sim

import (
	"math"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// together returns requests that arrive at the same time and have no common prefix.
func together(requests, input, output int) *workload.Workload {
	w := &workload.Workload{Name: "together"}
	for i := range requests {
		w.Requests = append(w.Requests, workload.Request{ID: i, Session: -1, After: -1, Input: input, Output: output,
			Segments: []workload.Segment{{ID: uint64(1 + i), Tokens: input}}})
	}
	return w
}

// An API server does one task after another. In each case four requests arrive at the same time, and a pass takes 1 ms.
func TestTheAPIServerServesOneAfterAnother(t *testing.T) {
	play := func(front Frontend, output int) (first, most, end float64) {
		r := run(t, config(together(4, 100, output), "round_robin", func(c *Config) {
			c.Groups[0].Count, c.Groups[0].Frontend = 1, front
			c.Groups[0].Profile.Timing = engine.Linear{Base: 1}
		}))
		return r.TTFT.Mean, r.TTFT.Max, r.E2E.Max
	}
	for _, c := range []struct {
		name             string
		front            Frontend
		output           int
		first, most, end float64
	}{
		{"none", Frontend{}, 1, 1, 1, 1},
		{"requests", Frontend{Request: 10 * time.Millisecond}, 1, 26, 41, 41},
		{"prompt tokens", Frontend{Token: 100 * time.Microsecond}, 1, 26, 41, 41},
		// All four requests are in one pass, and their tokens are sent one after the other.
		{"answers", Frontend{Output: 2 * time.Millisecond}, 1, 1 + (2.+4+6+8)/4, 9, 9},
		{"passes", Frontend{Pass: 3 * time.Millisecond}, 1, 4, 4, 4},
		// The API server needs 8 ms to send the first pass's tokens. The second pass's tokens wait for the end of this work.
		{"answers of two", Frontend{Output: 2 * time.Millisecond}, 2, 6, 9, 17},
		// If tokens take the API server no time, the work after an answer delays no token.
		{"ends", Frontend{End: 5 * time.Millisecond}, 1, 1, 1, 1},
	} {
		first, most, end := play(c.front, c.output)
		if math.Abs(first-c.first) > .01 || math.Abs(most-c.most) > .01 || math.Abs(end-c.end) > .01 {
			t.Errorf("%s: first token %.2f ms on average, at most %.2f, end %.2f; want %.2f, %.2f, %.2f", c.name, first, most, end, c.first, c.most, c.end)
		}
	}
}

// The API server shares the engine's core. If the API server works during a pass, the pass takes longer by the duration
// of this work, and the work itself takes 50 % longer.
func TestAnAPIServerOnTheSameCoreSlowsPasses(t *testing.T) {
	w := together(2, 100, 1)
	w.Requests[1].Arrival = 50 * time.Millisecond // during the first request's pass, which takes 100 ms
	play := func(shared bool) (p50, most float64) {
		r := run(t, config(w, "round_robin", func(c *Config) {
			c.Groups[0].Count, c.Groups[0].Frontend = 1, Frontend{Request: 10 * time.Millisecond, Shared: shared}
			c.Groups[0].Profile.Timing = engine.Linear{Base: 100}
		}))
		return r.TTFT.P50, r.TTFT.Max
	}
	// With separate cores the first request takes 10 ms in the API server and 100 ms in its pass. The second request waits
	// 60 ms for the end of this pass, then its own pass takes 100 ms. With a shared core the first pass takes 110 ms.
	if first, second := play(false); math.Abs(first-110) > 1 || math.Abs(second-160) > 1 {
		t.Errorf("apart: %.1f and %.1f ms, want 110 and 160", first, second)
	}
	if first, second := play(true); math.Abs(first-120) > 1 || math.Abs(second-170) > 1 {
		t.Errorf("shared: %.1f and %.1f ms, want 120 and 170", first, second)
	}
}

// Two ranks and their API server have two cores. While both ranks make passes, the API server uses one core, and each
// rank loses half of the API server's working time.
func TestAnAPIServerOfTwoRanksHasACore(t *testing.T) {
	w := together(3, 100, 1)
	w.Requests[2].Arrival = 50 * time.Millisecond
	r := run(t, config(w, "round_robin", func(c *Config) {
		c.Groups[0].Count, c.Groups[0].Ranks, c.Groups[0].Declared = 1, 2, 2
		c.Groups[0].Frontend = Frontend{Request: 10 * time.Millisecond, Shared: true}
		c.Groups[0].Profile.Timing = engine.Linear{Base: 100}
	}))
	// The two ranks' passes begin after 10 ms and 20 ms, and take 105 ms each. The third request arrives at 50 ms, waits
	// until the first pass ends at 115 ms, and has a pass of 100 ms.
	if math.Abs(r.TTFT.P50-125) > 1 || math.Abs(r.TTFT.Max-165) > 1 {
		t.Errorf("%.1f and %.1f ms, want 125 and 165", r.TTFT.P50, r.TTFT.Max)
	}
}

// Ranks share one API server, and the work after an answer delays the next request.
func TestRanksShareAnAPIServer(t *testing.T) {
	play := func(front Frontend) (first float64) {
		w := together(4, 100, 1)
		for i := range 2 {
			w.Requests[2+i].Arrival = 12 * time.Millisecond // the first two answers have ended at this time
		}
		r := run(t, config(w, "round_robin", func(c *Config) {
			c.Groups[0].Count, c.Groups[0].Ranks, c.Groups[0].Declared, c.Groups[0].Frontend = 1, 2, 2, front
			c.Groups[0].Profile.Timing = engine.Linear{Base: 1}
		}))
		return r.TTFT.Max
	}
	// Two requests arrive at the same time. The API server needs 5 ms for each, so the second request is ready after 10
	// ms. Its pass takes 1 ms.
	if got := play(Frontend{Request: 5 * time.Millisecond}); math.Abs(got-11) > .01 {
		t.Errorf("%.2f ms, want 11", got)
	}
	// The first two answers end at 6 ms and 11 ms. The work after these answers occupies the API server until 50 ms. Two
	// further requests arrive at 12 ms: the API server is done with them at 60 ms, and the last pass ends at 61 ms.
	if got := play(Frontend{Request: 5 * time.Millisecond, End: 20 * time.Millisecond}); math.Abs(got-49) > .01 {
		t.Errorf("%.2f ms, want 49", got)
	}
}

// A client sends its next request when the answer to the last request has arrived at the client.
func TestAClientWaitsForTheWayBack(t *testing.T) {
	w := together(3, 100, 1)
	for i := range 2 {
		w.Requests[i+1].After, w.Requests[i+1].Arrival = i, 0
	}
	r := run(t, config(w, "round_robin", func(c *Config) {
		c.Groups[0].Count, c.Hop = 1, 10*time.Millisecond
		c.Groups[0].Profile.Timing = engine.Linear{Base: 1}
	}))
	if want := 3 * .021; math.Abs(r.Seconds-want) > .0005 {
		t.Errorf("three requests after each other took %.4f s, want %.4f", r.Seconds, want)
	}
}
