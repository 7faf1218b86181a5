package fleet_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// BenchmarkBurst measures a change of one of 1,000 workers while 100 goroutines change workers, as when a router
// starts.
func BenchmarkBurst(b *testing.B) {
	f := fleet.New(fleet.Config{})
	for i := range 1000 {
		f.Put(fmt.Sprintf("http://w%d", i), fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
	}
	var next atomic.Int64
	before := f.Snapshot().Generation()
	b.SetParallelism(50)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			i := next.Add(1)
			f.SetDraining(fleet.WorkerID(i%1000), i/1000%2 == 0)
		}
	})
	b.ReportMetric(float64(f.Snapshot().Generation()-before)/float64(b.N), "snapshots/op")
}
