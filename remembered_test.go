package warmpath_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// In a large fleet, a policy that estimates matches from earlier requests looks at only a few candidates. The holder to
// which the longest beginning of the prompt was sent must be one of these candidates.
func TestWhatWasSentIsFoundInALargeFleet(t *testing.T) {
	for _, name := range []string{"cache_aware", "prefix_cache_affinity", "vllm_cache_aware"} {
		t.Run(name, func(t *testing.T) {
			w := large(t, 500, warmpath.Options{})
			// All workers got the first 160 tokens of the prompt. Every hundredth worker got more tokens, and worker 477 the
			// most.
			for h := range 500 {
				n := 160
				if h%100 == 77 {
					n = 320 + h/100*16
				}
				d := w.route(warmpath.Request{Tokens: prompt(1, n), Policy: name, Target: w.fleet.Snapshot().Workers()[h].URL})
				d.Done(fleet.OutcomeServed, 1)
				d.Recycle()
			}
			for random := range uint64(20) {
				d := w.explain(warmpath.Request{Tokens: prompt(1, 800), Policy: name, Random: random})
				if d.Holder != 477 || d.Branch != policy.BranchAffinity || d.Passed > 100 {
					t.Fatalf("%d candidates, %s", d.Passed, d)
				}
			}
			if d := w.explain(warmpath.Request{Tokens: prompt(1, 800), Policy: name, Exclude: []fleet.WorkerID{477}}); d.Holder != 377 || d.Branch != policy.BranchFallback {
				t.Errorf("%s", d)
			}
			w.router.Forget(477)
			if d := w.explain(warmpath.Request{Tokens: prompt(1, 800), Policy: name}); d.Holder != 377 || d.Branch != policy.BranchAffinity {
				t.Errorf("%s", d)
			}
		})
	}
}

// BenchmarkFleetsThatRemember measures a decision, its reservation of load and its end. Each prompt has 1,024 tokens.
// There are 256 different prompts.
func BenchmarkFleetsThatRemember(b *testing.B) {
	for _, name := range []string{"cache_aware", "prefix_cache_affinity", "vllm_cache_aware"} {
		for _, n := range []int{8, 64, 4096} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				w := large(b, n, warmpath.Options{})
				ctx := context.Background()
				var prompts [256][]block.Token
				for i := range prompts {
					prompts[i] = prompt(i, 1024)
				}
				req := request(warmpath.Request{Policy: name})
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					req.Now += 1000
					req.Random += 0x9e3779b97f4a7c15
					req.Tokens = prompts[i%len(prompts)]
					i++
					d, err := w.router.Route(ctx, req)
					if err != nil {
						b.Fatal(err)
					}
					d.Done(fleet.OutcomeServed, req.Now)
					d.Recycle()
				}
			})
		}
	}
}
