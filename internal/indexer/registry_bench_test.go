package indexer

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// BenchmarkRegister registers workers with four ranks each for the first time, one by one and as many at once as a
// router registers, and again. It also ends their leases together. The figures are in bench/results/scale.md.
func BenchmarkRegister(b *testing.B) {
	for _, workers := range []int{1000, 10000} {
		all := make([]*registration, workers)
		for i := range all {
			all[i] = &registration{worker: fmt.Sprintf("http://worker-%d:8000", i), models: []fleet.Model{{ID: "m"}}, ranks: 4, lease: time.Hour}
			for rank := range 4 {
				all[i].sources = append(all[i].sources, fleet.EventSource{Rank: rank, Endpoint: fmt.Sprintf("tcp://worker-%d:%d", i, 5557+rank)})
			}
		}
		register := func(g *registry) {
			for _, r := range all {
				if _, err := g.register(r, time.Now()); err != nil {
					b.Fatal(err)
				}
			}
		}
		w := serve(b, Config{}, nil)
		fresh := func() *registry {
			g := New(Config{}, w.service.Parts).registry
			g.fleet = fleet.New(fleet.Config{})
			return g
		}
		b.Run(fmt.Sprintf("first/workers=%d", workers), func(b *testing.B) {
			for b.Loop() {
				register(fresh())
			}
		})
		b.Run(fmt.Sprintf("first, %d at once/workers=%d", registerAtOnce, workers), func(b *testing.B) {
			for b.Loop() {
				g := fresh()
				var callers sync.WaitGroup
				for i := range registerAtOnce {
					callers.Go(func() {
						for at := i; at < workers; at += registerAtOnce {
							if _, err := g.register(all[at], time.Now()); err != nil {
								b.Error(err)
							}
						}
					})
				}
				callers.Wait()
				b.ReportMetric(float64(g.fleet.Snapshot().Generation()), "snapshots")
				start := time.Now()
				g.expire(start.Add(2 * time.Hour))
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/expire")
			}
		})
		b.Run(fmt.Sprintf("again/workers=%d", workers), func(b *testing.B) {
			g := w.service.registry
			register(g)
			for b.Loop() {
				register(g)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*workers), "µs/worker")
		})
	}
}
