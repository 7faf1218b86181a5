package kvindex

import (
	"testing"

	"github.com/warmpath/warmpath/block"
)

// An exception is a fact that a claim cannot express (GLOSSARY.md). When the exception ends, its counted memory must be
// given back. Otherwise memory that nothing uses would fill the budget.
func TestExceptionsThatEndTakeNoMemory(t *testing.T) {
	tokens := make([]block.Token, 160)
	for i := range tokens {
		tokens[i] = block.Token(i)
	}
	hashes := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for name, end := range map[string]func(x *Index){
		"removed": func(x *Index) {
			for range 3 {
				x.Remove(0, block.TierGPU, 0, hashes)
				x.Remove(0, block.TierGPU, 0, []uint64{21, 22, 23, 24, 25, 31})
			}
		},
		"cleared":   func(x *Index) { x.Clear(0, block.TierGPU) },
		"forgotten": func(x *Index) { x.Forget(0) },
		"evicted": func(x *Index) {
			x.evict(nil, func(bool) bool { return x.blocks.held == 0 && x.pointed <= 1 })
			x.Remove(0, block.TierGPU, 0, []uint64{31})
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := seeded(t, 16, drawn)
			for range 3 {
				x.Store(0, &Stored{Hashes: hashes, Tokens: tokens, BlockSize: 16, Origin: OriginNew})
			}
			x.Store(0, &Stored{Hashes: []uint64{21, 22, 23, 24, 25}, Tokens: tokens[:120], BlockSize: 24, Origin: OriginNew})
			x.Store(0, &Stored{Hashes: []uint64{31}, Tokens: tokens[:16], BlockSize: 16, Parent: 99, HasParent: true})
			x.Store(1, &Stored{Hashes: hashes, Tokens: tokens, BlockSize: 16})
			if x.blocks.extraBytes == 0 {
				t.Fatal("there are no exceptions")
			}
			if end(x); x.blocks.extraBytes != 0 {
				t.Errorf("%d bytes are left", x.blocks.extraBytes)
			}
		})
	}
}

// A point records an engine's block that a claim cannot express. If an engine announces a smaller block under a hash
// that names a block already, the index adds a point beside the claim. Points after this block depend on the claim and
// not on that point. So an eviction may drop both points in any order.
func TestAPointBesideAClaimIsEvictedWithThePointsAfterIt(t *testing.T) {
	tokens := make([]block.Token, 24)
	x := seeded(t, 16, drawn)
	x.Store(0, &Stored{Hashes: []uint64{1}, Tokens: tokens[:16], BlockSize: 16})
	x.Store(0, &Stored{Hashes: []uint64{2}, Tokens: tokens[16:], BlockSize: 8, Parent: 1, HasParent: true})
	x.Store(0, &Stored{Hashes: []uint64{1}, BlockSize: 8}) // the holder's block of hash 1 has 8 tokens now
	if x.pointed != 2 {
		t.Fatalf("%d points, want one beside the block and one after it", x.pointed)
	}
	if x.evict(nil, func(bool) bool { return x.blocks.held == 0 && x.pointed == 0 }); x.blocks.extraBytes != 0 {
		t.Errorf("%d bytes are left", x.blocks.extraBytes)
	}
}

// Dump lets other writers in between, and compares the holder's count of changes. Each removal of a copy counts as a
// change, so Dump does not return a copy that is gone.
func TestTheRemovalOfACopyIsAChange(t *testing.T) {
	x := seeded(t, 16, drawn)
	for range 3 {
		x.Store(0, &Stored{Hashes: []uint64{1}, Tokens: make([]block.Token, 16), BlockSize: 16, Origin: OriginNew})
	}
	for copies := 3; copies > 0; copies-- {
		before := x.holder(0).changes
		if x.Remove(0, block.TierGPU, 0, []uint64{1}); x.holder(0).changes == before {
			t.Errorf("the removal of one of %d copies is no change", copies)
		}
	}
}
