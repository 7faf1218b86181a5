package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// Evicting does the same as [Truth] with an index at its budget. Because of another holder's blocks, the index must
// evict blocks of the engines again and again. The engines do not know this. So the index may claim fewer blocks than
// an engine has, but never more, and its bytes must stay within the budget. This test does not use the naive reference,
// because the reference evicts nothing.
func Evicting(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runTruth(make, r, effort.Steps, true) })
}

const (
	fillHolder  = 99
	fillBlocks  = 400 // number of blocks in each text of fill
	leastBudget = 1 << 20
	// patience is the number of texts that must be enough for the evictions of one call of fill. It is twice the number
	// that is needed if each text evicts as many blocks as it has.
	patience = 600
)

// fill announces texts of a holder of its own until the index has evicted some blocks.
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
