package kvindex_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// An engine has one system prompt with many continuations, and resets its cache. Clear takes steps in proportion to the
// number of continuations, also if another holder has as many newer ones.
func TestClearOfABlockWithManyContinuations(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 64 << 20})
	steps := func(n int) int64 {
		prompt := l.words(16)
		for id := range fleet.Holder(2) {
			parent := l.store(id, prompt, 0)
			for range n {
				l.store(id, l.words(16), parent)
			}
		}
		before := l.x.Stats().Steps
		l.x.Clear(0, 0)
		s := l.x.Stats()
		if s.Holders[0].Blocks[0] != 0 || s.Holders[1].Blocks[0] == 0 {
			t.Errorf("blocks after Clear: %d and %d", s.Holders[0].Blocks[0], s.Holders[1].Blocks[0])
		}
		l.x.Clear(1, 0)
		if s := l.x.Stats(); s.Hashes != 0 {
			t.Errorf("%d hashes are known of empty caches", s.Hashes)
		}
		return s.Steps - before
	}
	if one, eight := steps(1000), steps(8000); eight > 10*one {
		t.Errorf("%d steps for 1,000 continuations, %d for 8,000", one, eight)
	}
}

// Clear drops the claims on blocks of two tiers, one tier at a time. Blocks on the other tier stay, and so do the
// blocks before them, as parents.
func TestClearKeepsTheParentsOfBlocksOnAnotherTier(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{})
	tokens := l.words(16 * 8)
	hashes := l.announce(0, block.TierGPU, 8, 16, nil, tokens)
	l.announce(0, block.TierCPU, 4, 16, hashes[:4], tokens[:16*4])
	branch := l.store(0, l.words(16), hashes[5])
	l.x.Clear(0, block.TierGPU)
	if s := l.x.Stats(); s.Hashes != 4 {
		t.Errorf("%d hashes are known, want those of the 4 blocks on the other tier", s.Hashes)
	}
	l.x.Remove(0, block.TierGPU, 0, []uint64{branch, hashes[7]})
	l.announce(0, block.TierGPU, 8, 16, hashes, tokens)
	child := l.store(0, l.words(16), hashes[7])
	l.x.Clear(0, block.TierCPU)
	l.x.Remove(0, block.TierGPU, 0, hashes)
	if s := l.x.Stats(); s.Hashes != 9 {
		t.Errorf("%d hashes are known, want 9: of the block that is left, and of its parents", s.Hashes)
	}
	l.x.Remove(0, block.TierGPU, 0, []uint64{child})
	if s := l.x.Stats(); s.Hashes != 0 {
		t.Errorf("%d hashes are known of an empty cache", s.Hashes)
	}
}

// A holder removes the continuations of a block that it removed before. The block has many continuations of another
// holder. Each removal takes few steps.
func TestRemovalOfContinuationsBesideManyOthers(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 64 << 20})
	prompt := l.words(16)
	parent, all := l.store(0, prompt, 0), []uint64{}
	for range 1000 {
		all = append(all, l.store(0, l.words(16), parent))
	}
	other := l.store(1, prompt, 0)
	for range 10_000 {
		l.store(1, l.words(16), other)
	}
	l.x.Remove(0, block.TierGPU, 0, []uint64{parent})
	before := l.x.Stats().Steps
	l.x.Remove(0, block.TierGPU, 0, all)
	if n := l.x.Stats().Steps - before; n > 1000*1000 {
		t.Errorf("1,000 removals took %d steps", n)
	}
	if n := l.x.Stats().Holders[0].Blocks[0]; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// chain announces one block of each token on places tiers and groups, and returns the engine hashes. The tokens end
// within a block of the index.
func (l *limited) chain(id fleet.Holder, tokens []block.Token, places int) []uint64 {
	hashes := make([]uint64, len(tokens))
	for i := range hashes {
		l.hash++
		hashes[i] = l.hash
	}
	for k := range places {
		l.x.Store(id, &kvindex.Stored{Tier: block.Tier(k % block.NumTiers), Group: k / block.NumTiers, Hashes: hashes, Tokens: tokens, BlockSize: 1})
		l.check()
	}
	return hashes
}

// Many blocks complete one partial block, in which a chain of engine blocks of one token ends. Announcements of the
// chain on many tiers and groups cover a part of each of these blocks. They stay within the budget.
func TestPartsOfManyContinuationsStayWithinTheBudget(t *testing.T) {
	testenv.SkipRaced(t)
	for _, size := range []int{16, 64} {
		for _, places := range []int{1, 60} {
			l := newLimited(t, size, kvindex.Config{Bytes: 4 << 20})
			tokens := l.words(size - 1)
			hashes := l.chain(0, tokens, places)
			n := 0
			for s := l.x.Stats(); s.Evictions == 0 && s.Bytes < s.Budget*93/100; s = l.x.Stats() {
				l.store(0, l.words(1), hashes[size-2])
				n++
			}
			for tier := range block.NumTiers {
				l.x.Store(0, &kvindex.Stored{Tier: block.Tier(tier), Group: 7, Hashes: hashes, Tokens: tokens, BlockSize: 1})
				l.check()
			}
			for range 100 {
				l.store(0, l.words(1), hashes[size-2])
			}
			t.Logf("size %d, %d places: %d continuations", size, places, n)
		}
	}
}

// heap returns the memory of all live objects.
func (l *limited) heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Engine blocks that claims cannot express take the memory that is counted for them, also after most of their parts
// were removed.
func TestRemovedPartsGiveTheirMemoryBack(t *testing.T) {
	testenv.SkipRaced(t)
	for name, round := range map[string]func(l *limited){
		"records of a point": func(l *limited) {
			for range 200 {
				tokens := l.words(32)
				hashes := []uint64{l.store(0, tokens, 0)}
				for k := 1; k < 33; k++ {
					l.x.Store(0, &kvindex.Stored{Tier: block.Tier(k % block.NumTiers), Group: k / block.NumTiers, Hashes: hashes, Tokens: tokens, BlockSize: 32})
				}
				for k := 1; k < 33; k++ {
					l.x.Remove(0, block.Tier(k%block.NumTiers), k/block.NumTiers, hashes)
				}
			}
		},
		"points of a holder": func(l *limited) {
			var all []uint64
			for range 10_000 {
				all = append(all, l.store(0, l.words(17), 0))
			}
			l.x.Remove(0, block.TierGPU, 0, all[1:])
		},
		"blocks that complete a partial block": func(l *limited) {
			hashes, all := l.chain(0, l.words(15), 1), []uint64{}
			for range 1000 {
				all = append(all, l.store(0, l.words(1), hashes[14]))
			}
			slices.Reverse(all)
			l.x.Remove(0, block.TierGPU, 0, all)
		},
		"ids of multimodal items": func(l *limited) {
			for range 20 {
				l.hash++
				id := strings.Repeat("x", 1<<18)[:8]
				l.x.Store(0, &kvindex.Stored{Hashes: []uint64{l.hash}, Tokens: l.words(8), BlockSize: 8, Features: []block.Feature{{ID: id, Offset: 2}}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimited(t, 16, kvindex.Config{Bytes: 16 << 20})
			base := l.heap()
			for range 20 {
				round(l)
			}
			counted, heap := l.x.Stats().Bytes, l.heap()-base
			if heap > counted*3/2+1<<18 {
				t.Errorf("the index counts %d bytes and takes %d", counted, heap)
			}
			t.Logf("counted %d, heap %d", counted, heap)
			runtime.KeepAlive(l)
		})
	}
}

// Blocks that complete a partial block are removed in the order of their announcement, which takes few steps each.
func TestRemovalOfContinuationsInTheirOrder(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 64 << 20})
	steps := func(n int) int64 {
		hashes, all := l.chain(0, l.words(15), 1), []uint64{}
		for range n {
			all = append(all, l.store(0, l.words(1), hashes[14]))
		}
		before := l.x.Stats().Steps
		l.x.Remove(0, block.TierGPU, 0, all)
		return l.x.Stats().Steps - before
	}
	if one, eight := steps(1000), steps(8000); eight > 10*one {
		t.Errorf("%d steps for 1,000 continuations, %d for 8,000", one, eight)
	}
}

// An engine announces a chain of one-token blocks on 60 tiers and groups. 100 blocks complete the partial block in
// which the chain ends, and the index is full. Announcements that change what the chain's blocks cover stay within the
// budget.
func TestChangesOfPartsStayWithinTheBudget(t *testing.T) {
	testenv.SkipRaced(t)
	for _, size := range []int{16, 64} {
		for name, change := range map[string]func(l *limited, tokens []block.Token, hashes []uint64){
			"another size": func(l *limited, tokens []block.Token, hashes []uint64) {
				for k := range 60 {
					l.x.Store(0, &kvindex.Stored{Tier: block.Tier(k % block.NumTiers), Group: k / block.NumTiers, Hashes: hashes[1:], BlockSize: 2})
					l.check()
				}
			},
			"another place": func(l *limited, tokens []block.Token, hashes []uint64) {
				l.x.Store(0, &kvindex.Stored{Hashes: hashes, Tokens: l.words(len(hashes)), BlockSize: 1})
				l.check()
			},
			"no root": func(l *limited, tokens []block.Token, hashes []uint64) {
				last := l.store(0, l.words(1), hashes[len(hashes)-1])
				for range 400 {
					l.hash++
					both := []uint64{last, l.hash}
					l.x.Store(0, &kvindex.Stored{Hashes: both, Tokens: l.words(2), BlockSize: 1, RootUnknown: true})
					l.check()
					l.store(fleet.Holder(1+l.source.IntN(100)), l.words(16+size*l.source.IntN(8)), 0)
				}
			},
			"removal": func(l *limited, tokens []block.Token, hashes []uint64) {
				for k := range 60 {
					l.x.Remove(0, block.Tier(k%block.NumTiers), k/block.NumTiers, hashes)
					l.check()
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, blocks of %d", name, size), func(t *testing.T) {
				l := newLimited(t, size, kvindex.Config{Bytes: 4 << 20})
				tokens := l.words(size - 2)
				hashes := l.chain(0, tokens, 60)
				for range 100 {
					l.store(0, l.words(2), hashes[size-3])
				}
				for s := l.x.Stats(); s.Evictions == 0; s = l.x.Stats() {
					l.store(fleet.Holder(1+l.source.IntN(100)), l.words(16+size), 0)
				}
				change(l, tokens, hashes)
			})
		}
	}
}

// The index is full. An engine reports a block again that has 1,000 continuations, and ends within a block of the
// index. Nothing changes, so the index evicts nothing.
func TestReportOfAKnownBlockEvictsNothing(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 8 << 20})
	tokens := l.words(8)
	parent := l.store(0, tokens, 0)
	for range 1000 {
		l.store(0, l.words(8), parent)
	}
	for s := l.x.Stats(); s.Evictions == 0; s = l.x.Stats() {
		l.store(1, l.words(80), 0)
	}
	before := l.x.Stats().Evictions
	for range 10 {
		l.x.Store(0, &kvindex.Stored{Hashes: []uint64{parent}, Tokens: tokens, BlockSize: 8, Origin: kvindex.OriginReused})
	}
	if n := l.x.Stats().Evictions - before; n > 0 {
		t.Errorf("%d evictions", n)
	}
}

// A block of the index's size has 300 continuations of another holder, and is the parent of a holder's block of another
// size. After the holder's tier was cleared, the index knows none of the holder's hashes.
func TestClearLeavesNoParentsOfBlocksOfAnotherSize(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{})
	prompt := l.words(16)
	other := l.store(1, prompt, 0)
	for range 300 {
		l.store(1, l.words(16), other)
	}
	l.announce(0, block.TierGPU, 1, 16, []uint64{other}, prompt)
	l.store(0, l.words(24), other)
	l.x.Clear(0, block.TierGPU)
	if s := l.x.Stats(); s.Hashes != 301 {
		t.Errorf("%d hashes are known, want the 301 of the other holder", s.Hashes)
	}
}
