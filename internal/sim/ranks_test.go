package sim

import "testing"

// A fleet has two workers with one rank each, and a worker with many ranks. If these ranks are on one device, the load
// of the device is spread over them, so each rank looks idle and attracts requests. Therefore only the first eight
// ranks of a worker get requests, unless the operator declares more ranks.
func TestRanksDoNotMultiplyAWorkersShareUnlessTheOperatorDeclaresThem(t *testing.T) {
	const requests = 600
	for _, p := range []string{"marginal", "least_load"} {
		share := func(ranks, declared int, speed float64) float64 {
			r := run(t, config(families(40, requests, 1e6), p, func(c *Config) {
				good := c.Groups[0]
				good.KVTokens = 64 * 4000
				many := good
				good.Count, many.Count = 2, 1
				many.Ranks, many.Declared, many.Speed = ranks, declared, speed
				c.Groups = []Group{good, many}
				c.InFlight = 48
			}))
			n := 0
			for i, w := range r.Workers[2:] {
				n += w.Requests
				if i >= max(declared, 8) && w.Requests > 0 {
					t.Errorf("%s: rank %d gets %d requests, %d are declared", p, i, w.Requests, declared)
				}
			}
			t.Logf("%s: %d ranks, %d declared, speed %.3f: %.1f %% of the requests", p, ranks, declared, speed, 100*float64(n)/requests)
			return float64(n) / requests
		}
		if got := share(64, 0, 1./64); got > 1./8 {
			t.Errorf("%s: a device that numbers 64 ranks gets %.0f %% of the requests", p, 100*got)
		}
		if got := share(16, 0, 1); got < 0.7 {
			t.Errorf("%s: the first 8 devices of 16, beside 2, get %.0f %% of the requests", p, 100*got)
		}
		if got := share(16, 16, 1); got < 0.85 {
			t.Errorf("%s: 16 devices of 18 get %.0f %% of the requests", p, 100*got)
		}
	}
}
