package placement

import (
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

func BenchmarkMatchText(b *testing.B) {
	for _, holders := range []int{8, 64, 1024} {
		b.Run(fmt.Sprint(holders), func(b *testing.B) {
			tree, keys := conversations(holders, 2000)
			var m Matches
			b.SetBytes(int64(len(keys[0])))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				tree.Match(0, keys[i%len(keys)], 0, &m)
				i++
			}
		})
	}
}

func BenchmarkLearnText(b *testing.B) {
	for _, holders := range []int{8, 1024} {
		b.Run(fmt.Sprintf("again/%d", holders), func(b *testing.B) {
			tree, keys := conversations(holders, 2000)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				tree.Learn(0, fleet.Holder(i%holders), keys[i%len(keys)], 0)
				i++
			}
		})
	}
}
