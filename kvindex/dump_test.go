package kvindex_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// warm copies all blocks that one index has of a holder to another index, by Dump and Load.
func warm(t *testing.T, from, to *kvindex.Index, id fleet.Holder) {
	t.Helper()
	if err := from.Dump(id, func(r *kvindex.Held) error { return to.Load(id, r) }); err != nil {
		t.Fatal(err)
	}
}

// TestAWarmedIndexGoesOnAsTheOther dumps holders after random histories and loads them into a second index. Then both
// indexes get the same events, and must give the same answers.
func TestAWarmedIndexGoesOnAsTheOther(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		x, y := kvindex.New(h, kvindex.Config{}), kvindex.New(h, kvindex.Config{})
		var prompts [][]block.Token
		for i := range 6 {
			p := random(r, 30*16)
			if i > 0 {
				copy(p, prompts[r.IntN(i)][:r.IntN(30)*16])
			}
			prompts = append(prompts, p)
		}
		hash := func(p []block.Token, n int) uint64 {
			d := uint64(1)
			for _, tok := range p[:n*16] {
				d = (d ^ uint64(tok)) * 0x100000001b3
			}
			return d
		}
		turn := func(indexes ...*kvindex.Index) {
			id, p := fleet.Holder(r.IntN(3)), prompts[r.IntN(len(prompts))]
			from := r.IntN(20) * r.IntN(2)
			to := from + 1 + r.IntN(30-from)
			var hashes []uint64
			for i := from; i < to; i++ {
				hashes = append(hashes, hash(p, i+1))
			}
			s := kvindex.Stored{
				Tier: block.Tier(r.IntN(4) / 3), Hashes: hashes, Tokens: p[from*16 : to*16], BlockSize: 16, Origin: kvindex.OriginNew,
			}
			if from > 0 {
				s.HasParent, s.Parent = true, hash(p, from)
			}
			op, shuffled := r.IntN(5), r.IntN(2) == 0
			if shuffled {
				slices.Reverse(hashes)
			}
			for _, x := range indexes {
				switch {
				case op > 1 && !shuffled && from == 0:
					x.Store(id, &s)
				case op <= 1:
					x.Remove(id, s.Tier, 0, hashes)
				}
			}
		}
		for range 40 {
			turn(x)
		}
		for id := range fleet.Holder(3) {
			if _, ok := x.Holder(id); ok {
				warm(t, x, y, id)
			}
		}
		for step := range 40 {
			for i, p := range prompts {
				keys := h.Append(nil, h.Root(block.Scope{}), 0, p, nil)
				if a, b := x.Match(keys, nil), y.Match(keys, nil); !slices.Equal(a, b) {
					t.Fatalf("seed %d, %d steps later, prompt %d: %+v, the copy says %+v", seed, step, i, a, b)
				}
			}
			if a, b := x.Stats(), y.Stats(); a.Memberships != b.Memberships || a.Hashes != b.Hashes {
				t.Fatalf("seed %d, %d steps later: %d blocks, %d hashes; the copy has %d, %d", seed, step, a.Memberships, a.Hashes, b.Memberships, b.Hashes)
			}
			turn(x, y)
		}
	}
}

func TestHolesAndCopiesAreDumped(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x, y := kvindex.New(h, kvindex.Config{}), kvindex.New(h, kvindex.Config{})
	c := newChain(seq(0, 640))
	c.learn(x, 0)
	c.store(x, 0, block.TierGPU, 5, 10)
	x.Remove(0, block.TierGPU, 0, asHashes(c.keys[20:22]))
	warm(t, x, y, 0)
	for _, z := range []*kvindex.Index{x, y} {
		z.Remove(0, block.TierGPU, 0, asHashes(c.keys[5:12]))
		c.store(z, 0, block.TierGPU, 10, 12)
		if m := z.Match(c.keys, nil); len(m) != 1 || m[0].Blocks != 20 {
			t.Errorf("%+v", m)
		}
		c.store(z, 0, block.TierGPU, 20, 22)
		if m := z.Match(c.keys, nil); len(m) != 1 || m[0].Blocks != 40 {
			t.Errorf("%+v", m)
		}
	}
}

// A dump has one run for the copies of a block, and not one for each copy.
func TestManyCopiesDoNotMakeADumpLarge(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x, y := kvindex.New(h, kvindex.Config{}), kvindex.New(h, kvindex.Config{})
	c, runs := newChain(seq(0, 640)), 0
	c.learn(x, 0)
	for range 500 {
		c.store(x, 0, block.TierGPU, 10, 40)
	}
	if err := x.Dump(0, func(r *kvindex.Held) error { runs++; return y.Load(0, r) }); err != nil || runs > 40 {
		t.Errorf("%d runs: %v", runs, err)
	}
	for removed := range 501 {
		if m := y.Match(c.keys, nil); len(m) != 1 || m[0].Blocks != 40 {
			t.Fatalf("after %d removals: %+v", removed, m)
		}
		y.Remove(0, block.TierGPU, 0, asHashes(c.keys[39:]))
	}
	if m := y.Match(c.keys, nil); len(m) != 1 || m[0].Blocks != 39 {
		t.Errorf("after all removals: %+v", m)
	}
}

func TestDumpAndLoadRefuseExceptions(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x, y := kvindex.New(h, kvindex.Config{}), kvindex.New(h, kvindex.Config{})
	none := func(*kvindex.Held) error { return nil }
	if err := x.Dump(3, none); err == nil {
		t.Error("a holder that is not known is dumped")
	}
	x.Store(0, &kvindex.Stored{Hashes: []uint64{1, 2}, Tokens: seq(0, 16), BlockSize: 8})
	if err := x.Dump(0, none); !errors.Is(err, kvindex.ErrExceptions) {
		t.Errorf("blocks of other sizes: %v", err)
	}
	announceAs(x, 1, seq(0, 64), []uint64{1, 2, 3, 4})
	announceAs(y, 2, seq(0, 64), []uint64{5, 6, 7, 8})
	if err := x.Dump(1, func(r *kvindex.Held) error { return y.Load(1, r) }); !errors.Is(err, kvindex.ErrExceptions) {
		t.Errorf("hashes that another holder gives otherwise: %v", err)
	}
	for _, r := range []kvindex.Held{
		{Depth: -1, Keys: make([]block.Key, 1), Hashes: make([]uint64, 1)},
		{Depth: kvindex.MaxChain, Keys: make([]block.Key, 1), Hashes: make([]uint64, 1)},
		{Depth: 3, Parent: 77, Keys: make([]block.Key, 1), Hashes: make([]uint64, 1)},
		{Keys: make([]block.Key, 2), Hashes: make([]uint64, 1)},
	} {
		if err := y.Load(4, &r); err == nil {
			t.Errorf("loaded: %+v", r)
		}
	}
}

// A group without blocks, or more groups than an index can follow, make a match shorter. An index that was filled from
// a dump must not give longer matches.
func TestADumpHasGroupsWithoutBlocks(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x, y := kvindex.New(h, kvindex.Config{}), kvindex.New(h, kvindex.Config{})
	tokens, hashes := seq(0, 64), map[int][]uint64{16: {1, 2, 3, 4}, 32: {5, 6}}
	store := func(group, size int, kind block.Attention) {
		x.Store(0, &kvindex.Stored{
			Hashes: hashes[size], Tokens: tokens, BlockSize: size, Group: group, Attention: kind, Window: 64,
		})
	}
	store(0, 16, block.AttentionFull)
	store(1, 16, block.AttentionSlidingWindow)
	x.Remove(0, 0, 1, hashes[16])
	warm(t, x, y, 0)
	keys := h.Append(nil, h.Root(block.Scope{}), 0, tokens, nil)
	if a, b := x.Match(keys, nil), y.Match(keys, nil); !slices.Equal(a, b) {
		t.Errorf("%+v, the copy says %+v", a, b)
	}
	store(2, 32, block.AttentionFull)
	x.Remove(0, 0, 2, hashes[32])
	refused := func() bool {
		return errors.Is(x.Dump(0, func(*kvindex.Held) error { return nil }), kvindex.ErrExceptions)
	}
	if !refused() {
		t.Error("a group of larger blocks is dumped")
	}
	x.Forget(0)
	for group := range kvindex.MaxGroups + 1 {
		store(group, 16, block.AttentionFull)
	}
	if !refused() {
		t.Error("a holder with too many groups is dumped")
	}
}

// A dump may begin with parents that the holder lost. These parents must stay in the loading index if another holder is
// forgotten meanwhile.
func TestForgetKeepsParentsThatAreBeingLoaded(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	keys := h.Append(nil, h.Root(block.Scope{}), 0, seq(0, 64), nil)
	announceAs(x, 1, seq(100, 64), []uint64{5, 6, 7, 8})
	if err := x.Load(0, &kvindex.Held{Tier: block.NumTiers, Keys: keys[:2], Hashes: []uint64{1, 2}}); err != nil {
		t.Fatal(err)
	}
	x.Forget(1)
	if err := x.Load(0, &kvindex.Held{Depth: 2, Parent: 2, Keys: keys[2:], Hashes: []uint64{3, 4}}); err != nil {
		t.Error(err)
	}
}
