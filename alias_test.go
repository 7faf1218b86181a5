package warmpath_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// listing returns the facts of a worker. The worker lists one model under all of the given names, and the adapter sql
// of this model.
func listing(root string, names ...string) fleet.Facts {
	f := vllm()
	f.Models = nil
	for _, n := range names {
		f.Models = append(f.Models, fleet.Model{ID: n, Root: root})
	}
	f.Models = append(f.Models, fleet.Model{ID: "sql", Root: "/adapters/sql", Parent: names[0]})
	return f
}

// All workers list the name m for their model. Some workers also list a further name, before or after m. The further
// name must not change matches.
func TestBlocksAreMatchedWhateverFurtherNamesTheWorkersList(t *testing.T) {
	const root = "/models/m"
	for name, workers := range map[string][]fleet.Facts{
		"the worker with two names joined first": {listing(root, "org/m", "m"), listing(root, "m")},
		"the worker with one name joined first":  {listing(root, "m"), listing(root, "org/m", "m")},
		"the workers' roots differ":              {listing("/a", "org/m", "m"), listing("/b", "m")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, warmpath.Options{}, workers...)
			p := prompt(1, 320)
			w.store(0, p[:96], kvindex.Stored{})
			w.store(1, p[:160], kvindex.Stored{})
			w.store(0, p[:64], kvindex.Stored{Scope: block.Scope{LoRA: "sql"}})
			w.store(1, p[:128], kvindex.Stored{Scope: block.Scope{LoRA: "sql"}})
			for model, want := range map[string][]int{"m": {96, 160}, "sql": {64, 128}} {
				if diff := cmp.Diff(want, w.matches(model, p)); diff != "" {
					t.Errorf("%s: %s", model, diff)
				}
			}
		})
	}
}

// Two different models have a name in common: the worker of model a lists a and default, and the worker of model b
// lists b and default. The models must not share blocks.
func TestModelsThatShareANameShareNoBlocks(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, listing("/a", "a", "default"), listing("/b", "b", "default"))
	p := prompt(1, 320)
	w.store(0, p[:96], kvindex.Stored{})
	w.store(1, p[:160], kvindex.Stored{})
	for model, want := range map[string][]int{"a": {96}, "b": {160}, "default": {96, 160}} {
		if diff := cmp.Diff(want, w.matches(model, p)); diff != "" {
			t.Errorf("%s: %s", model, diff)
		}
	}
}

// A model with two names may have two indexes, one for each name. The block sizes of the two indexes may differ.
func TestMatchesOfAnotherNameAreInTheSameBlocks(t *testing.T) {
	large, small := listing("/m", "m"), listing("/m", "org/m", "m")
	large.BlockSize = 32
	only := listing("/m", "org/m")
	only.BlockSize = 8
	w := newWorld(t, warmpath.Options{}, large, small, only)
	p := prompt(1, 320)
	w.store(0, p[:96], kvindex.Stored{})
	w.store(1, p[:160], kvindex.Stored{})
	if diff := cmp.Diff([]int{96, 160}, w.matches("m", p)); diff != "" {
		t.Error(diff)
	}
}

func TestAPromptIsExpectedWhateverNameARequestHas(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, listing("/m", "m"), listing("/m", "org/m", "m"))
	p := prompt(1, 320)
	d := w.route(warmpath.Request{Model: "org/m", Tokens: p})
	e := w.route(warmpath.Request{Model: "m", Tokens: p})
	if d.Holder != 1 || e.Holder != 1 || e.PredictedTokens != 304 {
		t.Errorf("%s\n%s", d, e)
	}
	w.router.Clear(1, block.TierGPU)
	if f := w.route(warmpath.Request{Model: "m", Tokens: p}); f.Candidates[1].Predicted != 0 {
		t.Errorf("after a reset of the cache: %s", f)
	}
}

// Workers with further names for the model join and leave between two decisions about one prepared request. They also
// do so between two requests that use the same memory, because the first request was recycled.
func TestAPreparedRequestSeesNamesComeAndGo(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, listing("/m", "m"), listing("/m", "org/m", "m"), listing("/m", "new/m", "m"))
	p, q := prompt(1, 320), prompt(2, 320)
	for h := range fleet.Holder(3) {
		w.store(h, p[:64+32*h], kvindex.Stored{})
		w.store(h, q[:160-32*h], kvindex.Stored{})
	}
	want := func(tokens []block.Token, want ...int) {
		t.Helper()
		if diff := cmp.Diff(want, w.matches("m", tokens)); diff != "" {
			t.Error(diff)
		}
	}
	want(p, 64, 96, 128)
	prepared := w.router.Prepare(&warmpath.Request{Model: "m", Tokens: p})
	explain := func(want ...int) {
		t.Helper()
		d, err := prepared.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Recycle()
		if diff := cmp.Diff(want, matchesOf(d)); diff != "" {
			t.Error(diff)
		}
	}
	explain(64, 96, 128)
	w.fleet.Remove(1)
	explain(64, 128)
	w.fleet.Remove(2)
	explain(64)
	prepared.Recycle()
	for i, facts := range []fleet.Facts{listing("/m", "org/m", "m"), listing("/m", "new/m", "m")} {
		id := w.fleet.Put([]string{"http://b", "http://c"}[i], facts)
		h := w.fleet.Snapshot().ByID(id).Holders[0]
		w.store(h, q[:128-32*i], kvindex.Stored{})
		w.fleet.SetTrust(h, fleet.TrustExact, "test")
	}
	want(q, 160, 128, 96)
}

// An engine that hashes blocks with a look-ahead may also list a further name.
func TestBlocksWithALookAheadAreMatchedUnderFurtherNames(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, listing("/m", "m"), listing("/m", "org/m", "m"))
	p := prompt(1, 320)
	if !w.router.SetAhead(1, 1) {
		t.Fatal("the look-ahead is refused")
	}
	w.store(0, p[:96], kvindex.Stored{})
	w.store(1, p[1:177], kvindex.Stored{First: p[:1]})
	if diff := cmp.Diff([]int{96, 176}, w.matches("m", p)); diff != "" {
		t.Error(diff)
	}
}

func TestDecisionsOverSeveralNamesDoNotAllocate(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	w := newWorld(t, warmpath.Options{}, listing("/m", "m"), listing("/m", "org/m", "m"))
	p := prompt(1, 320)
	w.store(1, p[:160], kvindex.Stored{})
	req := request(warmpath.Request{Model: "m", Tokens: p})
	once := func() {
		req.Now += 1000
		d, err := w.router.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		d.Recycle()
	}
	once()
	if n := testing.AllocsPerRun(100, once); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// matches returns the confirmed match of each candidate, in tokens, for a request with the given model name.
func (w *world) matches(model string, p []block.Token) []int {
	w.t.Helper()
	d, err := w.router.Explain(w.t.Context(), &warmpath.Request{Model: model, Tokens: p})
	if err != nil {
		w.t.Fatal(err)
	}
	defer d.Recycle()
	return matchesOf(d)
}

func matchesOf(d *warmpath.Decision) (all []int) {
	for i := range d.Candidates {
		all = append(all, d.Candidates[i].Match)
	}
	return all
}
