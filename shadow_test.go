package warmpath_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// diary is a policy that chooses the last candidate, and records the holders in the calls of Routed and Finished.
type diary struct{ routed, finished []fleet.Holder }

func (d *diary) Choose(_ *policy.Query, c []policy.Candidate) policy.Pick {
	return policy.Pick{Index: len(c) - 1, Branch: policy.BranchMatchUnused}
}
func (d *diary) Routed(_ *policy.Query, c *policy.Candidate) { d.routed = append(d.routed, c.Holder) }
func (d *diary) Finished(f *policy.Finished)                 { d.finished = append(d.finished, f.Holder) }
func (d *diary) Forget(fleet.Holder)                         {}

func TestAShadowLearnsWhatWasDoneAndDecidesNothing(t *testing.T) {
	shadow, live := &diary{}, &diary{}
	f := fleet.New(fleet.Config{})
	for _, url := range []string{"http://a", "http://b"} {
		f.Put(url, fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	}
	specs := []policy.Spec{
		{Name: "shadow", Chooser: func() policy.Chooser { return shadow }, Terms: []string{"one", "two"}},
		{Name: "live", Chooser: func() policy.Chooser { return live }},
	}
	r, err := warmpath.New(warmpath.Options{Fleet: f, Policies: specs, Shadow: "shadow"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	would, err := r.Explain(ctx, &warmpath.Request{Model: "m", Policy: "shadow", Now: 1})
	if err != nil || would.Worker.URL != "http://b" || cmp.Diff([]string{"one", "two"}, would.Terms) != "" {
		t.Fatalf("%v %+v", err, would)
	}
	would.Recycle()
	if len(shadow.routed)+len(shadow.finished) != 0 {
		t.Error("Explain called Routed or Finished of the policy")
	}
	for _, name := range []string{"", "live", "shadow"} {
		d, err := r.Route(ctx, &warmpath.Request{Model: "m", Policy: name, Now: 1})
		if err != nil {
			t.Fatal(err)
		}
		d.Done(fleet.OutcomeServed, 2)
		d.Recycle()
	}
	if len(shadow.routed) != 3 || cmp.Diff(shadow.routed, shadow.finished) != "" || len(live.routed) != 1 || len(live.finished) != 1 {
		t.Errorf("the shadow got the routed requests %v and the finished requests %v, the live policy %v and %v", shadow.routed, shadow.finished, live.routed, live.finished)
	}
	if shadow.routed[0] == shadow.routed[2] {
		t.Errorf("the live policy's decision and the shadow's own decision must go to different holders; the shadow got %v", shadow.routed)
	}
	if _, err := warmpath.New(warmpath.Options{Fleet: f, Shadow: "nobody"}); !errors.Is(err, warmpath.ErrUnknownPolicy) {
		t.Errorf("an unknown shadow: %v", err)
	}
}

func TestPolicyNamesAreAllThatCanBeAskedFor(t *testing.T) {
	r, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{}), Policies: []policy.Spec{{Name: "aaa", Picker: "random"}}})
	if err != nil {
		t.Fatal(err)
	}
	names := r.PolicyNames()
	if names[0] != "aaa" || len(names) != len(warmpath.PolicyKinds().BuiltIn())+1 {
		t.Errorf("%v", names)
	}
}
