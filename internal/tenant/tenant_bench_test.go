package tenant

import (
	"fmt"
	"runtime"
	"testing"
)

// BenchmarkRequest measures all that a request of a tenant asks of this package.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("tenants=%d", n), func(b *testing.B) {
			r := registry(many(n)...)
			keys := make([]string, min(n, 1000))
			for i := range keys {
				keys[i] = fmt.Sprintf("key-%d", i*(n/len(keys)))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				t := r.ByKey(keys[i%len(keys)])
				now := second(float64(i) / 1e3)
				if t.Enter(now) != nil || !t.Allows("model") || t.Spend(100, now) != nil {
					b.Fatal("refused")
				}
				t.Settle(100, 90, 10)
				t.Leave()
				i++
			}
		})
	}
}

// BenchmarkUse measures a reload of 100,000 tenants, and the memory that they take before their first request.
func BenchmarkUse(b *testing.B) {
	list := many(100_000)
	r := NewRegistry()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r.Use(list, nil)
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
		r.Use(list, nil)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(list)), "B/tenant")
}
