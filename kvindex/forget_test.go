package kvindex_test

import (
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

func TestMemoryOfAForgottenHolderIsGivenBack(t *testing.T) {
	t.Run("a prompt that the other holder has", func(t *testing.T) { forgetAndStore(t, 0) })
	t.Run("a prompt of the forgotten holder", func(t *testing.T) { forgetAndStore(t, 1) })
}

// forgetAndStore forgets holder 0 of two holders. Then holder 1 announces the beginning of a prompt many times. The
// parameter is the number of this prompt: holder 1 has the prompts with even numbers.
func forgetAndStore(t *testing.T, prompt int) {
	x, h, prompts := fleetOf(t, 2, 200_000, 0, 512)
	before := x.Stats().Bytes
	x.Forget(0)
	if s := x.Stats(); s.Memberships != s.Blocks || len(s.Holders) != 1 {
		t.Fatalf("after the holder was forgotten: %+v", s)
	}
	for i, prompt := range prompts {
		keys := h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil)
		for _, m := range x.Match(keys, nil) {
			if m.Holder == 0 || i%2 == 1 {
				t.Fatalf("prompt %d matches %+v", i, m)
			}
		}
	}
	for range 512 {
		announce(x, 1, prompts[prompt][:16], 1)
	}
	if after := x.Stats().Bytes; after > before*2/3 {
		t.Errorf("%d bytes of two holders, %d after one was forgotten and much was stored again", before, after)
	}
}

func TestRoomOfAForgottenHolderIsUsedBeforeBlocksAreEvicted(t *testing.T) {
	hasher, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	x := kvindex.New(hasher, kvindex.Config{Bytes: 16 << 20})
	r := rand.New(rand.NewPCG(1, 2))
	for holder := fleet.Holder(0); x.Stats().Bytes < 13<<20; holder = 1 - holder {
		announce(x, holder, random(r, 512*16), 32)
	}
	had := x.Stats().Blocks
	x.Forget(0)
	for x.Stats().Blocks < had*7/8 {
		announce(x, 2, random(r, 512*16), 32)
	}
	if s := x.Stats(); s.Evictions > 0 {
		t.Errorf("%d blocks were evicted, of %d that had room before", s.Evictions, had)
	}
}

// Forget works in parts, and lets other writers in between two parts. An event of the same holder that comes between
// two parts counts for the new content of the holder, and never for the content that is being forgotten.
func TestAnEventWhileItsHolderIsForgottenCountsAfterIt(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	next := newChain(seq(0, 1600))
	for round := range 20 {
		for i := range 1000 {
			newChain(seq(100_000+i*16, 16)).learn(x, 0)
		}
		forgotten := make(chan bool)
		go func() { // ends when Forget returns
			x.Forget(0)
			close(forgotten)
		}()
		for i := range 50 {
			newChain(seq(500_000+i*160, 160)).learn(x, 1)
		}
		next.learn(x, 0)
		<-forgotten
		stored := uint32(0)
		if m := x.Match(next.keys, nil); len(m) > 0 {
			stored = m[0].Blocks
		}
		s, _ := x.Holder(0)
		if stored != 0 && stored != 100 || s.Blocks[block.TierGPU] != int64(stored) {
			t.Fatalf("round %d: a match of %d blocks, and %d blocks in all", round, stored, s.Blocks[block.TierGPU])
		}
		x.Forget(0)
	}
}
