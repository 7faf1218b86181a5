package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// Evicting does the same as [Truth] with a full index. Another holder announces so many blocks that the index must
// evict blocks of the engines again and again. So the index may claim fewer blocks than an engine has, but never more.
// The index's memory must stay within the budget. This test does not use the naive reference, because the reference
// evicts nothing.
func Evicting(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runTruth(make, r, effort.Steps, true) })
}

const (
	fillHolder  = 99
	fillBlocks  = 400 // the number of engine blocks, of one token each, in each text of fill
	leastBudget = 1 << 20
	// patience is the number of texts that must be enough for the evictions of one call of fill. The largest blocks of
	// the index have 8 tokens, so a text has at least 50 of them. If each text evicts as many blocks as it has, 240
	// texts are enough.
	patience = 600
)

// fill announces texts for the holder fillHolder until the index has evicted a random number of blocks.
func fill(d *Door, r *rand.Rand) error {
	stored := 0
	for until := d.Stats().Evictions + int64(r.IntN(12_000)); d.Stats().Evictions < until; stored++ {
		if stored == patience {
			return fmt.Errorf("%d texts of %d blocks were announced, and %d blocks to evict are left", stored, fillBlocks, until-d.Stats().Evictions)
		}
		s := kvindex.Stored{BlockSize: 1, Scope: block.Scope{Salt: "fill"}}
		for range fillBlocks {
			s.Hashes = append(s.Hashes, r.Uint64())
			s.Tokens = append(s.Tokens, r.Uint32())
		}
		d.Store(fillHolder, &s)
	}
	return nil
}
