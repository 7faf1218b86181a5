package placement

import (
	"fmt"
	"testing"
)

func BenchmarkMatch(b *testing.B) {
	for _, holders := range []int{8, 64, 1024} {
		b.Run(fmt.Sprint(holders), func(b *testing.B) {
			tree, keys := conversations(holders, 2000)
			var m Matches
			b.SetBytes(int64(len(keys[0])))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				tree.Match(0, keys[i%len(keys)], &m)
				i++
			}
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	for _, holders := range []int{8, 1024} {
		b.Run(fmt.Sprintf("again/%d", holders), func(b *testing.B) {
			tree, keys := conversations(holders, 2000)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				tree.Insert(0, uint32(i%holders), keys[i%len(keys)])
				i++
			}
		})
	}
}
