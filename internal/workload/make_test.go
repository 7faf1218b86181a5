package workload

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
)

func generated(t *testing.T, spec string) *Workload {
	t.Helper()
	w, err := Load("gen:"+spec, Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, w)
	return w
}

func TestGeneratorsAreRepeatable(t *testing.T) {
	for _, g := range Generators() {
		a, b, c := generated(t, g[0]+",seed=1"), generated(t, g[0]+",seed=1"), generated(t, g[0]+",seed=2")
		b.Source = a.Source
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the same seed gives another workload", g[0])
		}
		if reflect.DeepEqual(a.Requests, c.Requests) {
			t.Errorf("%s: another seed gives the same workload", g[0])
		}
	}
}

func TestLadderIsThePublishedOne(t *testing.T) {
	w := generated(t, "llmd-ladder")
	s := Measure(w, StatsOptions{Block: 1200})
	// The prompts have 150·6,000 + 750·1,200 = 1,800,000 distinct tokens, which are 73 % of the caches of 8 workers with
	// 307,328 tokens each.
	if s.Unique*1200 != 1_800_000 || s.Input.Mean != 7200 || s.Output.Mean != 1000 {
		t.Errorf("%d unique tokens, %v in, %v out", s.Unique*1200, s.Input.Mean, s.Output.Mean)
	}
	// The warm-up sends each prompt once.
	seen := map[uint64]int{}
	for _, r := range w.Requests[:750] {
		seen[r.Segments[1].ID]++
	}
	if len(seen) != 750 || w.Stages[1].First != 750 {
		t.Errorf("%d prompts in the warm-up, which ends at %d", len(seen), w.Stages[1].First)
	}
	if len(w.Stages) != 17 || w.Stages[0].Drain || !w.Stages[16].Drain || w.Stages[16].Rate != 60 {
		t.Errorf("%+v", w.Stages)
	}
	for i, stage := range w.Stages {
		end := len(w.Requests)
		if i+1 < len(w.Stages) {
			end = w.Stages[i+1].First
		}
		n := end - stage.First
		took := w.Requests[end-1].Arrival - stage.Start
		if got := float64(n) / took.Seconds(); math.Abs(got/stage.Rate-1) > 4/math.Sqrt(float64(n)) {
			t.Errorf("stage %s: %.1f a second", stage.Name, got)
		}
	}
}

// With a large zipf all draws of passages give the same document. The generator must end.
func TestPassagesOfOneDocument(t *testing.T) {
	w := generated(t, "rag,zipf=100,passages=3,requests=2")
	if s := w.Requests[1].Segments; len(s) != 5 || s[1] != s[3] {
		t.Errorf("segments %v", s)
	}
}

func TestTurnsRepeatTheConversation(t *testing.T) {
	w := generated(t, "conversations,sessions=2,context=100,turns=3,question=10,output=20")
	last := map[int]*Request{}
	for i := range w.Requests {
		r := &w.Requests[i]
		before := last[r.Session]
		if before == nil {
			if r.After != -1 || r.Turn != 0 {
				t.Errorf("the first turn: %+v", r)
			}
		} else {
			want := append(before.AppendTokens(nil), before.AppendOutput(nil)...)
			if got := r.AppendTokens(nil); r.After != before.ID || !slices.Equal(got[:len(want)], want) || len(got) != len(want)+10 {
				t.Errorf("turn %d does not begin with turn %d and its answer", r.Turn, before.Turn)
			}
		}
		last[r.Session] = r
	}
}

func TestASessionEndsWhenTheWindowIsFull(t *testing.T) {
	const spec = "gen:code-agent,sessions=1,system=1000,context=5000,context-sigma=0,context-min=0,turns=50,turns-sigma=0,question=900,output=100"
	for window, turns := range map[string]int{"0": 50, "10000": 4, "9999": 3, "10": 1} {
		w, err := Load(spec+",window="+window, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(w.Requests); n != turns {
			t.Errorf("window %s: %d turns, want %d", window, n, turns)
		}
	}
}

func TestSegmentsOfOneIDBeginWithTheSameTokens(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		id := random.Uint64()
		short, long := Segment{id, random.IntN(100)}, Segment{id, 100}
		a, b := short.AppendTokens(nil), long.AppendTokens(nil)
		if len(a) != short.Tokens || !slices.Equal(a, b[:len(a)]) {
			t.Fatalf("%d tokens of segment %x are not the beginning of 100", short.Tokens, id)
		}
		for _, v := range b {
			if v < tokenBase || v >= 32000 {
				t.Fatalf("token %d", v)
			}
		}
	}
	// Traces have consecutive ids. Such ids must not give equal blocks.
	seen := map[[16]block.Token]bool{}
	for id := range uint64(1000) {
		tokens := Segment{id, 512}.AppendTokens(nil)
		for i := 0; i < 512; i += 16 {
			seen[[16]block.Token(tokens[i:i+16])] = true
		}
	}
	if len(seen) != 32000 {
		t.Errorf("%d different blocks of 32,000", len(seen))
	}
}

func TestMakingTokensAllocatesNothing(t *testing.T) {
	w := generated(t, "independent,requests=1")
	dst := make([]block.Token, 0, 2000)
	if n := testing.AllocsPerRun(100, func() { dst = w.Requests[0].AppendTokens(dst[:0]) }); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}

func TestShapes(t *testing.T) {
	w := generated(t, "conversations,sessions=20,context=100,turns=3,question=10,output=20,rate=1")
	f := func(name string, s Shape, test func(got *Workload) bool) {
		t.Helper()
		before := *w
		before.Requests = slices.Clone(w.Requests)
		got, err := s.Apply(w)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		check(t, got)
		if !test(got) {
			t.Errorf("%s: %d requests until %s", name, len(got.Requests), got.Requests[len(got.Requests)-1].Arrival)
		}
		if !cmp.Equal(&before, w) {
			t.Errorf("%s changed its origin", name)
		}
	}
	end := w.Requests[len(w.Requests)-1].Arrival
	f("nothing", Shape{}, func(got *Workload) bool { return cmp.Equal(got, w) })
	f("rate", Shape{Rate: 2}, func(got *Workload) bool { return got.Requests[59].Arrival == time.Duration(float64(end)/2) })
	f("limit", Shape{Limit: 7}, func(got *Workload) bool { return len(got.Requests) == 7 })
	f("duration", Shape{Duration: end / 2}, func(got *Workload) bool {
		n := len(got.Requests)
		return got.Requests[n-1].Arrival < end/2 && w.Requests[n].Arrival >= end/2
	})
	f("jitter", Shape{Jitter: time.Minute, Seed: 1}, func(got *Workload) bool { return !cmp.Equal(got, w) })
	f("cut", Shape{MaxInput: 120, MaxOutput: 5}, func(got *Workload) bool {
		return slices.MaxFunc(got.Requests, func(a, b Request) int { return a.Input - b.Input }).Input == 120 && got.Requests[0].Output == 5
	})
	if _, err := (Shape{Rate: -1}).Apply(w); err == nil {
		t.Error("a negative rate is accepted")
	}
	if _, err := (Shape{Jitter: time.Second}).Apply(generated(t, "rl-rollouts")); err == nil {
		t.Error("stages are jittered")
	}
}

func TestMergedWorkloadsShareNothing(t *testing.T) {
	a := generated(t, "conversations,sessions=5,context=100,turns=3,question=10,output=20,rate=1")
	merged, err := Merge(a, a)
	if err != nil {
		t.Fatal(err)
	}
	check(t, merged)
	one, two := Measure(a, StatsOptions{}), Measure(merged, StatsOptions{})
	if two.Requests != 2*one.Requests || two.Sessions != 10 || two.Unique != 2*one.Unique || two.Closed != 2*one.Closed {
		t.Errorf("%+v of twice %+v", two, one)
	}
	if math.Abs(two.Infinite.All-one.Infinite.All) > 1e-9 {
		t.Errorf("hit rate %f, alone %f", two.Infinite.All, one.Infinite.All)
	}
	if _, err := Merge(a, generated(t, "rl-rollouts")); err == nil {
		t.Error("stages are merged")
	}
}

// The test plays small workloads with several cache sizes. LRU and FIFO must have the same hits as a naive list.
// optimalCache must have as many hits as the best of all possible choices.
func TestCachesAgreeWithNaiveOnes(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for round := range 20 {
		w := treeWorkload(random, 9)
		touched := newTouches(w, 16)
		for capacity := 1; capacity <= 4; capacity++ {
			for _, headFirst := range []bool{false, true} {
				for _, move := range []bool{false, true} {
					got := touched.replay(newQueueCache(touched.unique, capacity, move, headFirst)).All
					want := touched.replay(&listCache{capacity: capacity, move: move, headFirst: headFirst}).All
					if got != want {
						t.Fatalf("round %d, %d blocks, LRU %t, head first %t: %f, a plain list has %f", round, capacity, move, headFirst, got, want)
					}
				}
			}
			got := touched.replay(newOptimalCache(touched, capacity)).All
			if want := bestPossible(touched, capacity); math.Abs(got-want) > 1e-9 {
				t.Fatalf("round %d, %d blocks: optimum %f, trying everything gives %f", round, capacity, got, want)
			}
		}
	}
}

// treeWorkload makes prompts of one to three full blocks that share prefixes.
func treeWorkload(random *rand.Rand, requests int) *Workload {
	w := &Workload{Block: 16}
	for i := range requests {
		r := Request{ID: i, Session: -1, After: -1, Output: 1}
		path := uint64(1)
		for range 1 + random.IntN(3) {
			path = path*4 + uint64(random.IntN(2))
			r.Segments = append(r.Segments, Segment{path, 16})
			r.Input += 16
		}
		w.Requests = append(w.Requests, r)
	}
	return w
}

// listCache is a naive version of queueCache with a list that it searches.
type listCache struct {
	capacity        int
	move, headFirst bool
	list            []int32
}

func (c *listCache) hit(ids []int32) int {
	n := 0
	for n < len(ids) && slices.Contains(c.list, ids[n]) {
		n++
	}
	return n
}

func (c *listCache) store(_ int, ids []int32) {
	ids = slices.Clone(ids)
	if !c.headFirst {
		slices.Reverse(ids)
	}
	for _, id := range ids {
		at := slices.Index(c.list, id)
		if at >= 0 && !c.move {
			continue
		}
		if at >= 0 {
			c.list = slices.Delete(c.list, at, at+1)
		}
		c.list = append(c.list, id)
		if len(c.list) > c.capacity {
			c.list = c.list[1:]
		}
	}
}

// bestPossible tries all sets of blocks to keep after each request, and returns the best hit rate.
func bestPossible(t *touches, capacity int) float64 {
	type state struct {
		request int
		kept    uint32
	}
	known := map[state]int{}
	var best func(s state) int
	best = func(s state) int {
		if s.request == len(t.input) {
			return 0
		}
		if v, ok := known[s]; ok {
			return v
		}
		ids := t.ids[t.from[s.request]:t.from[s.request+1]]
		hits, leading := 0, true
		all := s.kept
		for _, id := range ids {
			if leading = leading && s.kept>>id&1 == 1; leading {
				hits++
			}
			all |= 1 << id
		}
		most := 0
		for kept := all; ; kept = (kept - 1) & all {
			if ones(kept) <= capacity {
				most = max(most, best(state{s.request + 1, kept}))
			}
			if kept == 0 {
				break
			}
		}
		known[s] = hits + most
		return hits + most
	}
	return float64(best(state{})*t.block) / float64(t.total()*t.block)
}

func ones(v uint32) int {
	n := 0
	for ; v != 0; v &= v - 1 {
		n++
	}
	return n
}
