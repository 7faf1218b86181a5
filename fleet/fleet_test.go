package fleet

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func serving(model string, ranks int) Facts {
	return Facts{Engine: EngineVLLM, Models: []Model{{ID: model}}, BlockSize: 16, Ranks: ranks}
}

func TestHoldersAreInternedForTheProcess(t *testing.T) {
	f := New(Config{})
	a := f.Put("http://a/", serving("m", 2))
	b := f.Put("http://b", serving("m", 1))
	holders := func(id WorkerID) []Holder {
		for _, w := range f.Snapshot().Workers() {
			if w.ID == id {
				return w.Holders
			}
		}
		return nil
	}
	if diff := cmp.Diff([]Holder{0, 1}, holders(a)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Holder{2}, holders(b)); diff != "" {
		t.Error(diff)
	}
	f.Remove(a)
	if f.Snapshot().Worker(1) != nil || f.Snapshot().Available(1, 0) {
		t.Error("the holder of a removed worker can be used")
	}
	c := f.Put("http://c", serving("m", 1))
	if diff := cmp.Diff([]Holder{3}, holders(c)); diff != "" {
		t.Errorf("a new worker was given an old holder: %s", diff)
	}
	again := f.Put("http://a", serving("m", 2))
	if diff := cmp.Diff([]Holder{4, 5}, holders(again)); diff != "" || again == a {
		t.Errorf("worker %d at the URL of worker %d: %s", again, a, diff)
	}
	if f.Put("http://a", serving("m", 3)); !slices.Equal(holders(again), []Holder{4, 5, 6}) {
		t.Errorf("a present worker with another rank has the holders %v", holders(again))
	}
}

// TestARankThatComesBackStartsAnew: a worker whose settings changed has only rank 0 in the fleet until the worker
// answers a probe. Rank 0 keeps its state. The other rank leaves and comes back, so it must not keep its old state.
func TestARankThatComesBackStartsAnew(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 2))
	const now = int64(1e18)
	for h := range Holder(2) {
		f.SetTrust(h, TrustExact, "events")
		f.Report(h, Reported{At: now, Running: 9})
		for range 3 {
			f.Observe(h, OutcomeFailed, now)
		}
	}
	f.Put("http://a", Facts{})
	f.Put("http://a", serving("m", 2))
	s := f.Snapshot()
	if trust, _ := s.Trust(0); trust != TrustExact || s.Available(0, now) || s.LoadAt(0, now).Requests == 0 {
		t.Errorf("rank 0 stayed: trust %v, load %+v", trust, s.LoadAt(0, now))
	}
	if trust, _ := s.Trust(1); trust != initialTrust.level || !s.Available(1, now) || s.LoadAt(1, now).Requests != 0 {
		t.Errorf("rank 1 came back: trust %v, available %v, load %+v", trust, s.Available(1, now), s.LoadAt(1, now))
	}
}

func TestRanksAreGlobal(t *testing.T) {
	f := New(Config{})
	facts := serving("m", 2)
	facts.FirstRank = 4
	f.Put("http://a", facts)
	s := f.Snapshot()
	w := s.Workers()[0]
	if h, ok := w.Rank(5); !ok || h != 1 || s.Rank(h) != 5 {
		t.Errorf("rank 5 is holder %d (%v) of rank %d", h, ok, s.Rank(h))
	}
	for _, rank := range []int{-1, 0, 3, 6} {
		if _, ok := w.Rank(rank); ok {
			t.Errorf("the worker has rank %d", rank)
		}
	}
}

func TestAbsurdRanksAreBounded(t *testing.T) {
	f := New(Config{})
	declared := serving("m", 1<<30)
	declared.DeclaredRanks = 1 << 20
	f.Put("http://a", declared)
	f.Put("http://b", serving("m", -1))
	if got := f.Snapshot().Holders(); got != MaxRanks+1 {
		t.Errorf("%d holders", got)
	}
}

// A worker may report any number of ranks. The fleet uses the first eight, unless the operator declares another number.
func TestAWorkersRanksAreUsedAsTheOperatorDeclares(t *testing.T) {
	f := New(Config{})
	for _, c := range []struct{ numbered, declared, want int }{
		{1, 0, 1}, {8, 0, 8}, {64, 0, 8}, {64, 16, 16}, {4, 16, 4}, {64, 3, 3}, {64, 1, 1},
	} {
		facts := serving("m", c.numbered)
		facts.FirstRank, facts.DeclaredRanks = 16, c.declared
		id := f.Put("http://a", facts)
		w := f.Snapshot().ByID(id)
		if len(w.Holders) != c.want {
			t.Errorf("%+v: %d ranks are used", c, len(w.Holders))
		}
		for rank, ok := range map[int]bool{15: false, 16: true, 16 + c.want - 1: true, 16 + c.want: false} {
			if h, got := w.Rank(rank); got != ok || ok && f.Snapshot().Rank(h) != rank {
				t.Errorf("%+v: rank %d is used: %v", c, rank, got)
			}
		}
	}
}

// Workers of a pool may know their caches under different names of the model. A request's prompt is hashed once for
// each such name, so a worker must add at most one name to the pool.
func TestAPoolHasFewNamesOfTheCachesOfItsWorkers(t *testing.T) {
	f := New(Config{})
	for i := range 9 {
		name := fmt.Sprint("first", i/2)
		f.Put(fmt.Sprint("http://", i), Facts{Models: []Model{{ID: name, Root: "/m"}, {ID: "m", Root: "/m"}, {ID: "sql", Parent: "m"}}})
	}
	for name, lora := range map[string]string{"m": "", "sql": "sql"} {
		p, _ := f.Snapshot().Pool(name)
		want := []CacheName{{"first1", lora}, {"first2", lora}, {"first3", lora}}
		if diff := cmp.Diff(want, p.Others); diff != "" || p.Model != "first0" || len(p.Holders) != 9 {
			t.Errorf("%s: %s and others: %s", name, p.Model, diff)
		}
	}
	if p, _ := f.Snapshot().Pool("first1"); p.Others != nil {
		t.Errorf("all workers of the pool agree, and yet there are others: %v", p.Others)
	}
}

func TestPoolsKnowModelsAliasesAndAdapters(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", Facts{BlockSize: 16, Models: []Model{
		{ID: "llama", Root: "/models/llama"},
		{ID: "alias", Root: "/models/llama"},
		{ID: "sql", Root: "/adapters/sql", Parent: "alias"},
	}})
	f.Put("http://b", Facts{BlockSize: 32, Models: []Model{{ID: "llama"}, {ID: "llama"}}})
	type answer struct {
		Model, LoRA string
		Holders     []Holder
		Same, Small int
	}
	for name, want := range map[string]answer{
		"llama": {"llama", "", []Holder{0, 1}, 0, 16},
		"alias": {"llama", "", []Holder{0}, 16, 16},
		"sql":   {"llama", "sql", []Holder{0}, 16, 16},
	} {
		p, ok := f.Snapshot().Pool(name)
		if !ok {
			t.Fatalf("%s: no pool", name)
		}
		if diff := cmp.Diff(want, answer{p.Model, p.LoRA, p.Holders, p.BlockSize, p.Smallest}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for i, h := range p.Holders {
			if p.Position(h) != i {
				t.Errorf("%s: holder %d is at %d, want %d", name, h, p.Position(h), i)
			}
		}
		if p.Position(7) != -1 || p.Position(NoHolder) != -1 {
			t.Errorf("%s: a holder outside of the pool has a position in it", name)
		}
	}
	if _, ok := f.Snapshot().Pool("gpt"); ok {
		t.Error("a model that no worker serves has a pool")
	}
	var names []string
	for _, m := range f.Snapshot().Models() {
		names = append(names, m.ID)
	}
	if diff := cmp.Diff([]string{"llama", "alias", "sql"}, names); diff != "" {
		t.Error(diff)
	}
	if p, ok := f.Snapshot().Pool(""); !ok || p.Name != "llama" {
		t.Error("a request without a model name does not get the only base model")
	}
	f.Put("http://c", serving("other", 1))
	if _, ok := f.Snapshot().Pool(""); ok {
		t.Error("a request without a model name gets one of two base models, want none")
	}
}

func TestReadinessHasAReason(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", Facts{})
	check := func(ready bool, why string) {
		t.Helper()
		w := f.Snapshot().Workers()[0]
		if w.Ready != ready || w.Why != why {
			t.Errorf("ready %v %q, want %v %q", w.Ready, w.Why, ready, why)
		}
		if f.Snapshot().Available(w.Holders[0], 0) != ready {
			t.Errorf("Available and Ready (%v) differ", ready)
		}
	}
	check(false, "serves no model that we know of")
	f.SetHealth(id, false, "connection refused")
	check(false, "connection refused")
	f.Put("http://a", serving("m", 1))
	check(false, "connection refused")
	f.SetHealth(id, true, "")
	check(true, "")
	f.SetDraining(id, true)
	check(false, "draining")
	f.SetHealth(id, false, "")
	check(false, "unhealthy")
	f.SetDraining(id, false)
	f.SetHealth(id, true, "")
	check(true, "")
	f.SetAsleep(id, true)
	check(false, "asleep")
	f.Put("http://a", serving("m", 1))
	check(false, "asleep")
	f.SetAsleep(id, false)
	check(true, "")
	f.SetAsleep(id, true)
	f.Refused(id)
	if !f.Answered(id, Signs{}) {
		t.Error("another process is not noticed")
	}
	check(true, "") // another process is awake
}

func TestTrustIsReadLiveAndStartsAnewAfterRemoval(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", serving("m", 1))
	s := f.Snapshot()
	check := func(want Trust) {
		t.Helper()
		if got, why := s.Trust(0); got != want || why == "" {
			t.Errorf("trust %s (%q), want %s", got, why, want)
		}
	}
	check(TrustApproximate)
	f.SetTrust(0, TrustExact, "replayed from 0")
	check(TrustExact)
	f.SetTrust(9, TrustExact, "nobody")
	f.Remove(id)
	check(TrustApproximate)
	if got, _ := s.Trust(9); got != TrustNone {
		t.Errorf("a holder that is not in the fleet has the trust %s", got)
	}
}

func TestBlockSizeIsCorrectedByEvents(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", serving("m", 1))
	before := f.Snapshot()
	f.SetBlockSize(id, 64)
	f.SetBlockSize(id, 0)
	f.SetBlockSize(77, 64)
	if p, _ := f.Snapshot().Pool("m"); p.BlockSize != 64 {
		t.Errorf("block size %d", p.BlockSize)
	}
	if p, _ := before.Pool("m"); p.BlockSize != 16 {
		t.Error("an old snapshot changed")
	}
}

func TestFollowersSeeEveryChange(t *testing.T) {
	f := New(Config{})
	s := f.Snapshot()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 100 {
			f.Put(fmt.Sprintf("http://%d", i), serving("m", 1))
		}
	})
	for len(s.Workers()) < 100 {
		<-s.Superseded()
		next := f.Snapshot()
		if next.Generation() <= s.Generation() {
			t.Errorf("generation %d after %d", next.Generation(), s.Generation())
		}
		s = next
	}
	wg.Wait()
	select {
	case <-s.Superseded():
		t.Error("the newest snapshot is superseded")
	default:
	}
	f.SetHealth(0, true, "") // no change: the worker is healthy already
	if f.Snapshot() != s {
		t.Error("a new snapshot without a change")
	}
}

func TestSnapshotsAreWholeUnderWriters(t *testing.T) {
	f := New(Config{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			url := fmt.Sprintf("http://%d", w)
			for i := range 200 {
				id := f.Put(url, serving("m", 1+i%3))
				f.SetHealth(id, i%2 == 0, "flapping")
				f.Observe(Holder(w), OutcomeFailed, 0)
				f.SetTrust(Holder(w), TrustExact, "test")
				if i%10 == 0 {
					f.Remove(id)
				}
			}
		})
	}
	for range 2000 {
		s := f.Snapshot()
		p, ok := s.Pool("m")
		if !ok {
			continue
		}
		for _, h := range p.Holders {
			w := s.Worker(h)
			if w == nil || !slices.Contains(w.Holders, h) {
				t.Fatalf("holder %d of the pool belongs to no worker of the snapshot", h)
			}
			s.Available(h, 0)
			s.Load(h)
			s.Trust(h)
		}
	}
	wg.Wait()
}

func TestTurnsOutliveSnapshots(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	for want := range uint64(5) {
		p, _ := f.Snapshot().Pool("m")
		if p.Turn(false) != want || p.Turn(true) != want {
			t.Errorf("turn is not %d", want)
		}
		f.Put("http://a", serving("m", 2))
	}
}

// BenchmarkHealthFlip measures how long one change of a worker's health takes, by the number of workers.
func BenchmarkHealthFlip(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(fmt.Sprintf("%d workers", n), func(b *testing.B) {
			f := New(Config{})
			for i := range n {
				f.Put(fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256), serving("m", 1))
			}
			b.ReportAllocs()
			healthy := true
			for b.Loop() {
				healthy = !healthy
				f.SetHealth(7, healthy, "flapping")
			}
		})
	}
}
