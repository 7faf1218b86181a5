package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

const second = int64(time.Second)

// prompt returns n chained keys. For every seed, the first keys are the same; shared is the number of these keys.
func prompt(seed, shared, n int) []block.Key {
	keys := make([]block.Key, n)
	at := uint64(1)
	for i := range keys {
		if i == shared {
			at += uint64(seed) * 0x9e3779b97f4a7c15
		}
		at = (at ^ at>>29) * 0xbf58476d1ce4e5b9
		at ^= at >> 32
		keys[i] = block.Key(at)
	}
	return keys
}

// blocks is a store of the keys of blocks, as the tests use it.
type blocks struct {
	*Store
	matches Matches
}

func newBlocks(c Config) *blocks {
	c.Keys = Blocks
	return &blocks{Store: New(c)}
}

func (x *blocks) Learn(h fleet.Holder, keys []block.Key, now int64) Receipt {
	return x.Store.Learn(First, h, BlockBytes(keys), now)
}

func (x *blocks) Unlearn(h fleet.Holder, keys []block.Key, r Receipt) {
	x.Store.Unlearn(First, h, BlockBytes(keys), r)
}

// Match appends the match of each holder, in the order of the holders' numbers.
func (x *blocks) Match(keys []block.Key, now int64, dst []kvindex.Match) []kvindex.Match {
	x.Store.Match(First, BlockBytes(keys), now, &x.matches)
	for _, h := range x.matches.Longest() {
		n := uint32(x.matches.Of(h))
		dst = append(dst, kvindex.Match{Holder: h, Blocks: n, Tier: [block.NumTiers]uint32{block.TierGPU: n}})
	}
	slices.SortFunc(dst, func(a, b kvindex.Match) int { return int(a.Holder) - int(b.Holder) })
	return dst
}

// tracked and believed are two designs that other routers use. tracked keeps the newest blocks of each holder. believed
// keeps each block for two minutes.
var (
	tracked  = Config{HolderUnits: 100_000}
	believed = Config{TTL: 120 * time.Second, Units: 1 << 20, PruneTo: 0.8}
)

// has returns, for each holder, how many of the first blocks of keys the holder has, as the store says.
func has(x *blocks, keys []block.Key, now int64) map[fleet.Holder]int {
	got := map[fleet.Holder]int{}
	for _, m := range x.Match(keys, now, nil) {
		if m.Blocks > 0 {
			got[m.Holder] = int(m.Blocks)
		}
	}
	return got
}

func want(t *testing.T, x *blocks, keys []block.Key, now int64, want map[fleet.Holder]int) {
	t.Helper()
	if want == nil {
		want = map[fleet.Holder]int{}
	}
	if d := cmp.Diff(want, has(x, keys, now)); d != "" {
		t.Errorf("blocks by holder (-want +got):\n%s", d)
	}
}

func TestAStoreIsAlwaysBounded(t *testing.T) {
	if c := newBlocks(Config{}).config; c.Units != 1<<20 || c.PruneTo != 0.8 {
		t.Errorf("a zero configuration has no bound: %+v", c)
	}
}

func TestARequestIsExpectedWhereItWasSent(t *testing.T) {
	x := newBlocks(tracked)
	a, b := prompt(1, 6, 10), prompt(2, 6, 20)
	x.Learn(3, a, 0)
	want(t, x, a, 0, map[fleet.Holder]int{3: 10})
	want(t, x, a[:4], 0, map[fleet.Holder]int{3: 4})
	want(t, x, b, 0, map[fleet.Holder]int{3: 6})
	x.Learn(5, b, 0)
	want(t, x, b, 0, map[fleet.Holder]int{3: 6, 5: 20})
	want(t, x, prompt(9, 0, 5), 0, nil)
	x.Learn(3, nil, 0)
	if s := x.Stats(); s.Units != 30 || x.Units(3) != 10 {
		t.Errorf("%+v", s)
	}
}

func TestAHolderKeepsWhatItUsedLast(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 25})
	a, b, c := prompt(1, 0, 10), prompt(2, 0, 10), prompt(3, 0, 10)
	x.Learn(0, a, 0)
	x.Learn(0, b, 0)
	x.Learn(0, c, 0)
	want(t, x, a, 0, map[fleet.Holder]int{0: 10}) // the limit is applied only by a pass
	if n := evict(x.Store, 0); n != 5 {
		t.Errorf("the pass evicted %d blocks, want 5", n)
	}
	want(t, x, a, 0, map[fleet.Holder]int{0: 5}) // the pass dropped blocks from the prompt's end
	want(t, x, b, 0, map[fleet.Holder]int{0: 10})
	x.Learn(0, a[:2], 0) // only the first two blocks of a become the most recently used blocks
	x.Learn(0, prompt(4, 0, 10), 0)
	evict(x.Store, 0)
	want(t, x, a, 0, map[fleet.Holder]int{0: 2})
	want(t, x, b, 0, map[fleet.Holder]int{0: 3})
	want(t, x, c, 0, map[fleet.Holder]int{0: 10})
}

func TestALimitHoldsWithoutPassesToo(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 100})
	for i := range 1000 {
		x.Learn(0, prompt(i, 3, 20), int64(i))
		if s := x.Stats(); s.Units > 200 {
			t.Fatalf("%d blocks after %d requests", s.Units, i+1)
		}
	}
	x.Learn(0, prompt(5000, 0, 1000), 0)
	if s := x.Stats(); s.Units != 100 {
		t.Errorf("%+v", s)
	}
	want(t, x, prompt(5000, 0, 1000), 0, map[fleet.Holder]int{0: 100})
}

func TestAPassComesOnceAnInterval(t *testing.T) {
	x := newBlocks(Config{TTL: 10, Interval: 100})
	units := func(want int64) {
		t.Helper()
		if n := x.Stats().Units; n != want {
			t.Errorf("%d blocks are kept, want %d", n, want)
		}
	}
	x.Learn(0, prompt(1, 0, 5), 1000)
	x.Store.Evict(1000) // the first call only sets the time of the first pass
	x.Store.Evict(1099)
	units(5)
	x.Store.Evict(1100)
	units(0)
	x.Learn(0, prompt(1, 0, 5), 1101)
	x.Store.Evict(1199)
	units(5)
}

func TestOneCallEvictsAStepAndTheNextGoesOn(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 10, Interval: 100, Step: 3})
	x.Learn(0, prompt(1, 0, 14), 0)
	x.Learn(1, prompt(2, 0, 12), 0)
	x.Store.Evict(0)
	for _, want := range []int64{23, 20, 20} {
		x.Store.Evict(100)
		if n := x.Stats().Units; n != want {
			t.Errorf("%d blocks are left, want %d", n, want)
		}
	}
	check(t, x.Store)
}

func TestBlocksAreBelievedForTheirTime(t *testing.T) {
	x := newBlocks(believed)
	a := prompt(1, 0, 10)
	x.Learn(0, a, 0)
	x.Learn(1, a, 50*second)
	x.Learn(0, a[:4], 60*second)
	if n := evict(x.Store, 120*second-1); n != 0 {
		t.Errorf("%d blocks were evicted before the end of their TTL", n)
	}
	evict(x.Store, 120*second)
	want(t, x, a, 120*second, map[fleet.Holder]int{0: 4, 1: 10})
	evict(x.Store, 170*second)
	want(t, x, a, 170*second, map[fleet.Holder]int{0: 4})
	evict(x.Store, 180*second)
	want(t, x, a, 180*second, nil)
	if s := x.Stats(); s.Units != 0 || s.Runs != 0 {
		t.Errorf("%+v", s)
	}
}

// Without a pass of eviction, too, a placement counts exactly until the last nanosecond of its TTL.
func TestATTLEndsWithoutAPass(t *testing.T) {
	x := newBlocks(Config{TTL: 100})
	a, b := prompt(1, 6, 10), prompt(2, 6, 20)
	x.Learn(0, a, 10)
	x.Learn(1, a, 20)
	x.Learn(0, b, 30)
	want(t, x, a, 109, map[fleet.Holder]int{0: 10, 1: 10})
	want(t, x, a, 110, map[fleet.Holder]int{0: 6, 1: 10})
	want(t, x, a, 120, map[fleet.Holder]int{0: 6})
	want(t, x, b, 129, map[fleet.Holder]int{0: 20})
	want(t, x, b, 130, nil)
	if s := x.Stats(); s.Units != 34 {
		t.Errorf("%+v", s)
	}
}

func TestUnitsThatALimitCostsAreCounted(t *testing.T) {
	x := newBlocks(Config{TTL: 100, Units: 50, PruneTo: 1})
	for i := range 8 {
		x.Learn(fleet.Holder(i%3), prompt(i, 0, 10), int64(i))
	}
	if s := x.Stats(); s.Units != 50 || s.Displaced != 30 {
		t.Errorf("%+v", s)
	}
	x.Learn(5, prompt(9, 0, 10), 105) // this prompt takes the place of units whose TTL has ended: they are not displaced
	if s := x.Stats(); s.Units != 50 || s.Displaced != 30 {
		t.Errorf("%+v", s)
	}
	if x.Shrink(12); x.Stats().Units != 12 {
		t.Errorf("%+v", x.Stats())
	}
	want(t, x, prompt(9, 0, 10), 105, map[fleet.Holder]int{5: 10})
	check(t, x.Store)
}

func TestAContinuationKeepsWhatIsBeforeItAlive(t *testing.T) {
	x := newBlocks(believed)
	a := prompt(1, 0, 10)
	x.Learn(0, a[:5], 0)
	x.Learn(0, a, 100*second)
	evict(x.Store, 130*second)
	want(t, x, a, 130*second, map[fleet.Holder]int{0: 10})
	evict(x.Store, 220*second)
	want(t, x, a, 220*second, nil)
}

func TestPruningLeavesAShareOfTheMostRecent(t *testing.T) {
	x := newBlocks(Config{Units: 100, PruneTo: 0.5})
	for i := range 10 {
		x.Learn(fleet.Holder(i%3), prompt(i, 0, 10), int64(i))
	}
	if s := x.Stats(); s.Units != 100 {
		t.Fatalf("before: %+v", s)
	}
	x.Learn(7, prompt(10, 0, 10), 10)
	if s := x.Stats(); s.Units != 50 {
		t.Fatalf("after: %+v", s)
	}
	for i := range 11 {
		w := map[fleet.Holder]int{fleet.Holder(i % 3): 10}
		if i == 10 {
			w = map[fleet.Holder]int{7: 10}
		}
		if i < 6 {
			w = nil
		}
		want(t, x, prompt(i, 0, 10), 10, w)
	}
}

func TestAForgottenHolderHasNothing(t *testing.T) {
	x := newBlocks(tracked)
	a := prompt(1, 0, 1000)
	empty := x.Stats().Bytes
	for range 20 {
		x.Learn(0, a, 0)
		x.Learn(1, a[:10], 0)
		x.Forget(0)
		x.Forget(99)
		want(t, x, a, 0, map[fleet.Holder]int{1: 10})
		if s := x.Stats(); s.Units != 10 {
			t.Fatalf("%+v", s)
		}
	}
	x.Forget(1)
	if s := x.Stats(); s.Units != 0 || s.Bytes != empty {
		t.Errorf("%d bytes when empty, %d after forgetting: %+v", empty, s.Bytes, s)
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	x := newBlocks(believed)
	for i := range 100 {
		x.Learn(0, prompt(i, 0, 1000), 0)
	}
	x.Learn(0, prompt(7, 0, 1000), 60*second)
	full := x.Stats().Bytes
	evict(x.Store, 120*second+100) // the stamps of a hundred uses at the same time differ by a nanosecond each
	want(t, x, prompt(7, 0, 1000), 0, map[fleet.Holder]int{0: 1000})
	if left := x.Stats().Bytes; left > full/4 {
		t.Errorf("%d bytes for 100,000 blocks, %d for 1,000 of them", full, left)
	}
	x.Learn(0, prompt(7, 0, 2000), 130*second) // after the eviction the store still learns prompts
	evict(x.Store, 200*second)
	want(t, x, prompt(7, 0, 2000), 0, map[fleet.Holder]int{0: 2000})
	evict(x.Store, 250*second)
	want(t, x, prompt(7, 0, 2000), 0, nil)
}

// After a peak the store's arrays become small again, and the remaining blocks still match.
func TestArraysThatAreMostlyEmptyShrink(t *testing.T) {
	for name, empty := range map[string]func(x *blocks){
		"the holders are forgotten": func(x *blocks) {
			for h := range fleet.Holder(8) {
				x.Forget(h + 2)
			}
		},
		"a pass ends": func(x *blocks) {
			x.Store.Evict(0)
			for range 20 {
				x.Store.Evict(100 * second)
			}
		},
		"another prompt is learned": func(x *blocks) {
			evict(x.Store, 100*second)
			x.Learn(0, prompt(20_001, 0, 5), 100*second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBlocks(Config{TTL: 50 * time.Second, Interval: time.Second})
			x.Plant()
			for i := range 20_000 {
				x.Learn(fleet.Holder(2+i%8), prompt(i, 3, 5), 0)
			}
			other := x.Plant()
			kept := prompt(20_000, 0, 9)
			x.Learn(0, kept, 90*second)
			x.Learn(1, kept[:7], 91*second)
			x.Store.Learn(other, 1, BlockBytes(kept[:4]), 92*second)
			if len(x.nodes) < 20_000 || len(x.links) < 20_000 {
				t.Fatalf("%d nodes, %d links", len(x.nodes), len(x.links))
			}
			empty(x)
			if len(x.nodes) > 100 || len(x.links) > 100 || len(x.freeNodes) > 100 || len(x.freeLinks) > 100 {
				t.Errorf("%d nodes, %d links", len(x.nodes), len(x.links))
			}
			check(t, x.Store)
			want(t, x, kept, 100*second, map[fleet.Holder]int{0: 9, 1: 7})
			if x.Store.Match(other, BlockBytes(kept), 100*second, &x.matches); x.matches.Of(1) != 4 {
				t.Errorf("%d blocks of the other root", x.matches.Of(1))
			}
			x.Unlearn(1, kept, x.Learn(1, kept, 101*second))
			x.Learn(5, prompt(7, 3, 5), 102*second)
			want(t, x, kept, 102*second, map[fleet.Holder]int{0: 9, 1: 7})
			check(t, x.Store)
		})
	}
}

func TestWhatMakesNoSenseDoesNoHarm(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 4, TTL: -1, PruneTo: 7, Units: -3})
	x.Learn(fleet.NoHolder, prompt(1, 0, 3), 0)
	x.Forget(fleet.NoHolder)
	x.Learn(0, []block.Key{5, 5, 0, 5, 5}, 9)
	x.Learn(0, []block.Key{0, 0, 5}, -9)
	x.Match(nil, 0, nil)
	evict(x.Store, -1)
	evict(x.Store, 1<<62)
	for range 3 {
		x.Learn(0, prompt(1, 0, 3), 0)
		evict(x.Store, 0)
	}
	want(t, x, prompt(1, 0, 3), 0, map[fleet.Holder]int{0: 3})
}

// Without a bound for limits, their number of bytes overflows.
func TestHugeLimitsAreNoLimits(t *testing.T) {
	for _, units := range []int64{math.MaxInt64, math.MaxInt64 / 2, 1 << 61} {
		x := newBlocks(Config{HolderUnits: units, HolderTarget: units, Units: units, Interval: 1})
		for _, now := range []int64{math.MinInt64, -1 << 40, 0, 1, 2} {
			x.Learn(0, prompt(1, 0, 3), now)
			evict(x.Store, now)
		}
		x.Shrink(units)
		want(t, x, prompt(1, 0, 3), 2, map[fleet.Holder]int{0: 3})
	}
}

// reference is a naive store. For each block of each holder it has the time of the last use. Each use of a prompt sets
// the time of all blocks of the prompt.
type reference struct {
	cfg    Config
	blocks map[fleet.Holder]map[block.Key]*used
	clock  int
}

type used struct {
	epoch int   // the number of the use
	at    int64 // the time of the use
	depth int   // the block's index in the prompt
}

func (r *reference) learn(h fleet.Holder, keys []block.Key, now int64) {
	r.clock++
	if r.blocks[h] == nil {
		r.blocks[h] = map[block.Key]*used{}
	}
	for k, u := range r.blocks[h] {
		if r.ended(u, now) {
			delete(r.blocks[h], k)
		}
	}
	for i, k := range keys {
		r.blocks[h][k] = &used{r.clock, now, i}
	}
	if n := int(r.cfg.HolderUnits); n > 0 && len(r.blocks[h]) > 2*n {
		r.trim(n, h)
	}
	if n := int(r.cfg.Units); n > 0 && r.size() > n {
		r.trim(int(float64(n)*r.cfg.PruneTo), r.holders()...)
	}
}

func (r *reference) size() (n int) {
	for _, b := range r.blocks {
		n += len(b)
	}
	return n
}

func (r *reference) holders() (all []fleet.Holder) {
	for h := range r.blocks {
		all = append(all, h)
	}
	return all
}

// trim drops blocks until the holders together have n blocks. It drops the least recently used blocks first. Among the
// blocks of one use, it drops the last block of the prompt first.
func (r *reference) trim(n int, holders ...fleet.Holder) {
	type entry struct {
		h fleet.Holder
		k block.Key
		u *used
	}
	var all []entry
	for _, h := range holders {
		for k, u := range r.blocks[h] {
			all = append(all, entry{h, k, u})
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		if a.u.epoch != b.u.epoch {
			return a.u.epoch - b.u.epoch
		}
		return b.u.depth - a.u.depth
	})
	for _, e := range all[:max(len(all)-n, 0)] {
		delete(r.blocks[e.h], e.k)
	}
}

func (r *reference) ended(u *used, now int64) bool {
	return r.cfg.TTL > 0 && u.at+int64(r.cfg.TTL) <= now
}

func (r *reference) evict(now int64) {
	for h, b := range r.blocks {
		for k, u := range b {
			if r.ended(u, now) {
				delete(b, k)
			}
		}
		if n := int(r.cfg.HolderUnits); n > 0 {
			r.trim(n, h)
		}
	}
}

func (r *reference) match(keys []block.Key, now int64) map[fleet.Holder]int {
	got := map[fleet.Holder]int{}
	for h, b := range r.blocks {
		n := 0
		for n < len(keys) && b[keys[n]] != nil && !r.ended(b[keys[n]], now) {
			n++
		}
		if n > 0 {
			got[h] = n
		}
	}
	return got
}

func TestRandomHistoriesAgreeWithTheReference(t *testing.T) {
	configs := []Config{
		{HolderUnits: 40},
		{TTL: 50, Units: 150, PruneTo: 0.7},
		{TTL: 30, HolderUnits: 30},
		{Units: 60, PruneTo: 1},
	}
	steps := 3000
	if testing.Short() {
		steps = 600
	}
	for seed := range uint64(12) {
		cfg := configs[seed%uint64(len(configs))]
		t.Run(fmt.Sprintf("%+v/%d", cfg, seed), func(t *testing.T) {
			run(t, rand.New(rand.NewPCG(seed, 4)), cfg, steps)
		})
	}
}

func run(t *testing.T, r *rand.Rand, cfg Config, steps int) {
	x := newBlocks(cfg)
	ref := &reference{cfg: cfg, blocks: map[fleet.Holder]map[block.Key]*used{}}
	now := int64(0)
	for step := range steps {
		now += int64(1 + r.IntN(4)) // times must differ: for equal times the order of eviction among holders is not defined
		h := fleet.Holder(r.IntN(4))
		keys := prompt(r.IntN(8), r.IntN(3)*4, 4+r.IntN(20))
		keys = keys[:1+r.IntN(len(keys))]
		switch r.IntN(20) {
		case 0:
			x.Forget(h)
			delete(ref.blocks, h)
		case 1, 2, 3:
			evict(x.Store, now)
			ref.evict(now)
		case 4:
			x.compactNodes(len(x.nodes))
			x.compactLinks(len(x.links))
		default:
			x.Learn(h, keys, now)
			ref.learn(h, keys, now)
		}
		for range 3 {
			keys := prompt(r.IntN(8), r.IntN(3)*4, 24)
			if d := cmp.Diff(ref.match(keys, now), has(x, keys, now)); d != "" {
				t.Fatalf("after %d steps (-reference +index):\n%s", step+1, d)
			}
		}
		check(t, x.Store)
		if got := x.Stats().Units; got != int64(ref.size()) {
			t.Fatalf("after %d steps: %d blocks, the reference has %d", step+1, got, ref.size())
		}
	}
}

func TestLearningAndMatchingAllocateNothing(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 500, Units: 10_000})
	keys := prompt(1, 0, 200)
	for i := range 100 { // the store's arrays grow to their final size
		x.Learn(0, prompt(i, 0, 200), int64(i))
	}
	x.Learn(1, keys, 0)
	dst := make([]kvindex.Match, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		x.Learn(1, keys, 1)
		x.Learn(1, keys[:50], 1)
		dst = x.Match(keys, 1, dst[:0])
	}); n != 0 && !testenv.Race() {
		t.Errorf("%v allocations", n)
	}
}

func TestReadersAndWritersAtOnce(t *testing.T) {
	x := newBlocks(Config{HolderUnits: 300, TTL: 1000, Units: 2000})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			var matches Matches
			for i := range 2000 {
				keys := prompt(r.IntN(50), 10, 1+r.IntN(60))
				h := fleet.Holder(r.IntN(6))
				switch r.IntN(12) {
				case 0:
					x.Forget(h)
				case 1:
					evict(x.Store, int64(i))
				case 2:
					x.Stats()
				case 3, 4, 5, 6:
					x.Learn(h, keys, int64(i))
				default:
					x.Store.Match(First, BlockBytes(keys), int64(i), &matches)
					if matches.Best() > len(keys) {
						t.Errorf("%d blocks of %d", matches.Best(), len(keys))
					}
				}
			}
		})
	}
	wg.Wait()
	evict(x.Store, 1<<60)
	if s := x.Stats(); s.Units != 0 || s.Runs != 0 {
		t.Errorf("%+v", s)
	}
}
