package kvindex_test

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// fresh returns n engine hashes that were never used before.
func (l *limited) fresh(n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		l.hash++
		hashes[i] = l.hash
	}
	return hashes
}

// chains announces chains of 32 blocks of a holder, n blocks in all.
func (l *limited) chains(id fleet.Holder, n int) {
	for range n / 32 {
		l.announce(id, block.TierGPU, 32, 16, nil, l.words(32*16))
	}
}

// A worker has 1,024 blocks, every second one also on another tier. Its resets and removals make room for themselves
// only. The index is a third full, so the other workers keep their blocks.
func TestRemovalsOfOneWorkerTakeNothingFromOthers(t *testing.T) {
	testenv.SkipRaced(t)
	for _, mib := range []int64{2, 8} {
		for name, remove := range map[string]func(l *limited, large, hashes []uint64){
			"reset of a tier":         func(l *limited, large, hashes []uint64) { l.x.Clear(0, block.TierCPU) },
			"reset of an unused tier": func(l *limited, large, hashes []uint64) { l.x.Clear(0, block.TierDisk) },
			"a block of 16,384 tokens": func(l *limited, large, hashes []uint64) {
				l.x.Remove(0, block.TierGPU, 0, large)
			},
			"blocks": func(l *limited, large, hashes []uint64) { l.x.Remove(0, block.TierCPU, 0, hashes) },
		} {
			l := newLimited(t, 16, kvindex.Config{Bytes: mib << 20})
			for id := range fleet.Holder(2) {
				l.chains(id+1, int(mib)*4000)
			}
			tokens := l.words(16384)
			large := l.announce(0, block.TierGPU, 1, 16384, nil, tokens)
			hashes := l.announce(0, block.TierCPU, 1024, 16, nil, tokens)
			for k := 1; k < 1024; k += 2 {
				l.x.Remove(0, block.TierCPU, 0, hashes[k:k+1])
			}
			before := l.x.Stats()
			remove(l, large, hashes)
			for id, was := range before.Holders {
				if is := l.x.Stats().Holders[id]; id > 0 && is.Blocks != was.Blocks {
					t.Errorf("%d MiB, %s: holder %d had %d blocks, and has %d", mib, name, id, was.Blocks[0], is.Blocks[0])
				}
			}
		}
	}
}

// A full index gets a reset of a holder that has few blocks. The other holders lose at most a few blocks.
func TestAResetTakesLittleFromOthersInAFullIndex(t *testing.T) {
	testenv.SkipRaced(t)
	for _, members := range []int{1, 200} {
		l := newLimited(t, 16, kvindex.Config{Bytes: 8 << 20})
		prompt, hash := l.words(16), l.fresh(1)
		for id := range fleet.Holder(members) { // each set of holders may be as large as this one
			l.announce(100+id, block.TierGPU, 1, 16, hash, prompt)
		}
		for l.x.Stats().Evictions == 0 {
			l.chains(1, 64)
		}
		tokens := l.words(256 * 16)
		hashes := l.announce(0, block.TierGPU, 256, 16, nil, tokens)
		l.announce(0, block.TierCPU, 256, 16, hashes, tokens)
		for k := 1; k < 256; k += 2 {
			l.x.Remove(0, block.TierCPU, 0, hashes[k:k+1])
		}
		before := l.x.Stats().Holders[1].Blocks[0]
		l.x.Clear(0, block.TierCPU)
		if after := l.x.Stats().Holders[1].Blocks[0]; after < before*97/100 {
			t.Errorf("%d holders share a prompt: of %d blocks %d are left", members, before, after)
		}
	}
}

// The ID of a multimodal item takes a tenth of the budget. Each engine block that ends in the item's block of the index
// would have a copy of it. The index refuses these blocks.
func TestCopiesOfALongItemStayWithinTheBudget(t *testing.T) {
	for _, size := range []int{16, 64} {
		l := newLimited(t, size, kvindex.Config{Bytes: 4 << 20})
		item := []block.Feature{{ID: strings.Repeat("x", 4<<20/10)}}
		first := l.fresh(1)
		l.x.Store(0, &kvindex.Stored{Hashes: first, Tokens: l.words(1), BlockSize: 1, Features: item})
		l.check()
		l.x.Store(0, &kvindex.Stored{Hashes: l.fresh(size - 2), Tokens: l.words(size - 2), BlockSize: 1, Parent: first[0], HasParent: true})
		l.check()
		if s := l.x.Stats(); s.Refused == 0 {
			t.Errorf("blocks of %d: nothing was refused", size)
		}
	}
}

// Blocks of one token wait for their parent. Announcements of their hashes alone say that each covers 16,384 tokens on
// 60 tiers and groups. No engine has such blocks: the index drops them when the parent comes.
func TestWaitingBlocksOfManySizesStayWithinTheBudget(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 16 << 20})
	tokens, hashes := l.words(16384), l.fresh(1024)
	l.announce(0, block.TierGPU, 1023, 16, hashes[:1023], tokens[:1023*16])
	for _, hash := range l.fresh(100) {
		l.x.Store(0, &kvindex.Stored{Hashes: []uint64{hash}, Tokens: l.words(1), BlockSize: 1, Parent: hashes[1023], HasParent: true})
		for k := range 60 {
			l.x.Store(0, &kvindex.Stored{Tier: block.Tier(k % block.NumTiers), Group: k / block.NumTiers, Hashes: []uint64{hash}, BlockSize: 16384, RootUnknown: true})
		}
	}
	for s := l.x.Stats(); s.Evictions == 0 && s.Bytes < s.Budget*97/100; s = l.x.Stats() {
		l.chains(1, 32)
	}
	before := l.x.Stats()
	l.x.Store(0, &kvindex.Stored{Hashes: hashes[1023:], Tokens: tokens[1023*16:], BlockSize: 16, Parent: hashes[1022], HasParent: true})
	l.check()
	s := l.x.Stats()
	if steps := s.Steps - before.Steps; s.Waiting != 0 || s.Holders[1].Blocks != before.Holders[1].Blocks || steps > 100_000 {
		t.Errorf("%d blocks wait, holder 1 has %d blocks of %d, %d steps", s.Waiting, s.Holders[1].Blocks[0], before.Holders[1].Blocks[0], steps)
	}
}

// A point of one token has a record that covers 1,024 blocks. In a full index, its removal makes room for the sets of
// holders of all these blocks.
func TestRemovalOfALargeRecordStaysWithinTheBudget(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 2 << 20})
	var small [2][]uint64
	for chain := range small {
		tokens, hashes := l.words(16384), l.fresh(1024)
		for id := range fleet.Holder(10) { // each block has another set of holders
			l.announce(1+id, block.TierGPU, 1024, 16, hashes, tokens)
			for k := 1023; k >= 0; k-- {
				if k>>id&1 == 0 {
					l.x.Remove(1+id, block.TierGPU, 0, hashes[k:k+1])
				}
			}
		}
		large := l.announce(0, block.TierDisk, 1, 16383, nil, tokens[:16383])
		small[chain] = l.fresh(1)
		l.x.Store(0, &kvindex.Stored{Tier: block.TierCPU, Hashes: small[chain], Tokens: tokens[16383:], BlockSize: 1, Parent: large[0], HasParent: true})
		l.x.Store(0, &kvindex.Stored{Tier: block.TierGPU, Hashes: small[chain], BlockSize: 16384, RootUnknown: true})
	}
	for s := l.x.Stats(); s.Evictions == 0 && s.Bytes < s.Budget*99/100; s = l.x.Stats() {
		l.announce(900, block.TierGPU, 2, 16, nil, l.words(32))
	}
	l.x.Remove(0, block.TierGPU, 0, small[0])
	l.check()
}
