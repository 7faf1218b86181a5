package warmpath_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// warm returns a world of n workers of which each third has a part of an 8,000-token prompt, and the request for it.
func warm(t testing.TB, n int) (*world, *warmpath.Request) {
	workers := make([]fleet.Facts, n)
	for i := range workers {
		workers[i] = vllm()
	}
	w := newWorld(t, warmpath.Options{}, workers...)
	p := prompt(1, 8000)
	for h := 0; h < n; h += 3 {
		w.store(fleet.Holder(h), p[:4000+16*(h%100)], kvindex.Stored{})
	}
	return w, request(warmpath.Request{Tokens: p})
}

func TestRouteDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	w, req := warm(t, 16)
	ctx := context.Background()
	once := func() {
		req.Now += 1000
		req.Random++
		d, err := w.router.Route(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		d.FirstToken(req.Now)
		d.Done(fleet.OutcomeServed, req.Now)
		d.Recycle()
	}
	for range 100 {
		once()
	}
	if allocs := testing.AllocsPerRun(1000, once); allocs >= 0.5 { // a collection may empty the pool
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{8, 64, 1024} {
		b.Run(fmt.Sprintf("%d workers, 500 blocks", n), func(b *testing.B) {
			w, req := warm(b, n)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				req.Now += 1000
				req.Random++
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
