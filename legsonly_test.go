package warmpath_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// legsOnly returns the facts of an SGLang worker that refuses whole requests.
func legsOnly(role fleet.Role) fleet.Facts {
	f := serving(role)
	f.Transfer.LegsOnly = true
	return f
}

// If no worker serves whole requests, the shortest prompt is divided, and a request that cannot be divided is an error.
func TestEnginesThatRefuseWholeRequestsGetLegsOnly(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), legsOnly(fleet.RolePrefill), legsOnly(fleet.RoleDecode))
	short := warmpath.Request{Tokens: prompt(1, 20), Now: second}
	d := w.route(short)
	if d.Prefill == nil || d.Prefill.Worker.URL != "http://a" || d.Worker.URL != "http://b" || !d.Division.Considered || d.Division.Bypass != "" {
		t.Fatalf("%s; %+v", d, d.Division)
	}
	snap := w.fleet.Snapshot()
	if a, b := snap.Load(0), snap.Load(1); a.Requests != 1 || b.Requests != 1 {
		t.Errorf("loads %+v and %+v", a, b)
	}
	d.Done(fleet.OutcomeServed, 2*second)
	if a, b := w.fleet.Snapshot().Load(0), w.fleet.Snapshot().Load(1); a.Requests != 0 || b.Requests != 0 {
		t.Errorf("the request has ended: %+v and %+v", a, b)
	}
	again := short
	again.Undivided = policy.BypassOneWorker
	if d := w.route(again); d.Prefill == nil {
		t.Errorf("after a failed attempt: %s", d)
	}
	fails := func(req warmpath.Request, want error, text string) {
		t.Helper()
		req.Model = "llama"
		if _, err := w.router.Route(t.Context(), &req); !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %v with %q", err, want, text)
		}
	}
	several := short
	several.Choices = 2
	fails(several, warmpath.ErrUndividable, "several answers")
	w.fleet.SetHealth(0, false, "gone")
	fails(short, warmpath.ErrNoWorker, "no prefill worker can be used")
	w.fleet.SetHealth(0, true, "")
	w.fleet.SetHealth(1, false, "gone")
	fails(short, warmpath.ErrNoWorker, "")
	if a := w.fleet.Snapshot().Load(0); a.Requests != 1 { // that of again
		t.Errorf("a refused request left load: %+v", a)
	}
}

// A worker that serves whole requests beside them makes the usual choice possible.
func TestAWorkerForWholeRequestsTakesWhatIsNotDivided(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), legsOnly(fleet.RolePrefill), legsOnly(fleet.RoleDecode), vllm())
	if d := w.route(warmpath.Request{Tokens: prompt(1, 20), Now: second}); d.Prefill != nil || d.Worker.URL != "http://c" || d.Division.Bypass != policy.BypassShort {
		t.Errorf("%s; %+v", d, d.Division)
	}
}

// A pair whose transfers failed is left alone only while another pair can take the request.
func TestTheOnlyPairIsNotLeftAlone(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), legsOnly(fleet.RolePrefill), legsOnly(fleet.RoleDecode))
	fail := func() *warmpath.Decision {
		var d *warmpath.Decision
		for range 3 {
			d = w.route(warmpath.Request{Tokens: prompt(1, 20), Now: second})
			d.TransferFailed(second)
			d.Done(fleet.OutcomeUnknown, second)
		}
		return d
	}
	failed := fail()
	if d := w.route(warmpath.Request{Tokens: prompt(1, 20), Now: second}); d.Prefill == nil {
		t.Fatalf("the only pair: %s", d)
	}
	w.fleet.Put("http://c", legsOnly(fleet.RoleDecode))
	for range 6 {
		if d := w.route(warmpath.Request{Tokens: prompt(1, 20), Now: second}); d.Prefill == nil || d.Worker.ID == failed.Worker.ID {
			t.Fatalf("beside another pair: %s", d)
		}
	}
}
