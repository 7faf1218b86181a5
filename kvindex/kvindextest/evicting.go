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
// bytes stay within the budget. The naive reference cannot tell: it would have to forget what the index forgot.
func Evicting(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runTruth(make, r, effort.Steps, true) })
}

const (
	crowdHolder = 99
	crowdBlocks = 400 // of each of the texts that push others out
	leastBudget = 1 << 20
	// patience is how many of these may come before the evictions are done: twice as many as needed when each pushes
	// others out, which it does not where useless things take up the room.
	patience = 600
)

// crowd announces texts that nobody asks for until some blocks were evicted.
func crowd(d *Door, r *rand.Rand) error {
	stored := 0
	for until := d.Stats().Evictions + int64(r.IntN(12_000)); d.Stats().Evictions < until; stored++ {
		if stored == patience {
			return fmt.Errorf("%d texts of %d blocks were announced, and %d blocks to evict are left", stored, crowdBlocks, until-d.Stats().Evictions)
		}
		s := kvindex.Stored{BlockSize: 1, Scope: block.Scope{Salt: "crowd"}}
		for range crowdBlocks {
			s.Hashes = append(s.Hashes, r.Uint64())
			s.Tokens = append(s.Tokens, r.Uint32())
		}
		d.Store(crowdHolder, &s)
	}
	return nil
}
