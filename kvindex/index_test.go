package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestConformance(t *testing.T) { kvindextest.Conformance(t, kvindextest.Kvindex) }

func TestMatchAllocatesNothing(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	prompt := seq(0, 16*512)
	for i := range fleet.Holder(8) {
		announce(x, i, prompt[:16*(512-int(i))], 32)
	}
	// Holder 8 serves a hybrid model: it has a group with a sliding window, too.
	x.Store(8, &kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 64, Group: 1})
	announce(x, 8, prompt, 32)
	keys := h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil)
	dst := make([]kvindex.Match, 0, 16)
	if n := testing.AllocsPerRun(100, func() { dst = x.Match(keys, dst[:0]) }); n != 0 && !testenv.Race() {
		t.Errorf("%v allocations", n)
	}
	if len(dst) != 9 {
		t.Errorf("%d holders", len(dst))
	}
}

func TestStoreAndRemoveAllocateNothingInSteadyState(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	s := kvindex.Stored{Hashes: []uint64{1, 2, 3, 4}, Tokens: seq(0, 64), BlockSize: 16}
	turn := func() {
		x.Store(0, &s)
		x.Remove(0, block.TierGPU, 0, s.Hashes)
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMatchKeepsWhatIsInDst(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	announce(x, 3, seq(0, 64), 4)
	keys := h.Append(nil, h.Root(block.Scope{}), 0, seq(0, 64), nil)
	got := x.Match(keys, []kvindex.Match{{Holder: 77}, {}})
	if len(got) != 3 || got[0].Holder != 77 || got[2].Holder != 3 || got[2].Blocks != 4 {
		t.Errorf("%+v", got)
	}
}

// TestReadersRunBesideWriters lets one writer for each of five holders store, remove, clear and forget blocks while
// readers match. Holders 0 and 1 have engine blocks of the index's block size, and holders 2 and 3 have engine blocks
// of several sizes. Holder 4 uses block keys as engine hashes. A sixth holder does not change: every answer must have
// all blocks of this holder, if the index has room for all blocks. No answer may be longer than a prompt.
// WARMPATH_STRESS=2m lets the test run for 2 minutes.
func TestReadersRunBesideWriters(t *testing.T) {
	for _, bytes := range []int64{1 << 30, 2 << 20} {
		t.Run(fmt.Sprintf("%d MiB", bytes>>20), func(t *testing.T) { stress(t, bytes, 4000) })
	}
}

func stress(t *testing.T, bytes int64, turns int) {
	if testenv.Race() {
		turns /= 4
	}
	h, _ := block.NewHasher(block.XXH3, 16)
	c := &contest{index: kvindex.New(h, kvindex.Config{Bytes: bytes, MaxWaiting: 500}), ample: bytes == 1<<30}
	for i := range 40 {
		prompt := append(seq(0, 16*16), seq((i+1)*100_000, 16*(contestBlocks-16))...)
		c.prompts = append(c.prompts, prompt)
		c.keys = append(c.keys, h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil))
	}
	const writers = 5
	c.still = writers
	end := time.Now()
	if d, err := time.ParseDuration(os.Getenv("WARMPATH_STRESS")); err == nil {
		end = end.Add(d / 2) // the test runs once for each of two budgets
	}
	announce(c.index, c.still, c.prompts[0], contestBlocks)

	var readers, all sync.WaitGroup
	for r := range uint64(2) {
		readers.Go(func() { c.read(t, rand.New(rand.NewPCG(r, 5))) })
	}
	for w := range fleet.Holder(writers) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 6))
			for c.write(w, turns, random); time.Now().Before(end) && !t.Failed(); {
				c.write(w, turns, random)
			}
		})
	}
	all.Wait()
	c.done.Store(true)
	readers.Wait()
	for w := range fleet.Holder(writers + 1) {
		c.index.Forget(w)
	}
	if s := c.index.Stats(); s.Blocks != 0 || s.Memberships != 0 || s.Hashes != 0 || s.Waiting != 0 {
		t.Errorf("after Forget of all holders the index still has %+v", s)
	}
}

// contest has the state that the readers and writers of one index share.
type contest struct {
	index   *kvindex.Index
	prompts [][]block.Token
	keys    [][]block.Key
	still   fleet.Holder // a holder that has the first prompt and does not change
	ample   bool         // the index has room for all blocks, so that it evicts none
	done    atomic.Bool
}

const contestBlocks = 64 // number of blocks of each prompt; all prompts share the first 16

func (c *contest) read(t *testing.T, random *rand.Rand) {
	var dst []kvindex.Match
	for !c.done.Load() {
		i := random.IntN(len(c.keys))
		dst = c.index.Match(c.keys[i], dst[:0])
		seen, want := uint32(0), uint32(16)
		if i == 0 {
			want = contestBlocks
		}
		for _, m := range dst {
			if m.Holder == c.still {
				seen = m.Blocks
			}
			if m.Blocks > contestBlocks {
				t.Errorf("%+v", m)
				return
			}
		}
		if c.ample && seen != want {
			t.Errorf("the holder that stands still has %d of %d blocks of text %d", seen, want, i)
			return
		}
		if random.IntN(50) == 0 {
			c.index.Stats()
		}
	}
}

func (c *contest) write(w fleet.Holder, turns int, random *rand.Rand) {
	for range turns {
		i := random.IntN(len(c.keys))
		switch random.IntN(40) {
		case 0:
			c.index.Forget(w)
		case 1:
			c.index.Clear(w, block.Tier(random.IntN(2)))
		default:
			switch {
			case w < 2:
				churn(c.index, w, c.prompts[i], i, []int{16}, random)
			case w < 4:
				churn(c.index, w, c.prompts[i], i, mixed, random)
			default:
				c.churnChain(w, i, random)
			}
		}
	}
}

// churnChain stores or removes a random range of a prompt's blocks. The block keys serve as engine hashes.
func (c *contest) churnChain(w fleet.Holder, i int, random *rand.Rand) {
	from := random.IntN(contestBlocks)
	to := from + 1 + random.IntN(contestBlocks-from)
	if random.IntN(2) == 0 {
		gone := asHashes(c.keys[i][from:to])
		slices.Reverse(gone)
		c.index.Remove(w, block.TierGPU, 0, gone)
		return
	}
	chain{c.prompts[i], c.keys[i]}.store(c.index, w, block.TierGPU, from, to)
}

var mixed = []int{16, 16, 8, 48}

// churn stores or removes a random range of a prompt's tokens, in engine blocks of one of the given sizes.
func churn(x *kvindex.Index, w fleet.Holder, prompt []block.Token, text int, sizes []int, random *rand.Rand) {
	size := sizes[random.IntN(len(sizes))]
	hash := func(i int) uint64 {
		if i*size < 16*16 {
			text = 0 // all prompts share this part
		}
		return uint64(text)<<32 | uint64(size)<<16 | uint64(i+1)
	}
	n := len(prompt) / size
	from := random.IntN(n)
	to := from + 1 + random.IntN(min(16, n-from))
	var hashes []uint64
	id := text
	for i := from; i < to; i++ {
		text = id
		hashes = append(hashes, hash(i))
	}
	tier := block.Tier(random.IntN(2))
	if random.IntN(2) == 0 {
		x.Remove(w, tier, 0, hashes)
		return
	}
	s := kvindex.Stored{Tier: tier, Hashes: hashes, Tokens: prompt[from*size : to*size], BlockSize: size}
	if from > 0 {
		text = id
		s.HasParent, s.Parent = true, hash(from-1)
	}
	x.Store(w, &s)
}

// TestASmallBudgetOnlyForgets compares a small index, which must evict, with a large index, which need not. The small
// index may claim fewer blocks than the large one, but never more.
func TestASmallBudgetOnlyForgets(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	small := kvindex.New(h, kvindex.Config{Bytes: 1 << 20})
	large := kvindex.New(h, kvindex.Config{})
	random := rand.New(rand.NewPCG(7, 8))
	prompts := make([][]block.Token, 1500)
	for i := range prompts {
		prompts[i] = append(seq(0, 16*16), seq((i+1)*100_000, 16*48)...)
	}
	seen := 0
	for step := range 12_000 {
		i, w, seed := random.IntN(len(prompts)), fleet.Holder(random.IntN(3)), random.Uint64()
		sizes := [][]int{mixed, mixed, {16}}[w]
		churn(small, w, prompts[i], i, sizes, rand.New(rand.NewPCG(seed, 1)))
		churn(large, w, prompts[i], i, sizes, rand.New(rand.NewPCG(seed, 1)))
		keys := h.Append(nil, h.Root(block.Scope{}), 0, prompts[i], nil)
		have := map[fleet.Holder]uint32{}
		for _, m := range large.Match(keys, nil) {
			have[m.Holder] = m.Blocks
		}
		for _, m := range small.Match(keys, nil) {
			if m.Blocks > have[m.Holder] {
				t.Fatalf("step %d: %d blocks on holder %d; without the budget %d", step, m.Blocks, m.Holder, have[m.Holder])
			}
			seen += int(m.Blocks)
		}
	}
	s := small.Stats()
	evicted := int64(0)
	for _, h := range s.Holders {
		for _, n := range h.Evicted {
			evicted += n
		}
	}
	if evicted < s.Evictions {
		t.Errorf("%d blocks evicted, of holders %d", s.Evictions, evicted)
	}
	if s.Evictions == 0 || seen == 0 || s.Bytes > s.Budget {
		t.Errorf("%d blocks seen, stats %+v", seen, s)
	}
}

func TestWhatIsEvictedLeavesNoHashes(t *testing.T) {
	testenv.SkipRaced(t)
	hasher, err := block.NewHasher(block.XXH3, 8)
	if err != nil {
		t.Fatal(err)
	}
	x := kvindex.New(hasher, kvindex.Config{Bytes: 1 << 20})
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 { // chains of engine blocks of one token; eight engine blocks make a block of the index
		s := kvindex.Stored{BlockSize: 1}
		for range 400 {
			s.Hashes = append(s.Hashes, random.Uint64())
			s.Tokens = append(s.Tokens, random.Uint32())
		}
		x.Store(0, &s)
	}
	s := x.Stats()
	if s.Evictions == 0 {
		t.Fatal("nothing was evicted")
	}
	// Only these engine hashes may be left: eight for each remaining block, and at most 400 of the last chain.
	if s.Hashes > 8*s.Blocks+400 {
		t.Errorf("%d engine hashes are left for %d blocks of eight engine blocks each", s.Hashes, s.Blocks)
	}
}

func TestStatsCountBlocksAndHashes(t *testing.T) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{Bytes: 32 << 20})
	announce(x, 2, seq(0, 64), 4)
	announce(x, 5, seq(0, 160), 4)
	x.Store(5, &kvindex.Stored{Tier: block.TierCPU, Group: 1, Attention: block.AttentionSlidingWindow, Window: 64, Hashes: []uint64{99}})
	s := x.Stats()
	if s.Blocks != 10 || s.Memberships != 14 || s.Hashes != 15 || s.Waiting != 1 || s.Budget != 32<<20 || len(s.Holders) != 2 {
		t.Errorf("%+v", s)
	}
	five, ok := x.Holder(5)
	if !ok || five.Blocks != [block.NumTiers]int64{10} || !five.Whole || len(five.Groups) != 2 || five.Groups[1].Window != 64 {
		t.Errorf("%+v", five)
	}
	if _, ok := x.Holder(3); ok {
		t.Error("holder 3 is known")
	}
}
