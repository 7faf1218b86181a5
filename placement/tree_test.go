package placement

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// planted returns the tree with root 0.
func planted(tree *Tree) *Tree {
	tree.Plant()
	return tree
}

// naive remembers every key whole.
type naive map[uint32][][]byte

func (n naive) match(holder uint32, key []byte, page int) int {
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

// drawKey draws keys that share beginnings: letters of a small alphabet, in runs, so that tokens share pages too.
func drawKey(t *rapid.T, unit int) []byte {
	var key []byte
	for range rapid.IntRange(0, 5).Draw(t, "runs") {
		letter := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "letter")
		key = append(key, strings.Repeat(letter, unit*rapid.IntRange(0, 40).Draw(t, "length"))...)
	}
	return key
}

// check holds the tree to what it is built on.
func check(t interface{ Fatalf(string, ...any) }, tree *Tree) {
	used, nodes := int64(0), 0
	bytes := make([]int64, len(tree.holders))
	seen := map[uint32]bool{}
	for e, id := range tree.children {
		n := &tree.nodes[id]
		if seen[id] || n.parent != e.parent || len(n.text) == 0 || len(n.text)%tree.page != 0 || tree.first(n.text) != e.page {
			t.Fatalf("node %d does not hang where it should", id)
		}
		seen[id] = true
		if n.end != tree.nodes[n.parent].end+len(n.text) {
			t.Fatalf("node %d ends at %d", id, n.end)
		}
		if len(n.holds) == 0 || !slices.IsSortedFunc(n.holds, func(a, b hold) int { return int(a.holder) - int(b.holder) }) {
			t.Fatalf("node %d has holds %v", id, n.holds)
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
					t.Fatalf("holder %d has node %d and not its parent", h.holder, id)
				}
			}
		}
	}
	used += nodeBytes * int64(tree.roots)
	if used != tree.used || nodes != tree.Stats().Nodes {
		t.Fatalf("%d bytes are used, %d counted; %d nodes, %d counted", used, tree.used, nodes, tree.Stats().Nodes)
	}
	for i := range tree.holders {
		who := &tree.holders[i]
		if who.bytes != bytes[i] {
			t.Fatalf("holder %d has %d bytes, %d counted", i, bytes[i], who.bytes)
		}
		rank, last, count := map[uint32]int{}, uint32(0), 0
		for l := who.newest; l != 0; l = tree.links[l].older {
			if tree.links[l].newer != last {
				t.Fatalf("holder %d's list is torn at %d", i, l)
			}
			count++
			rank[tree.links[l].node], last = count, l
		}
		if last != who.oldest || count != who.links {
			t.Fatalf("holder %d's list ends at %d after %d, not at %d after %d", i, last, count, who.oldest, who.links)
		}
		for id := range rank {
			if p := tree.nodes[id].parent; len(tree.nodes[p].text) > 0 && rank[p] > rank[id] {
				t.Fatalf("holder %d: node %d is more recent than its parent", i, id)
			}
		}
	}
}

func eachKind(t *testing.T, test func(t *rapid.T, tree *Tree)) {
	t.Run("text", rapid.MakeCheck(func(t *rapid.T) { test(t, planted(NewText(1<<30))) }))
	t.Run("tokens", rapid.MakeCheck(func(t *rapid.T) { test(t, planted(NewTokens(1<<30))) }))
}

func TestAHolderHasTheLongestPrefixOfWhatItWasGiven(t *testing.T) {
	eachKind(t, func(t *rapid.T, tree *Tree) {
		given := naive{}
		var m Matches
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			holder := uint32(rapid.IntRange(0, 3).Draw(t, "holder"))
			key := drawKey(t, tree.unit)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				tree.Remove(holder)
				delete(given, holder)
			case 1, 2, 3, 4:
				tree.Insert(0, holder, key)
				given[holder] = append(given[holder], key)
			default:
				tree.Match(0, key, &m)
				best := 0
				for holder := range uint32(5) {
					want := given.match(holder, key, tree.page) / tree.unit
					if got := m.Of(holder); got != want {
						t.Fatalf("holder %d has %d of %q, want %d", holder, got, key, want)
					}
					best = max(best, want)
				}
				if order := m.Longest(); !slices.IsSortedFunc(order, func(a, b uint32) int { return m.Of(b) - m.Of(a) }) || len(order) > 0 && m.Of(order[0]) != best {
					t.Fatalf("the longest first: %v", order)
				}
				if m.Best() != best || m.Total() != len(key)/tree.unit {
					t.Fatalf("best %d of %d, want %d of %d", m.Best(), m.Total(), best, len(key)/tree.unit)
				}
			}
			check(t, tree)
		}
		for holder := range uint32(4) {
			tree.Remove(holder)
		}
		if s := tree.Stats(); s != (Stats{Bytes: nodeBytes}) {
			t.Fatalf("all is removed, and there is %+v", s)
		}
	})
}

func TestTrimLeavesTheMostRecent(t *testing.T) {
	eachKind(t, func(t *rapid.T, tree *Tree) {
		given := naive{}
		last := map[uint32][]byte{}
		limit := int64(rapid.IntRange(1, 400).Draw(t, "limit"))
		target := int64(rapid.IntRange(1, int(limit)).Draw(t, "target"))
		var m Matches
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			holder, key := uint32(rapid.IntRange(0, 2).Draw(t, "holder")), drawKey(t, tree.unit)
			tree.Insert(0, holder, key)
			given[holder], last[holder] = append(given[holder], key), key
			if !rapid.Bool().Draw(t, "trim") {
				continue
			}
			over := map[uint32]bool{}
			for holder := range last {
				over[holder] = tree.Units(holder) > limit
			}
			for tree.Trim(limit, target) {
			}
			check(t, tree)
			for holder, key := range last {
				units := tree.Units(holder)
				if over[holder] && units > target || units > limit {
					t.Fatalf("holder %d has %d units after a trim to %d above %d", holder, units, target, limit)
				}
				whole := int64(len(key)-len(key)%tree.page) / int64(tree.unit)
				tree.Match(0, key, &m)
				if whole <= target && int64(m.Of(holder)) != whole {
					t.Fatalf("holder %d has %d of the %d units of its last key, with %d allowed", holder, m.Of(holder), whole, target)
				}
				for _, other := range given[holder] {
					tree.Match(0, other, &m)
					if m.Of(holder)*tree.unit > given.match(holder, other, tree.page) {
						t.Fatalf("holder %d was credited with more than it was given", holder)
					}
				}
			}
		}
	})
}

func TestTheBudgetHoldsAtEveryMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := int64(rapid.IntRange(0, 3000).Draw(t, "budget"))
		tree := planted(NewText(budget))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			tree.Insert(0, uint32(rapid.IntRange(0, 3).Draw(t, "holder")), drawKey(t, 1))
			if tree.used-nodeBytes > budget {
				t.Fatalf("%d bytes of %d", tree.used, budget)
			}
			check(t, tree)
		}
	})
}

// Pages of different tokens may share a hash: what is found is compared.
func TestAPageIsComparedNotTrusted(t *testing.T) {
	tree := planted(NewTokens(1 << 20))
	a := TokenBytes(slices.Repeat([]uint32{1}, 32))
	b := TokenBytes(slices.Repeat([]uint32{2}, 32))
	tree.Insert(0, 0, a)
	e := edge{0, tree.first(a)}
	tree.children[edge{0, tree.first(b)}] = tree.children[e] // as if the hashes were equal
	var m Matches
	tree.Match(0, b, &m)
	if m.Of(0) != 0 || m.Best() != 0 {
		t.Fatalf("other tokens match %d", m.Of(0))
	}
	tree.Insert(0, 1, b)
	if tree.Match(0, a, &m); m.Of(0) != 32 || m.Of(1) != 0 {
		t.Fatalf("holder 0 has %d, holder 1 %d", m.Of(0), m.Of(1))
	}
}

func TestRootsShareTheBoundsAndNothingElse(t *testing.T) {
	tree := NewText(1 << 20)
	one, other := tree.Plant(), tree.Plant()
	var m Matches
	tree.Insert(one, 3, []byte("the same prompt"))
	if tree.Match(other, []byte("the same prompt"), &m); m.Of(3) != 0 {
		t.Errorf("%d match under another root", m.Of(3))
	}
	tree.Insert(other, 3, []byte("the same prompt"))
	if n := tree.Units(3); n != 30 {
		t.Errorf("the holder has %d units", n)
	}
	for tree.Trim(20, 20) {
	}
	check(t, tree)
	if tree.Match(one, []byte("the same prompt"), &m); m.Of(3) != 0 {
		t.Error("the least recent of all roots did not go")
	}
	if tree.Match(other, []byte("the same prompt"), &m); m.Of(3) != 15 {
		t.Error("the most recent of all roots went")
	}
}

func TestTextPartsAnywhereTokensAtPages(t *testing.T) {
	var m Matches
	text := planted(NewText(1 << 20))
	text.Insert(0, 3, []byte("You are a helpful assistant. Hello"))
	if text.Match(0, []byte("You are a helpful assistant. Bye"), &m); m.Of(3) != 29 {
		t.Errorf("%d bytes match", m.Of(3))
	}
	tokens := planted(NewTokens(1 << 20))
	tokens.Insert(0, 3, TokenBytes(slices.Repeat([]uint32{7}, 40)))
	for n, want := range map[int]int{15: 0, 16: 16, 31: 16, 40: 32, 64: 32} {
		if tokens.Match(0, TokenBytes(slices.Repeat([]uint32{7}, n)), &m); m.Of(3) != want {
			t.Errorf("of %d tokens %d match, want %d", n, m.Of(3), want)
		}
	}
}

func TestManyGoroutinesShareATree(t *testing.T) {
	tree := planted(NewText(200_000))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var m Matches
			for i := range 400 {
				key := []byte(fmt.Sprintf("system prompt %d; user %d says %s", i%3, i*g%50, strings.Repeat("x", i%100)))
				switch {
				case i%97 == 0:
					tree.Remove(uint32(g))
				case i%31 == 0:
					for tree.Trim(3000, 2000) {
					}
				case i%2 == 0:
					tree.Insert(0, uint32(g), key)
				default:
					if tree.Match(0, key, &m); m.Of(uint32(g)) > len(key) || m.Best() > len(key) {
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
		tree.Match(0, keys[i%len(keys)], &m)
		i++
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The budget is of what is counted: it must not be far from what the process takes.
func TestMemoryIsWhatIsCounted(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tree := planted(NewText(1 << 30))
	for i := range 50_000 {
		tree.Insert(0, uint32(i%16), fmt.Appendf(nil, "system prompt %d, conversation %d: %s", i%10, i, strings.Repeat("z", 40+i%100)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	taken := float64(after.HeapAlloc - before.HeapAlloc)
	if ratio := taken / float64(tree.Stats().Bytes); ratio > 1.35 || ratio < 0.5 {
		t.Errorf("%.0f bytes are taken, %d counted", taken, tree.Stats().Bytes)
	}
	runtime.KeepAlive(tree)
}

// conversations is a tree of so many holders with so many conversations of some 8 KB, which share 2 KB of system prompt.
func conversations(holders, n int) (*Tree, [][]byte) {
	tree := planted(NewText(1 << 30))
	system := strings.Repeat("You are a helpful assistant. ", 70)
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%s user %d %s", system, i, strings.Repeat(fmt.Sprint("words of ", i), 600))
		for turn := range 4 {
			tree.Insert(0, uint32(i%holders), keys[i][:len(keys[i])*(turn+1)/4])
		}
	}
	return tree, keys
}
