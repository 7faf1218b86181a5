package kvfeed

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
)

// TestGuessesFromRequestsEndAtTheFirstContact: before the stream is up, a dispatched prompt counts as cached for two
// minutes. This ends when the stream is up: from then on events report the engine's blocks.
func TestGuessesFromRequestsEndAtTheFirstContact(t *testing.T) {
	r := newRig(t, Config{})
	var err error
	if r.router, err = warmpath.New(warmpath.Options{Fleet: r.fleet}); err != nil {
		t.Fatal(err)
	}
	r.feed = New(r.router, Config{}, r.feed.log)
	id := r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	r.fleet.SetHealth(id, true, "")
	worker := r.fleet.Snapshot().Workers()[0]
	s := r.feed.newStream(worker, worker.Holders[0], fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557"})
	s.wire = func() StreamStats { return StreamStats{} }

	predicted := func() int {
		d, err := r.router.Explain(t.Context(), &warmpath.Request{Model: "m", Tokens: prompt(1, 100), Now: time.Now().UnixNano()})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Recycle()
		return d.PredictedTokens
	}
	r.fleet.SetTrust(worker.Holders[0], fleet.TrustApproximate, "connecting")
	d, err := r.router.Route(t.Context(), &warmpath.Request{Model: "m", Tokens: prompt(1, 100), Now: time.Now().UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	d.Recycle()
	if got := predicted(); got != 96 {
		t.Fatalf("before the stream is up %d tokens are predicted, want 96", got)
	}
	s.State(true, nil)
	s.Complete()
	if got := predicted(); got != 0 {
		t.Errorf("after the first contact %d tokens are predicted, the engine has announced none", got)
	}
}
