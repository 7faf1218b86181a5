package sim

import (
	"math"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// together returns requests for one worker that arrive at the same time and have no common prefix.
func together(requests, input, output int) *workload.Workload {
	w := &workload.Workload{Name: "together"}
	for i := range requests {
		w.Requests = append(w.Requests, workload.Request{ID: i, Session: -1, After: -1, Input: input, Output: output,
			Segments: []workload.Segment{{ID: uint64(1 + i), Tokens: input}}})
	}
	return w
}

// An API server does one task after another. Here a pass takes 1 ms, a request 10 ms, and a token of an answer 2 ms.
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
		// The second pass takes 1 ms. The tokens of the first pass take 8 ms, and the tokens of the second pass follow
		// them.
		{"answers of two", Frontend{Output: 2 * time.Millisecond}, 2, 6, 9, 17},
		// The work after an answer delays only requests that arrive during this work.
		{"ends", Frontend{End: 5 * time.Millisecond}, 1, 1, 1, 1},
	} {
		first, most, end := play(c.front, c.output)
		if math.Abs(first-c.first) > .01 || math.Abs(most-c.most) > .01 || math.Abs(end-c.end) > .01 {
			t.Errorf("%s: first token %.2f ms on average, at most %.2f, end %.2f; want %.2f, %.2f, %.2f", c.name, first, most, end, c.first, c.most, c.end)
		}
	}
}

// The API server shares the engine's core. A pass takes longer by the time for which the API server works during it,
// and the API server's own work takes 50 % longer.
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
	// With separate cores the first request takes 10 + 100 ms; the second takes 60 ms for the rest of that pass, then
	// 100 ms. With a shared core the first pass takes 110 ms.
	if first, second := play(false); math.Abs(first-110) > 1 || math.Abs(second-160) > 1 {
		t.Errorf("apart: %.1f and %.1f ms, want 110 and 160", first, second)
	}
	if first, second := play(true); math.Abs(first-120) > 1 || math.Abs(second-170) > 1 {
		t.Errorf("shared: %.1f and %.1f ms, want 120 and 170", first, second)
	}
}

// Two ranks have two cores. While both ranks make passes, their API server has one core, and each rank loses half of
// that time.
func TestAnAPIServerOfTwoRanksHasACore(t *testing.T) {
	w := together(3, 100, 1)
	w.Requests[2].Arrival = 50 * time.Millisecond
	r := run(t, config(w, "round_robin", func(c *Config) {
		c.Groups[0].Count, c.Groups[0].Ranks, c.Groups[0].Declared = 1, 2, 2
		c.Groups[0].Frontend = Frontend{Request: 10 * time.Millisecond, Shared: true}
		c.Groups[0].Profile.Timing = engine.Linear{Base: 100}
	}))
	// The two passes begin after 10 and 20 ms and take 105 ms each. The third request waits for the end of the first
	// pass, and takes 100 ms.
	if math.Abs(r.TTFT.P50-125) > 1 || math.Abs(r.TTFT.Max-165) > 1 {
		t.Errorf("%.1f and %.1f ms, want 125 and 165", r.TTFT.P50, r.TTFT.Max)
	}
}

// Ranks share one API server, and the work after an answer delays the next request.
func TestRanksShareAnAPIServer(t *testing.T) {
	play := func(front Frontend) (first float64) {
		w := together(4, 100, 1)
		for i := range 2 {
			w.Requests[2+i].Arrival = 12 * time.Millisecond // at this time the first answers have ended
		}
		r := run(t, config(w, "round_robin", func(c *Config) {
			c.Groups[0].Count, c.Groups[0].Ranks, c.Groups[0].Declared, c.Groups[0].Frontend = 1, 2, 2, front
			c.Groups[0].Profile.Timing = engine.Linear{Base: 1}
		}))
		return r.TTFT.Max
	}
	// Two requests of 5 ms arrive at the same time: the second is ready after 10 ms, and then has its pass.
	if got := play(Frontend{Request: 5 * time.Millisecond}); math.Abs(got-11) > .01 {
		t.Errorf("%.2f ms, want 11", got)
	}
	// The first two answers end at 6 and 11 ms, and the work after them occupies the API server until 50 ms. The second
	// two requests take 10 ms more, and a pass.
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
