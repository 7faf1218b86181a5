package warmpath_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// answer asks the index of other what p needs to know.
func answer(t *testing.T, p *warmpath.Prepared, other *warmpath.Router) {
	t.Helper()
	lookups := p.Lookups()
	for i := range lookups {
		if err := other.Match(&lookups[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// A router whose index is in another process decides as a router with an index of its own.
func TestARouterDecidesByTheAnswersOfAnotherIndex(t *testing.T) {
	named := vllm()
	named.Models = []fleet.Model{{ID: "alias", Root: "r"}, {ID: "llama", Root: "r"}}
	small := vllm()
	small.BlockSize = 32
	for name, facts := range map[string][]fleet.Facts{
		"one name":           {vllm(), vllm(), vllm()},
		"two names":          {vllm(), named, vllm()},
		"other block sizes":  {vllm(), small, vllm()},
		"larger blocks only": {small, small, small},
	} {
		t.Run(name, func(t *testing.T) {
			with := newWorld(t, warmpath.Options{}, facts...)
			without := newWorld(t, warmpath.Options{RemoteIndex: true}, facts...)
			p := prompt(1, 500)
			with.store(0, p[:64], kvindex.Stored{})
			with.store(1, p[:320], kvindex.Stored{})
			with.store(2, p[:192], kvindex.Stored{Tier: block.TierCPU})
			want := with.explain(warmpath.Request{Tokens: p})
			asked := without.router.Prepare(request(warmpath.Request{Tokens: p}))
			defer asked.Recycle()
			for range 2 { // a second call replaces the answers of the first
				answer(t, asked, with.router)
			}
			got, err := asked.Explain(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != want.String() || want.MatchTokens == 0 {
				t.Errorf("by the other index: %s\nby its own index: %s", got, want)
			}
			for i := range want.Candidates {
				if a, b := got.Candidates[i], want.Candidates[i]; a.Match != b.Match || a.Tier != b.Tier {
					t.Errorf("holder %d: %d tokens %v, want %d %v", a.Holder, a.Match, a.Tier, b.Match, b.Tier)
				}
			}
		})
	}
}

// A look-ahead is the number of tokens after a block that an engine's hash of the block also covers.
func TestAnotherIndexIsAskedForKeysWithALookAhead(t *testing.T) {
	with := newWorld(t, warmpath.Options{}, vllm(), vllm())
	without := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm(), vllm())
	p := prompt(1, 161)
	for _, w := range []*world{with, without} {
		if !w.router.SetAhead(1, 1) {
			t.Fatal("the look-ahead is refused")
		}
	}
	with.store(1, p[1:], kvindex.Stored{First: p[:1]})
	asked := without.router.Prepare(request(warmpath.Request{Tokens: p}))
	defer asked.Recycle()
	answer(t, asked, with.router)
	d, err := asked.Explain(t.Context())
	if err != nil || d.Holder != 1 || d.MatchTokens != 160 {
		t.Errorf("%v %v", d, err)
	}
}

func TestWithoutAnAnswerOnlySentPromptsMatch(t *testing.T) {
	w := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm(), vllm())
	p := prompt(1, 161)
	d := w.route(warmpath.Request{Tokens: p})
	if d.MatchTokens != 0 {
		t.Errorf("%s", d)
	}
	if again := w.explain(warmpath.Request{Tokens: p}); again.Holder != d.Holder || again.PredictedTokens != 160 || again.MatchTokens != 0 {
		t.Errorf("%s", again)
	}
}

// The other process may answer anything.
func TestAnImpossibleAnswerIsCutToThePrompt(t *testing.T) {
	w := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm(), vllm())
	p := w.router.Prepare(request(warmpath.Request{Tokens: prompt(1, 161)}))
	defer p.Recycle()
	q := &p.Lookups()[0]
	if len(q.Keys) != 10 || q.Model != "llama" || q.BlockSize != 16 {
		t.Fatalf("%d keys of %d tokens for %s are asked for", len(q.Keys), q.BlockSize, q.Model)
	}
	most := ^uint32(0)
	q.Matches = append(q.Matches, kvindex.Match{Holder: 77, Blocks: most}, kvindex.Match{Holder: 1, Blocks: most, Full: most, Tier: [block.NumTiers]uint32{most, most}},
		kvindex.Match{Holder: 1, Blocks: 3}, kvindex.Match{Holder: 0, Blocks: 5, Tier: [block.NumTiers]uint32{0, 5}})
	d, err := p.Explain(t.Context())
	if err != nil || d.Holder != 1 || d.MatchTokens != 160 || d.Tier[0] != 160 || d.Tier[1] != 0 {
		t.Errorf("%v %v", d, err)
	}
	if c := d.Candidates[slices.IndexFunc(d.Candidates, func(c policy.Candidate) bool { return c.Holder == 0 })]; c.Match != 80 || c.Tier[1] != 80 {
		t.Errorf("holder 0 has %d tokens, %v", c.Match, c.Tier)
	}
}

func TestAQuestionWithOtherKeysIsRefused(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	w.store(0, prompt(1, 160), kvindex.Stored{})
	for _, c := range []struct {
		q    warmpath.Lookup
		want error
	}{
		{warmpath.Lookup{Model: "other", BlockSize: 16}, warmpath.ErrUnknownModel},
		{warmpath.Lookup{Model: "llama", BlockSize: 32}, warmpath.ErrOtherKeys},
		{warmpath.Lookup{Model: "llama", BlockSize: 16, Algorithm: block.FNV1a}, warmpath.ErrOtherKeys},
		{warmpath.Lookup{Model: "llama", BlockSize: 16}, nil},
	} {
		if err := w.router.Match(&c.q); !errors.Is(err, c.want) {
			t.Errorf("%s, %d tokens, %s: %v, want %v", c.q.Model, c.q.BlockSize, c.q.Algorithm, err, c.want)
		}
	}
}

func TestThePromptOfARequestIsLookedUpWithoutADecision(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	w.store(1, prompt(1, 160), kvindex.Stored{})
	p := w.router.Prepare(request(warmpath.Request{Tokens: prompt(1, 200)}))
	defer p.Recycle()
	size, matches, err := p.Matches("")
	if err != nil || size != 16 || len(matches) != 1 || matches[0].Holder != 1 || matches[0].Blocks != 10 || len(p.Keys()) != 12 {
		t.Errorf("%d keys; %d tokens, %v, %v", len(p.Keys()), size, matches, err)
	}
	tuned := w.router.Prepare(request(warmpath.Request{Tokens: prompt(1, 200)}))
	defer tuned.Recycle()
	if _, matches, err := tuned.Matches("sql"); err != nil || len(matches) != 0 {
		t.Errorf("blocks of the base model match for an adapter: %v, %v", matches, err)
	}
	if _, _, err := w.router.Prepare(&warmpath.Request{Model: "other", Tokens: prompt(1, 200)}).Matches(""); !errors.Is(err, warmpath.ErrUnknownModel) {
		t.Error(err)
	}
}

// Asking for, answering and using a lookup allocates nothing in steady state.
func TestALookupAllocatesNothing(t *testing.T) {
	with := newWorld(t, warmpath.Options{}, vllm(), vllm())
	without := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm(), vllm())
	tokens := prompt(1, 1000)
	with.store(1, tokens, kvindex.Stored{})
	req := request(warmpath.Request{Tokens: tokens})
	if n := testing.AllocsPerRun(100, func() {
		p := without.router.Prepare(req)
		answer(t, p, with.router)
		d, err := p.Route(t.Context())
		if err != nil || d.MatchTokens != 992 {
			t.Fatal(d, err)
		}
		d.Done(fleet.OutcomeServed, 1)
		d.Recycle()
		p.Recycle()
	}); n >= 0.5 && !testenv.Race() { // a rare allocation is allowed: a garbage collection may empty the pool
		t.Errorf("%v allocations", n)
	}
}

func TestTheBlocksOfOneHolderAreDumped(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	w.store(1, prompt(1, 160), kvindex.Stored{})
	blocks := 0
	generation, err := w.router.Dump(1, func(held *kvindex.Held) error {
		blocks += len(held.Keys)
		return nil
	})
	if generation != w.router.Generation(1) || err != nil || blocks != 10 {
		t.Errorf("%d blocks of generation %d, want 10: %v", blocks, generation, err)
	}
	if a, size, ok := w.router.Keying("llama"); a != block.XXH3 || size != 16 || !ok {
		t.Errorf("%s keys of %d tokens, %v", a, size, ok)
	}
	if _, _, ok := w.router.Keying("other"); ok {
		t.Error("an index of an unknown model")
	}
	if !w.router.SetAhead(0, 2) || w.router.Ahead(0) != 2 || w.router.Ahead(1) != 0 || w.router.Ahead(77) != 0 {
		t.Errorf("look-aheads %d, %d, %d", w.router.Ahead(0), w.router.Ahead(1), w.router.Ahead(77))
	}
}

func TestTheRouterTakesTheBlockSizeOfTheOtherIndex(t *testing.T) {
	w := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm())
	own := newWorld(t, warmpath.Options{}, vllm())
	for _, size := range []int{64, 16, 32} {
		for _, r := range []*warmpath.Router{w.router, own.router} {
			r.SetBlockSize("llama", size)
			r.SetBlockSize("other", size)
			r.SetBlockSize("llama", 0)
			r.SetBlockSize("llama", block.MaxSize+1)
		}
		w.fleet.Put("http://z", vllm()) // the index is looked at again
		if _, got, ok := w.router.Keying("llama"); got != size || !ok {
			t.Errorf("blocks of %d tokens, want %d", got, size)
		}
		if _, got, _ := own.router.Keying("llama"); got != 16 {
			t.Errorf("a router with an index of its own has blocks of %d tokens", got)
		}
		p := w.router.Prepare(request(warmpath.Request{Tokens: prompt(1, 161)}))
		if q := p.Lookups()[0]; q.BlockSize != size || len(q.Keys) != 160/size {
			t.Errorf("%d keys of %d tokens", len(q.Keys), q.BlockSize)
		}
		p.Recycle()
	}
}

// Answers to a question whose model got other blocks meanwhile count for nothing: they are about other keys.
func TestAnAnswerAboutAReplacedIndexIsLeftOut(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		w := newWorld(t, warmpath.Options{RemoteIndex: true}, vllm())
		w.fleet.SetTrust(0, fleet.TrustExact, "test")
		p := w.router.Prepare(request(warmpath.Request{Tokens: prompt(1, 161)}))
		q := &p.Lookups()[0]
		q.Matches = append(q.Matches, kvindex.Match{Holder: 0, Blocks: 2})
		want := 2 * q.BlockSize
		if replaced {
			w.router.SetBlockSize("llama", 4*q.BlockSize)
			want = 0
		}
		d, err := p.Explain(t.Context())
		if err != nil || d.MatchTokens != want {
			t.Errorf("replaced %v: %d tokens match, want %d (%v)", replaced, d.MatchTokens, want, err)
		}
		p.Recycle()
	}
}
