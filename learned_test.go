package warmpath_test

import (
	"context"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// withoutEvents returns the policy kv, set up for engines without events: the policy learns from the requests that it
// sends. It expects a prompt for 10 s at the holder to which it sent the prompt.
func withoutEvents(t *testing.T) policy.Spec {
	t.Helper()
	p := peers.DefaultKV()
	p.UseKVEvents, p.RouterTTL = false, 10*time.Second
	return p.Spec("kv")
}

func TestAPolicyThatLearnsIgnoresWhatEnginesAnnounce(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policy: withoutEvents(t)}, vllm(), vllm())
	p := prompt(1, 500)
	w.store(0, p, kvindex.Stored{})
	d := w.route(warmpath.Request{Tokens: p, Now: second})
	if d.MatchTokens != 0 || d.PredictedTokens != 0 || d.Branch != policy.BranchMiss {
		t.Errorf("%s", d)
	}
	// Other policies of the same router use the index, which knows the events.
	if d := w.route(warmpath.Request{Tokens: p, Policy: "kv_aware", Now: second}); d.Holder != 0 || d.MatchTokens != 496 {
		t.Errorf("%s", d)
	}
}

func TestWhatIsLearnedIsBelievedForItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		after int64
		want  int
	}{"soon": {second, 496}, "just in time": {10*second - 1, 496}, "too late": {10 * second, 0}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, warmpath.Options{Policy: withoutEvents(t)}, vllm(), vllm(), vllm())
			p := prompt(1, 500)
			first := w.route(warmpath.Request{Tokens: p, Now: second, Random: 3})
			first.Done(fleet.OutcomeServed, second)
			d, err := w.router.Explain(context.Background(), request(warmpath.Request{Tokens: p, Now: second + c.after, Random: 8}))
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for i := range d.Candidates {
				got = max(got, d.Candidates[i].Predicted)
			}
			if got != c.want || (c.want > 0 && (d.Holder != first.Holder || d.Trust != fleet.TrustApproximate)) {
				t.Errorf("predicted %d; %s", got, d)
			}
		})
	}
}

func TestWhatIsLearnedOfAHolderIsForgottenWithItsCache(t *testing.T) {
	for name, lose := range map[string]func(r *warmpath.Router, h fleet.Holder){
		"forgotten": func(r *warmpath.Router, h fleet.Holder) { r.Forget(h) },
		"cleared":   func(r *warmpath.Router, h fleet.Holder) { r.Clear(h, block.TierGPU) },
	} {
		t.Run(name, func(t *testing.T) {
			var calls recorder
			w := newWorld(t, warmpath.Options{
				Policy:   withoutEvents(t),
				Policies: []policy.Spec{{Name: "recorder", Chooser: func() policy.Chooser { return &calls }}},
			}, vllm(), vllm())
			p := prompt(1, 500)
			d := w.route(warmpath.Request{Tokens: p, Now: second})
			lose(w.router, d.Holder)
			if again := w.route(warmpath.Request{Tokens: p, Now: 2 * second}); again.PredictedTokens != 0 {
				t.Errorf("%s", again)
			}
			if len(calls.forgotten) != 1 || calls.forgotten[0] != d.Holder {
				t.Errorf("Forget was called for the holders %v, want %d", calls.forgotten, d.Holder)
			}
		})
	}
}

// recorder is a policy that takes the first candidate and records the calls to it.
type recorder struct {
	routed    []fleet.Holder
	finished  []policy.Finished
	forgotten []fleet.Holder
}

func (r *recorder) Choose(*policy.Query, []policy.Candidate) policy.Pick { return policy.Pick{} }
func (r *recorder) Routed(_ *policy.Query, c *policy.Candidate) {
	r.routed = append(r.routed, c.Holder)
}
func (r *recorder) Finished(f *policy.Finished) { r.finished = append(r.finished, *f) }
func (r *recorder) Forget(h fleet.Holder)       { r.forgotten = append(r.forgotten, h) }

func TestAPolicyIsToldWhatBecomesOfItsChoices(t *testing.T) {
	var calls recorder
	w := newWorld(t, warmpath.Options{Policy: policy.Spec{Name: "recorder", Chooser: func() policy.Chooser { return &calls }}}, vllm(), vllm())
	d := w.route(warmpath.Request{Tokens: prompt(1, 500), Now: second})
	d.FirstToken(2 * second)
	d.Tokens(7, 3*second)
	d.Done(fleet.OutcomeServed, 4*second)
	d.Done(fleet.OutcomeFailed, 5*second)
	if _, err := w.router.Explain(context.Background(), request(warmpath.Request{Tokens: prompt(1, 500)})); err != nil {
		t.Fatal(err)
	}
	want := policy.Finished{
		Model: "llama", Outcome: fleet.OutcomeServed, RoutedAt: second, FirstTokenAt: 2 * second, Now: 4 * second, UncachedTokens: 500, OutputTokens: 7,
	}
	if len(calls.finished) == 1 {
		want.Class = calls.finished[0].Class // a hash of the prompt's beginning
	}
	if len(calls.routed) != 1 || len(calls.finished) != 1 || calls.finished[0] != want {
		t.Errorf("routed %v, finished %+v", calls.routed, calls.finished)
	}
}

func TestModelsHavePoliciesOfTheirOwn(t *testing.T) {
	w := newWorld(t, warmpath.Options{ModelPolicies: map[string]string{"sql": "round_robin"}}, vllm(), vllm())
	decided := func(req warmpath.Request) string {
		t.Helper()
		req.Tokens = prompt(1, 100)
		return w.route(req).Policy
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("the base model", decided(warmpath.Request{}), "kv_aware")
	check("the adapter", decided(warmpath.Request{Model: "sql"}), "round_robin")
	check("a request that asks", decided(warmpath.Request{Model: "sql", Policy: "random"}), "random")
	if err := w.router.ChangePolicies(warmpath.PolicyChange{Standard: "least_load", ByModel: map[string]string{"llama": "random", "sql": "clever"}}); err == nil {
		t.Fatal("an unknown policy is taken")
	}
	check("after a change that failed", decided(warmpath.Request{}), "kv_aware")
	if err := w.router.ChangePolicies(warmpath.PolicyChange{Standard: "least_load", ByModel: map[string]string{"llama": "random"}}); err != nil {
		t.Fatal(err)
	}
	check("the adapter of a base model with one", decided(warmpath.Request{Model: "sql"}), "random")
	p, err := w.router.Policy("", "sql")
	if err != nil || p.Name() != "random" || p.Matches() {
		t.Errorf("%v, %v", p, err)
	}
}

func TestTheLengthOfSeveralAnswersIsTheirMean(t *testing.T) {
	var calls recorder
	w := newWorld(t, warmpath.Options{Policy: policy.Spec{Name: "recorder", Chooser: func() policy.Chooser { return &calls }}}, vllm())
	d := w.route(warmpath.Request{Tokens: prompt(1, 500), Now: second, Choices: 3})
	d.FirstToken(2 * second)
	d.Tokens(30, 3*second)
	d.Done(fleet.OutcomeServed, 4*second)
	if got := calls.finished[0].OutputTokens; got != 10 {
		t.Errorf("three answers of 30 tokens together have a length of %d", got)
	}
}
