package sim

import "testing"

// Two workers of one rank each stand beside one of many ranks. If one device serves all of those, the worker gets less
// than a third of the requests, by policies that measure workers and by policies that only count; each rank of its own
// device gets as much as the others.
func TestRanksDoNotMultiplyAWorkersShareUnlessTheyServe(t *testing.T) {
	const requests = 600
	for _, p := range []string{"marginal", "least_load"} {
		share := func(ranks int, speed float64) (float64, float64) {
			r := run(t, config(families(40, requests, 1e6), p, func(c *Config) {
				good := c.Groups[0]
				good.KVTokens = 64 * 4000
				many := good
				good.Count, many.Count = 2, 1
				many.Ranks, many.Speed = ranks, speed
				c.Groups = []Group{good, many}
				c.InFlight = 48
			}))
			n := 0
			for _, w := range r.Workers[2:] {
				n += w.Requests
			}
			return float64(n) / requests, r.Seconds
		}
		_, alone := share(1, 1)
		if got, took := share(64, 1./64); got > 1./3 {
			t.Errorf("%s: a device that numbers 64 ranks gets %.0f %% of the requests, which take %.0f s, and %.0f s with one rank", p, 100*got, took, alone)
		}
		if got, _ := share(16, 1); got < 0.8 {
			t.Errorf("%s: 16 devices of 18 get %.0f %% of the requests", p, 100*got)
		}
	}
}
