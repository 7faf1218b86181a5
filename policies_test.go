package warmpath_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

func TestKVCountsBlocksThatRequestsShareOnce(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 512)
	first := w.route(warmpath.Request{Tokens: p})
	d := w.explain(warmpath.Request{Tokens: append(p[:256:256], prompt(2, 256)...), Policy: "kv"})
	for i := range d.Candidates {
		want := 0
		if d.Candidates[i].Holder == first.Holder {
			want = 256
		}
		if got := d.Candidates[i].Active; got != want {
			t.Errorf("%d tokens are active on holder %d, want %d", got, d.Candidates[i].Holder, want)
		}
	}
}

func TestALowerScoreNamesTheTermThatMadeIt(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 512)
	w.store(0, p, kvindex.Stored{})
	w.route(warmpath.Request{Tokens: prompt(2, 6400), Target: "a"})
	for name, want := range map[string]string{
		"kv":                   "lower score, most by decode: 432 against 32",
		"lmetric":              "lower score, most by tokens: 6416 against 512",
		"precise_prefix_cache": "lower score, most by match: 0 against 2.906",
		"kv_aware":             "lower score",
	} {
		d := w.explain(warmpath.Request{Tokens: p, Policy: name})
		for i := range d.Candidates {
			if i != d.Chosen && d.Why(i) != want {
				t.Errorf("%s: %s", name, d.Why(i))
			}
		}
	}
}

func TestATieNamesTheFigureThatDecided(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	w.route(warmpath.Request{Tokens: prompt(1, 512), Target: "b"}).Done(fleet.OutcomeServed, 2e9)
	for name, want := range map[string]string{
		"kv_aware":             "as good, with more requests so far for its pace",
		"least_load":           "as good, with more requests so far for its pace",
		"cache_aware":          "as good, with more requests so far",
		"precise_prefix_cache": "as good: decided by hash",
	} {
		d := w.explain(warmpath.Request{Tokens: prompt(2, 512), Policy: name})
		if got := d.Why(1 - d.Chosen); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A new policy that replaces another policy begins with an empty memory. The policies that are not replaced keep their
// memory. A request under way ends with the policy that decided about it.
func TestAChangeReplacesWhatItNamesAndNothingElse(t *testing.T) {
	made := map[string][]*diary{}
	spec := func(name string) policy.Spec {
		return policy.Spec{Name: name, Chooser: func() policy.Chooser {
			d := &diary{}
			made[name] = append(made[name], d)
			return d
		}}
	}
	w := newWorld(t, warmpath.Options{Policy: spec("one"), Policies: []policy.Spec{spec("two"), spec("shade")}, Shadow: "shade"}, vllm(), vllm())
	before := w.route(warmpath.Request{})
	if err := w.router.ChangePolicies(warmpath.PolicyChange{
		Specs: []policy.Spec{spec("one"), spec("three")}, Gone: []string{"two"}, Standard: "one", ByModel: map[string]string{"llama": "three"},
	}); err != nil {
		t.Fatal(err)
	}
	before.Done(fleet.OutcomeServed, 2)
	first := made["one"][0]
	if len(first.routed) != 1 || len(first.finished) != 1 {
		t.Errorf("the policy that decided was called for %d routed and %d finished requests, want 1 and 1", len(first.routed), len(first.finished))
	}
	if shade := made["shade"][0]; len(made["shade"]) != 1 || len(shade.finished) != 1 {
		t.Errorf("the shadow policy at the time of the decision was called for %d finished requests and built %d times, want 1 and 1", len(shade.finished), len(made["shade"]))
	}
	w.route(warmpath.Request{Policy: "one"}).Done(fleet.OutcomeServed, 3)
	if last := made["one"][len(made["one"])-1]; last == first || len(last.routed) != 1 || len(first.routed) != 1 {
		t.Errorf("the new policy was called for %d routed requests, the replaced policy for %d, want 1 and 1", len(last.routed), len(first.routed))
	}
	if len(made["shade"][0].routed) != 1 {
		t.Error("a removed shadow policy was called for a new request")
	}
	names := w.router.PolicyNames()
	if slices.Contains(names, "two") || !slices.Contains(names, "three") || !slices.Contains(names, "kv") {
		t.Errorf("policies %v", names)
	}
	if d := w.explain(warmpath.Request{}); d.Policy != "three" {
		t.Errorf("the model's policy is %s", d.Policy)
	}
}

// If a change contains a policy that cannot be built, or the name of an unknown policy, ChangePolicies returns an error
// and changes nothing.
func TestAChangeThatIsWrongChangesNothing(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	names := w.router.PolicyNames()
	good := policy.Spec{Name: "good", Picker: "random"}
	for name, c := range map[string]warmpath.PolicyChange{
		"a spec that is wrong":    {Specs: []policy.Spec{good, {Name: "bad", Picker: "nobody"}}, Standard: "good"},
		"a standard that is none": {Specs: []policy.Spec{good}, Standard: "nobody"},
		"one in use goes":         {Specs: []policy.Spec{good}, Gone: []string{"kv"}, Standard: "kv"},
		"a shadow that is none":   {Specs: []policy.Spec{good}, Standard: "kv", Shadow: "nobody"},
	} {
		if err := w.router.ChangePolicies(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if diff := cmp.Diff(names, w.router.PolicyNames()); diff != "" {
		t.Error(diff)
	}
	if d := w.explain(warmpath.Request{}); d.Policy != "kv_aware" {
		t.Errorf("the policy is %s", d.Policy)
	}
}

// A new policy that replaces another policy knows nothing, and the memory of the replaced policy is freed.
func TestWhatAReplacedPolicyLearnedIsDropped(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policy: withoutEvents(t)}, vllm(), vllm())
	p := prompt(1, 500)
	predicted := func() (most int) {
		d := w.explain(warmpath.Request{Tokens: p, Now: second})
		for i := range d.Candidates {
			most = max(most, d.Candidates[i].Predicted)
		}
		return most
	}
	w.route(warmpath.Request{Tokens: p, Now: second}).Done(fleet.OutcomeServed, second)
	if got := predicted(); got != 496 {
		t.Fatalf("%d tokens are predicted, want 496", got)
	}
	if err := w.router.ChangePolicies(warmpath.PolicyChange{Standard: "kv"}); err != nil || predicted() != 496 {
		t.Errorf("choosing the same policy again: error %v, %d tokens predicted, want 496", err, predicted())
	}
	if err := w.router.ChangePolicies(warmpath.PolicyChange{Specs: []policy.Spec{withoutEvents(t)}, Standard: "kv"}); err != nil || predicted() != 0 {
		t.Errorf("after the policy is replaced: error %v, %d tokens predicted, want 0", err, predicted())
	}
}
