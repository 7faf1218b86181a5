package kvindex_test

import (
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// announceAs stores a prompt; the caller gives the engine hashes of its blocks.
func announceAs(x *kvindex.Index, id fleet.Holder, prompt []block.Token, hashes []uint64) {
	x.Store(id, &kvindex.Stored{Hashes: hashes, Tokens: prompt, BlockSize: 16, Origin: kvindex.OriginNew})
}

// blocksOf returns how many leading blocks each of three holders has.
func blocksOf(x *kvindex.Index, h *block.Hasher, prompt []block.Token) (n [3]uint32) {
	for _, m := range x.Match(h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil), nil) {
		n[m.Holder] = m.Blocks
	}
	return n
}

func TestEngineHashesMeanSomethingWithinOneHolderOnly(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	a, b := seq(0, 64), seq(1000, 64)
	for _, order := range [][3]fleet.Holder{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		x := kvindex.New(h, kvindex.Config{})
		for _, id := range order {
			switch id {
			case 0:
				announceAs(x, id, a, []uint64{1, 2, 3, 4})
			case 1: // holder 1 gives the same blocks other hashes
				announceAs(x, id, a, []uint64{4, 3, 2, 1})
			case 2: // holder 2 gives other blocks the same hashes
				announceAs(x, id, b, []uint64{1, 2, 3, 4})
			}
		}
		for _, id := range []fleet.Holder{0, 1, 2} {
			x.Remove(id, block.TierGPU, 0, []uint64{4, 4})
		}
		if got, want := blocksOf(x, h, a), [3]uint32{3, 0, 0}; got != want {
			t.Errorf("%v: %v blocks of the first, want %v", order, got, want)
		}
		if got, want := blocksOf(x, h, b), [3]uint32{0, 0, 3}; got != want {
			t.Errorf("%v: %v blocks of the second, want %v", order, got, want)
		}
		for _, id := range order {
			x.Remove(id, block.TierGPU, 0, []uint64{3, 2, 1})
		}
		if s := x.Stats(); s.Memberships != 0 || s.Hashes != 0 || s.Blocks != 0 {
			t.Errorf("%v: left %+v", order, s)
		}
	}
}

func TestAHashTwiceInOneAnnouncementNamesItsLastBlock(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	announceAs(x, 0, seq(0, 64), []uint64{1, 2, 1, 3})
	if got := blocksOf(x, h, seq(0, 64)); got[0] != 0 {
		t.Errorf("%d blocks though the first lost its hash", got[0])
	}
	x.Remove(0, block.TierGPU, 0, []uint64{3, 1, 2})
	if s := x.Stats(); s.Memberships != 0 || s.Blocks != 0 {
		t.Errorf("left %+v", s)
	}
}

func TestANewSeedAfterARestartIsLearnedAnew(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	for seed := range uint64(5) {
		hashes := make([]uint64, 64)
		for i := range hashes {
			hashes[i] = seed<<32 | uint64(i+1)
		}
		announceAs(x, 0, seq(0, 64*16), hashes)
		if got := blocksOf(x, h, seq(0, 64*16)); got[0] != 64 {
			t.Fatalf("seed %d: %d blocks", seed, got[0])
		}
		if seed > 0 && x.Stats().Bytes > 1<<17 {
			t.Errorf("seed %d: %d bytes", seed, x.Stats().Bytes)
		}
		x.Forget(0)
	}
}

// Another holder has the same blocks under other hashes. So the blocks stay in the index, and new hashes can name them.
func TestABlockThatLostItsNameCanBeNamedAgain(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	prompt := seq(0, 64)
	announceAs(x, 0, prompt, []uint64{1, 2, 3, 4})
	newChain(prompt).learn(x, 1)
	x.Forget(0)
	announceAs(x, 0, prompt, []uint64{5, 6, 7, 8})
	if err := x.Dump(0, func(*kvindex.Held) error { return nil }); err != nil {
		t.Error(err) // Dump fails for a holder with exceptions, and holder 0 must have none
	}
	if got := blocksOf(x, h, prompt); got != [3]uint32{4, 4, 0} {
		t.Errorf("%v blocks", got)
	}
}

// If all engines have the same blocks under the same hashes, the index must store each hash only once. So a pair of a
// holder and a block takes little memory.
func TestEnginesThatHashAlikePayForHashesOnce(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	r := rand.New(rand.NewPCG(1, 2))
	for range 64 {
		prompt := random(r, 512*16)
		hashes := make([]uint64, 512)
		for i := range hashes {
			hashes[i] = r.Uint64()
		}
		for id := range fleet.Holder(16) {
			announceAs(x, id, prompt, hashes)
		}
	}
	s := x.Stats()
	if s.Memberships != 64*512*16 || s.Hashes != s.Memberships {
		t.Fatalf("%+v", s)
	}
	if each := float64(s.Bytes) / float64(s.Memberships); each > 6 {
		t.Errorf("%.1f bytes for each pair of holder and block, want at most 6", each)
	}
	// Forget of one holder leaves the blocks of the other holders.
	for id := range fleet.Holder(16) {
		if id%2 == 0 {
			x.Forget(id)
		}
	}
	if s := x.Stats(); s.Memberships != 64*512*8 || s.Hashes != s.Memberships || s.Blocks != 64*512 {
		t.Errorf("%+v", s)
	}
}
