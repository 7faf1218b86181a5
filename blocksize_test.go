package warmpath_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
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
		// SGLang has pages of one token by default. By default the router makes no blocks below 16 tokens.
		{0, []int{1}, 16},
		{0, []int{8, 32}, 16},
		{0, []int{0}, 16}, // the worker's block size is not known
		{0, []int{0, 64}, 64},
		{0, []int{1 << 30}, 65536},
		{24, []int{32}, 24},
		{64, []int{16}, 16}, // blocks of 64 tokens would hide the engine's smaller blocks
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

	w.fleet.Put("http://b", sized(128)) // the blocks of 128 tokens are divided into blocks of 64 tokens
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

	// The test does what the feed does for a new index: it forgets the holder's blocks and stores them again.
	w.router.Forget(0)
	w.store(0, p, kvindex.Stored{})
	d := w.route(warmpath.Request{Tokens: p, Now: 2000 * second})
	if d.MatchTokens != 576 || d.Holder != 0 {
		t.Errorf("%s", d)
	}

	// When the worker with the small blocks leaves, the index keeps the small block size. This costs memory, but matches
	// stay correct.
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
	s := kvindex.Stored{BlockSize: 16, Tokens: prompt(1, 16), Hashes: []uint64{1}}
	if w.router.Store(0, &s) != 0 || w.router.Store(9, &s) != 0 || w.router.Generation(0) != 0 ||
		w.router.Remove(0, warmpath.Removed{}) != 0 || w.router.Clear(0, 0) != 0 {
		t.Error("stored for a holder that serves nothing")
	}
	w.router.Forget(9)
}

func TestAStaticBlockSizeStandsInForWhatWorkersReport(t *testing.T) {
	for _, c := range []struct {
		reported, static, index, match int
	}{
		{0, 32, 32, 96},
		{64, 16, 16, 112},
		{16, 64, 64, 64},
		{16, 0, 16, 112},
		{16, 4, 16, 112}, // the router's own blocks have at least 16 tokens
	} {
		f := fleet.New(fleet.Config{BlockSizes: map[string]int{"llama": c.static, "other": 7}})
		r, err := warmpath.New(warmpath.Options{Fleet: f, Policy: policy.DefaultKVAware().Spec("kv_aware")})
		if err != nil {
			t.Fatal(err)
		}
		facts := sized(c.reported)
		facts.BlocksPerRank = 640
		id := f.Put("http://a", facts)
		f.SetTrust(0, fleet.TrustExact, "test")
		if c.static > 0 {
			f.SetBlockSize(id, 128) // the configured block size stays: events cannot correct it
		}
		if got := f.Snapshot().ByID(id).Facts; c.reported > 0 && got.BlocksPerRank*got.BlockSize != 640*c.reported {
			t.Errorf("%+v: the cache has %d blocks of %d tokens", c, got.BlocksPerRank, got.BlockSize)
		}
		p := prompt(1, 128)
		s := kvindex.Stored{BlockSize: 16, Tokens: p, Hashes: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}
		if r.Store(0, &s) == 0 {
			t.Fatal("nothing stored")
		}
		d, err := r.Route(t.Context(), request(warmpath.Request{Tokens: p}))
		if err != nil {
			t.Fatal(err)
		}
		if d.BlockSize != c.index || d.MatchTokens != c.match {
			t.Errorf("%+v: %d tokens in blocks of %d", c, d.MatchTokens, d.BlockSize)
		}
	}
}

// keysSeen is a policy that keeps the keys of the last prompt.
type keysSeen struct{ keys []block.Key }

func (p *keysSeen) Choose(q *policy.Query, _ []policy.Candidate) policy.Pick {
	p.keys = slices.Clone(q.Prompt.Keys)
	return policy.Pick{}
}
func (p *keysSeen) Routed(*policy.Query, *policy.Candidate) {}
func (p *keysSeen) Finished(*policy.Finished)               {}
func (p *keysSeen) Forget(fleet.Holder)                     {}

// The numbers were computed in Python with the package xxhash, by the formulas in package block's documentation.
func TestTheOptionAlgorithmMakesTheKeys(t *testing.T) {
	tokens := make([]block.Token, 32)
	for i := range tokens {
		tokens[i] = block.Token(i + 1)
	}
	seen := &keysSeen{}
	spec := policy.Spec{Name: "seen", NeedsMatches: true, Chooser: func() policy.Chooser { return seen }}
	w := newWorld(t, warmpath.Options{Algorithm: block.FNV1a, Policy: spec}, vllm())
	w.route(warmpath.Request{Tokens: tokens})
	if want := []block.Key{0x515d854fce7b582a, 0x9694f1ac992bfbbb}; !slices.Equal(seen.keys, want) {
		t.Errorf("the router's keys are %x, want %x", seen.keys, want)
	}
}

func TestBothKindsOfKeysRouteAlike(t *testing.T) {
	route := func(a block.Algorithm) (out []string) {
		w := newWorld(t, warmpath.Options{Algorithm: a}, vllm(), vllm(), vllm())
		w.store(0, prompt(1, 640), kvindex.Stored{})
		w.store(1, prompt(2, 320), kvindex.Stored{})
		w.store(2, append(prompt(1, 64), prompt(3, 64)...), kvindex.Stored{})
		for i := range 4 {
			for _, n := range []int{40, 320, 640} {
				d := w.route(warmpath.Request{Tokens: prompt(i, n), Salt: []string{"", "tenant"}[i%2]})
				out = append(out, fmt.Sprint(d.Worker, d.MatchTokens, d.Branch))
			}
		}
		return out
	}
	if diff := cmp.Diff(route(block.XXH3), route(block.FNV1a)); diff != "" {
		t.Errorf("decisions with XXH3 and with FNV-1a keys (-XXH3 +FNV-1a):\n%s", diff)
	}
}

func TestEachIndexTellsItsChanges(t *testing.T) {
	var told []string
	w := newWorld(t, warmpath.Options{IndexChanged: func(made warmpath.MadeIndex) func(*kvindex.Change) {
		told = append(told, fmt.Sprintf("index of %d tokens", made.BlockSize))
		return func(c *kvindex.Change) { told = append(told, fmt.Sprintf("%d %d", made.Generation, len(c.Keys))) }
	}}, sized(64))
	w.store(0, prompt(1, 640), kvindex.Stored{})
	w.fleet.Put("http://b", sized(16))
	w.store(1, prompt(1, 640), kvindex.Stored{})
	// Each index first tells the holder's cache groups, without keys.
	if want := []string{"index of 64 tokens", "1 0", "1 10", "index of 16 tokens", "2 0", "2 40"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
