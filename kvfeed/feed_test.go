package kvfeed

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
)

// quick has settings for tests on loopback.
var quick = StreamConfig{
	ReplayTimeout: 10 * time.Second, ReplayTime: time.Minute, Verify: 200 * time.Millisecond,
	BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, HeartbeatInterval: -1,
}

// eventually waits until f returns true.
func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(3 * time.Millisecond); ; {
		if f() {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.t.Fatalf("%s: not within a minute\nstats %+v\nlog:\n%s", what, r.feed.Stats(), r.log)
		}
	}
}

func (r *rig) hasTrust(h fleet.Holder, want fleet.Trust, why string) func() bool {
	return func() bool {
		got, reason := r.fleet.Snapshot().Trust(h)
		return got == want && strings.Contains(reason, why)
	}
}

// run runs the feed until the test ends or the returned function is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.feed.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run: %v", err)
		}
	}
	r.t.(*testing.T).Cleanup(stop)
	return stop
}

// publish runs a publisher until the returned function is called.
func publish(t *testing.T, c mockengine.PublisherConfig) (p *mockengine.Publisher, stop func()) {
	t.Helper()
	p = mockengine.NewPublisher(c)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("publisher: %v", err)
		}
	}
	t.Cleanup(stop)
	return p, stop
}

const anyPort = "tcp://127.0.0.1:0"

func vllm(t testing.TB, events ...kvevent.Event) []byte {
	return wire(t, "vllm-0.32.0", batch(events...))
}

func followed(p *mockengine.Publisher) fleet.Facts {
	f := facts(fleet.EngineVLLM, 16)
	f.Events = []fleet.EventSource{{Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint()}}
	return f
}

func TestRouterThatStartsLateLearnsTheHistory(t *testing.T) {
	p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort, Replay: anyPort})
	for i := range 200 {
		p.Publish(vllm(t, stored(i, 0, 64, 16)))
	}
	p.Publish(vllm(t, removed(7, 2, 2)))
	r := newRig(t, Config{Stream: quick})
	r.fleet.Put(workerURL, followed(p))
	r.run()
	r.eventually("exact", r.hasTrust(0, fleet.TrustExact, "complete"))
	for i := range 200 {
		want := 64
		if i == 7 {
			want = 32
		}
		if got := r.match(prompt(i, 100)); got != want {
			t.Fatalf("conversation %d: match %d, want %d", i, got, want)
		}
	}
	p.Publish(vllm(t, stored(7, 32, 64, 16)))
	r.eventually("a live event", func() bool { return r.match(prompt(7, 100)) == 96 })
	p.DropNext(3)
	for i := range 4 {
		p.Publish(vllm(t, stored(300+i, 0, 64, 16)))
	}
	r.eventually("dropped events", func() bool { return r.match(prompt(300, 100)) == 64 && r.match(prompt(303, 100)) == 64 })
	r.eventually("exact again", r.hasTrust(0, fleet.TrustExact, ""))
	if st := r.feed.Stats(); len(st) != 1 || st[0].Replays == 0 || st[0].Replayed < 201 || st[0].Gaps != 1 || st[0].Sequence != 205 || !st[0].Connected {
		t.Errorf("stats %+v", st)
	}
}

func TestWithoutReplayHistoryIsMissingUntilAReset(t *testing.T) {
	p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort})
	p.Publish(vllm(t, stored(1, 0, 64, 16)))
	r := newRig(t, Config{Stream: quick})
	f := followed(p)
	r.fleet.Put(workerURL, f)
	r.run()
	r.eventually("connected", func() bool { st := r.feed.Stats(); return len(st) == 1 && st[0].Connected })
	r.eventually("a live event", func() bool {
		p.Publish(vllm(t, stored(2, 0, 64, 16)))
		return r.match(prompt(2, 100)) == 64
	})
	r.eventually("degraded", r.hasTrust(0, fleet.TrustDegraded, "history before message"))
	p.Publish(vllm(t, kvevent.Event{Kind: kvevent.Cleared, Group: -1}, stored(3, 0, 64, 16)))
	r.eventually("a reset", func() bool { return r.match(prompt(3, 100)) == 64 })
	r.eventually("exact", r.hasTrust(0, fleet.TrustExact, ""))
	if got := r.match(prompt(2, 100)); got != 0 {
		t.Errorf("match %d after a reset", got)
	}
}

func TestEngineThatRestartsIsForgotten(t *testing.T) {
	p, stop := publish(t, mockengine.PublisherConfig{Endpoint: nobody(t), Replay: nobody(t)})
	f := followed(p)
	for i := range 20 {
		p.Publish(vllm(t, stored(i, 0, 64, 16)))
	}
	r := newRig(t, Config{Stream: quick})
	r.fleet.Put(workerURL, f)
	r.run()
	r.eventually("the first engine", func() bool { return r.match(prompt(19, 100)) == 64 })
	stop()
	r.eventually("disconnected", func() bool { return !r.feed.Stats()[0].Connected })
	q, _ := publish(t, mockengine.PublisherConfig{Endpoint: f.Events[0].Endpoint, Replay: f.Events[0].Replay})
	q.Publish(vllm(t, stored(50, 0, 64, 16)))
	r.eventually("the second engine", func() bool { return r.match(prompt(50, 100)) == 64 })
	r.eventually("exact", r.hasTrust(0, fleet.TrustExact, ""))
	for i := range 20 {
		if got := r.match(prompt(i, 100)); got != 0 {
			t.Fatalf("conversation %d, which only the dead engine had cached: match %d", i, got)
		}
	}
	if st := r.feed.Stats(); st[0].Restarts != 1 {
		t.Errorf("%d restarts", st[0].Restarts)
	}
}

func TestRanksAreFollowedApart(t *testing.T) {
	var ranks [2]*mockengine.Publisher
	f := facts(fleet.EngineVLLM, 16)
	f.Ranks = 2
	for i := range ranks {
		ranks[i], _ = publish(t, mockengine.PublisherConfig{Endpoint: anyPort, Replay: anyPort})
		b := batch(stored(i, 0, 64, 16))
		b.Rank = i
		ranks[i].Publish(wire(t, "vllm-0.32.0", b))
		f.Events = append(f.Events, fleet.EventSource{Rank: i, Endpoint: ranks[i].Endpoint(), Replay: ranks[i].ReplayEndpoint()})
	}
	r := newRig(t, Config{Stream: quick})
	r.fleet.Put(workerURL, f)
	r.run()
	for h := range fleet.Holder(2) {
		r.eventually("exact", r.hasTrust(h, fleet.TrustExact, ""))
	}
	for i := range 2 {
		if got := r.match(prompt(i, 100)); got != 64 {
			t.Errorf("rank %d: match %d", i, got)
		}
	}
	if st := r.feed.Stats(); len(st) != 2 || st[0].Rank != 0 || st[1].Rank != 1 || st[1].Stored != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestFleetThatChangesIsFollowed(t *testing.T) {
	p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort, Replay: anyPort})
	p.Publish(vllm(t, stored(1, 0, 128, 32)))
	r := newRig(t, Config{Stream: quick})
	r.run()
	f := followed(p)
	f.BlockSize = 32
	id := r.fleet.Put(workerURL, f)
	r.eventually("found", func() bool { return len(r.fleet.Snapshot().Workers()) == 1 && r.match(prompt(1, 200)) == 128 })

	// When a worker with smaller blocks joins, a new index replaces the old one, and the history is replayed into the
	// new index.
	small := facts(fleet.EngineVLLM, 16)
	other := r.fleet.Put("http://127.0.0.1:9999", small)
	r.eventually("replayed", func() bool { return r.match(prompt(1, 200)) == 128 && r.router.IndexStats()[0].BlockSize == 16 })
	r.eventually("exact", r.hasTrust(0, fleet.TrustExact, ""))
	r.fleet.Remove(other)

	f.Events = nil
	r.fleet.Put(workerURL, f)
	r.eventually("no events", r.hasTrust(0, fleet.TrustApproximate, "no events: learned from requests"))
	r.eventually("forgotten", func() bool { return r.match(prompt(1, 200)) == 0 })
	if st := r.feed.Stats(); len(st) != 0 {
		t.Errorf("stats %+v", st)
	}
	r.fleet.Put(workerURL, followed(p))
	r.eventually("followed again", func() bool { return r.match(prompt(1, 200)) == 128 })
	r.fleet.Remove(id)
	r.eventually("left", func() bool { return len(r.feed.Stats()) == 0 })
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("match %d of a worker that left and came back", got)
	}
}

func TestUnreachableEventsAreApproximate(t *testing.T) {
	p, stop := publish(t, mockengine.PublisherConfig{Endpoint: nobody(t)})
	f := followed(p)
	stop()
	r := newRig(t, Config{Stream: quick})
	r.fleet.Put(workerURL, f)
	r.run()
	r.eventually("approximate", r.hasTrust(0, fleet.TrustApproximate, "cannot be reached"))
}

func TestEnginesThatDialAreFollowed(t *testing.T) {
	r := listening(t)
	f := facts(fleet.EngineVLLM, 16)
	r.fleet.Put(workerURL, f)
	p, stop := r.dialling("kv@127.0.0.1:8000@m")
	r.eventually("a live event", func() bool {
		p.Publish(vllm(t, stored(1, 0, 64, 16)))
		return r.match(prompt(1, 100)) == 64
	})
	trust, why := r.fleet.Snapshot().Trust(0)
	if trust != fleet.TrustExact && trust != fleet.TrustDegraded {
		t.Errorf("trust %v (%s)", trust, why)
	}
	p.Publish(vllm(t, kvevent.Event{Kind: kvevent.Cleared, Group: -1}, stored(2, 0, 64, 16)))
	r.eventually("a reset", func() bool { return r.match(prompt(2, 100)) == 64 && r.match(prompt(1, 100)) == 0 })
	r.trust(0, fleet.TrustExact, "")
	stop()
	r.eventually("gone", r.hasTrust(0, fleet.TrustApproximate, "no events since"))
	if got := r.match(prompt(2, 100)); got != 0 {
		t.Errorf("match %d after the engine's connection ended", got)
	}
}

func TestAnEngineThatConnectsReplacesAnEndpointWithoutAnswer(t *testing.T) {
	dead, stop := publish(t, mockengine.PublisherConfig{Endpoint: nobody(t)})
	f := followed(dead)
	stop()
	r := listening(t)
	r.fleet.Put(workerURL, f)
	r.eventually("approximate", r.hasTrust(0, fleet.TrustApproximate, "cannot be reached"))
	p, _ := r.dialling("kv@127.0.0.1:8000@m")
	r.eventually("a live event", func() bool {
		p.Publish(vllm(t, stored(1, 0, 64, 16)))
		return r.match(prompt(1, 100)) == 64
	})
}

func TestLossyWireLosesNoBlock(t *testing.T) {
	p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort, Replay: anyPort, Seed: 3})
	p.DropShare(0.05)
	p.LoseReplay(0.3)
	r := newRig(t, Config{Stream: quick})
	r.fleet.Put(workerURL, followed(p))
	r.run()
	const n = 2000
	for i := range n {
		p.Publish(vllm(t, stored(i, 0, 32, 16)))
	}
	r.eventually("all", func() bool {
		st := r.feed.Stats()
		return len(st) == 1 && st[0].HasSequence && st[0].Sequence == n-1 && st[0].Stored == n
	})
	for i := range n {
		if got := r.match(prompt(i, 100)); got != 32 {
			t.Fatalf("conversation %d: match %d", i, got)
		}
	}
	r.eventually("exact", r.hasTrust(0, fleet.TrustExact, ""))
}
