package placement

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// BenchmarkLearnBlocks measures Learn for prompts of 512 blocks. Each of the 8 holders may have 20,000 blocks.
func BenchmarkLearnBlocks(b *testing.B) {
	for _, c := range []struct {
		name  string
		fresh int // number of a prompt's blocks that are new to the store
	}{{"known", 0}, {"turn", 16}, {"new", 448}} {
		b.Run(c.name, func(b *testing.B) {
			x := newBlocks(Config{HolderUnits: 20_000})
			prompts := make([][]block.Key, 256)
			for i := range prompts {
				prompts[i] = prompt(i%8*7, 64, 512)
				x.Learn(fleet.Holder(i%8), prompts[i], 0)
				if c.fresh > 0 {
					prompts[i] = prompt(1000+i*1000, 512-c.fresh, 512)
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				keys := prompts[i%256]
				for k := 512 - c.fresh; k < 512; k++ {
					keys[k] += 0x9e3779b97f4a7c15 // a key that the store has never seen
				}
				x.Learn(fleet.Holder(i%8), keys, int64(i))
				i++
			}
			b.ReportMetric(float64(b.N)*float64(max(c.fresh, 1))/b.Elapsed().Seconds()/1e6, "Mnew/s")
		})
	}
}

func BenchmarkMatchBlocks(b *testing.B) {
	x := newBlocks(tracked)
	for h := range fleet.Holder(8) {
		for i := range 100 {
			x.Learn(h, prompt(int(h)*100+i, 64, 512), 0)
		}
	}
	keys := prompt(305, 64, 512)
	dst := make([]kvindex.Match, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		dst = x.Match(keys, 0, dst[:0])
	}
}
