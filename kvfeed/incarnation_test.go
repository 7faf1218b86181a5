package kvfeed

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/policy"
)

// guessing has the policies that guess the content of caches from the requests that were sent.
var guessing = []string{
	"cache_aware", "vllm_cache_aware", "prefix_cache_affinity", "estimated", "kv:use_kv_events=false", "kv", "kv_aware", "marginal",
}

// guesser returns a router with one policy and two workers without events, and the router's feed.
func guesser(t *testing.T, name string) (f *fleet.Fleet, r *warmpath.Router, m *Feed) {
	t.Helper()
	spec, err := warmpath.PolicyKinds().Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	f = fleet.New(fleet.Config{})
	if r, err = warmpath.New(warmpath.Options{Fleet: f, Policy: spec}); err != nil {
		t.Fatal(err)
	}
	m = New(r, Config{}, slog.New(slog.DiscardHandler))
	for _, url := range []string{"http://a:1", "http://b:1"} {
		f.Put(url, facts(fleet.EngineVLLM, 16))
	}
	m.reconcile(t.Context(), f.Snapshot())
	return f, r, m
}

// knows returns the policy's candidate for each worker. The candidate shows how much of the prompt the policy expects
// in the worker's cache.
func knows(t *testing.T, r *warmpath.Router, tokens []block.Token, text string, now time.Time) map[fleet.Holder]policy.Candidate {
	t.Helper()
	d, err := r.Explain(t.Context(), &warmpath.Request{Model: "m", Tokens: tokens, Text: []byte(text), Now: now.UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Recycle()
	all := map[fleet.Holder]policy.Candidate{}
	for _, c := range d.Candidates {
		all[c.Holder] = policy.Candidate{Predicted: c.Predicted, Match: c.Match, Terms: c.Terms}
	}
	return all
}

// TestNoPolicyUsesGuessesAboutAWorkerThatRestarted: a new process of a worker without events has an empty cache.
func TestNoPolicyUsesGuessesAboutAWorkerThatRestarted(t *testing.T) {
	for _, name := range guessing {
		for how, restart := range map[string]func(*fleet.Fleet, fleet.WorkerID){
			"refused connections": func(f *fleet.Fleet, id fleet.WorkerID) { f.Refused(id); f.Answered(id, fleet.Signs{}) },
			"a later start":       func(f *fleet.Fleet, id fleet.WorkerID) { f.Answered(id, fleet.Signs{Started: 2000}) },
			"fewer tokens":        func(f *fleet.Fleet, id fleet.WorkerID) { f.Answered(id, fleet.Signs{Tokens: 10}) },
			"left and came back": func(f *fleet.Fleet, id fleet.WorkerID) {
				url := f.Snapshot().ByID(id).URL
				f.Remove(id)
				f.Put(url, facts(fleet.EngineVLLM, 16))
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				f, r, m := guesser(t, name)
				now := time.Unix(1_800_000_000, 0)
				tokens, text := prompt(1, 640), string(make([]byte, 2560))
				fresh := knows(t, r, tokens, text, now)
				d, err := r.Route(t.Context(), &warmpath.Request{Model: "m", Tokens: tokens, Text: []byte(text), Now: now.UnixNano()})
				if err != nil {
					t.Fatal(err)
				}
				home := d.Holder
				worker := d.Worker.ID
				d.Done(fleet.OutcomeServed, now.UnixNano())
				d.Recycle()
				first := fleet.Signs{Started: 1000, Tokens: 640}
				if how == "fewer tokens" {
					first.Started = 0
				}
				f.Answered(worker, first)
				m.reconcile(t.Context(), f.Snapshot())
				learned := knows(t, r, tokens, text, now)
				if learned[home].Terms == fresh[home].Terms && learned[home].Predicted == fresh[home].Predicted {
					t.Fatalf("nothing was learned: %+v", learned[home])
				}
				restart(f, worker)
				m.reconcile(t.Context(), f.Snapshot())
				after := knows(t, r, tokens, text, now)
				again := after[home].Terms == fresh[home].Terms || name == "marginal" // marginal also learns how long answers are
				again = again || after[home].Terms == policy.Candidate{}.Terms        // or the candidate has no terms
				if after[home].Predicted != 0 || !again {
					t.Errorf("%d tokens are still expected with the terms %v; before the first request the terms were %v", after[home].Predicted, after[home].Terms, fresh[home].Terms)
				}
			})
		}
	}
}

// An event stream shows a restart of the engine by itself. When a probe finds the new process, the stream may have
// learned some of the new process's blocks already.
func TestAnnouncedBlocksStayWhenAnotherProcessIsFound(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	r.feed.streams[s.holder] = &follower{stream: s, stop: func() {}, done: make(chan struct{}), bound: true}
	s.source = fleet.EventSource{}
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	r.fleet.Refused(s.worker)
	if !r.fleet.Answered(s.worker, fleet.Signs{}) {
		t.Fatal("no restart")
	}
	s.mu.Lock() // the lock is held, as while a message is being applied; the feed must not wait for it
	r.feed.forgetAbsent(r.fleet.Snapshot())
	s.mu.Unlock()
	if got := r.match(prompt(1, 100)); got != 64 {
		t.Errorf("match %d while a message is being applied, want 64", got)
	}
	r.feed.forgetLearned(s.holder)
	if got := r.match(prompt(1, 100)); got != 64 {
		t.Errorf("match %d, want 64", got)
	}
}

// While the connection of a stream without blocks is broken, a probe finds a new process. The look-ahead of the
// stream's engine must be known for the next blocks.
func TestTheLookAheadIsKnownAfterAnotherProcessIsFound(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	r.feed.streams[s.holder] = &follower{stream: s, stop: func() {}, done: make(chan struct{})}
	r.feed.Scoped(s.url, s.rank, "tenant", "")
	e := stored(1, 0, 64, 16)
	e.Ahead = prompt(1, 65)[64:]
	offloaded := chunk(1, 0, 64, "cpu") // this event names no salt, so the router does not believe it
	s.Message(0, wire(t, "vllm-0.33.0", batch(e, offloaded, kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	s.State(false, io.EOF)
	r.fleet.Refused(s.worker)
	r.fleet.Answered(s.worker, fleet.Signs{})
	r.feed.forgetAbsent(r.fleet.Snapshot())
	s.State(true, nil)
	s.Message(1, wire(t, "vllm-0.33.0", batch(e)))
	if got := r.match(prompt(1, 100)); got != 64 {
		t.Errorf("match %d, want 64", got)
	}
}
