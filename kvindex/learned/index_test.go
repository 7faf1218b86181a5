package learned_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/learned"
)

const second = int64(time.Second)

// prompt returns n chained keys that share their first `shared` with every prompt of the same root.
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

func newIndex(t testing.TB, cfg learned.Config) *learned.Index {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	return learned.New(h, cfg)
}

// has returns how many blocks each holder is taken to have.
func has(x *learned.Index, keys []block.Key, now int64) map[fleet.Holder]int {
	got := map[fleet.Holder]int{}
	for _, m := range x.Match(keys, now, nil) {
		if m.Blocks > 0 {
			got[m.Holder] = int(m.Blocks)
		}
	}
	return got
}

func want(t *testing.T, x *learned.Index, keys []block.Key, now int64, want map[fleet.Holder]int) {
	t.Helper()
	if want == nil {
		want = map[fleet.Holder]int{}
	}
	if d := cmp.Diff(want, has(x, keys, now)); d != "" {
		t.Errorf("blocks by holder (-want +got):\n%s", d)
	}
}

func TestDefaultsAreTheSeeds(t *testing.T) {
	if c := learned.TrackerConfig(); c.MaxHolderBlocks != 100_000 || c.Interval != time.Minute || c.TTL != 0 || c.MaxBlocks != 0 {
		t.Errorf("tracker: %+v", c)
	}
	if c := learned.ApproximateConfig(); c.TTL != 120*time.Second || c.MaxBlocks != 1<<20 || c.PruneTo != 0.8 || c.MaxHolderBlocks != 0 {
		t.Errorf("approximate: %+v", c)
	}
	if c := newIndex(t, learned.Config{}).Config(); c.MaxBlocks != 1<<20 || c.PruneTo != 0.8 {
		t.Errorf("a zero configuration has no bound: %+v", c)
	}
}

func TestARequestIsExpectedWhereItWasSent(t *testing.T) {
	x := newIndex(t, learned.TrackerConfig())
	a, b := prompt(1, 6, 10), prompt(2, 6, 20)
	x.Learn(3, a, 0)
	want(t, x, a, 0, map[fleet.Holder]int{3: 10})
	want(t, x, a[:4], 0, map[fleet.Holder]int{3: 4})
	want(t, x, b, 0, map[fleet.Holder]int{3: 6})
	x.Learn(5, b, 0)
	want(t, x, b, 0, map[fleet.Holder]int{3: 6, 5: 20})
	want(t, x, prompt(9, 0, 5), 0, nil)
	x.Learn(3, nil, 0)
	if s := x.Stats(); s.Memberships != 30 || s.Blocks != 24 || s.Learned != 2 || len(s.Holders) != 2 {
		t.Errorf("%+v", s)
	}
}

func TestAHolderKeepsWhatItUsedLast(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 25})
	a, b, c := prompt(1, 0, 10), prompt(2, 0, 10), prompt(3, 0, 10)
	x.Learn(0, a, 0)
	x.Learn(0, b, 0)
	x.Learn(0, c, 0)
	want(t, x, a, 0, map[fleet.Holder]int{0: 10}) // the limit is for passes
	if n := x.Evict(0); n != 5 {
		t.Errorf("%d went, want 5", n)
	}
	want(t, x, a, 0, map[fleet.Holder]int{0: 5}) // from its end
	want(t, x, b, 0, map[fleet.Holder]int{0: 10})
	x.Learn(0, a[:2], 0) // a's head is new again, its tail is not
	x.Learn(0, prompt(4, 0, 10), 0)
	x.Evict(0)
	want(t, x, a, 0, map[fleet.Holder]int{0: 2})
	want(t, x, b, 0, map[fleet.Holder]int{0: 3})
	want(t, x, c, 0, map[fleet.Holder]int{0: 10})
}

func TestAUseWithoutARequestCountsAsRecent(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 10})
	a, b := prompt(1, 0, 8), prompt(2, 0, 8)
	x.Learn(0, a, 0)
	x.Learn(0, b, 0)
	x.Use(0, append(slices.Clone(a), 77), 0) // what it has of them
	x.Use(1, a, 0)
	x.Use(0, prompt(7, 0, 3), 0)
	x.Evict(0)
	want(t, x, a, 0, map[fleet.Holder]int{0: 8})
	want(t, x, b, 0, map[fleet.Holder]int{0: 2})
}

func TestALimitHoldsWithoutPassesToo(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 100})
	for i := range 1000 {
		x.Learn(0, prompt(i, 3, 20), int64(i))
		if s := x.Stats(); s.Memberships > 200 {
			t.Fatalf("%d blocks after %d requests", s.Memberships, i+1)
		}
	}
	x.Learn(0, prompt(5000, 0, 1000), 0)
	if s := x.Stats(); s.Memberships != 100 || s.Evicted == 0 {
		t.Errorf("%+v", s)
	}
	want(t, x, prompt(5000, 0, 1000), 0, map[fleet.Holder]int{0: 100})
}

func TestBlocksAreBelievedForTheirTime(t *testing.T) {
	x := newIndex(t, learned.ApproximateConfig())
	a := prompt(1, 0, 10)
	x.Learn(0, a, 0)
	x.Learn(1, a, 50*second)
	x.Learn(0, a[:4], 60*second)
	if n := x.Evict(120*second - 1); n != 0 {
		t.Errorf("%d went before their time", n)
	}
	x.Evict(120 * second)
	want(t, x, a, 120*second, map[fleet.Holder]int{0: 4, 1: 10})
	x.Evict(170 * second)
	want(t, x, a, 170*second, map[fleet.Holder]int{0: 4})
	x.Evict(180 * second)
	want(t, x, a, 180*second, nil)
	if s := x.Stats(); s.Expired != 20 || s.Memberships != 0 || s.Blocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAContinuationKeepsWhatIsBeforeItAlive(t *testing.T) {
	x := newIndex(t, learned.ApproximateConfig())
	a := prompt(1, 0, 10)
	x.Learn(0, a[:5], 0)
	x.Learn(0, a, 100*second)
	x.Evict(130 * second)
	want(t, x, a, 130*second, map[fleet.Holder]int{0: 10})
	x.Evict(220 * second)
	want(t, x, a, 220*second, nil)
}

func TestPruningLeavesAShareOfTheMostRecent(t *testing.T) {
	x := newIndex(t, learned.Config{MaxBlocks: 100, PruneTo: 0.5})
	for i := range 10 {
		x.Learn(fleet.Holder(i%3), prompt(i, 0, 10), int64(i))
	}
	if s := x.Stats(); s.Memberships != 100 || s.Pruned != 0 {
		t.Fatalf("before: %+v", s)
	}
	x.Learn(7, prompt(10, 0, 10), 10)
	if s := x.Stats(); s.Memberships != 50 || s.Pruned != 60 {
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
	x := newIndex(t, learned.TrackerConfig())
	a := prompt(1, 0, 1000)
	empty := x.Stats().Bytes
	for i := range 20 {
		x.Learn(0, a, 0)
		x.Learn(1, a[:10], 0)
		x.Forget(0)
		x.Forget(99)
		want(t, x, a, 0, map[fleet.Holder]int{1: 10})
		if s := x.Stats(); s.Memberships != 10 || s.Forgotten != int64(i+1) {
			t.Fatalf("%+v", s)
		}
	}
	x.Forget(1)
	if s := x.Stats(); s.Memberships != 0 || s.Bytes > empty+200_000 {
		t.Errorf("%d bytes when empty, %d after forgetting: %+v", empty, s.Bytes, s)
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	x := newIndex(t, learned.ApproximateConfig())
	for i := range 100 {
		x.Learn(0, prompt(i, 0, 1000), 0)
	}
	x.Learn(0, prompt(7, 0, 1000), 60*second)
	full := x.Stats().Bytes
	x.Evict(120 * second)
	want(t, x, prompt(7, 0, 1000), 0, map[fleet.Holder]int{0: 1000})
	if left := x.Stats().Bytes; left > full/4 {
		t.Errorf("%d bytes for 100,000 blocks, %d for 1,000 of them", full, left)
	}
	x.Learn(0, prompt(7, 0, 2000), 130*second) // the moved forest works
	x.Evict(200 * second)
	want(t, x, prompt(7, 0, 2000), 0, map[fleet.Holder]int{0: 2000})
	x.Evict(250 * second)
	want(t, x, prompt(7, 0, 2000), 0, nil)
}

func TestWhatMakesNoSenseDoesNoHarm(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 4, TTL: -1, PruneTo: 7, MaxBlocks: -3})
	x.Learn(fleet.NoHolder, prompt(1, 0, 3), 0)
	x.Use(fleet.NoHolder, prompt(1, 0, 3), 0)
	x.Forget(fleet.NoHolder)
	x.Learn(0, []block.Key{5, 5, 0, 5, 5}, 9)
	x.Learn(0, []block.Key{0, 0, 5}, -9)
	x.Use(0, nil, 0)
	x.Match(nil, 0, nil)
	x.Evict(-1)
	x.Evict(1 << 62)
	for range 3 {
		x.Learn(0, prompt(1, 0, 3), 0)
		x.Evict(0)
	}
	want(t, x, prompt(1, 0, 3), 0, map[fleet.Holder]int{0: 3})
}

// reference is the same in the plainest way: when each holder used each block, its whole prefix at each use.
type reference struct {
	cfg    learned.Config
	blocks map[fleet.Holder]map[block.Key]*used
	clock  int
}

type used struct {
	epoch int
	at    int64
	depth int
}

func (r *reference) learn(h fleet.Holder, keys []block.Key, now int64, add bool) {
	r.clock++
	if r.blocks[h] == nil {
		r.blocks[h] = map[block.Key]*used{}
	}
	for i, k := range keys {
		if r.blocks[h][k] == nil && !add {
			break
		}
		r.blocks[h][k] = &used{r.clock, now, i}
	}
	if n := r.cfg.MaxHolderBlocks; n > 0 && len(r.blocks[h]) > 2*n {
		r.trim(n, h)
	}
	if n := r.cfg.MaxBlocks; n > 0 && r.size() > n {
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

// trim leaves n blocks of some holders: the least recently used go first, the deepest of one use before the others.
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

func (r *reference) evict(now int64) {
	for h, b := range r.blocks {
		for k, u := range b {
			if ttl := int64(r.cfg.TTL); ttl > 0 && u.at+ttl <= now {
				delete(b, k)
			}
		}
		if n := r.cfg.MaxHolderBlocks; n > 0 {
			r.trim(n, h)
		}
	}
}

func (r *reference) match(keys []block.Key) map[fleet.Holder]int {
	got := map[fleet.Holder]int{}
	for h, b := range r.blocks {
		n := 0
		for n < len(keys) && b[keys[n]] != nil {
			n++
		}
		if n > 0 {
			got[h] = n
		}
	}
	return got
}

func TestRandomHistoriesAgreeWithTheReference(t *testing.T) {
	configs := []learned.Config{
		{MaxHolderBlocks: 40},
		{TTL: 50, MaxBlocks: 150, PruneTo: 0.7},
		{TTL: 30, MaxHolderBlocks: 30},
		{MaxBlocks: 60, PruneTo: 1},
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

func run(t *testing.T, r *rand.Rand, cfg learned.Config, steps int) {
	x := newIndex(t, cfg)
	ref := &reference{cfg: cfg, blocks: map[fleet.Holder]map[block.Key]*used{}}
	now := int64(0)
	for step := range steps {
		now += int64(1 + r.IntN(4)) // a use of each holder has a time of its own, or pruning over holders would be a matter of taste
		h := fleet.Holder(r.IntN(4))
		keys := prompt(r.IntN(8), r.IntN(3)*4, 4+r.IntN(20))
		keys = keys[:1+r.IntN(len(keys))]
		switch r.IntN(20) {
		case 0:
			x.Forget(h)
			delete(ref.blocks, h)
		case 1, 2, 3:
			x.Evict(now)
			ref.evict(now)
		case 4, 5:
			x.Use(h, keys, now)
			ref.learn(h, keys, now, false)
		default:
			x.Learn(h, keys, now)
			ref.learn(h, keys, now, true)
		}
		for range 3 {
			keys := prompt(r.IntN(8), r.IntN(3)*4, 24)
			if d := cmp.Diff(ref.match(keys), has(x, keys, now)); d != "" {
				t.Fatalf("after %d steps (-reference +index):\n%s", step+1, d)
			}
		}
		if got := x.Stats().Memberships; got != int64(ref.size()) {
			t.Fatalf("after %d steps: %d blocks, the reference has %d", step+1, got, ref.size())
		}
	}
}

func TestLearningAndMatchingAllocateNothing(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 500, MaxBlocks: 10_000})
	keys := prompt(1, 0, 200)
	for i := range 100 { // up to the size it keeps
		x.Learn(0, prompt(i, 0, 200), int64(i))
	}
	x.Learn(1, keys, 0)
	dst := make([]kvindex.Match, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		x.Learn(1, keys, 1)
		x.Learn(1, keys[:50], 1)
		x.Use(1, keys, 1)
		dst = x.Match(keys, 1, dst[:0])
	}); n != 0 && !raceEnabled {
		t.Errorf("%v allocations", n)
	}
}

func TestReadersAndWritersAtOnce(t *testing.T) {
	x := newIndex(t, learned.Config{MaxHolderBlocks: 300, TTL: 1000, MaxBlocks: 2000})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			var dst []kvindex.Match
			for i := range 2000 {
				keys := prompt(r.IntN(50), 10, 1+r.IntN(60))
				h := fleet.Holder(r.IntN(6))
				switch r.IntN(12) {
				case 0:
					x.Forget(h)
				case 1:
					x.Evict(int64(i))
				case 2:
					x.Stats()
				case 3, 4, 5, 6:
					x.Learn(h, keys, int64(i))
				default:
					dst = x.Match(keys, int64(i), dst[:0])
					for _, m := range dst {
						if int(m.Blocks) > len(keys) {
							t.Errorf("%d blocks of %d", m.Blocks, len(keys))
						}
					}
				}
			}
		})
	}
	wg.Wait()
	x.Evict(1 << 60)
	if s := x.Stats(); s.Memberships != 0 || s.Blocks != 0 {
		t.Errorf("%+v", s)
	}
}
