package kvfeed

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestReadyReturnsWhenEveryHistoryIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := network.NewMemory()
		r := newRig(t, Config{Stream: StreamConfig{Dial: world.Host("10.0.0.1").Dial}})
		for i, host := range []string{"10.0.0.2", "10.0.0.3"} {
			p, _ := publish(t, mockengine.PublisherConfig{Endpoint: "tcp://" + host + ":5557", Replay: "tcp://" + host + ":5657", Network: world.Host(host)})
			p.SetFaults(mockengine.PublisherFaults{ReplayPause: time.Duration(i) * 100 * time.Millisecond})
			for n := range 20 {
				p.Publish(vllm(t, stored(10*i+n, 0, 64, 16)))
			}
			r.fleet.Put("http://"+host+":8000", followed(p))
		}
		lost, _ := publish(t, mockengine.PublisherConfig{Endpoint: "tcp://10.0.0.4:5557", Network: world.Host("10.0.0.4")})
		r.fleet.Put("http://10.0.0.4:8000", followed(lost)) // this worker has no replay: its history cannot be read
		gone := facts(fleet.EngineVLLM, 16)
		gone.Events = []fleet.EventSource{{Endpoint: "tcp://10.0.0.5:5557", Replay: "tcp://10.0.0.5:5657"}}
		world.Host("10.0.0.5") // this host refuses connections
		r.fleet.Put("http://10.0.0.5:8000", gone)
		r.fleet.Put("http://10.0.0.6:8000", facts(fleet.EngineVLLM, 16)) // this worker has no events

		began := time.Now()
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.feed.Ready(early); err == nil || !strings.Contains(err.Error(), "the fleet's workers") {
			t.Errorf("ready before Run: %v", err)
		}
		r.run()
		early, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.feed.Ready(early); err == nil || !strings.Contains(err.Error(), "http://10.0.0.3:8000, rank 0") {
			t.Errorf("ready while a history is being read: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.feed.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("ready after %v", took)
		}
		for i, want := range []fleet.Trust{fleet.TrustExact, fleet.TrustExact, fleet.TrustDegraded, fleet.TrustApproximate, fleet.TrustApproximate} {
			r.trust(fleet.Holder(i), want, "")
		}
		if got := r.match(prompt(29, 100)); got != 64 {
			t.Errorf("Ready returned, but only %d tokens of the last message's prompt match", got)
		}
	})
}

// The engine is idle, and only its replay endpoint does not answer.
func TestReadyReturnsWhenAReplayFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := network.NewMemory()
		r := newRig(t, Config{Stream: StreamConfig{Dial: world.Host("10.0.0.1").Dial}})
		host := world.Host("10.0.0.2")
		p, _ := publish(t, mockengine.PublisherConfig{Endpoint: "tcp://10.0.0.2:5557", Network: host})
		f := followed(p)
		f.Events[0].Replay = "tcp://10.0.0.2:5657"
		r.fleet.Put("http://10.0.0.2:8000", f)
		r.run()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.feed.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		r.trust(0, fleet.TrustDegraded, "the history cannot be read, the replay fails: ")
		testenv.Pass(time.Minute)
		if n := strings.Count(r.log.String(), "the replay fails"); n != 2 { // the loss and the change of trust, once each
			t.Errorf("the log has %d lines about the replay:\n%s", n, r.log)
		}
		p.Publish(vllm(t, stored(1, 0, 64, 16))) // message 0: nothing came before it
		testenv.Pass(time.Second)
		r.trust(0, fleet.TrustExact, "")
		if got := r.match(prompt(1, 100)); got != 64 {
			t.Errorf("match %d, want 64", got)
		}
	})
}

// The engine is idle, and its replays never end. Ready returns; the history is read when a replay ends.
func TestAHistoryThatWasGivenUpIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := network.NewMemory()
		r := newRig(t, Config{Stream: StreamConfig{Dial: world.Host("10.0.0.1").Dial}})
		p, _ := publish(t, mockengine.PublisherConfig{Endpoint: "tcp://10.0.0.2:5557", Replay: "tcp://10.0.0.2:5657", Network: world.Host("10.0.0.2")})
		p.SetFaults(mockengine.PublisherFaults{ReplayEndLoss: 1})
		p.Publish(vllm(t, stored(1, 0, 64, 16)))
		p.Publish(vllm(t, stored(2, 0, 64, 16)))
		r.fleet.Put("http://10.0.0.2:8000", followed(p))
		r.run()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.feed.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		r.trust(0, fleet.TrustDegraded, "the replay fails: ")
		p.SetFaults(mockengine.PublisherFaults{})
		testenv.Pass(time.Minute)
		r.trust(0, fleet.TrustExact, "")
		if a, b := r.match(prompt(1, 100)), r.match(prompt(2, 100)); a != 64 || b != 64 {
			t.Errorf("matches %d and %d, want 64 and 64", a, b)
		}
	})
}

// Each call of Ready waits for the workers that are in the fleet at the time of this call.
func TestReadyWaitsForTheWorkersOfItsTime(t *testing.T) {
	r := newRig(t, Config{Stream: quick})
	r.run()
	for i := range 3 {
		p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort, Replay: anyPort})
		p.Publish(vllm(t, stored(i, 0, 64, 16)))
		r.fleet.Put(strings.Replace(workerURL, "8000", string(rune('1'+i)), 1), followed(p))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := r.feed.Ready(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if got := r.match(prompt(i, 100)); got != 64 {
			t.Errorf("worker %d: match %d", i, got)
		}
	}
}

// A busy feed changes thousands of times a second, and most of the time no call of Ready waits for a change.
func TestAChangeThatNoCallOfReadyWaitsForCostsNothing(t *testing.T) {
	r := newRig(t, Config{})
	r.feed.mu.Lock() // the test holds the lock of all streams: a change must not wait for it
	defer r.feed.mu.Unlock()
	done := make(chan float64)
	go func() { done <- testing.AllocsPerRun(100, r.feed.noteChange) }()
	select {
	case allocs := <-done:
		if allocs != 0 {
			t.Errorf("a change takes %v allocations", allocs)
		}
	case <-time.After(patience):
		t.Fatal("a change waits for the lock of all streams")
	}
}

// Each of several calls of Ready is woken by one change.
func TestAChangeWakesEachCallOfReady(t *testing.T) {
	r := newRig(t, Config{})
	first, second := r.feed.nextChange(), r.feed.nextChange()
	r.feed.noteChange()
	<-first
	<-second
	select {
	case <-r.feed.nextChange():
		t.Error("an old change wakes a call that begins to wait later")
	default:
	}
}
