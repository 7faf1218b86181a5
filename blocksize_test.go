package warmpath_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

func sized(tokens int) fleet.Facts {
	f := vllm()
	f.BlockSize = tokens
	return f
}

func TestTheIndexHasTheSmallestBlockOfItsWorkers(t *testing.T) {
	for _, c := range []struct {
		configured int
		workers    []int
		want       int
	}{
		{0, []int{32}, 32},
		{0, []int{64, 32, 128}, 32},
		{0, []int{1}, 16}, // SGLang's default page
		{0, []int{8, 32}, 16},
		{0, []int{0}, 16}, // not known
		{0, []int{0, 64}, 64},
		{0, []int{1 << 30}, 65536},
		{24, []int{32}, 24},
		{64, []int{16}, 16}, // an engine's smaller blocks are not hidden
		{64, []int{1}, 16},
		{64, []int{0}, 64},
	} {
		var workers []fleet.Facts
		for _, size := range c.workers {
			workers = append(workers, sized(size))
		}
		w := newWorld(t, warmpath.Options{BlockSize: c.configured}, workers...)
		if d := w.route(warmpath.Request{Tokens: prompt(1, 100)}); d.BlockSize != c.want {
			t.Errorf("configured %d, workers %v: block size %d, want %d", c.configured, c.workers, d.BlockSize, c.want)
		}
	}
}

func TestASmallerBlockMakesANewIndexThatItsFeederSees(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, sized(64))
	p := prompt(1, 640)
	w.store(0, p, kvindex.Stored{})
	before := w.router.Generation(0)
	if d := w.route(warmpath.Request{Tokens: p}); d.MatchTokens != 576 || d.BlockSize != 64 {
		t.Errorf("%s", d)
	}

	w.fleet.Put("http://b", sized(128)) // larger blocks are cut to ours
	if got := w.router.Generation(0); got != before {
		t.Errorf("generation %d, was %d", got, before)
	}
	w.fleet.Put("http://c", sized(16))
	after := w.router.Generation(0)
	if after <= before {
		t.Errorf("generation %d, was %d", after, before)
	}
	if d := w.route(warmpath.Request{Tokens: p, Now: 1000 * second}); d.MatchTokens != 0 || d.BlockSize != 16 {
		t.Errorf("%s, blocks of %d", d, d.BlockSize)
	}

	// The feeder forgets and replays.
	w.router.Forget(0)
	w.store(0, p, kvindex.Stored{})
	d := w.route(warmpath.Request{Tokens: p, Now: 2000 * second})
	if d.MatchTokens != 576 || d.Holder != 0 {
		t.Errorf("%s", d)
	}

	// When the worker with the small block leaves, the finer index stays: it costs memory, not correctness.
	w.fleet.Remove(2)
	if got := w.router.Generation(0); got != after {
		t.Errorf("generation %d, was %d", got, after)
	}
}

func TestEachBaseModelHasItsOwnIndex(t *testing.T) {
	other := fleet.Facts{Models: []fleet.Model{{ID: "qwen"}}, BlockSize: 32}
	w := newWorld(t, warmpath.Options{}, vllm(), other)
	p := prompt(1, 320)
	w.store(0, p, kvindex.Stored{})
	w.store(1, p[:160], kvindex.Stored{})
	if d := w.route(warmpath.Request{Model: "llama", Tokens: p}); d.MatchTokens != 304 {
		t.Errorf("%s", d)
	}
	if d := w.route(warmpath.Request{Model: "qwen", Tokens: p}); d.MatchTokens != 160 {
		t.Errorf("%s", d)
	}
	type line struct {
		Model     string
		BlockSize int
	}
	var lines []line
	for _, s := range w.router.IndexStats() {
		lines = append(lines, line{s.Model, s.BlockSize})
	}
	if diff := cmp.Diff([]line{{"llama", 16}, {"qwen", 32}}, lines); diff != "" {
		t.Error(diff)
	}
}

func TestEventsOfHoldersThatServeNothingAreRefused(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, fleet.Facts{})
	s := kvindex.Stored{BlockSize: 16, Tokens: prompt(1, 16), Handles: []uint64{1}}
	if w.router.Store(0, "", &s) != 0 || w.router.Store(9, "", &s) != 0 || w.router.Generation(0) != 0 ||
		w.router.Remove(0, "", warmpath.Removed{}) != 0 || w.router.Clear(0, "", 0) != 0 {
		t.Error("stored for a holder that serves nothing")
	}
	w.router.Forget(9)
}
