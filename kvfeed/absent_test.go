package kvfeed

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// TestAWorkerWithoutEventsIsForgottenWhenItLeaves: when a worker without events leaves, the router forgets the prompts
// that it expects in the worker's cache. The worker may come back with an empty cache.
func TestAWorkerWithoutEventsIsForgottenWhenItLeaves(t *testing.T) {
	r := newRig(t, Config{})
	reconcile := func() { r.feed.reconcile(t.Context(), r.fleet.Snapshot()) }
	first := r.fleet.Put(workerURL, facts(fleet.EngineOther, 0))
	r.fleet.Put("http://127.0.0.1:8001", facts(fleet.EngineOther, 0))
	reconcile()
	req := &warmpath.Request{Model: "m", Tokens: prompt(1, 320), Now: 1, Policy: "cache_aware", Target: workerURL}
	d, err := r.router.Route(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	d.Done(fleet.OutcomeServed, 2)
	req.Target = ""
	branch := func() policy.Branch { // decides one minute later: in its slow start, the worker would not get the request
		t.Helper()
		if d, err := r.router.Explain(t.Context(), req); err == nil {
			d.Recycle()
		}
		req.Now += int64(time.Minute)
		d, err := r.router.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return d.Branch
	}
	if got := branch(); got != policy.BranchAffinity {
		t.Fatalf("the conversation's next turn is routed as %s", got)
	}
	r.fleet.Remove(first)
	reconcile()
	r.fleet.Put(workerURL, facts(fleet.EngineOther, 0))
	reconcile()
	if got := branch(); got != policy.BranchMiss {
		t.Errorf("after the worker left and came back the conversation's next turn is routed as %s", got)
	}
}

// TestATrustEndsWithItsStream: a stream may report to the fleet how far its worker's events are trusted even after the
// worker was removed from the fleet. If the worker comes back without events, it must not have the old trust.
func TestATrustEndsWithItsStream(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	done := make(chan struct{})
	r.feed.streams[s.holder] = &follower{stream: s, stop: func() { close(done) }, done: done}
	r.fleet.Remove(s.worker)
	s.Lost(0, 1)
	s.Restarted("")
	s.Complete()
	r.feed.reconcile(t.Context(), r.fleet.Snapshot())
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	r.trust(s.holder, fleet.TrustApproximate, "no events")
}

// TestAWorkerThatIsBackAtOnceIsTrustedAsBefore: if a worker leaves and comes back before the feed reads the fleet
// again, its stream continues.
func TestAWorkerThatIsBackAtOnceIsTrustedAsBefore(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	r.trust(s.holder, fleet.TrustExact, "complete")
	r.fleet.Remove(s.worker)
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	s.look(time.Now())
	r.trust(s.holder, fleet.TrustExact, "complete")
}

// TestEventsThatAnotherProcessFollowsAreNotFollowed: the router then asks the index of that process.
func TestEventsThatAnotherProcessFollowsAreNotFollowed(t *testing.T) {
	r := newRig(t, Config{Elsewhere: true})
	f := facts(fleet.EngineVLLM, 16)
	f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:1"}}
	id := r.fleet.Put(workerURL, f)
	h := r.fleet.Snapshot().ByID(id).Holders[0]
	r.fleet.SetTrust(h, fleet.TrustExact, "told by the other process")
	r.feed.reconcile(t.Context(), r.fleet.Snapshot())
	if n := len(r.feed.streams); n != 0 {
		t.Errorf("%d streams", n)
	}
	r.trust(h, fleet.TrustExact, "other process")
}

// TestAFeedThatBeginsManyStreamsMakesProgress: a start with thousands of workers takes seconds, and is no stall.
func TestAFeedThatBeginsManyStreamsMakesProgress(t *testing.T) {
	r := newRig(t, Config{})
	f := facts(fleet.EngineVLLM, 16)
	f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:1"}}
	r.fleet.Put(workerURL, f)
	r.feed.began.Store(1)
	r.feed.reconcile(t.Context(), r.fleet.Snapshot())
	defer r.feed.stopAll()
	if r.feed.began.Load() == 1 {
		t.Error("the feed began a stream, and made no progress as seen by health checks")
	}
}
