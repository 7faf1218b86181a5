package kvindex_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/test/testenv"
)

// limited is an index, mostly of a few MiB, with helpers that announce blocks to it.
type limited struct {
	*testing.T
	x      *kvindex.Index
	hash   uint64 // the last engine hash that was used
	steps  int64  // the index's count of steps after the last operation
	source *rand.Rand
}

// words returns n random tokens.
func (l *limited) words(n int) []block.Token { return random(l.source, n) }

func newLimited(t *testing.T, size int, cfg kvindex.Config) *limited {
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		t.Fatal(err)
	}
	return &limited{T: t, x: kvindex.New(h, cfg), hash: 1 << 40, source: rand.New(rand.NewPCG(20, 26))}
}

// store announces a block of tokens under a new hash, which it returns. parent is the hash of the block before; 0:
// there is none.
func (l *limited) store(id fleet.Holder, tokens []block.Token, parent uint64) uint64 {
	l.hash++
	l.x.Store(id, &kvindex.Stored{Hashes: []uint64{l.hash}, Tokens: tokens, BlockSize: len(tokens), Parent: parent, HasParent: parent != 0})
	l.check()
	return l.hash
}

// check fails the test if the index exceeds its budget of bytes, or if the last operation took too many steps.
func (l *limited) check() {
	l.Helper()
	s := l.x.Stats()
	if s.Bytes > s.Budget {
		l.Fatalf("%d bytes of %d", s.Bytes, s.Budget)
	}
	if n := s.Steps - l.steps; n > kvindextest.StepBudget(&s, 1) {
		l.Fatalf("one operation took %d steps, at most %d are expected", n, kvindextest.StepBudget(&s, 1))
	}
	l.steps = s.Steps
}

func (l *limited) fill(id fleet.Holder) {
	for before := l.x.Stats().Evictions; l.x.Stats().Evictions == before; {
		parent := uint64(0)
		for range 32 {
			parent = l.store(id, l.words(16), parent)
		}
	}
}

func TestThreeEventsThatWaitForEachOtherDoNotStopTheIndex(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{})
	a := l.words(16)
	l.x.Store(0, &kvindex.Stored{Hashes: []uint64{8}, Tokens: a, BlockSize: 16, Parent: 9, HasParent: true})
	l.x.Store(0, &kvindex.Stored{Hashes: []uint64{9}, Tokens: a, BlockSize: 16, Parent: 8, HasParent: true})
	if s, _ := l.x.Holder(0); s.Refused != 1 || s.Waiting != 1 || s.Whole {
		t.Errorf("the circle: %+v", s)
	}
	hashes := make([]uint64, 2000)
	for i := range hashes {
		hashes[i] = uint64(i + 100)
	}
	l.x.Store(0, &kvindex.Stored{Hashes: hashes, BlockSize: 1 << 20})
	if s, _ := l.x.Holder(0); s.Refused != 2 || s.Hashes != 1 {
		t.Errorf("the event: %+v", s)
	}
	l.check()
}

func TestUnknownParentsDoNotStopASmallIndex(t *testing.T) {
	for _, mib := range []int64{1, 8, 16} {
		t.Run(fmt.Sprint(mib, " MiB"), func(t *testing.T) {
			cfg := kvindex.DefaultConfig()
			cfg.Bytes = mib << 20
			l := newLimited(t, 16, cfg)
			for range 70_000 {
				l.store(0, l.words(16), 1<<30+uint64(l.hash))
			}
			if s := l.x.Stats(); s.Waiting == 0 || s.WaitingDropped == 0 || s.Bytes > s.Budget/4 {
				t.Errorf("%d wait, %d dropped, %d bytes", s.Waiting, s.WaitingDropped, s.Bytes)
			}
			l.store(1, l.words(16), 0)
		})
	}
}

func TestContentUnderNewHashesDoesNotStopAFullIndex(t *testing.T) {
	testenv.SkipRaced(t)
	for _, mib := range []int64{1, 16, 64, 256} {
		if mib > 16 && testing.Short() || mib > 64 && floodBlocks() == 0 {
			break
		}
		t.Run(fmt.Sprint(mib, " MiB"), func(t *testing.T) {
			l := newLimited(t, 16, kvindex.Config{Bytes: mib << 20})
			l.fill(0)
			chain := [][]block.Token{}
			for range 64 {
				chain = append(chain, l.words(16))
			}
			for range int(mib) * 20 {
				parent := uint64(0)
				for _, tokens := range chain {
					parent = l.store(1, tokens, parent)
				}
				for range 20 {
					l.store(1, l.words(16), 1<<30+l.hash)
				}
			}
		})
	}
}

func TestALostMessageDoesNotStopAFullIndex(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 8 << 20})
	l.fill(0)
	parent := l.store(0, l.words(16), 0) + 1<<30 // a parent that is never announced
	for range 70_000 {
		parent = l.store(0, l.words(16), parent)
	}
}

func TestOneEventDoesNotEmptyTheIndex(t *testing.T) {
	testenv.SkipRaced(t)
	for name, event := range map[string]kvindex.Stored{
		"of blocks that are too large":            {Hashes: make([]uint64, 2000), BlockSize: 1 << 20},
		"of the largest blocks, without tokens":   {Hashes: make([]uint64, 2000), BlockSize: block.MaxSize},
		"of one block of that size, with tokens":  {Hashes: []uint64{1}, Tokens: make([]block.Token, block.MaxSize), BlockSize: block.MaxSize},
		"of blocks of one token":                  {Hashes: make([]uint64, 60_000), Tokens: make([]block.Token, 60_000), BlockSize: 1},
		"of blocks of one token, after a parent":  {Hashes: make([]uint64, 60_000), Tokens: make([]block.Token, 60_000), BlockSize: 1, HasParent: true, Parent: 7},
		"of blocks of another size":               {Hashes: make([]uint64, 1000), Tokens: make([]block.Token, 24_000), BlockSize: 24},
		"of large blocks of another size":         {Hashes: make([]uint64, 3), Tokens: make([]block.Token, 3*4097), BlockSize: 4097},
		"of a block of 16,384 tokens":             {Hashes: []uint64{1}, Tokens: make([]block.Token, 1<<14), BlockSize: 1 << 14},
		"of blocks of a prime number, with items": {Hashes: make([]uint64, 100), Tokens: make([]block.Token, 1300), BlockSize: 13, Features: []block.Feature{{ID: string(make([]byte, 1<<22)), Offset: 20}}},
	} {
		for i := range event.Hashes {
			event.Hashes[i] = 1<<50 + uint64(i)
		}
		for mib := range int64(2) {
			t.Run(fmt.Sprint(name, ", ", mib+1, " MiB"), func(t *testing.T) { oneEvent(t, &event, (mib+1)<<20) })
		}
	}
}

// oneEvent announces an event to an index in which two other holders have blocks, and which has room for a third fair
// share. The two holders must keep nine tenths of their blocks.
func oneEvent(t *testing.T, event *kvindex.Stored, budget int64) {
	l := newLimited(t, 16, kvindex.Config{Bytes: budget})
	blocks := int(budget >> 8)
	for id := range fleet.Holder(2) {
		parent := uint64(0)
		for range blocks {
			parent = l.store(id, l.words(16), parent)
		}
	}
	before := l.x.Stats()
	l.x.Store(2, event)
	after := l.x.Stats()
	if after.Bytes > after.Budget {
		t.Errorf("%d bytes of %d", after.Bytes, after.Budget)
	}
	if n := after.Steps - l.steps; n > kvindextest.StepBudget(&after, len(event.Hashes)) {
		t.Errorf("%d steps", n)
	}
	for id := range 2 {
		if h, was := after.Holders[id], before.Holders[id]; h.Blocks[0] < was.Blocks[0]*9/10 || int(h.Blocks[0]) < blocks*9/10 {
			t.Errorf("holder %d had %d blocks and has %d", id, was.Blocks[0], h.Blocks[0])
		}
	}
}

// Holder 1 has many waiting blocks, and holder 0 has few but large ones. If there are too many waiting blocks, holder 1
// loses some, because it has the largest number. If the waiting blocks have too many bytes, holder 0 loses some,
// because it has the most bytes.
func TestWaitingBlocksAreDroppedFromTheHolderWithMostOfWhatIsTooMuch(t *testing.T) {
	for _, test := range []struct {
		cfg   kvindex.Config
		loses fleet.Holder
	}{
		{kvindex.Config{Bytes: 8 << 20, MaxWaiting: 600, WaitingBytes: 1 << 20}, 1},
		{kvindex.Config{Bytes: 8 << 20, WaitingBytes: 1 << 19}, 0},
	} {
		l := newLimited(t, 16, test.cfg)
		for i := range 20 {
			l.store(0, l.words(5000), 1<<50+uint64(i))
		}
		for i := range 590 {
			l.store(1, l.words(16), 1<<51+uint64(i))
		}
		for i := range 10 { // after these blocks, the waiting blocks exceed MaxWaiting or WaitingBytes
			l.store(0, l.words(5000), 1<<52+uint64(i))
		}
		s := l.x.Stats()
		if s.Holders[test.loses].Whole || !s.Holders[1-test.loses].Whole {
			t.Errorf("%+v: only holder %d should lose waiting blocks: %+v", test.cfg, test.loses, s.Holders)
		}
	}
}

// announce announces a chain of blocks of the given size, and returns their hashes. If hashes is nil, announce
// makes new hashes.
func (l *limited) announce(id fleet.Holder, tier block.Tier, blocks, size int, hashes []uint64, tokens []block.Token) []uint64 {
	if hashes == nil {
		for range blocks {
			l.hash++
			hashes = append(hashes, l.hash)
		}
	}
	l.x.Store(id, &kvindex.Stored{Tier: tier, Hashes: hashes, Tokens: tokens, BlockSize: size})
	l.check()
	return hashes
}

// The index keeps keys in chunks of memory. A long run of keys gets a chunk of its own. If this chunk is the first one,
// the index may give it back before there is a chunk for shorter runs.
func TestTheFirstChunkOfKeysMayBeGivenBack(t *testing.T) {
	t.Run("forget", func(t *testing.T) {
		l := newLimited(t, 16, kvindex.Config{Bytes: 16 << 20})
		for id := range fleet.Holder(2) {
			l.announce(id, 0, 256, 16, nil, l.words(4096))
		}
		l.x.Forget(0)
		l.announce(0, 0, 1, 16, nil, l.words(16))
		if n := l.x.Stats().Blocks; n != 257 {
			t.Errorf("%d blocks", n)
		}
	})
	t.Run("remove", func(t *testing.T) {
		l := newLimited(t, 16, kvindex.Config{})
		first := l.announce(0, 0, 1, 16384, nil, l.words(16384))
		l.announce(0, 0, 1, 16384, nil, l.words(16384))
		l.x.Remove(0, 0, 0, first)
		l.announce(1, 0, 1, 16, nil, l.words(16))
		if n := l.x.Stats().Blocks; n != 1025 {
			t.Errorf("%d blocks", n)
		}
	})
}

// If a block in the middle of a run of blocks is removed, the run consists of more segments (parts with the same
// holders), which takes memory.
func TestRemovalsStayWithinTheBudget(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 4 << 20})
	var all [][]uint64
	for l.x.Stats().Evictions == 0 {
		tokens := l.words(4096)
		all = append(all, l.announce(0, 0, 256, 16, nil, tokens))
		l.announce(0, 1, 256, 16, all[len(all)-1], tokens)
	}
	for i, hashes := range all {
		if i%8 == 0 {
			l.announce(0, 0, 1, 16, nil, l.words(16)) // a small announcement makes the index check its room
		}
		for k := 1; k < len(hashes); k += 2 {
			l.x.Remove(0, 0, 0, hashes[k:k+1])
			l.check()
		}
	}
}

// If a partial block has many continuations, Clear takes steps in proportion to the number of continuations. The index
// keeps a list of the first 1,024 of them, and Clear searches this list for each.
func TestClearOfAPartialBlockWithManyContinuations(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 16 << 20})
	for _, n := range []int64{1000, 8000} {
		parent := l.store(0, l.words(8), 0)
		for range n {
			l.store(0, l.words(8), parent)
		}
		before := l.x.Stats().Steps
		l.x.Clear(0, 0)
		if steps := l.x.Stats().Steps - before; steps > 80*n {
			t.Errorf("%d steps for %d continuations", steps, n)
		}
	}
}

// If the tiers and groups of one block change 30,000 times, the index keeps no memory for the earlier combinations.
func TestStatesThatNoBlockHasTakeNoMemory(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 1 << 20})
	for id := range fleet.Holder(2) {
		l.announce(id, 0, 1000, 16, nil, l.words(16000))
	}
	tokens, hashes, before := l.words(16), []uint64{1}, l.x.Stats()
	for i := uint64(1); i < 30_000; i++ { // a Gray code: in each step, the block changes on one tier in one group
		k := bits.TrailingZeros64(i)
		tier, group := block.Tier(k%block.NumTiers), k/block.NumTiers
		if now := i ^ i>>1; now>>k&1 == 0 {
			l.x.Remove(2, tier, group, hashes)
			continue
		}
		l.x.Store(2, &kvindex.Stored{Tier: tier, Group: group, Hashes: hashes, Tokens: tokens, BlockSize: 16})
	}
	s := l.x.Stats()
	if s.Evictions > 0 || s.Holders[0].Blocks[0] != 1000 || s.Holders[1].Blocks[0] != 1000 {
		t.Errorf("%d blocks evicted: %+v", s.Evictions, s.Holders)
	}
	if more := s.Bytes - before.Bytes; more > 32<<10 {
		t.Errorf("one block takes %d bytes", more)
	}
}

// A strand is a run of blocks. In a comb, each strand is a child of the first block of the strand before, so only the
// last strand can be evicted. An eviction must not look at all strands for each event.
func TestACombDoesNotMakeEachEvictionLookAtAllStrands(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 4 << 20})
	for id := range fleet.Holder(8) {
		for range 1000 {
			l.store(id, l.words(16), 0)
		}
	}
	parent, events := uint64(0), int64(0)
	begun := l.x.Stats().Steps
	for events < 1000 {
		hashes := []uint64{l.hash + 1, l.hash + 2}
		l.hash += 2
		l.x.Store(8, &kvindex.Stored{Hashes: hashes, Tokens: l.words(32), BlockSize: 16, Parent: parent, HasParent: parent != 0})
		parent = hashes[0]
		if s := l.x.Stats(); s.Evictions > 0 {
			events++
		} else {
			begun = s.Steps
		}
	}
	if n := (l.x.Stats().Steps - begun) / events; n > 1500 {
		t.Errorf("%d steps an event", n)
	}
}

// One prefill worker gets all prompts, and each of five decode workers gets a fifth of the prompts. Only the prefill
// worker is above its fair share, and nearly all of its blocks have another holder, which is below its share. An
// eviction must not look at all strands (runs of blocks) for each event.
func TestSharedBlocksDoNotMakeEachEvictionLookAtAllStrands(t *testing.T) {
	testenv.SkipRaced(t)
	l := newLimited(t, 16, kvindex.Config{Bytes: 4 << 20})
	prompts := func(n int) {
		for range n {
			l.hash++
			s := &kvindex.Stored{Hashes: []uint64{l.hash}, Tokens: l.words(16), BlockSize: 16}
			l.x.Store(0, s)
			l.x.Store(1+fleet.Holder(l.source.IntN(5)), s)
		}
	}
	for l.x.Stats().Evictions == 0 {
		prompts(100)
	}
	prompts(16_000)
	before := l.x.Stats().Steps
	prompts(1000)
	if n := (l.x.Stats().Steps - before) / 2000; n > 500 {
		t.Errorf("%d steps an event", n)
	}
}

// Holder 0 fills the index with a comb of strands (runs of blocks): each strand is a child of the first block of the
// strand before. An eviction must take old blocks of the comb, and not prompts that are used all the time.
func TestACombDoesNotEvictPromptsInUse(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 4 << 20})
	hasher, _ := block.NewHasher(block.XXH3, 16)
	var used [][]block.Key
	for range 20 {
		tokens := l.words(16)
		used = append(used, hasher.Append(nil, hasher.Root(block.Scope{}), 0, tokens, nil))
		l.store(0, tokens, 0)
	}
	for parent := uint64(0); l.x.Stats().Evictions < 3000; {
		hashes := []uint64{l.hash + 1, l.hash + 2}
		l.hash += 2
		l.x.Store(0, &kvindex.Stored{Hashes: hashes, Tokens: l.words(32), BlockSize: 16, Parent: parent, HasParent: parent != 0})
		parent = hashes[0]
		l.x.Store(1, &kvindex.Stored{}) // the clock counts one operation: the prompts are used later than the comb
		for i, keys := range used {
			if len(l.x.Match(keys, nil)) == 0 {
				t.Fatalf("prompt %d was evicted with the first %d blocks", i, l.x.Stats().Evictions)
			}
		}
	}
}

// If a later event gives a cache group another kind of attention, the index computes again which blocks the group's
// announcements cover. This takes memory, and must stay within the budget.
func TestAnotherKindOfAGroupStaysWithinTheBudget(t *testing.T) {
	l := newLimited(t, 16, kvindex.Config{Bytes: 1 << 20})
	for range 60 {
		l.announce(0, 0, 16, 32, nil, l.words(512))
	}
	for n := 0; n < 20_000 && l.x.Stats().Bytes < 1<<20-12<<10; n++ {
		l.store(1, l.words(16), 0)
	}
	l.x.Store(0, &kvindex.Stored{Attention: block.AttentionStateSpace})
	l.check()
}

// The arrays of holders have an element for each id up to the greatest one.
func TestAHolderWithALargeIDTakesNothingFromOthers(t *testing.T) {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	x := kvindex.New(h, kvindex.Config{Bytes: 1 << 20})
	r := rand.New(rand.NewPCG(1, 2))
	own := randomChain(r, 64)
	own.learn(x, 0)
	for _, id := range []fleet.Holder{10_923, 70_000, kvindex.MaxHolders - 1, kvindex.MaxHolders, fleet.NoHolder} {
		before := x.Stats()
		randomChain(r, 64).learn(x, id)
		if after := x.Stats(); after.Bytes != before.Bytes || after.Refused == before.Refused {
			t.Errorf("holder %d: %d bytes, before %d; refused %d, before %d", id, after.Bytes, before.Bytes, after.Refused, before.Refused)
		}
	}
	randomChain(r, 64).learn(x, 10_922)
	if s := x.Stats(); s.Bytes > 1<<20 {
		t.Errorf("%d bytes", s.Bytes)
	}
	if m := x.Match(own.keys, nil); len(m) != 1 || m[0].Blocks != 64 {
		t.Errorf("holder 0 lost blocks: %v", m)
	}
}

func TestHoldersWithoutBlocksTakeAQuarterOfTheBudget(t *testing.T) {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	x := kvindex.New(h, kvindex.Config{Bytes: 1 << 20})
	own := randomChain(rand.New(rand.NewPCG(1, 2)), 64)
	own.learn(x, 0)
	for id := range fleet.Holder(5000) {
		x.Store(1+id, &kvindex.Stored{})
	}
	if s := x.Stats(); s.Bytes > 1<<20 || s.Refused != 5000-341 {
		t.Errorf("%d bytes, %d refused", s.Bytes, s.Refused)
	}
	x.Forget(5)
	own.learn(x, 5) // there is room for one more holder
	if m := x.Match(own.keys, nil); len(m) != 2 || m[0].Blocks != 64 || m[1].Blocks != 64 {
		t.Errorf("%v", m)
	}
}
