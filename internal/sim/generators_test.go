package sim_test

import (
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// An engine rejects a request that exceeds the model's limit or its cache. So a generator with such requests would
// judge policies by the few that remain.
func TestTheDefaultsOfEveryGeneratorFitTheDefaultProfile(t *testing.T) {
	p := engine.Profiles()[0]
	longest := min(p.MaxModelLen, p.KVTokens)
	for _, g := range workload.Generators() {
		for seed := range 5 {
			w, err := workload.Load(fmt.Sprintf("gen:%s,seed=%d", g[0], seed), workload.Options{})
			if err != nil {
				t.Fatalf("%s: %v", g[0], err)
			}
			for i := range w.Requests {
				if r := &w.Requests[i]; r.Input+r.Output > longest {
					t.Errorf("%s, seed %d: request %d has %d prompt and %d output tokens, more than %d", g[0], seed, i, r.Input, r.Output, longest)
					break
				}
			}
		}
	}
}
