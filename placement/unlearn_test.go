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
	x.Unlearn(0, a[:6], other) // no effect: Learn returned other for another use
	x.Unlearn(0, b[:9], other) // no effect: that use of b was longer than 9 blocks
	x.Unlearn(1, b, other)     // no effect: that use of b was at holder 0
	want(t, x, a, 4, map[fleet.Holder]int{0: 6})
	want(t, x, b, 4, map[fleet.Holder]int{0: 10})
	x.Unlearn(0, b, other)
	want(t, x, b, 4, map[fleet.Holder]int{0: 4})
	x.Unlearn(0, b, x.Learn(0, b, 1)) // time 1 is earlier than the last use: clocks of concurrent requests differ
	want(t, x, b, 4, map[fleet.Holder]int{0: 4})
	evict(x.Store, 102)
	want(t, x, a, 102, map[fleet.Holder]int{0: 4}) // the uses at times 3 and 4 are unlearned, but time 3 counts for the shared blocks
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
				held := matches(now)
				if r.IntN(2) == 0 {
					evict(x.Store, now) // drops blocks whose TTL has ended, which Learn would do otherwise
				}
				known := x.Stats().Units
				x.Unlearn(h, keys, x.Learn(h, keys, now))
				if d := cmp.Diff(held, matches(now)); d != "" || x.Stats().Units > known {
					t.Fatalf("seed %d at %d: %d blocks, were %d: %s", seed, now, x.Stats().Units, known, d)
				}
			default:
				x.Learn(h, keys, now)
			}
		}
		if evict(x.Store, now+70); x.Stats().Units != 0 { // the stamps of uses at the same time differ by a nanosecond each
			t.Errorf("seed %d: %d blocks never expire", seed, x.Stats().Units)
		}
	}
}

// The store keeps the uses of each holder in the order of their times. Unlearn must keep this order: if no more
// requests are sent to the holder, no later call repairs it, and blocks would never expire.
func TestRequestsOfOneMomentAreUnlearnedInOrder(t *testing.T) {
	t.Run("two", func(t *testing.T) {
		x := newBlocks(Config{TTL: 100})
		a, b, z := block.Key(1), block.Key(2), block.Key(3)
		x.Learn(0, []block.Key{a, z}, 1)
		x.Learn(0, []block.Key{a, b}, 2)
		x.Unlearn(0, []block.Key{a, b}, x.Learn(0, []block.Key{a, b}, 2))
		x.Forget(0)
		check(t, x.Store)
	})
	t.Run("any", func(t *testing.T) {
		type sent struct {
			h    fleet.Holder
			keys []block.Key
			r    Receipt
		}
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 11))
			x := newBlocks(Config{TTL: 60})
			var under []sent // requests under way: some of them will be unlearned as not sent
			for range 300 {
				keys := prompt(r.IntN(3), r.IntN(2)*2, 2+r.IntN(6))
				keys, h, now := keys[:1+r.IntN(len(keys))], fleet.Holder(r.IntN(2)), int64(r.IntN(3))
				switch k := r.IntN(8); {
				case k < 4:
					under = append(under, sent{h, keys, x.Learn(h, keys, now)})
				case k < 7 && len(under) > 0:
					i := r.IntN(len(under))
					x.Unlearn(under[i].h, under[i].keys, under[i].r)
					under = append(under[:i], under[i+1:]...)
				case r.IntN(20) == 0:
					x.Forget(h)
				}
				check(t, x.Store)
			}
			x.Forget(0)
			if evict(x.Store, 1000); x.Stats().Units != 0 {
				t.Errorf("seed %d: %d blocks never expire", seed, x.Stats().Units)
			}
		}
	})
}
