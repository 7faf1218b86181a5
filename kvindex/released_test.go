package kvindex_test

import (
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// A strand (a run of blocks) has a list of segments, which say on which tiers the holders have its blocks. Holder 2
// fills a full index with strands that have long lists, first of one length, then of the next length, and clears them
// each time. The released lists must take no memory from the other holders.
func TestListsOfSegmentsThatWereReleasedTakeNoMemory(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 4 << 20})
	victims := func(prompts int) (least int64) {
		for range prompts {
			for id := range fleet.Holder(2) {
				h := l.announce(id, 0, 256, 16, nil, l.words(16*256))
				l.x.Remove(id, 0, 0, h[250:251]) // a hole, so that the strand has three segments
			}
		}
		s := l.x.Stats()
		return min(s.Holders[0].Blocks[0], s.Holders[1].Blocks[0])
	}
	hasher, _ := block.NewHasher(block.XXH3, 16)
	alone := victims(100)
	for _, segments := range []int{250, 125, 62, 30, 14, 6} {
		for before := l.x.Stats().Evictions; l.x.Stats().Evictions == before; {
			h := l.announce(2, 0, segments, 16, nil, l.words(16*segments))
			for k := 1; k < segments; k += 2 {
				l.x.Store(2, &kvindex.Stored{Tier: 1, Hashes: h[k : k+1], RootUnknown: true})
			}
		}
		l.x.Clear(2, 0)
		l.x.Clear(2, 1)
	}
	if n := victims(0); n < alone*98/100 {
		t.Errorf("a holder has %d blocks left of %d", n, alone)
	}
	if with, without := victims(300), filled(hasher, 4<<20)/2; with < without*9/10 {
		t.Errorf("two holders have %d blocks each after the third cleared its blocks, half an index has %d", with, without)
	}
}

// If an index is full, Clear and Forget make new sets of holders. The index must stay within the budget, and later
// events must be able to use the memory of the old sets.
func TestSetsThatWereReleasedTakeNoMemory(t *testing.T) {
	testenv.SkipRaced(t)
	for _, test := range []struct {
		name    string
		holders int
		bytes   int64
	}{{"16 holders", 16, 4 << 20}, {"40 holders", 40, 1 << 20}} {
		t.Run(test.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			l := newLimited(t, 16, kvindex.Config{Bytes: test.bytes})
			for l.x.Stats().Evictions == 0 {
				l.hash++
				one := kvindex.Stored{Hashes: []uint64{l.hash}, Tokens: l.words(16), BlockSize: 16}
				host := one
				host.Tier = 1
				for id := range fleet.Holder(test.holders) {
					if r.IntN(2) > 0 {
						l.x.Store(id, &one)
					}
					if r.IntN(3) == 0 {
						l.x.Store(id, &host)
					}
				}
			}
			l.check()
			full := l.x.Stats()
			for id := range fleet.Holder(test.holders) {
				l.x.Clear(id, 1)
				l.check()
			}
			for id := range fleet.Holder(test.holders / 2) {
				l.x.Forget(id)
				l.check()
			}
			before := l.x.Stats()
			if before.Bytes > full.Bytes*3/4 {
				t.Errorf("%d bytes of %d are left without half of the holders and one tier", before.Bytes, full.Bytes)
			}
			l.store(0, l.words(16), 0)
			if n := l.x.Stats().Evictions - before.Evictions; n > 0 {
				t.Errorf("one event evicted %d of %d blocks", n, before.Blocks)
			}
		})
	}
}
