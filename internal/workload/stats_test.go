package workload

import (
	"math"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// Another program has computed the expected figures. It played the requests in the recorded order, so the test reads
// the trace with Options.Raw.
func TestStatsReproduceThePublishedPoints(t *testing.T) {
	for _, c := range []struct {
		file                     string
		requests, blocks, unique int
		span, inMean, in50, in95 float64
		outMean                  float64
		infinite                 Hit
		lru                      map[int]float64 // hit rate in percent, by cache size in tokens
	}{
		{
			"mooncake_conversation", 12031, 288500, 182790, 3537, 12035, 6909, 39552, 343, Hit{37.4, 39.8},
			map[int]float64{1e6: 5.5, 2e6: 8.7, 3e6: 13.9, 5.12e6: 21.6, 10.24e6: 29.4, 15.36e6: 33.2, 25.6e6: 36.2, 51.2e6: 37.1},
		},
		{"mooncake_toolagent_head1000", 1000, 19686, 12207, 177, 9792, 6559, 27662, 199, Hit{39.1, 46.7}, nil},
	} {
		t.Run(c.file, func(t *testing.T) {
			w, err := Load("mooncake:"+testenv.Path(t, "traces/"+c.file+".jsonl.gz"), Options{Raw: true})
			if err != nil {
				t.Fatal(err)
			}
			var o StatsOptions
			for tokens := range c.lru {
				o.Capacities = append(o.Capacities, tokens)
			}
			s := Measure(w, o)
			if s.Requests != c.requests || s.Blocks != c.blocks || s.Unique != c.unique {
				t.Errorf("%d requests, %d blocks, %d unique; want %d, %d, %d", s.Requests, s.Blocks, s.Unique, c.requests, c.blocks, c.unique)
			}
			near := func(what string, got, want, by float64) {
				t.Helper()
				if math.Abs(got-want) > by {
					t.Errorf("%s: %.3f, want %.1f", what, got, want)
				}
			}
			near("span", s.Span, c.span, 0.5)
			near("input mean", s.Input.Mean, c.inMean, 0.5)
			near("input p50", s.Input.P50, c.in50, 1)
			near("input p95", s.Input.P95, c.in95, 40)
			near("output mean", s.Output.Mean, c.outMean, 0.5)
			near("infinite hit", 100*s.Infinite.All, c.infinite.All, 0.1)
			near("infinite hit, second half", 100*s.Infinite.SecondHalf, c.infinite.SecondHalf, 0.1)
			for _, p := range s.Capacity {
				t.Logf("%d tokens: FIFO %.2f LRU %.2f optimal %.2f", p.Tokens, 100*p.FIFO.All, 100*p.LRU.All, 100*p.Optimal.All)
				near("LRU hit", 100*p.LRU.All, c.lru[p.Tokens], 0.1)
				if p.Optimal.All < p.LRU.All || p.Optimal.All > s.Infinite.All {
					t.Errorf("%d tokens: optimum %.4f, LRU %.4f, infinite %.4f", p.Tokens, p.Optimal.All, p.LRU.All, s.Infinite.All)
				}
			}
		})
	}
}
