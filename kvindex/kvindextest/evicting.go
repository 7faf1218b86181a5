package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// Evicting is [Truth] at the budget: another holder's blocks push out what the engines announced, again and again,
// and the engines go on without knowing. The index may then claim less than they have, and still never more; its
// bytes stay within the budget. The naive reference cannot be compared: it evicts nothing.
func Evicting(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runTruth(make, r, effort.Steps, true) })
}

const (
	fillHolder  = 99
	fillBlocks  = 400 // of each of the texts that push others out
	leastBudget = 1 << 20
	// patience is the number of texts that must be enough for the evictions: twice as many as when each evicts as many
	// blocks as it has.
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
