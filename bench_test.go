package warmpath_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// warm returns a world (a router with its fleet) of n workers, and a request with a prompt of 8,000 tokens. Every third
// worker has cached a part of the prompt.
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
	if testenv.Race() {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	for _, n := range []int{8, 64, 1024} {
		t.Run(fmt.Sprintf("%d workers", n), func(t *testing.T) { routeDoesNotAllocate(t, n) })
	}
}

func routeDoesNotAllocate(t *testing.T, n int) {
	w, req := warm(t, n)
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
	if allocs := testing.AllocsPerRun(1000, once); allocs >= 0.5 { // a rare allocation is allowed: a garbage collection may empty the pool
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

// BenchmarkFleets measures one decision and the release of its load, in small and large fleets. There are three cases:
// 16 holders have a part of the prompt; all holders have the beginning of the prompt; the request has no tokens, so the
// index is not used.
func BenchmarkFleets(b *testing.B) {
	p := prompt(1, 1024)
	for _, n := range []int{8, 64, 1024, 4096} {
		workers := make([]fleet.Facts, n)
		for i := range workers {
			workers[i] = vllm()
		}
		for _, c := range []struct {
			name    string
			holders int
			req     warmpath.Request
		}{
			{"16 holders", 16, warmpath.Request{Tokens: p}},
			{"all holders", n, warmpath.Request{Tokens: p}},
			{"no tokens", 0, warmpath.Request{PromptBytes: 4000}},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				w := newWorld(b, warmpath.Options{}, workers...)
				for h := range min(c.holders, n) {
					w.store(fleet.Holder(h), p[:512+16*(h%16)], kvindex.Stored{})
				}
				req, ctx := request(c.req), context.Background()
				b.ReportAllocs()
				for b.Loop() {
					req.Now += 1000
					req.Random += 0x9e3779b97f4a7c15
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

// BenchmarkRouteBesideEvents measures the time of a decision while events change the index. Prompts have 500 blocks,
// and the first half of them is in the index. In the case room the index has free memory; in the cases full it is at
// its limit. Without flood, only the blocks of the routed requests are stored. With flood, another goroutine also
// stores blocks without pause. With clash, different holders use the same engine hashes for different blocks.
func BenchmarkRouteBesideEvents(b *testing.B) {
	for _, c := range []struct {
		name         string
		bytes        int64
		flood, clash bool
	}{{"room", 1 << 30, false, false}, {"full", 64 << 20, false, false}, {"full, flood", 64 << 20, true, false}, {"full, flood of hashes that clash", 64 << 20, true, true}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, warmpath.Options{Index: kvindex.Config{Bytes: c.bytes}}, vllm(), vllm(), vllm(), vllm())
			for h := range fleet.Holder(4) {
				if !c.clash {
					w.hashes[h] = uint64(h) << 32
				}
			}
			text := 0
			event := func() {
				text++
				w.store(fleet.Holder(text%4), prompt(text, 8000), kvindex.Stored{})
			}
			for range 5000 {
				event()
			}
			last := text
			var wg sync.WaitGroup
			stop := make(chan struct{})
			if c.flood {
				wg.Go(func() { // this goroutine ends when stop is closed
					for {
						select {
						case <-stop:
							return
						default:
							event()
						}
					}
				})
			}
			var times []time.Duration
			var req warmpath.Request
			ctx := context.Background()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				tokens := append(prompt(last-i%64, 4000), prompt(1<<20+i, 4000)...)
				req = *request(warmpath.Request{Tokens: tokens, Now: int64(i+1) * int64(10*time.Millisecond), Random: uint64(i)})
				b.StartTimer()
				began := time.Now()
				d, err := w.router.Route(ctx, &req)
				times = append(times, time.Since(began))
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if !c.flood {
					w.store(d.Holder, tokens, kvindex.Stored{})
				}
				d.Done(fleet.OutcomeServed, req.Now)
				d.Recycle()
				b.StartTimer()
			}
			b.StopTimer()
			close(stop)
			wg.Wait()
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
			b.ReportMetric(float64(times[len(times)-1]), "max-ns")
		})
	}
}
