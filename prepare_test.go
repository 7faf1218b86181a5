package warmpath_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// A prepared request must get the same decision as a request that is not prepared, even if the index or the fleet
// changed after an earlier decision.
func TestAPreparedRequestSeesWhatChangedBetweenItsDecisions(t *testing.T) {
	large := vllm()
	large.BlockSize = 32
	w := newWorld(t, warmpath.Options{}, large, large)
	p := prompt(1, 320)
	req := request(warmpath.Request{Tokens: p})
	prepared := w.router.Prepare(req)
	defer prepared.Recycle()
	explain := func() (holder fleet.Holder, match int) {
		t.Helper()
		d, err := prepared.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		plain, err := w.router.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Recycle()
		defer plain.Recycle()
		if d.Holder != plain.Holder || d.MatchTokens != plain.MatchTokens || d.PredictedTokens != plain.PredictedTokens {
			t.Errorf("prepared: %s\nnot prepared: %s", &d.Record, &plain.Record)
		}
		return d.Holder, d.MatchTokens
	}
	if _, match := explain(); match != 0 {
		t.Errorf("%d tokens match in an empty index", match)
	}
	req.Now++
	w.store(1, p[:160], kvindex.Stored{})
	if h, match := explain(); h != 1 || match != 160 {
		t.Errorf("after blocks were stored meanwhile: holder %d is chosen with a match of %d tokens", h, match)
	}
	req.Now++
	w.store(0, p[:288], kvindex.Stored{})
	if h, match := explain(); h != 0 || match != 288 {
		t.Errorf("after more blocks were stored elsewhere: holder %d is chosen with a match of %d tokens", h, match)
	}
	req.Now++
	req.Exclude = append(req.Exclude, w.fleet.Snapshot().Worker(0).ID)
	if h, match := explain(); h != 1 || match != 160 {
		t.Errorf("without the worker that failed: holder %d is chosen with a match of %d tokens", h, match)
	}
	req.Now++
	w.fleet.Put("http://small", vllm()) // the index is made again, for blocks of 16 tokens
	if _, match := explain(); match != 0 {
		t.Errorf("%d tokens match in a new index", match)
	}
	w.store(1, p[:160], kvindex.Stored{})
	req.Now++
	if h, match := explain(); h != 1 || match != 160 {
		t.Errorf("in the new index: holder %d is chosen with a match of %d tokens", h, match)
	}
}

// Two decisions at the same time use one lookup, so blocks that are stored between the decisions do not count. The
// matches are looked up again at another time.
func TestMatchesOfAPreparedRequestAreKeptForDecisionsAtTheSameTime(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 320)
	w.store(0, p[:160], kvindex.Stored{})
	req := request(warmpath.Request{Tokens: p})
	prepared := w.router.Prepare(req)
	defer prepared.Recycle()
	match := func() int {
		t.Helper()
		d, err := prepared.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Recycle()
		return d.MatchTokens
	}
	if n := match(); n != 160 {
		t.Fatalf("%d tokens match, want 160", n)
	}
	w.store(0, p[:288], kvindex.Stored{})
	if n := match(); n != 160 {
		t.Errorf("after more blocks were stored: %d tokens match at the same time, want the 160 of the first decision", n)
	}
	req.Now++
	if n := match(); n != 288 {
		t.Errorf("at a later time %d tokens match, want 288", n)
	}
}

// Decisions about a prepared request at the same time share the matches of the index, even if different policies
// decide.
func TestAPreparedRequestIsDecidedByAnyPolicy(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	p := prompt(1, 640)
	w.store(2, p[:320], kvindex.Stored{})
	req := request(warmpath.Request{Tokens: p, Text: []byte(fmt.Sprint(p))})
	prepared := w.router.Prepare(req)
	defer prepared.Recycle()
	for range 2 {
		for _, name := range w.router.PolicyNames() {
			if name == "direct" {
				continue // this policy refuses requests that name no target
			}
			req.Policy = name
			d, err := prepared.Explain(t.Context())
			if err != nil {
				t.Fatal(name, err)
			}
			plain, err := w.router.Explain(t.Context(), req)
			if err != nil {
				t.Fatal(name, err)
			}
			if d.String() != plain.String() {
				t.Errorf("%s\nprepared:     %s\nnot prepared: %s", name, &d.Record, &plain.Record)
			}
			d.Recycle()
			plain.Recycle()
		}
		req.Now++
	}
}

// The keys of a prompt are made once. This test shows it by a change that a caller must not make: after the first
// decision, other tokens make no difference.
func TestTheKeysOfAPreparedRequestAreMadeOnce(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 640)
	w.store(1, p[:320], kvindex.Stored{})
	req := request(warmpath.Request{Tokens: slices.Clone(p)})
	prepared := w.router.Prepare(req)
	defer prepared.Recycle()
	for i, decide := range []func(context.Context) (*warmpath.Decision, error){prepared.Explain, prepared.Route, prepared.Explain} {
		req.Now++
		d, err := decide(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.MatchTokens != 320 {
			t.Errorf("decision %d: %d tokens match, want 320", i, d.MatchTokens)
		}
		clear(req.Tokens)
	}
}

// A decision must stay valid after its Prepared was recycled and other requests have used the memory of the Prepared.
func TestADecisionOutlivesItsPrepared(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	req := request(warmpath.Request{Tokens: prompt(1, 160)})
	prepared := w.router.Prepare(req)
	d, err := prepared.Route(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prepared.Recycle()
	for i := range 20 {
		other := w.route(warmpath.Request{Tokens: prompt(100+i, 160)})
		other.Done(fleet.OutcomeServed, 0)
		other.Recycle()
	}
	expected := func() int {
		t.Helper()
		e, err := w.router.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Recycle()
		return e.PredictedTokens
	}
	if n := expected(); n == 0 {
		t.Error("the prompt is not expected where it was sent")
	}
	d.Unsent()
	if n := expected(); n != 0 {
		t.Errorf("%d tokens are expected where nothing was sent", n)
	}
	d.Done(fleet.OutcomeUnknown, req.Now)
	d.Recycle()
}

func TestPreparedDecisionsDoNotAllocate(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	w, req := warm(t, 8)
	ctx := context.Background()
	once := func() {
		req.Now += 1000
		p := w.router.Prepare(req)
		measured, err := p.Explain(ctx)
		if err != nil {
			t.Fatal(err)
		}
		measured.Recycle()
		req.Now += 1000
		d, err := p.Route(ctx)
		if err != nil {
			t.Fatal(err)
		}
		p.Recycle()
		d.Done(fleet.OutcomeServed, req.Now)
		d.Recycle()
	}
	for range 100 {
		once()
	}
	if allocs := testing.AllocsPerRun(1000, once); allocs >= 0.5 { // a rare allocation is allowed: a garbage collection may empty the pool
		t.Errorf("%v allocations", allocs)
	}
}

// BenchmarkDecideAgain measures a further decision about the same request at a later time. For a prepared request, the
// block keys of the first decision are used again.
func BenchmarkDecideAgain(b *testing.B) {
	for _, prepared := range []bool{false, true} {
		b.Run(fmt.Sprintf("prepared %v", prepared), func(b *testing.B) {
			w, req := warm(b, 8)
			p := w.router.Prepare(req)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				req.Now += 1000
				explain := p.Explain
				if !prepared {
					explain = func(ctx context.Context) (*warmpath.Decision, error) { return w.router.Explain(ctx, req) }
				}
				d, err := explain(ctx)
				if err != nil {
					b.Fatal(err)
				}
				d.Recycle()
			}
		})
	}
}

// overtaken is a policy that chooses holder 0 if this holder has no request, and otherwise the first candidate. During
// its first choice another request is routed. So the chosen holder is full when the choice is returned.
type overtaken struct {
	recorder
	other func()
}

func (o *overtaken) Choose(_ *policy.Query, c []policy.Candidate) policy.Pick {
	if other := o.other; other != nil {
		o.other = nil
		other()
	}
	return policy.Pick{Index: max(slices.IndexFunc(c, func(c policy.Candidate) bool { return c.Holder == 0 && c.Load.Requests == 0 }), 0)}
}

// Another request may take the last free place at the chosen holder before the reservation is made. Route then decides
// again. The second decision sees the changes that the other request made.
func TestALostPlaceIsDecidedAnew(t *testing.T) {
	var o overtaken
	w := newWorld(t, warmpath.Options{MaxRequests: 1,
		Policy: policy.Spec{Name: "overtaken", Chooser: func() policy.Chooser { return &o }}}, vllm(), vllm())
	p := prompt(1, 161)
	o.other = func() { w.route(warmpath.Request{Tokens: p}) }
	d := w.route(warmpath.Request{Tokens: p})
	i := slices.IndexFunc(d.Candidates, func(c policy.Candidate) bool { return c.Holder == 0 })
	if n := d.Candidates[i].Predicted; d.Holder != 1 || n != 160 {
		t.Errorf("%s: %d tokens are expected at the holder of the other request", d, n)
	}
}
