package kvfeed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// followedInMemory returns an engine on a network in memory, its subscriber, and the subscriber's diary. The subscriber
// has n messages.
func followedInMemory(t *testing.T, cfg StreamConfig, n int) (*engine, *Subscriber, *diary) {
	t.Helper()
	world := network.NewMemory()
	at := mockengine.PublisherConfig{Endpoint: "tcp://10.0.0.2:5557", Replay: "tcp://10.0.0.2:5657", Network: world.Host("10.0.0.2")}
	e := startEngine(t, "a", at)
	cfg.Dial = world.Host("10.0.0.1").Dial
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), cfg, d)
	synctest.Wait()
	e.publish(n)
	synctest.Wait()
	return e, s, d
}

// reported is a copy of a diary's content.
type reported struct {
	behind, connected bool
	complete          int
	next              uint64
	lost, restarts    int
}

// reported waits until all goroutines are idle, and returns the content of the diary.
func (d *diary) reported() reported {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return reported{d.behind, d.connected, d.complete, d.next, len(d.lost), len(d.restarts)}
}

// A slow replay, which sends a message now and then, must not delay the stream for ever. During the replay the router
// keeps later messages back, so blocks that these messages remove still count as cached.
func TestAGapIsReportedAtOnceAndASlowRecoveryIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultStreamConfig()
		e, s, d := followedInMemory(t, cfg, 10)
		if got := d.reported(); got.behind || got.complete == 0 || got.next != 10 {
			t.Fatalf("after ten messages: %+v", got)
		}
		e.SetFaults(mockengine.PublisherFaults{ReplayPause: 400 * time.Millisecond})
		e.DropNext(1000)
		e.publish(1001)
		if got := d.reported(); !got.behind || got.next == 1011 {
			t.Fatalf("a gap is seen: %+v", got)
		}
		for began := time.Now(); d.reported().next < 1011; {
			if got := d.reported(); !got.behind || got.complete > 1 {
				t.Fatalf("not behind, though messages up to 1010 are missing: %+v", got)
			}
			if took := time.Since(began); took > cfg.RecoveryTime+cfg.ReplayTimeout {
				t.Fatalf("the recovery is not given up after %v", took)
			}
			testenv.Pass(100 * time.Millisecond)
		}
		if got := d.reported(); got.lost != 1 || got.behind || got.complete > 1 || s.Stats().Lost < 800 {
			t.Errorf("given up: %+v", got)
		}

		// When the replay works again, the whole history is learned.
		e.SetFaults(mockengine.PublisherFaults{})
		testenv.Pass(time.Minute)
		complete := d.reported().complete
		e.publish(1)
		if got := d.reported(); got.behind || got.restarts != 1 || got.next != 1012 || complete != 2 {
			t.Errorf("the replay works again: %+v", got)
		}
		d.expectPayloads("a", 0, 1012)
	})
}

// A new connection is behind until the replay has shown the missing messages, even if the replay is slow.
func TestAReconnectIsBehindWhileItsReplayIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, d := followedInMemory(t, DefaultStreamConfig(), 10)
		e.SetFaults(mockengine.PublisherFaults{ReplayPause: 400 * time.Millisecond})
		e.DropSubscribers()
		e.publish(500)
		for range 50 {
			testenv.Pass(time.Second)
			if got := d.reported(); got.connected && (!got.behind || got.complete > 1) {
				t.Fatalf("not behind, though messages up to 509 are missing: %+v", got)
			}
		}
		if got := d.reported(); got.next < 100 {
			t.Errorf("the replay brought nothing: %+v", got)
		}
	})
}

// The messages that are kept while others are missing are bounded. Messages beyond the bound are replayed later.
func TestMessagesKeptBackAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultStreamConfig()
		cfg.PendingMessages, cfg.PendingBytes = 50, 1000
		e, s, d := followedInMemory(t, cfg, 10)
		e.SetFaults(mockengine.PublisherFaults{ReplayPause: 100 * time.Millisecond})
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
		testenv.Pass(time.Minute)
		e.publish(1)
		if got := d.reported(); got.behind || got.next != 211 {
			t.Errorf("afterwards: %+v", got)
		}
		d.expectPayloads("a", 0, 211)
	})
}
