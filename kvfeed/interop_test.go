//go:build unix

package kvfeed

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// order gives engine.py a command and returns the engine's next sequence number.
func order(t *testing.T, p *testenv.Script, command string, n int) uint64 {
	t.Helper()
	p.Say(fmt.Sprintf("%s %d", command, n))
	next, err := strconv.ParseUint(p.Line(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// realEngine starts engine.py and returns it with its endpoints.
func realEngine(t *testing.T, run string, src fleet.EventSource, more ...string) (*testenv.Script, fleet.EventSource) {
	t.Helper()
	p := testenv.StartScript(t, "testdata/engine.py", append([]string{run, src.Endpoint, src.Replay}, more...)...)
	src.Endpoint, src.Replay = p.Line(), p.Line()
	return p, src
}

var anySource = fleet.EventSource{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*"}

func TestWeFollowARealPublisher(t *testing.T) {
	for _, form := range []string{"topic", "plain"} {
		t.Run(form, func(t *testing.T) {
			p, src := realEngine(t, "a", fleet.EventSource{Endpoint: nobody(t), Replay: nobody(t)}, "10000", form)
			src.Topic = "kv@"
			order(t, p, "publish", 200)
			cfg := quickStream
			cfg.HeartbeatInterval, cfg.HeartbeatTimeout = 100*time.Millisecond, time.Second
			cfg.Verify = 200 * time.Millisecond
			d := newDiary(t)
			s, _ := subscribe(t, src, cfg, d)
			d.awaitComplete(1)
			order(t, p, "publish", 50)
			order(t, p, "drop", 5)
			n := order(t, p, "publish", 50)
			d.awaitSeen(n)
			n = order(t, p, "drop", 3) // the engine drops its last messages; only the regular check finds the loss
			d.awaitSeen(n)
			d.expect(0)
			d.expectPayloads("a", 0, n)

			// A new engine starts at the same address, and publishes more messages than the former engine did.
			p.Kill()
			d.await("the disconnect", func() bool { return !d.connected })
			p, _ = realEngine(t, "b", src, "10000", form)
			n = order(t, p, "publish", 400)
			d.await("the new stream", func() bool { return len(d.restarts) == 1 && d.next == n })
			d.awaitComplete(2)
			d.expectPayloads("b", 0, n)
			if st := s.Stats(); st.Lost != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// With the default limit of 1000 queued messages, libzmq's ROUTER socket loses most of a long replay.
func TestALongReplayOfARealRouterArrivesWhole(t *testing.T) {
	p, src := realEngine(t, "a", anySource, "10000", "topic")
	n := order(t, p, "publish", 10_000)
	d := newDiary(t)
	s, _ := subscribe(t, src, quickStream, d)
	d.awaitSeen(n)
	d.awaitComplete(1)
	d.expect(0)
	d.expectPayloads("a", 0, n)
	t.Logf("%d replays for %d messages", s.Stats().Replays, n)
}

func TestARealEnginesRotatedBufferIsSeen(t *testing.T) {
	p, src := realEngine(t, "a", anySource, "100", "topic")
	n := order(t, p, "publish", 1000)
	d := newDiary(t)
	subscribe(t, src, quickStream, d)
	d.awaitSeen(n)
	d.expect(0, [2]uint64{0, 900})
	d.expectPayloads("a", 900, n)
}

func TestAFrozenRealEngineIsNoticedAndFollowedAgain(t *testing.T) {
	p, src := realEngine(t, "a", anySource, "1000", "topic")
	order(t, p, "publish", 100)
	cfg := quickStream
	cfg.HeartbeatInterval, cfg.HeartbeatTimeout = 50*time.Millisecond, 100*time.Millisecond
	d := newDiary(t)
	subscribe(t, src, cfg, d)
	d.awaitComplete(1)
	p.Signal(syscall.SIGSTOP)
	d.await("the disconnect", func() bool { return !d.connected })
	p.Signal(syscall.SIGCONT)
	n := order(t, p, "publish", 100)
	d.awaitSeen(n)
	d.awaitComplete(2)
	d.expect(0)
	d.expectPayloads("a", 0, n)
}

func TestARealEngineThatDialsIsFollowed(t *testing.T) {
	r := newRig(t, Config{Stream: quick, Listen: "ipc://" + filepath.Join(t.TempDir(), "s")})
	r.fleet.Put("http://a:1", facts(fleet.EngineVLLM, 16))
	r.run()
	p, _ := realEngine(t, "a", fleet.EventSource{Endpoint: r.feed.ListenEndpoint(), Replay: anySource.Replay}, "1000", "topic", "connect")
	var n uint64
	r.eventually("a message", func() bool {
		n = order(t, p, "publish", 1)
		return r.hasTrust(0, fleet.TrustExact, "")()
	})
	before, _ := r.stats("http://a:1", 0)
	n += 100
	if got := order(t, p, "publish", 100); got != n {
		t.Fatalf("next is %d, want %d", got, n)
	}
	r.eventually("all messages", func() bool {
		st, _ := r.stats("http://a:1", 0)
		return st.Sequence == n-1 && st.Lost == before.Lost && st.Cleared == st.Messages
	})
}

func TestARealSubscriberFollowsOurPublisher(t *testing.T) {
	for _, withoutTopic := range []bool{false, true} {
		cfg := withReplay()
		cfg.ReplayWithoutTopic = withoutTopic
		e := startEngine(t, "a", cfg)
		e.publish(50)
		p := testenv.StartScript(t, "testdata/subscriber.py", e.Endpoint(), e.ReplayEndpoint(), "10")
		for seq := uint64(10); seq < 50; seq++ {
			if got, want := p.Line(), fmt.Sprintf("replay %d %d", seq, len(payload("a", seq))); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		if got := p.Line(); got != "end" {
			t.Fatalf("got %q", got)
		}
		e.untilHeard(t)
		seq := e.Stats().Published - 1
		<-time.After(500 * time.Millisecond) // longer than the timeout of the subscriber's heartbeats
		e.publish(1)
		for _, seq := range []uint64{seq, seq + 1} {
			if got, want := p.Line(), fmt.Sprintf("live kv-events %d %d", seq, len(payload("a", seq))); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}
