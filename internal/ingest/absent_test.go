package ingest

import (
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// TestAWorkerWithoutEventsIsForgottenWhenItLeaves: what was guessed of it goes, too; it may come back with an empty cache.
func TestAWorkerWithoutEventsIsForgottenWhenItLeaves(t *testing.T) {
	r := newRig(t, Config{})
	reconcile := func() { r.manager.reconcile(t.Context(), r.fleet.Snapshot()) }
	first := r.fleet.Put(workerURL, facts(fleet.EngineOther, 0))
	r.fleet.Put("http://127.0.0.1:8001", facts(fleet.EngineOther, 0))
	reconcile()
	req := &warmpath.Request{Model: "m", Tokens: prompt(1, 320), Rank: -1, Now: 1, Policy: "cache_aware", Target: workerURL}
	d, err := r.router.Route(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	d.Done(fleet.OutcomeServed, 2)
	req.Target = ""
	branch := func() policy.Branch {
		t.Helper()
		d, err := r.router.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return d.Branch
	}
	if got := branch(); got != policy.BranchAffinity {
		t.Fatalf("the conversation is told as %s", got)
	}
	r.fleet.Remove(first)
	reconcile()
	r.fleet.Put(workerURL, facts(fleet.EngineOther, 0))
	reconcile()
	if got := branch(); got != policy.BranchMiss {
		t.Errorf("after it left and came back the conversation is told as %s", got)
	}
}
