package zmq

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/memnet"
)

// followed is an engine and its subscriber on a network in memory, after n messages.
func followed(t *testing.T, cfg Config, n int) (*engine, *Subscriber, *diary) {
	t.Helper()
	world := memnet.New()
	at := PublisherConfig{Endpoint: "tcp://10.0.0.2:5557", Replay: "tcp://10.0.0.2:5657", Network: world.Host("10.0.0.2")}
	e := startEngine(t, "a", at)
	cfg.Network = world.Host("10.0.0.1")
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), cfg, d)
	synctest.Wait()
	e.publish(n)
	synctest.Wait()
	return e, s, d
}

// A replay that sends a message now and then must not keep the stream waiting for ever: later messages are kept back
// meanwhile, and blocks that they remove count as cached.
func TestAGapIsToldAtOnceAndARecoveryThatDripsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig
		e, s, d := followed(t, cfg, 10)
		if d.behind || d.complete == 0 || d.next != 10 {
			t.Fatalf("behind %v, complete %d times, next %d", d.behind, d.complete, d.next)
		}
		e.SetFaults(Faults{ReplayPause: 400 * time.Millisecond})
		e.DropNext(1000)
		e.publish(1001)
		synctest.Wait()
		if !d.behind || d.next == 1011 {
			t.Fatalf("a gap is seen: behind %v, next %d", d.behind, d.next)
		}
		for began := time.Now(); d.next < 1011; {
			if !d.behind || d.complete > 1 {
				t.Fatalf("not behind, though message %d is due of 1011", d.next)
			}
			if took := time.Since(began); took > cfg.RecoveryTime+cfg.ReplayTimeout {
				t.Fatalf("not given up after %v", took)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		if len(d.lost) != 1 || d.behind || d.complete > 1 || s.Stats().Lost < 800 {
			t.Errorf("lost %v, behind %v, complete %d times", d.lost, d.behind, d.complete)
		}

		// Once the replay is honest again, the whole history is learned anew.
		e.SetFaults(Faults{})
		time.Sleep(time.Minute)
		synctest.Wait()
		e.publish(1)
		synctest.Wait()
		if d.behind || len(d.restarts) != 1 || d.next != 1012 || !s.stream.announced {
			t.Errorf("behind %v, restarts %q, next %d", d.behind, d.restarts, d.next)
		}
		d.expectPayloads("a", 0, 1012)
	})
}

// A new connection is behind until the replay has shown what was missed: while it drips, too.
func TestAReconnectIsBehindWhileItsReplayDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig
		e, _, d := followed(t, cfg, 10)
		e.SetFaults(Faults{ReplayPause: 400 * time.Millisecond})
		e.pub.DropPeers()
		e.publish(500)
		for range 50 {
			time.Sleep(time.Second)
			synctest.Wait()
			if d.connected && (!d.behind || d.complete > 1) {
				t.Fatalf("not behind, though message %d is due of 510", d.next)
			}
		}
		if d.next < 100 {
			t.Errorf("next is %d: the replay brought nothing", d.next)
		}
	})
}

// What is kept while messages are missing is bounded; messages over the bound are replayed later.
func TestMessagesKeptBackAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig
		cfg.PendingMessages, cfg.PendingBytes = 50, 1000
		e, s, d := followed(t, cfg, 10)
		e.SetFaults(Faults{ReplayPause: 100 * time.Millisecond})
		e.DropNext(100)
		for range 200 {
			e.publish(1)
			synctest.Wait()
			s.stream.mu.Lock()
			kept, bytes := s.stream.pending.len(), s.stream.pending.bytes
			s.stream.mu.Unlock()
			if kept > 50 || bytes > 1000 {
				t.Fatalf("%d messages of %d bytes are kept", kept, bytes)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		e.publish(1)
		synctest.Wait()
		if d.behind || d.next != 211 {
			t.Errorf("behind %v, next %d, lost %v", d.behind, d.next, d.lost)
		}
		d.expectPayloads("a", 0, 211)
	})
}
