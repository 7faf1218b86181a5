package warmpath_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// A new holder may get the id of a holder that left. A request must not match blocks of the former holder at the new
// holder: neither blocks from events, nor blocks of prompts that were sent to the former holder.
func TestAnIDThatIsUsedAgainRemembersNothing(t *testing.T) {
	for _, name := range []string{"kv_aware", "marginal", "cache_aware"} {
		w := newWorld(t, warmpath.Options{}, vllm(), vllm()) // the second worker stays, and so does the model's index
		stays := []fleet.WorkerID{w.fleet.Snapshot().Worker(1).ID}
		p := prompt(1, 320)
		w.store(0, p[:160], kvindex.Stored{})
		d := w.route(warmpath.Request{Tokens: p, Text: []byte(fmt.Sprint(p)), Policy: name, Exclude: stays})
		if d.Holder != 0 {
			t.Fatalf("%s: %s", name, d)
		}
		w.fleet.Remove(d.Worker.ID)
		d.Done(fleet.OutcomeServed, 0)
		for _, at := range []time.Duration{0, 90 * time.Minute} {
			w.router.Reclaim(int64(at))
		}
		w.fleet.Put("http://new", vllm())
		w.fleet.SetTrust(0, fleet.TrustExact, "test")
		if n := w.fleet.Snapshot().Holders(); n != 2 {
			t.Errorf("%s: %d ids", name, n)
		}
		e, err := w.router.Explain(t.Context(), request(warmpath.Request{Tokens: p, Text: []byte(fmt.Sprint(p)), Policy: name,
			Now: int64(2 * time.Hour), Exclude: stays}))
		if err != nil {
			t.Fatal(name, err)
		}
		if e.Worker.URL != "http://new" || e.MatchTokens != 0 || e.PredictedTokens != 0 {
			t.Errorf("%s: %s", name, e)
		}
	}
}

// Workers come and go one after another. The fleet must use their ids again, so that it does not need more and more
// ids.
func TestAFleetMayBeReplacedForEver(t *testing.T) {
	w := newWorld(t, warmpath.Options{})
	p := prompt(1, 160)
	for i := range int64(300) {
		now := i * int64(2*time.Hour)
		url := fmt.Sprint("http://", i)
		id := w.fleet.Put(url, vllm())
		h := w.fleet.Snapshot().ByID(id).Holders[0]
		w.fleet.SetTrust(h, fleet.TrustExact, "test")
		w.store(h, p, kvindex.Stored{})
		if d := w.route(warmpath.Request{Tokens: p, Now: now}); d.Worker.URL != url || d.MatchTokens == 0 {
			t.Fatalf("worker %d: %s", i, d)
		} else {
			d.Done(fleet.OutcomeServed, now)
			d.Recycle()
		}
		w.fleet.Remove(id)
		w.router.Reclaim(now)
	}
	if n := w.fleet.Snapshot().Holders(); n > 3 {
		t.Errorf("%d ids for one holder at a time", n)
	}
}

// Names of models come and go within the hour in which an index without workers is kept.
func TestFewIndexesWithoutWorkersAreKept(t *testing.T) {
	w := newWorld(t, warmpath.Options{})
	p := prompt(1, 160)
	for i := range 1000 {
		id := w.fleet.Put("http://a", fleet.Facts{Engine: fleet.EngineVLLM, BlockSize: 16, Models: []fleet.Model{{ID: fmt.Sprint("name-", i)}}})
		w.store(w.fleet.Snapshot().ByID(id).Holders[0], p, kvindex.Stored{})
	}
	var models []string
	for _, x := range w.router.IndexStats() {
		models = append(models, x.Model)
	}
	if len(models) != 257 || slices.Contains(models, "name-742") || !slices.Contains(models, "name-743") || !slices.Contains(models, "name-999") {
		t.Errorf("%d indexes, want that of the worker's model and the 256 last ones: %q", len(models), models)
	}
}

// A worker may report a different model name at each probe. The router must not keep an index for each of these names
// for ever.
func TestTheIndexOfAModelThatNoWorkerServesIsDropped(t *testing.T) {
	w := newWorld(t, warmpath.Options{})
	p := prompt(1, 160)
	serve := func(model string, now time.Duration) fleet.Holder {
		id := w.fleet.Put("http://a", fleet.Facts{Engine: fleet.EngineVLLM, BlockSize: 16, Models: []fleet.Model{{ID: model}}})
		h := w.fleet.Snapshot().ByID(id).Holders[0]
		w.store(h, p, kvindex.Stored{})
		w.route(warmpath.Request{Model: model, Tokens: p, Now: int64(now)}).Done(fleet.OutcomeServed, int64(now))
		return h
	}
	indexes := func() (models []string) {
		for _, x := range w.router.IndexStats() {
			models = append(models, x.Model)
		}
		return models
	}
	now := time.Minute
	for i := range 10 {
		serve(fmt.Sprint("name-", i), now)
	}
	h := serve("last", now)
	former := w.router.Generation(h)
	w.router.Reclaim(int64(now))
	w.router.Reclaim(int64(now + 59*time.Minute))
	if n := len(indexes()); n != 11 {
		t.Errorf("%d indexes within the hour, want all 11", n)
	}
	w.router.Reclaim(int64(now + time.Hour))
	if got := indexes(); !slices.Equal(got, []string{"last"}) || w.router.Generation(h) != former {
		t.Errorf("indexes of %q after an hour, want only the model with a worker, unchanged", got)
	}

	// A model without workers keeps its index for an hour. The hour begins anew each time the last worker of the model
	// leaves.
	serve("other", 2*time.Hour)
	w.router.Reclaim(int64(2 * time.Hour))
	serve("last", 2*time.Hour+30*time.Minute)
	w.router.Reclaim(int64(2*time.Hour + 30*time.Minute))
	serve("other", 2*time.Hour+40*time.Minute)
	w.router.Reclaim(int64(2*time.Hour + 40*time.Minute))
	w.router.Reclaim(int64(3*time.Hour + 30*time.Minute))
	if got := indexes(); !slices.Contains(got, "last") {
		t.Errorf("indexes of %q, want last", got)
	}

	// If a model comes back after its index was dropped, it gets a new index with a greater generation.
	w.router.Reclaim(int64(4 * time.Hour))
	if got := indexes(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("indexes of %q, want other", got)
	}
	if h = serve("last", 4*time.Hour); w.router.Generation(h) <= former {
		t.Errorf("generation %d, the former one was %d", w.router.Generation(h), former)
	}
}

// The first worker of a session left, and a new worker got the id of the first worker. The session must not go to the
// new worker because of the id.
func TestASessionDoesNotFollowAnIDThatIsUsedAgain(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	send := func(now time.Duration) *warmpath.Decision {
		return w.route(warmpath.Request{Policy: "manual", Session: policy.Session{Key: "alice", Source: "user"}, Now: int64(now)})
	}
	first := send(0)
	w.fleet.Remove(first.Worker.ID)
	first.Done(fleet.OutcomeServed, 0)
	second := send(time.Minute)
	for _, at := range []time.Duration{time.Minute, 90 * time.Minute} {
		w.router.Reclaim(int64(at))
	}
	w.fleet.Put("http://new", vllm())
	if n := w.fleet.Snapshot().Holders(); n != 2 {
		t.Fatalf("%d ids", n)
	}
	if third := send(2 * time.Hour); third.Holder != second.Holder || third.Branch != policy.BranchSession {
		t.Errorf("the session is at %s: %s", second.Worker.URL, third)
	}
}

// faulty is a policy whose Routed panics.
type faulty struct{ recorder }

func (*faulty) Routed(*policy.Query, *policy.Candidate) { panic("a bug of the policy") }

// After a panic in Route, the caller has no decision, so it cannot call Done. Route must release the load itself.
func TestAPanicInAPolicyReleasesTheLoad(t *testing.T) {
	for name, o := range map[string]warmpath.Options{
		"the policy in use": {Policy: policy.Spec{Name: "faulty", Chooser: func() policy.Chooser { return &faulty{} }}},
		"the shadow": {
			Policies: []policy.Spec{{Name: "faulty", Chooser: func() policy.Chooser { return &faulty{} }}}, Shadow: "faulty",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, o, vllm())
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic is swallowed")
					}
				}()
				w.route(warmpath.Request{Tokens: prompt(1, 160)})
			}()
			if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || l.PrefillTokens != 0 {
				t.Errorf("%+v", l)
			}
			w.fleet.Remove(w.fleet.Snapshot().Workers()[0].ID)
			w.router.Reclaim(0)
			if n := w.router.Reclaim(int64(2 * time.Hour)); n != 1 {
				t.Errorf("%d ids are free", n)
			}
		})
	}
}
