package warmpath_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// large returns a world with n workers, in most tests more than a decision looks at.
func large(t testing.TB, n int, o warmpath.Options) *world {
	t.Helper()
	facts := make([]fleet.Facts, n)
	for i := range facts {
		facts[i] = vllm()
	}
	return newWorld(t, o, facts...)
}

func (w *world) explain(req warmpath.Request) *warmpath.Decision {
	w.t.Helper()
	d, err := w.router.Explain(context.Background(), request(req))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func TestALargeFleetIsNotLookedAtWhole(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	d := w.route(warmpath.Request{Tokens: prompt(1, 500)})
	if n := len(d.Candidates); n > 64 {
		t.Errorf("%d candidates", n)
	}
}

func TestTheLongestMatchIsFoundInALargeFleet(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	p := prompt(1, 800)
	for h := range fleet.Holder(100) {
		blocks := 10 // all workers have the same system prompt
		if h%20 == 17 {
			blocks = 20 + int(h)/20 // worker 97 has the most blocks
		}
		w.store(h, p[:16*blocks], kvindex.Stored{})
	}
	for random := range uint64(50) {
		if d := w.explain(warmpath.Request{Tokens: p, Random: random}); d.Holder != 97 {
			t.Fatalf("%s", d)
		}
	}
	// Without worker 97, the worker with the second most blocks is chosen.
	if d := w.explain(warmpath.Request{Tokens: p, Exclude: []fleet.WorkerID{97}}); d.Holder != 77 || d.Branch != policy.BranchFallback {
		t.Errorf("%s", d)
	}
}

func TestLittleLoadIsFoundInALargeFleet(t *testing.T) {
	const workers = 200
	w := large(t, workers, warmpath.Options{})
	source := rand.New(rand.NewPCG(1, 2))
	// Requests of many sizes come and go, with twice as many under way as there are workers.
	var open []*warmpath.Decision
	// asked counts comparisons of a worker with the chosen worker. lighter counts the comparisons in which the worker had
	// less load.
	lighter, asked := 0, 0
	for i := range 4000 {
		if len(open) > 2*workers {
			at := source.IntN(len(open))
			open[at].Done(fleet.OutcomeServed, int64(i))
			open[at].Recycle()
			open = slices.Delete(open, at, at+1)
		}
		d := w.route(warmpath.Request{PromptBytes: 4 * (100 + source.IntN(2000)), Now: int64(i), Random: source.Uint64()})
		if i > 2000 && i%25 == 0 {
			asked += workers
			snap := w.fleet.Snapshot()
			for h := range fleet.Holder(workers) {
				other := policy.Candidate{Load: snap.LoadAt(h, int64(i)), BlockSize: 16}
				if h != d.Holder && other.Work() < d.Candidates[d.Chosen].Work() {
					lighter++
				}
			}
		}
		open = append(open, d)
	}
	share := float64(lighter) / float64(asked)
	if share > 0.03 {
		t.Errorf("a share of %.4f of all workers had less load than the chosen one", share)
	}
}

func TestOneUsableWorkerOfALargeFleetIsFound(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	for id := range fleet.WorkerID(100) {
		w.fleet.SetHealth(id, id == 73, "down")
	}
	for _, name := range []string{"kv_aware", "least_load", "round_robin", "random", "power_of_two"} {
		d := w.route(warmpath.Request{Tokens: prompt(1, 500), Policy: name, Random: 99})
		if d.Holder != 73 {
			t.Errorf("%s: %s", name, d)
		}
		if _, err := w.router.Route(context.Background(), request(warmpath.Request{Exclude: []fleet.WorkerID{73}})); !errors.Is(err, warmpath.ErrNoWorker) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A suspect is a worker that seems to be frozen. A suspect gets a request only if no other worker of the fleet can take
// the request. The same holds for a worker that gave useless answers.
func TestOneWorkerWithoutABarIsFoundInALargeFleet(t *testing.T) {
	chat := fleet.ScopeOf("m", "/chat")
	for what, bar := range map[string]func(*fleet.Fleet, fleet.WorkerID){
		"useless": func(f *fleet.Fleet, id fleet.WorkerID) {
			f.ObserveScope(fleet.Holder(id), chat, fleet.OutcomeFailed, 1)
		},
		"suspect": func(f *fleet.Fleet, id fleet.WorkerID) { f.Suspect(id, true, 1) },
	} {
		w := large(t, 100, warmpath.Options{})
		for id := range fleet.WorkerID(100) {
			if id != 73 {
				bar(w.fleet, id)
			}
		}
		for _, name := range []string{"kv_aware", "marginal", "least_load", "round_robin", "random", "power_of_two"} {
			if d := w.route(warmpath.Request{Tokens: prompt(1, 500), Policy: name, Random: 99, Scope: chat, Now: 2}); d.Holder != 73 {
				t.Errorf("%s, %s: %s", what, name, d)
			}
			if d := w.route(warmpath.Request{Tokens: prompt(1, 500), Policy: name, Exclude: []fleet.WorkerID{73}, Scope: chat, Now: 2}); d.Holder == 73 {
				t.Errorf("%s, %s: the excluded worker was chosen", what, name)
			}
		}
	}
}

func TestALargeFleetIsUsedInTurnAndAtRandom(t *testing.T) {
	for name, spread := range map[string]int{"round_robin": 0, "random": 30} {
		w := large(t, 100, warmpath.Options{})
		source := rand.New(rand.NewPCG(1, 2))
		var counts [100]int
		for range 5000 {
			d := w.route(warmpath.Request{PromptBytes: 400, Policy: name, Random: source.Uint64()})
			counts[d.Holder]++
			d.Recycle()
		}
		for h, n := range counts {
			if n < 50-spread || n > 50+spread {
				t.Errorf("%s: worker %d got %d of 5000 requests", name, h, n)
			}
		}
	}
}

func TestAWorkerOfALargeFleetCanBeAskedFor(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	url := w.fleet.Snapshot().Workers()[77].URL
	if d := w.route(warmpath.Request{Tokens: prompt(1, 500), Policy: "direct", Target: url}); d.Holder != 77 {
		t.Errorf("%s", d)
	}
}

func TestAnExplanationListsALargeFleetAndDecidesAsRouting(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	p := prompt(1, 500)
	w.store(90, p[:160], kvindex.Stored{})
	for i := range uint64(40) {
		req := warmpath.Request{Tokens: prompt(int(i%3), 500), Random: i * 7919, Now: int64(i)}
		explained := w.explain(req)
		again := w.explain(req)
		d := w.route(req)
		if explained.Holder != d.Holder || again.Holder != d.Holder {
			t.Fatalf("two explanations chose the holders %d and %d, routing chose %d", explained.Holder, again.Holder, d.Holder)
		}
		if len(explained.Candidates) != 100 {
			t.Fatalf("%d candidates", len(explained.Candidates))
		}
		last := len(explained.Candidates) - 1
		if why := explained.Why(last); why != policy.ReasonNotLooked {
			t.Fatalf("the last candidate was left out because %s", why)
		}
		explained.Recycle()
		again.Recycle()
	}
	d := w.explain(warmpath.Request{Tokens: p})
	for i := range d.Candidates {
		if c := &d.Candidates[i]; (c.Match > 0) != (c.Holder == 90) {
			t.Errorf("holder %d: match %d", c.Holder, c.Match)
		}
	}
}

func TestAChooserThatMayMeanAnyoneIsOfferedAll(t *testing.T) {
	for _, reach := range []policy.Reach{policy.ReachUnset, policy.ReachAll} {
		spec := policy.Spec{Name: "recorder", NeedsMatches: true, Reach: reach, Chooser: func() policy.Chooser { return new(recorder) }}
		w := large(t, 100, warmpath.Options{Policy: spec})
		if d := w.route(warmpath.Request{Tokens: prompt(1, 500)}); (len(d.Candidates) == 100) != (reach == policy.ReachAll) {
			t.Errorf("reach %v: %d candidates", reach, len(d.Candidates))
		}
	}
}

func TestASessionFindsItsWorkerInALargeFleet(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	for _, name := range []string{"session_affinity", "manual", "rendezvous_hash", "consistent_hash"} {
		req := warmpath.Request{Tokens: prompt(1, 500), Policy: name, Session: policy.Session{Key: "alice"}, Random: 5}
		first := w.route(req)
		for i := range uint64(30) {
			w.route(warmpath.Request{Tokens: prompt(int(i), 700), Policy: name, Session: policy.Session{Key: "others"}, Random: i})
			req.Random = i * 977
			if d := w.route(req); d.Holder != first.Holder {
				t.Fatalf("%s: %s, first %d", name, d, first.Holder)
			}
		}
	}
}

func TestTheFewUsableWorkersOfALargeFleetTakeTurns(t *testing.T) {
	w := large(t, 100, warmpath.Options{})
	for id := range fleet.WorkerID(100) {
		w.fleet.SetHealth(id, id >= 98, "down")
	}
	var counts [100]int
	for range 200 {
		counts[w.route(warmpath.Request{PromptBytes: 400, Policy: "round_robin"}).Holder]++
	}
	if counts[98] < 60 || counts[99] < 60 {
		t.Errorf("the two usable workers got %d and %d of 200 requests, want at least 60 each", counts[98], counts[99])
	}
}
