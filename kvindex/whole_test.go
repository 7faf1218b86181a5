package kvindex_test

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

func TestAHolderIsWholeWhileNothingOfItIsLost(t *testing.T) {
	lose := map[string]func(x *kvindex.Index){
		"evicted": func(x *kvindex.Index) {
			for i := 0; x.Stats().Evictions == 0; i++ {
				announce(x, 0, seq(1_000_000+i*16_000, 1600), 20)
			}
		},
		"dropped while it waited": func(x *kvindex.Index) {
			for i := range 100 {
				x.Store(0, &kvindex.Stored{Hashes: []uint64{uint64(i) + 10_000}, Tokens: seq(i, 16), BlockSize: 16, HasParent: true, Parent: uint64(i) + 20_000})
			}
		},
		"refused": func(x *kvindex.Index) {
			x.Store(0, &kvindex.Stored{Hashes: []uint64{5}, Tokens: seq(0, 16), BlockSize: 16, HasParent: true, Parent: 5})
		},
	}
	for name, lose := range lose {
		t.Run(name, func(t *testing.T) {
			h, _ := block.NewHasher(block.XXH3, 16)
			x := kvindex.New(h, kvindex.Config{Bytes: 1 << 20, MaxWaiting: 50})
			whole := func(id fleet.Holder) bool {
				t.Helper()
				s, ok := x.Holder(id)
				if !ok {
					t.Fatal("the holder is not known")
				}
				return s.Whole
			}
			announce(x, 0, seq(0, 64), 4)
			announce(x, 1, seq(0, 64), 4)
			if !whole(0) {
				t.Fatal("nothing was lost")
			}
			lose(x)
			if whole(0) {
				t.Fatal("it lost something")
			}
			if s, _ := x.Holder(0); (name == "refused") != (s.Refused == 1) {
				t.Errorf("%d refused", s.Refused)
			}
			x.Clear(0, block.TierCPU)
			if whole(0) {
				t.Error("what was lost was on another tier than the one that was cleared")
			}
			x.Clear(0, block.TierGPU)
			if !whole(0) {
				t.Error("what was lost was on the tier that was cleared")
			}
			lose(x)
			x.Forget(0)
			announce(x, 0, seq(0, 64), 4)
			if s, _ := x.Holder(0); !s.Whole || s.Refused != 0 {
				t.Errorf("after it was forgotten: whole %v, %d refused", s.Whole, s.Refused)
			}
		})
	}
}

// Events of the CPU tier leave out the scope of a chain, and some leave out the tokens. So only chains of the GPU tier
// say to which place the CPU tier's blocks belong. If the index lost such a chain, a reset of the GPU tier must not
// hide the loss.
func TestALossOutlastsAResetWhileBlocksOfAnotherTierWaitForWhatWasLost(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{Bytes: 1 << 20})
	announce(x, 0, seq(0, 64), 4)
	for i := 0; x.Stats().Evictions < 1000; i++ { // the index evicts the oldest blocks first
		announce(x, 0, seq(1_000_000+i*16_000, 1600), 20)
	}
	// The engine offloads the first block. The index has evicted this block, so it does not know the block's place.
	x.Store(0, &kvindex.Stored{Tier: block.TierCPU, Hashes: []uint64{12345}, Tokens: seq(0, 16), BlockSize: 16, RootUnknown: true})
	x.Clear(0, block.TierGPU)
	if s, _ := x.Holder(0); s.Waiting != 1 || s.Whole {
		t.Errorf("%d blocks wait, whole %v: want a block that waits in a holder that is not whole", s.Waiting, s.Whole)
	}
	x.Clear(0, block.TierCPU)
	if s, _ := x.Holder(0); s.Waiting != 0 || !s.Whole {
		t.Errorf("after both tiers were cleared %d blocks wait, whole %v", s.Waiting, s.Whole)
	}
}
