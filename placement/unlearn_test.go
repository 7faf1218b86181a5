package placement

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

func TestWhatWasNotSentIsUnlearned(t *testing.T) {
	x := newBlocks(Config{TTL: 100})
	a, b := prompt(1, 4, 10), prompt(2, 4, 10)
	x.Unlearn(0, a, x.Learn(0, a, 1))
	want(t, x, a, 1, nil)
	x.Learn(0, a[:6], 2)
	all := x.Learn(0, a, 3)
	other := x.Learn(0, b, 4)
	x.Unlearn(0, a, all)
	want(t, x, a, 4, map[fleet.Holder]int{0: 6})
	want(t, x, b, 4, map[fleet.Holder]int{0: 10})
	x.Unlearn(0, a[:6], other) // of another time
	x.Unlearn(0, b[:9], other) // it was used further
	x.Unlearn(1, b, other)     // by another holder
	want(t, x, a, 4, map[fleet.Holder]int{0: 6})
	want(t, x, b, 4, map[fleet.Holder]int{0: 10})
	x.Unlearn(0, b, other)
	want(t, x, b, 4, map[fleet.Holder]int{0: 4})
	x.Unlearn(0, b, x.Learn(0, b, 1)) // clocks of concurrent requests differ
	want(t, x, b, 4, map[fleet.Holder]int{0: 4})
	evict(x.Store, 102)
	want(t, x, a, 102, map[fleet.Holder]int{0: 4}) // with two overlapping unsent uses, the first counts for the blocks before
	evict(x.Store, 103)
	want(t, x, a, 103, nil)
}

func TestUnlearningLeavesWhatWasThereBefore(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 9))
		x := newBlocks(Config{TTL: 60})
		random := func() []block.Key {
			keys := prompt(r.IntN(8), r.IntN(3)*4, 4+r.IntN(20))
			return keys[:1+r.IntN(len(keys))]
		}
		matches := func(now int64) (all []map[fleet.Holder]int) {
			for i := range 24 {
				all = append(all, has(x, prompt(i%8, i/8*4, 24), now))
			}
			return all
		}
		now := int64(0)
		for range 500 {
			now++
			check(t, x.Store)
			h, keys := fleet.Holder(r.IntN(3)), random()
			switch before := has(x, keys, now)[h]; {
			case r.IntN(8) == 0:
				evict(x.Store, now)
			case r.IntN(2) == 0 && before < len(keys):
				held, known := matches(now), x.Stats().Units
				x.Unlearn(h, keys, x.Learn(h, keys, now))
				if d := cmp.Diff(held, matches(now)); d != "" || x.Stats().Units != known {
					t.Fatalf("seed %d at %d: %d blocks, were %d: %s", seed, now, x.Stats().Units, known, d)
				}
			default:
				x.Learn(h, keys, now)
			}
		}
		if evict(x.Store, now+60); x.Stats().Units != 0 {
			t.Errorf("seed %d: %d blocks never expire", seed, x.Stats().Units)
		}
	}
}
