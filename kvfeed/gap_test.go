package kvfeed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// While a holder's trust is exact, the index never has a block that the engine has removed. This must hold while the
// removal waits for messages of a slow replay, and also after the router gave the replay up.
func TestNoRemovedBlockIsExactWhileMessagesAreKeptBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := network.NewMemory()
		p, _ := publish(t, mockengine.PublisherConfig{Endpoint: "tcp://10.0.0.2:5557", Replay: "tcp://10.0.0.2:5657", Network: world.Host("10.0.0.2")})
		r := newRig(t, Config{Stream: StreamConfig{Dial: world.Host("10.0.0.1").Dial}})
		r.fleet.Put(workerURL, followed(p))
		r.run()
		synctest.Wait()
		p.Publish(vllm(t, stored(1, 0, 64, 16)))
		synctest.Wait()
		view := func() (fleet.Trust, int) {
			d, err := r.router.Explain(t.Context(), &warmpath.Request{Model: "m", Tokens: prompt(1, 200), Now: time.Now().UnixNano()})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Recycle()
			return d.Trust, d.MatchTokens
		}
		if trust, match := view(); trust != fleet.TrustExact || match != 64 {
			t.Fatalf("trust %v, match %d", trust, match)
		}
		p.SetFaults(mockengine.PublisherFaults{ReplayPause: 400 * time.Millisecond})
		p.DropNext(1000)
		for i := range 1000 {
			p.Publish(vllm(t, stored(2+i, 0, 16, 16)))
		}
		p.Publish(vllm(t, removed(1, 0, 4)))
		given := time.Duration(-1) // time until the removal took effect; -1: it has not yet
		for began := time.Now(); time.Since(began) < 3*time.Minute; testenv.Pass(50 * time.Millisecond) {
			synctest.Wait()
			trust, match := view()
			if match == 0 && given < 0 {
				given = time.Since(began)
			}
			if trust != fleet.TrustDegraded {
				t.Fatalf("%v after %v, with %d tokens of removed blocks", trust, time.Since(began), match)
			}
		}
		if limit := DefaultStreamConfig().RecoveryTime + DefaultStreamConfig().ReplayTimeout; given < time.Second || given > limit {
			t.Errorf("the recovery was given up after %v, want at most %v", given, limit)
		}
		p.SetFaults(mockengine.PublisherFaults{})
		testenv.Pass(time.Minute)
		if trust, match := view(); trust != fleet.TrustExact || match != 0 {
			t.Errorf("the replay works again: trust %v, match %d", trust, match)
		}
	})
}

// The ranks of one worker share the bound on the messages that the router keeps back for the worker.
func TestRanksShareTheBoundOnKeptMessages(t *testing.T) {
	c := Config{}
	whole := c.wire(1)
	for _, ranks := range []int{2, 8, 64} {
		got := c.wire(ranks)
		if got.PendingBytes*ranks > whole.PendingBytes || got.PendingBytes < leastPending {
			t.Errorf("the router may keep back %[2]d bytes for each of %[1]d ranks, and %[3]d for a worker with one rank", ranks, got.PendingBytes, whole.PendingBytes)
		}
		if got.MaxMessage > max(whole.MaxMessage/ranks, leastMessage) || got.MaxMessage < leastMessage {
			t.Errorf("each of %d ranks may send messages of %d bytes, the rank of a worker with one rank %d", ranks, got.MaxMessage, whole.MaxMessage)
		}
	}
}
