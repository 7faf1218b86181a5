package placement

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/fleet"
)

// evict runs one whole pass of eviction at the time now, and returns how many units were evicted.
func evict(s *Store, now int64) int64 {
	before := s.Stats().Units
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = max(s.now, now)
	for s.expire(now) {
	}
	for s.trim() {
	}
	return before - s.held/int64(s.unit)
}

// naive is a reference for the store: it keeps every key of each holder, and compares all of them.
type naive map[fleet.Holder][][]byte

func (n naive) match(holder fleet.Holder, key []byte, page int) int {
	best := 0
	for _, k := range n[holder] {
		i := 0
		for i < min(len(k), len(key)) && k[i] == key[i] {
			i++
		}
		best = max(best, min(i, len(k)-len(k)%page, len(key)-len(key)%page))
	}
	return best - best%page
}

// drawKey draws keys that often have equal beginnings: repetitions of a few letters, long enough for equal pages of
// tokens, too.
func drawKey(t *rapid.T, unit int) []byte {
	var key []byte
	for range rapid.IntRange(0, 5).Draw(t, "runs") {
		letter := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "letter")
		key = append(key, strings.Repeat(letter, unit*rapid.IntRange(0, 40).Draw(t, "length"))...)
	}
	return key
}

// check verifies the invariants of a store.
func check(t interface{ Fatalf(string, ...any) }, tree *Store) {
	used, nodes := int64(0), 0
	bytes := make([]int64, len(tree.holders))
	seen := map[uint32]bool{}
	for e, id := range tree.children {
		n := &tree.nodes[id]
		if seen[id] || n.parent != e.parent || len(n.text) == 0 || len(n.text)%tree.page != 0 || tree.first(n.text) != e.page {
			t.Fatalf("node %d is not the child of its parent under its first page", id)
		}
		seen[id] = true
		if n.end != tree.nodes[n.parent].end+len(n.text) {
			t.Fatalf("node %d ends at byte %d, want its parent's end plus its own length", id, n.end)
		}
		if len(n.holds) == 0 || !slices.IsSortedFunc(n.holds, func(a, b hold) int { return int(a.holder) - int(b.holder) }) {
			t.Fatalf("node %d has the holders %v, want at least one, in order", id, n.holds)
		}
		nodes++
		used += nodeBytes + int64(len(n.text)) + linkBytes*int64(len(n.holds))
		for _, h := range n.holds {
			bytes[h.holder] += int64(len(n.text))
			if tree.links[h.link].node != id {
				t.Fatalf("link %d of node %d is for node %d", h.link, id, tree.links[h.link].node)
			}
			if len(tree.nodes[n.parent].text) > 0 {
				if _, has := tree.find(n.parent, h.holder); !has {
					t.Fatalf("holder %d has node %d, but not the node's parent", h.holder, id)
				}
			}
		}
	}
	used += nodeBytes * int64(len(tree.roots))
	held := int64(0)
	for i := range bytes {
		held += bytes[i]
	}
	if held != tree.held {
		t.Fatalf("the holders have %d bytes of text, the store counts %d", held, tree.held)
	}
	if used != tree.used || nodes != tree.Stats().Runs {
		t.Fatalf("%d bytes are used, the store counts %d; there are %d nodes, the store counts %d", used, tree.used, nodes, tree.Stats().Runs)
	}
	for i := range tree.holders {
		list := &tree.holders[i]
		if list.bytes != bytes[i] {
			t.Fatalf("holder %d has %d bytes of text, the store counts %d", i, bytes[i], list.bytes)
		}
		rank, last, count := map[uint32]int{}, uint32(0), 0
		for l := list.newest; l != 0; l = tree.links[l].older {
			if tree.links[l].newer != last || last != 0 && tree.links[l].at > tree.links[last].at {
				t.Fatalf("holder %d's list of links is broken at link %d", i, l)
			}
			count++
			rank[tree.links[l].node], last = count, l
		}
		if last != list.oldest || count != list.links {
			t.Fatalf("holder %d's list ends at link %d after %d links, want link %d after %d links", i, last, count, list.oldest, list.links)
		}
		for id := range rank {
			if p := tree.nodes[id].parent; len(tree.nodes[p].text) > 0 && rank[p] > rank[id] {
				t.Fatalf("holder %d: node %d is more recent than its parent", i, id)
			}
		}
	}
}

func eachKind(t *testing.T, test func(t *rapid.T, tree *Store)) {
	t.Run("text", rapid.MakeCheck(func(t *rapid.T) { test(t, New(Config{Keys: Text, Bytes: 1 << 30})) }))
	t.Run("tokens", rapid.MakeCheck(func(t *rapid.T) { test(t, New(Config{Keys: Tokens, Bytes: 1 << 30})) }))
}

func TestAHolderHasTheLongestPrefixOfWhatItWasGiven(t *testing.T) {
	eachKind(t, func(t *rapid.T, tree *Store) {
		given := naive{}
		var m Matches
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			holder := fleet.Holder(rapid.IntRange(0, 3).Draw(t, "holder"))
			key := drawKey(t, tree.unit)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				tree.Forget(holder)
				delete(given, holder)
			case 1, 2, 3, 4:
				tree.Learn(0, holder, key, 0)
				given[holder] = append(given[holder], key)
			default:
				tree.Match(0, key, 0, &m)
				best := 0
				for holder := range fleet.Holder(5) {
					want := given.match(holder, key, tree.page) / tree.unit
					if got := m.Of(holder); got != want {
						t.Fatalf("holder %d has %d of %q, want %d", holder, got, key, want)
					}
					best = max(best, want)
				}
				if order := m.Longest(); !slices.IsSortedFunc(order, func(a, b fleet.Holder) int { return m.Of(b) - m.Of(a) }) || len(order) > 0 && m.Of(order[0]) != best {
					t.Fatalf("the holders are not in the order of their matches, the longest first: %v", order)
				}
				if m.Best() != best || m.Total() != len(key)/tree.unit {
					t.Fatalf("best %d of %d, want %d of %d", m.Best(), m.Total(), best, len(key)/tree.unit)
				}
			}
			check(t, tree)
		}
		for holder := range fleet.Holder(4) {
			tree.Forget(holder)
		}
		if s := tree.Stats(); s != (Stats{Bytes: nodeBytes}) {
			t.Fatalf("all holders are removed, but the store has %+v", s)
		}
	})
}

func TestTrimLeavesTheMostRecent(t *testing.T) {
	eachKind(t, func(t *rapid.T, tree *Store) {
		given := naive{}
		last := map[fleet.Holder][]byte{}
		limit := int64(rapid.IntRange(1, 400).Draw(t, "limit"))
		target := int64(rapid.IntRange(1, int(limit)).Draw(t, "target"))
		tree.config.HolderUnits, tree.config.HolderTarget, tree.config.WholeRuns, tree.config.Step = limit, target, true, 5
		var m Matches
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			holder, key := fleet.Holder(rapid.IntRange(0, 2).Draw(t, "holder")), drawKey(t, tree.unit)
			tree.Learn(0, holder, key, 0)
			given[holder], last[holder] = append(given[holder], key), key
			if !rapid.Bool().Draw(t, "trim") {
				continue
			}
			over := map[fleet.Holder]bool{}
			for holder := range last {
				over[holder] = tree.Units(holder) > limit
			}
			evict(tree, 0)
			check(t, tree)
			for holder, key := range last {
				units := tree.Units(holder)
				if over[holder] && units > target || units > limit {
					t.Fatalf("holder %d has %d units after a trim to %d above %d", holder, units, target, limit)
				}
				whole := int64(len(key)-len(key)%tree.page) / int64(tree.unit)
				tree.Match(0, key, 0, &m)
				if whole <= target && int64(m.Of(holder)) != whole {
					t.Fatalf("holder %d has %d of the %d units of its last key, with %d allowed", holder, m.Of(holder), whole, target)
				}
				for _, other := range given[holder] {
					tree.Match(0, other, 0, &m)
					if m.Of(holder)*tree.unit > given.match(holder, other, tree.page) {
						t.Fatalf("holder %d matches more units than it was sent", holder)
					}
				}
			}
		}
	})
}

func TestTheBudgetHoldsAtEveryMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := int64(rapid.IntRange(1, 3000).Draw(t, "budget"))
		tree := New(Config{Keys: Text, Bytes: budget})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			tree.Learn(0, fleet.Holder(rapid.IntRange(0, 3).Draw(t, "holder")), drawKey(t, 1), 0)
			if tree.used-nodeBytes > budget {
				t.Fatalf("%d bytes of %d", tree.used, budget)
			}
			check(t, tree)
		}
	})
}

// A page is a fixed number of a key's bytes. Two different pages may have the same hash, so the store must compare
// their bytes.
func TestAPageIsComparedNotTrusted(t *testing.T) {
	tree := New(Config{Keys: Tokens, Bytes: 1 << 20})
	a := TokenBytes(slices.Repeat([]uint32{1}, 32))
	b := TokenBytes(slices.Repeat([]uint32{2}, 32))
	tree.Learn(0, 0, a, 0)
	e := edge{0, tree.first(a)}
	tree.children[edge{0, tree.first(b)}] = tree.children[e] // as if the hashes were equal
	var m Matches
	tree.Match(0, b, 0, &m)
	if m.Of(0) != 0 || m.Best() != 0 {
		t.Fatalf("other tokens match %d", m.Of(0))
	}
	tree.Learn(0, 1, b, 0)
	if tree.Match(0, a, 0, &m); m.Of(0) != 32 || m.Of(1) != 0 {
		t.Fatalf("holder 0 has %d, holder 1 %d", m.Of(0), m.Of(1))
	}
}

func TestRootsShareTheBoundsAndNothingElse(t *testing.T) {
	tree := New(Config{Keys: Text, Bytes: 1 << 20})
	one, other := First, tree.Plant()
	var m Matches
	tree.Learn(one, 3, []byte("the same prompt"), 0)
	if tree.Match(other, []byte("the same prompt"), 0, &m); m.Of(3) != 0 {
		t.Errorf("%d match under another root", m.Of(3))
	}
	tree.Learn(other, 3, []byte("the same prompt"), 0)
	if n := tree.Units(3); n != 30 {
		t.Errorf("the holder has %d units", n)
	}
	tree.config.HolderUnits, tree.config.HolderTarget, tree.config.WholeRuns = 20, 20, true
	evict(tree, 0)
	check(t, tree)
	if tree.Match(one, []byte("the same prompt"), 0, &m); m.Of(3) != 0 {
		t.Error("the least recently used of all roots was not evicted")
	}
	if tree.Match(other, []byte("the same prompt"), 0, &m); m.Of(3) != 15 {
		t.Error("the most recently used of all roots was evicted")
	}
}

func TestARootWithoutKeysCanBeRemoved(t *testing.T) {
	s := New(Config{Keys: Text})
	key := []byte("a prompt")
	s.Learn(First, 0, key, 1)
	root := s.Plant()
	did := s.Learn(root, 1, key, 2)
	if s.Uproot(First) || s.Uproot(root) || s.Uproot(root+1) {
		t.Error("a root is removed that has keys, or that every store has, or that was never made")
	}
	s.Forget(1)
	if !s.Uproot(root) || s.Uproot(root) {
		t.Error("a root without keys is not removed once")
	}
	check(t, s)
	before := s.Stats()
	s.Learn(root, 1, key, 3)
	s.Unlearn(root, 1, key, did)
	var m Matches
	if s.Match(root, key, 3, &m); len(m.Longest()) > 0 || s.Stats() != before {
		t.Errorf("a removed root has matches %v; %+v, before %+v", m.Longest(), s.Stats(), before)
	}
	if other := s.Plant(); other == root {
		t.Error("a new root has the number of a removed one")
	}
	if s.Match(First, key, 3, &m); m.Of(0) != len(key) {
		t.Errorf("the key of another root matches %d bytes", m.Of(0))
	}
	many := make([]Root, 3*leastArray)
	for i := range many {
		many[i] = s.Plant()
	}
	for _, r := range many {
		s.Uproot(r)
	}
	check(t, s)
	if n := len(s.nodes); n > leastArray {
		t.Errorf("%d nodes are left", n)
	}
	if s.Match(First, key, 3, &m); m.Of(0) != len(key) {
		t.Errorf("after the removal of many roots the key matches %d bytes", m.Of(0))
	}
}

func TestTextPartsAnywhereTokensAtPages(t *testing.T) {
	var m Matches
	text := New(Config{Keys: Text, Bytes: 1 << 20})
	text.Learn(0, 3, []byte("You are a helpful assistant. Hello"), 0)
	if text.Match(0, []byte("You are a helpful assistant. Bye"), 0, &m); m.Of(3) != 29 {
		t.Errorf("%d bytes match", m.Of(3))
	}
	tokens := New(Config{Keys: Tokens, Bytes: 1 << 20})
	tokens.Learn(0, 3, TokenBytes(slices.Repeat([]uint32{7}, 40)), 0)
	for n, want := range map[int]int{15: 0, 16: 16, 31: 16, 40: 32, 64: 32} {
		if tokens.Match(0, TokenBytes(slices.Repeat([]uint32{7}, n)), 0, &m); m.Of(3) != want {
			t.Errorf("of %d tokens %d match, want %d", n, m.Of(3), want)
		}
	}
}

func TestManyGoroutinesShareATree(t *testing.T) {
	tree := New(Config{Keys: Text, Bytes: 200_000, HolderUnits: 3000, HolderTarget: 2000, WholeRuns: true, Step: 10, Interval: 1})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var m Matches
			for i := range 400 {
				key := []byte(fmt.Sprintf("system prompt %d; user %d says %s", i%3, i*g%50, strings.Repeat("x", i%100)))
				switch {
				case i%97 == 0:
					tree.Forget(fleet.Holder(g))
				case i%31 == 0:
					tree.Evict(int64(i))
				case i%2 == 0:
					tree.Learn(0, fleet.Holder(g), key, 0)
				default:
					if tree.Match(0, key, 0, &m); m.Of(fleet.Holder(g)) > len(key) || m.Best() > len(key) {
						panic("a match longer than the key")
					}
				}
			}
		})
	}
	wg.Wait()
	check(t, tree)
}

func TestMatchAllocatesNothing(t *testing.T) {
	tree, keys := conversations(64, 200)
	var m Matches
	i := 0
	if allocs := testing.AllocsPerRun(500, func() {
		tree.Match(0, keys[i%len(keys)], 0, &m)
		i++
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The bytes that Stats reports must be close to the memory that the process takes for the store.
func TestMemoryIsWhatIsCounted(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tree := New(Config{Keys: Text, Bytes: 1 << 30})
	for i := range 50_000 {
		tree.Learn(0, fleet.Holder(i%16), fmt.Appendf(nil, "system prompt %d, conversation %d: %s", i%10, i, strings.Repeat("z", 40+i%100)), 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	taken := float64(after.HeapAlloc - before.HeapAlloc)
	if ratio := taken / float64(tree.Stats().Bytes); ratio > 1.35 || ratio < 0.5 {
		t.Errorf("%.0f bytes are taken, %d counted", taken, tree.Stats().Bytes)
	}
	runtime.KeepAlive(tree)
}

// conversations returns a store with n conversations of some 8 KB, which share 2 KB of system prompt.
func conversations(holders, n int) (*Store, [][]byte) {
	tree := New(Config{Keys: Text, Bytes: 1 << 30})
	system := strings.Repeat("You are a helpful assistant. ", 70)
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%s user %d %s", system, i, strings.Repeat(fmt.Sprint("words of ", i), 600))
		for turn := range 4 {
			tree.Learn(0, fleet.Holder(i%holders), keys[i][:len(keys[i])*(turn+1)/4], 0)
		}
	}
	return tree, keys
}

// If the machine's clock is set back, placements still end after their TTL, and passes of eviction continue.
func TestAClockThatIsSetBackEndsPlacementsInTime(t *testing.T) {
	const hour = 3600 * second
	s := New(Config{Keys: Text, TTL: 2 * time.Second, Interval: time.Second, Units: 1000})
	learn := func(text string, now int64) {
		s.Evict(now)
		s.Learn(First, 0, []byte(text), now)
	}
	var m Matches
	has := func(text string, now int64) bool {
		s.Match(First, []byte(text), now, &m)
		return m.Of(0) == len(text)
	}
	learn("before", 8*hour)
	for i := range int64(10) {
		now := i * second
		learn(string('a'+rune(i))+" prompt", now)
		if !has(string('a'+rune(i))+" prompt", now) {
			t.Errorf("a prompt of %v after the clock was set back does not count", time.Duration(now))
		}
		if i >= 3 && has(string('a'+rune(i-3))+" prompt", now) {
			t.Errorf("a prompt of %v after the clock was set back counts 3 s later", time.Duration(now-3*second))
		}
	}
	if n := s.Stats().Runs; n > 4 {
		t.Errorf("%d prompts are kept", n)
	}
}
