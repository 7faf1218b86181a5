package warmpath_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// The tests of this file check what the package comment of warmpath says about workers that come and go, and about
// requests that are lost.

func TestAWorkerPutAgainKeepsItsHolders(t *testing.T) {
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: workers})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := router.Route(t.Context(), &warmpath.Request{Model: "llama", Now: 1}); !errors.Is(err, warmpath.ErrUnknownModel) {
		t.Errorf("without workers: %v", err)
	}
	facts := fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16, Ranks: 2}
	id := workers.Put("http://a:8000", facts)
	before := workers.Snapshot().ByID(id).Holders
	facts.BlockSize = 32
	if again := workers.Put("http://a:8000/", facts); again != id {
		t.Errorf("the same URL gets the worker id %d, had %d", again, id)
	}
	after := workers.Snapshot().ByID(id)
	if len(before) != 2 || len(after.Holders) != 2 || after.Holders[0] != before[0] || after.Holders[1] != before[1] || after.Facts.BlockSize != 32 {
		t.Errorf("holders %v, were %v; blocks of %d tokens", after.Holders, before, after.Facts.BlockSize)
	}
	d, err := router.Route(t.Context(), &warmpath.Request{Model: "llama", Now: 1})
	if err != nil {
		t.Fatal(err)
	}
	workers.Remove(id)
	d.FirstToken(2)
	d.Tokens(3, 3)
	d.Done(fleet.OutcomeServed, 4) // the worker of d has left
	d.Recycle()
	if load := workers.Snapshot().Load(before[0]); load.Requests != 0 {
		t.Errorf("the removed worker still has %d requests", load.Requests)
	}
	next := workers.Put("http://a:8000", facts)
	if h := workers.Snapshot().ByID(next).Holders[0]; next == id || h == before[0] {
		t.Errorf("the next worker at the URL has the id %d and the holder %d of the removed one", next, h)
	}
}

// counting is a policy that counts the ends of requests.
type counting struct{ finished int }

func (p *counting) Choose(*policy.Query, []policy.Candidate) policy.Pick { return policy.Pick{} }
func (p *counting) Routed(*policy.Query, *policy.Candidate)              {}
func (p *counting) Finished(*policy.Finished)                            { p.finished++ }
func (p *counting) Forget(fleet.Holder)                                  {}

func TestALostRequestGivesItsLoadBackAndKeepsTheID(t *testing.T) {
	chooser := &counting{}
	workers := fleet.New(fleet.Config{Expiry: time.Minute})
	router, err := warmpath.New(warmpath.Options{Fleet: workers, Policy: policy.Spec{Name: "counting", Chooser: func() policy.Chooser { return chooser }}})
	if err != nil {
		t.Fatal(err)
	}
	id := workers.Put("http://a:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	route := func() *warmpath.Decision {
		d, err := router.Route(context.Background(), &warmpath.Request{Model: "llama", PromptBytes: 400, Now: 1})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	late, lost, alive := route(), route(), route()
	const silent = int64(50 * time.Second)
	alive.FirstToken(silent)
	alive.Tokens(7, silent)
	if n := workers.Expire(int64(70 * time.Second)); n != 2 {
		t.Errorf("%d leaks, want 2", n)
	}
	if load := workers.Snapshot().Load(lost.Holder); load.Requests != 1 || chooser.finished != 0 {
		t.Errorf("%d requests there, %d ends reported", load.Requests, chooser.finished)
	}
	late.FirstToken(int64(71 * time.Second))
	late.Done(fleet.OutcomeServed, int64(72*time.Second))
	alive.Done(fleet.OutcomeServed, int64(73*time.Second))
	if load := workers.Snapshot().Load(lost.Holder); load.Requests != 0 || load.PrefillTokens != 0 || chooser.finished != 2 {
		t.Errorf("load %+v, %d ends reported", load, chooser.finished)
	}

	workers.Remove(id)
	reclaim := func(at time.Duration) (freed int) {
		for _, hour := range []time.Duration{0, 2} {
			freed += router.Reclaim(int64(at + hour*time.Hour))
		}
		return freed
	}
	if n := reclaim(time.Hour); n != 0 {
		t.Error("the id of a holder with a lost request was freed")
	}
	lost.Done(fleet.OutcomeUnknown, int64(4*time.Hour))
	if n := reclaim(5 * time.Hour); n != 1 {
		t.Errorf("%d ids freed after the last end, want 1", n)
	}
}

// A request whose caller gave no time has a sign of life at the first Expire after it.
func TestARequestWithoutATimeIsNotLostAtOnce(t *testing.T) {
	workers := fleet.New(fleet.Config{Expiry: time.Minute})
	router, err := warmpath.New(warmpath.Options{Fleet: workers})
	if err != nil {
		t.Fatal(err)
	}
	workers.Put("http://a:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	d, err := router.Route(t.Context(), &warmpath.Request{Model: "llama"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixNano()
	for _, c := range []struct {
		after time.Duration
		leaks int
	}{{0, 0}, {time.Minute, 0}, {time.Minute + 1, 1}} {
		if leaks := workers.Expire(now + int64(c.after)); leaks != c.leaks {
			t.Errorf("%v after the first Expire: %d leaks, want %d", c.after, leaks, c.leaks)
		}
	}
	d.Done(fleet.OutcomeServed, now)
	if n := workers.Snapshot().Load(d.Holder).Requests; n != 0 {
		t.Errorf("%d requests are left", n)
	}
}
