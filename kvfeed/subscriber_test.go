package kvfeed

import (
	"encoding/hex"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestHistoryIsReplayedThenTheStreamGoesOn(t *testing.T) {
	for name, withoutTopic := range map[string]bool{"with topic": false, "without topic": true} {
		t.Run(name, func(t *testing.T) {
			cfg := withReplay()
			cfg.ReplayWithoutTopic = withoutTopic
			e := startEngine(t, "a", cfg)
			e.publish(300)
			d := newDiary(t)
			s, stop := subscribe(t, e.source(), quickStream, d)
			d.awaitComplete(1)
			e.untilSubscribed(t, d)
			e.publish(300)
			n := e.Stats().Published
			d.awaitSeen(n)
			d.expect(0)
			d.expectPayloads("a", 0, n)
			stop()
			st := s.Stats()
			if st.Messages != n || st.Sequence != n-1 || !st.HasSequence || st.Since.IsZero() || st.Replayed < 300 || st.Lost+st.Restarts+st.Gaps+st.Malformed != 0 {
				t.Errorf("stats %+v after %d messages", st, n)
			}
		})
	}
}

func TestAFreshEngineIsCompleteAtOnce(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	d := newDiary(t)
	subscribe(t, e.source(), quickStream, d)
	d.awaitComplete(1)
	d.expect(0)
}

func TestDroppedMessagesAreReplayedInOrder(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), quickStream, d)
	d.awaitComplete(1)
	e.untilSubscribed(t, d)
	for range 5 {
		e.DropNext(7)
		e.publish(10)
		d.awaitSeen(e.Stats().Published)
	}
	e.SetFaults(mockengine.PublisherFaults{Drop: 0.05})
	e.publish(3000)
	e.SetFaults(mockengine.PublisherFaults{})
	e.publish(1) // the next message shows that messages before it were dropped
	n := e.Stats().Published
	d.awaitSeen(n)
	d.expect(0)
	d.expectPayloads("a", 0, n)
	if st := s.Stats(); st.Gaps < 5 || st.Replayed < 35 {
		t.Errorf("stats %+v", st)
	}
}

func TestADroppedLastMessageIsFoundByTheRegularCheck(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	cfg := quickStream
	cfg.Verify = 20 * time.Millisecond
	d := newDiary(t)
	subscribe(t, e.source(), cfg, d)
	d.awaitComplete(1)
	e.untilSubscribed(t, d)
	e.DropNext(3)
	e.publish(3)
	d.awaitSeen(e.Stats().Published)
	d.expect(0)
}

func TestAReplayThatLosesMessagesIsRequestedUntilWhole(t *testing.T) {
	for name, faults := range map[string]mockengine.PublisherFaults{
		"70 % lost":          {ReplayLoss: 0.7},
		"70 % and 1 % live":  {ReplayLoss: 0.7, Drop: 0.01},
		"stops after 100":    {ReplayLimit: 100},
		"end marker missing": {ReplayEndLoss: 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, "a", withReplay())
			e.publish(1000)
			e.SetFaults(faults)
			cfg := quickStream
			cfg.ReplayTimeout = 100 * time.Millisecond
			d := newDiary(t)
			subscribe(t, e.source(), cfg, d)
			d.awaitSeen(1000)
			d.awaitComplete(1)
			e.untilSubscribed(t, d)
			e.publish(500)
			e.SetFaults(mockengine.PublisherFaults{ReplayLoss: faults.ReplayLoss})
			e.publish(1)
			n := e.Stats().Published
			d.awaitSeen(n)
			d.expect(0)
			d.expectPayloads("a", 0, n)
		})
	}
}

func TestHistoryBeforeTheEnginesBufferIsLost(t *testing.T) {
	for _, steps := range []int{3, 50} {
		cfg := withReplay()
		cfg.BufferSteps = steps
		e := startEngine(t, "a", cfg)
		e.publish(1000)
		d := newDiary(t)
		s, _ := subscribe(t, e.source(), quickStream, d)
		d.awaitSeen(1000)
		first := uint64(1000 - steps)
		d.expect(0, [2]uint64{0, first})
		d.expectPayloads("a", first, 1000)
		e.untilSubscribed(t, d)
		e.DropNext(2)
		e.publish(steps - 1)
		e.publish(1)
		d.awaitSeen(e.Stats().Published)
		d.expect(0, [2]uint64{0, first})
		d.mu.Lock()
		if d.complete != 0 {
			t.Errorf("Complete, though the first %d messages are lost", first)
		}
		d.mu.Unlock()
		if st := s.Stats(); st.Lost != first {
			t.Errorf("stats %+v", st)
		}
	}
}

func TestAGapThatTheEngineNoLongerHasIsLost(t *testing.T) {
	cfg := withReplay()
	cfg.BufferSteps = 20
	e := startEngine(t, "a", cfg)
	d := newDiary(t)
	subscribe(t, e.source(), quickStream, d)
	d.awaitComplete(1)
	e.untilSubscribed(t, d)
	from := e.Stats().Published
	e.DropNext(50)
	e.publish(51)
	n := e.Stats().Published
	d.awaitSeen(n)
	d.expect(0, [2]uint64{from, n - 20})
	d.expectPayloads("a", n-20, n)
}

func TestARestartWhileConnectedIsSeen(t *testing.T) {
	// Behind a forwarder an engine restarts without a disconnect, and its sequence numbers begin again at 0.
	pub := script(t, zmtp.PUB, nil)
	d := newDiary(t)
	subscribe(t, fleet.EventSource{Endpoint: pub.Endpoint()}, quickStream, d)
	publishUntilSeen(t, pub, d, "a")
	for seq := uint64(1); seq < 10; seq++ {
		pub.Publish(liveMessage("t", seq, payload("a", seq))...)
	}
	pub.Publish(liveMessage("t", 5, payload("a", 5))...) // the message comes a second time, as a forwarder may send it
	d.awaitSeen(10)
	for seq := range uint64(5) {
		pub.Publish(liveMessage("t", seq, payload("b", seq))...)
	}
	d.await("the new stream", func() bool { return len(d.restarts) == 1 && d.next == 5 })
	d.expectPayloads("b", 0, 5)
	d.awaitComplete(2)
	pub.Publish(liveMessage("t", 2, payload("c", 2))...)
	d.await("the third stream", func() bool { return len(d.restarts) == 2 && d.next == 3 })
	d.expect(2, [2]uint64{0, 2})
}

// publishUntilSeen publishes message 0 of a run until a subscriber gets it.
func publishUntilSeen(t testing.TB, pub *zmtp.Socket, d *diary, run string) {
	t.Helper()
	testenv.Until(t, "somebody subscribes", func() bool { return pub.Publish(liveMessage("t", 0, payload(run, 0))...) > 0 })
	d.awaitSeen(1)
}

func TestAnEngineThatRestartedWhileWeWereAwayIsSeen(t *testing.T) {
	for name, count := range map[string]int{"with fewer messages": 3, "with none": 0, "with as many": 40, "with more": 400} {
		t.Run(name, func(t *testing.T) {
			first := startEngine(t, "a", withReplay())
			first.publish(40)
			d := newDiary(t)
			subscribe(t, first.source(), quickStream, d)
			d.awaitComplete(1)
			again := first.again()
			first.stop()
			d.await("the disconnect", func() bool { return !d.connected })
			// The new engine has published before the reconnect.
			p := mockengine.NewPublisher(again)
			second := &engine{p, again, "b", nil}
			second.publish(count)
			if err := p.Listen(); err != nil {
				t.Fatal(err)
			}
			runUntilStopped(t, p.Run)
			d.awaitComplete(2)
			d.awaitSeen(uint64(count))
			second.untilSubscribed(t, d)
			d.expect(1)
			d.expectPayloads("b", 0, second.Stats().Published)
		})
	}
}

func TestAnEngineThatIsStillTheSameAfterADisconnectGoesOn(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	e.publish(40)
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), quickStream, d)
	d.awaitComplete(1)
	for round := 2; round < 5; round++ {
		e.cut(d)
		e.publish(10)
		d.awaitComplete(round)
		d.awaitSeen(e.Stats().Published)
	}
	d.expect(0)
	d.expectPayloads("a", 0, e.Stats().Published)
	if st := s.Stats(); st.Restarts != 0 || st.Lost != 0 {
		t.Errorf("stats %+v", st)
	}
}

// After a reconnect, the expected message may come before the replay has shown that the engine is the same. Then the
// message is handed over once, as soon as the replay has shown this.
func TestAMessageBeforeItsReplayAfterADisconnectIsHandedOverOnce(t *testing.T) {
	for _, reviewed := range []uint64{0, 1} { // number of old messages that the replay sends before it is cut short
		d := newDiary(t)
		s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
		live := func(seq uint64) { s.receive(liveMessage("t", seq, payload("a", seq))) }
		s.connect()
		live(0)
		live(1)
		s.disconnect(errors.New("gone"))
		s.connect()
		live(2)
		var a attempt
		s.begin(&a)
		for seq := range reviewed + 1 {
			s.replayed(&a, liveMessage("", seq, payload("a", seq)))
		}
		s.judge(&a, errors.New("cut short"))
		live(3)
		s.begin(&a)
		for seq := range uint64(4) {
			s.replayed(&a, liveMessage("", seq, payload("a", seq)))
		}
		s.replayed(&a, append([][]byte{nil}, liveMessage("", endSeq, "")...))
		if done, _, _ := s.judge(&a, nil); !done || s.pending.len() > 0 {
			t.Errorf("done is %v, %d messages are kept", done, s.pending.len())
		}
		s.giveUp(s.epoch, errors.New("no answer"))
		d.expect(0)
		d.expectPayloads("a", 0, 4)
		if d.messages != 4 || d.next != 4 || d.complete == 0 {
			t.Errorf("%d messages, next is %d, complete %d times", d.messages, d.next, d.complete)
		}
	}
}

func TestAnEngineThatMayHaveRestartedCountsAsRestarted(t *testing.T) {
	cfg := withReplay()
	cfg.BufferSteps = 30
	e := startEngine(t, "a", cfg)
	e.publish(10)
	d := newDiary(t)
	subscribe(t, e.source(), quickStream, d)
	d.awaitComplete(1)
	again := e.again()
	e.stop()
	d.await("the disconnect", func() bool { return !d.connected })
	p := mockengine.NewPublisher(again)
	second := &engine{p, again, "a", nil}
	second.publish(200) // now message 170 is the oldest that the second engine keeps
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	runUntilStopped(t, p.Run)
	d.awaitSeen(200)
	d.expect(1, [2]uint64{0, 170})
	d.expectPayloads("a", 170, 200)
}

func TestWithoutReplayTheStreamIsWholeOnlyIfSeenFromItsStart(t *testing.T) {
	cfg := withReplay()
	cfg.Replay = ""
	e := startEngine(t, "a", cfg)
	d := newDiary(t)
	subscribe(t, e.source(), quickStream, d)
	e.untilHeard(t)
	// The engine published until there was a subscriber, so some of its first messages may be gone.
	d.awaitSeen(1)
	e.publish(10)
	d.awaitSeen(e.Stats().Published)
	d.mu.Lock()
	lost := len(d.lost)
	if (d.complete > 0) != (lost == 0) {
		t.Errorf("complete %d, lost %v", d.complete, d.lost)
	}
	d.mu.Unlock()
	from := e.Stats().Published
	e.DropNext(2)
	e.publish(3)
	d.awaitSeen(from + 3)
	e.cut(d)
	d.await("loss at the disconnect", func() bool { return len(d.lost) == lost+2 })
	d.mu.Lock()
	if got := d.lost[lost:]; got[0] != [2]uint64{from, from + 2} || got[1] != [2]uint64{from + 3, from + 3} {
		t.Errorf("lost %v", got)
	}
	d.mu.Unlock()
	d.await("the reconnect", func() bool { return d.connected })
	e.untilHeard(t)
	d.awaitSeen(e.Stats().Published)
	d.expectPayloads("a", e.Stats().Published-1, e.Stats().Published)
}

// cut cuts the connection of the engine's subscriber. If the engine does not know of the connection yet, the first try
// has no effect. So cut tries again until the subscriber notices.
func (e *engine) cut(d *diary) {
	d.t.Helper()
	d.mu.Lock()
	before := len(d.errs)
	d.mu.Unlock()
	d.await("the disconnect", func() bool {
		if len(d.errs) > before {
			return true
		}
		e.DropSubscribers()
		return false
	})
}

func TestADeadReplayEndpointCostsTheHistoryButNotTheStream(t *testing.T) {
	for name, replay := range map[string]string{
		"nobody listens": nobody(t),
		"never greets":   "ipc://" + silentSocket(t),
		"never answers":  script(t, zmtp.ROUTER, nil).Endpoint(),
		"answers rubbish": script(t, zmtp.ROUTER, func(p *zmtp.Peer, _ [][]byte) {
			_ = p.Send([]byte("rubbish"))
			_ = p.Send(nil, []byte("short"), nil)
		}).Endpoint(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := withReplay()
			cfg.Replay = ""
			e := startEngine(t, "a", cfg)
			e.publish(10)
			d := newDiary(t)
			tight := quickStream
			tight.ReplayTimeout, tight.ReplayTries, tight.ReplayTime = 50*time.Millisecond, 3, time.Second
			subscribe(t, fleet.EventSource{Endpoint: e.Endpoint(), Replay: replay, Topic: "kv"}, tight, d)
			d.await("the connection", func() bool { return d.connected })
			e.untilHeard(t)
			e.publish(5)
			d.awaitSeen(e.Stats().Published)
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.restarts) != 0 || len(d.lost) != 1 || d.lost[0][0] != 0 || d.complete != 0 {
				t.Errorf("restarts %q, lost %v, complete %d", d.restarts, d.lost, d.complete)
			}
		})
	}
}

func TestHistoryGivenUpIsLearnedWhenTheReplayAnswersAgain(t *testing.T) {
	e := startEngine(t, "a", mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
	e.publish(10)
	replay := nobody(t)
	d := newDiary(t)
	tight := quickStream
	tight.ReplayTimeout, tight.ReplayTries, tight.Verify = 50*time.Millisecond, 2, 20*time.Millisecond
	subscribe(t, fleet.EventSource{Endpoint: e.Endpoint(), Replay: replay}, tight, d)
	d.await("the connection", func() bool { return d.connected })
	e.untilHeard(t)
	d.await("the loss", func() bool { return len(d.lost) == 1 })
	router, err := zmtp.New(zmtp.ROUTER, replay, zmtp.Config{Bind: true, OnMessage: e.Answer})
	if err != nil {
		t.Fatal(err)
	}
	runUntilStopped(t, router.Run)
	d.awaitComplete(1)
	d.await("all of it", func() bool { return d.next == e.Stats().Published })
	d.expectPayloads("a", 0, e.Stats().Published)
}

func TestAReplayOfAnotherEngineIsNotBelievedForEver(t *testing.T) {
	ours, other := startEngine(t, "a", withReplay()), startEngine(t, "b", withReplay())
	other.publish(50)
	d := newDiary(t)
	subscribe(t, fleet.EventSource{Endpoint: ours.Endpoint(), Replay: other.ReplayEndpoint()}, quickStream, d)
	d.await("the connection", func() bool { return d.connected })
	ours.untilHeard(t)
	// Only later live messages can show that the replay is another engine's.
	start := time.Now()
	for given := false; !given; {
		if time.Since(start) > patience {
			t.Fatalf("after %v and %d messages, nothing shows that the replay is another engine's", patience, ours.Stats().Published)
		}
		d.mu.Lock()
		before := len(d.restarts)
		d.mu.Unlock()
		n := ours.Stats().Published
		other.publish(int(n+500) - int(other.Stats().Published)) // the other engine has more messages than the stream's engine
		ours.publish(1)
		d.await("the message, or a contradiction", func() bool {
			given = len(d.restarts) >= maxStrikes
			return given || len(d.restarts) > before || d.payloads[n] == payload("a", n)
		})
	}
	n := ours.Stats().Published
	for range 10 { // each gap would request a replay of the other engine if it were still trusted
		ours.DropNext(1)
		ours.publish(2)
	}
	ours.publish(10)
	n += 30
	d.await("the live stream", func() bool { return d.payloads[n-1] == payload("a", n-1) })
	d.expectPayloads("a", n-10, n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if why := d.restarts[len(d.restarts)-1]; len(d.restarts) != maxStrikes || !strings.Contains(why, other.ReplayEndpoint()) {
		t.Errorf("restarts %q", d.restarts)
	}
}

// replayed passes complete replays to the stream until the stream requests no more replays, but at most ReplayTries
// replays. Unlike catchUp it does not call giveUp.
func replayed(s *sequence, run string, n uint64) {
	var a attempt
	for range s.cfg.ReplayTries {
		if !s.begin(&a) {
			return
		}
		enough := false
		for seq := a.from; seq < n && !enough; seq++ {
			enough = s.replayed(&a, liveMessage("", seq, payload(run, seq)))
		}
		if !enough {
			s.replayed(&a, append([][]byte{nil}, liveMessage("", endSeq, "")...))
		}
		if done, _, _ := s.judge(&a, nil); done {
			return
		}
	}
}

// The replay endpoint belongs to another engine than the live stream. A few live messages must show this, in any order
// of replay and live messages, and with any time between them. After the first live message the history does not count
// as complete until then.
func TestAFewMessagesShowThatAReplayIsAnotherEnginesHoweverSlow(t *testing.T) {
	for name, before := range map[string][]uint64{
		"replay first":                      nil,
		"live first":                        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		"replay joined by the live message": {9}, // the replay brings the messages 0 to 8 of the other engine
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiary(t)
				s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
				live := func(seq uint64) { s.receive(liveMessage("t", seq, payload("a", seq))) }
				s.connect()
				for _, seq := range before {
					live(seq)
				}
				replayed(s, "b", 50)
				complete := d.complete
				if len(before) > 0 && complete > 0 && len(d.restarts) == 0 {
					t.Errorf("complete, although replay and live stream never agreed")
				}
				for seq := uint64(10); seq < 10+maxStrikes; seq++ {
					testenv.Pass(time.Hour)
					live(seq)
					select {
					case <-s.kick:
						replayed(s, "b", 50)
					default: // the stream requests no replay
					}
				}
				if len(d.restarts) != maxStrikes || !s.distrust {
					t.Errorf("restarts %q", d.restarts)
				}
				if d.next != 10+maxStrikes {
					t.Errorf("next is %d after %d messages", d.next, 10+maxStrikes)
				}
				if d.complete != complete {
					t.Errorf("complete again %d times, although replay and live stream never agreed", d.complete-complete)
				}
			})
		})
	}
}

// during is a Handler that calls look in each call of State, Message and Restarted.
type during struct {
	*diary
	look func()
}

func (d during) State(connected bool, err error)    { d.look(); d.diary.State(connected, err) }
func (d during) Message(seq uint64, payload []byte) { d.look(); d.diary.Message(seq, payload) }
func (d during) Restarted(why string)               { d.look(); d.diary.Restarted(why) }

// A reader of the statistics may wait for a message to be counted, and then expects that its events were applied.
func TestTheStatisticsChangeAfterTheHandlerReturned(t *testing.T) {
	var s *sequence
	var before StreamStats
	calls := 0
	s = newSequence(quickStream.withDefaults(), "", during{newDiary(t), func() {
		if got := s.snapshot(); got != before {
			t.Errorf("call %d: the statistics are %+v during the call, want %+v", calls, got, before)
		}
		calls++
	}})
	s.connect()
	if before = s.snapshot(); !before.Connected || before.Since.IsZero() {
		t.Errorf("after a connection: %+v", before)
	}
	s.receive(liveMessage("t", 0, payload("a", 0)))
	if before = s.snapshot(); before.Messages != 1 || !before.HasSequence || before.Sequence != 0 {
		t.Errorf("after message 0: %+v", before)
	}
	s.receive(liveMessage("t", 1, payload("a", 1)))
	if before = s.snapshot(); before.Messages != 2 || before.Sequence != 1 {
		t.Errorf("after message 1: %+v", before)
	}
	s.restart("test")
	if before = s.snapshot(); before.Messages != 2 || before.HasSequence || before.Restarts != 1 {
		t.Errorf("after a restart: %+v", before)
	}
	s.disconnect(errors.New("test"))
	if s.snapshot().Connected || calls != 5 {
		t.Errorf("after %d calls: %+v", calls, s.snapshot())
	}
}

// The other engine's replay ends exactly where the live stream begins: no message shows a contradiction, and none shows
// that both belong together.
func TestAReplayWithoutALiveMessageProvesNothing(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	s.connect()
	s.receive(liveMessage("t", 9, payload("a", 9)))
	replayed(s, "b", 9)
	s.giveUp(s.epoch, nil)
	if d.complete != 0 || len(d.lost) != 1 || !errors.Is(s.snapshot().ReplayError, errUnproven) {
		t.Errorf("complete %d times, lost %v, error %v", d.complete, d.lost, s.snapshot().ReplayError)
	}
	replayed(s, "a", 10) // the endpoint is mended
	s.receive(liveMessage("t", 10, payload("a", 10)))
	replayed(s, "a", 11) // the next regular check
	d.expectPayloads("a", 0, 11)
	if d.complete != 1 || s.unproven {
		t.Errorf("complete %d times, unproven %v", d.complete, s.unproven)
	}
}

// A replay may end before the last message of the live stream: here the replay has the messages 0 to 49, and the live
// stream is at 5000. The messages between them are lost. If a later replay ends there, too, the history neither begins
// anew nor counts as complete.
func TestAReplayThatEndsBeforeTheLiveStreamIsNotBelieved(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	s.connect()
	s.receive(liveMessage("t", 5000, payload("a", 5000)))
	replayed(s, "b", 50)
	s.giveUp(s.epoch, errors.New("nothing new"))
	if d.next != 5001 {
		t.Fatalf("next is %d", d.next)
	}
	complete := d.complete
	replayed(s, "b", 50) // the next regular check requests a replay again
	if len(d.restarts) != 0 || len(d.lost) != 1 || d.lost[0] != [2]uint64{50, 5000} || d.complete != complete {
		t.Errorf("restarts %q, lost %v, complete again %d times", d.restarts, d.lost, d.complete-complete)
	}
	s.receive(liveMessage("t", 5001, payload("a", 5001)))
	d.expectPayloads("a", 5001, 5002)
}

// Behind a forwarder an engine may restart many times without a disconnect. Each time, the engine's replay agrees with
// its live stream, so the replay endpoint stays trusted.
func TestAnEngineThatRestartsOftenBehindAForwarderKeepsItsReplay(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	s.connect()
	for round := range 3 * maxStrikes {
		run := string(rune('a' + round))
		complete := d.complete
		if round%2 == 0 { // the regular check sees the restart
			replayed(s, run, 3)
		}
		for seq := uint64(3); seq < 6; seq++ {
			s.receive(liveMessage("t", seq, payload(run, seq)))
		}
		replayed(s, run, 6)
		d.expectPayloads(run, 0, 6)
		if d.next != 6 || d.complete == complete || s.distrust {
			t.Fatalf("round %d: next is %d, complete %d times, restarts %q", round, d.next, d.complete, d.restarts)
		}
	}
}

// On a busy machine a replay may bring thousands of messages before the first of them comes on the live stream. This is
// not a restart of the engine. A new replay from this message on shows whether both streams belong to one engine.
func TestAFirstLiveMessageFarBehindTheReplayIsNoRestart(t *testing.T) {
	for name, before := range map[string]uint64{"first connection": 0, "reconnection": 2000} {
		t.Run(name, func(t *testing.T) {
			d := newDiary(t)
			s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
			s.connect()
			if before > 0 {
				for seq := range before {
					s.receive(liveMessage("t", seq, payload("a", seq)))
				}
				replayed(s, "a", before)
				s.disconnect(errors.New("gone"))
				s.connect()
			}
			replayed(s, "a", 10000)
			for seq := uint64(6485); seq < 6490; seq++ {
				s.receive(liveMessage("t", seq, payload("a", seq)))
			}
			if s.strikes != 0 || s.agreed || s.probe != 6486 {
				t.Errorf("strikes %d, agreed %v, probe %d", s.strikes, s.agreed, s.probe)
			}
			replayed(s, "a", 10000)
			if !s.agreed || s.probe != 0 {
				t.Errorf("agreed %v, probe %d after the replay from the live message on", s.agreed, s.probe)
			}
			for seq := uint64(6490); seq < 10010; seq++ {
				s.receive(liveMessage("t", seq, payload("a", seq)))
			}
			d.expectPayloads("a", 0, 10010)
			d.expect(0)
		})
	}
}

// If a live stream far behind the replay belongs to another engine, the new replay shows this at the first live
// message.
func TestAFirstLiveMessageFarBehindAnotherEnginesReplayIsFound(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	s.connect()
	replayed(s, "b", 10000)
	s.receive(liveMessage("t", 6485, payload("a", 6485)))
	if len(d.restarts) != 0 {
		t.Fatalf("restarts %q before the replay from the live message on", d.restarts)
	}
	replayed(s, "b", 10000)
	if len(d.restarts) == 0 || s.strikes == 0 {
		t.Errorf("restarts %q, %d strikes", d.restarts, s.strikes)
	}
}

// silentSocket returns a socket that accepts connections, and never sends the greeting of ZMTP.
func silentSocket(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}

func TestLiveMessagesOverTheBoundAreReplayed(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	e.publish(500)
	cfg := quickStream
	cfg.PendingMessages = 5
	d := newDiary(t)
	d.slow = 200 * time.Microsecond // the handler is slow, so live messages come while the history is read
	s, _ := subscribe(t, e.source(), cfg, d)
	testenv.Until(t, "somebody connects", func() bool { return e.Stats().Subscribers > 0 })
	for range 30 {
		e.publish(20)
		<-time.After(time.Millisecond)
	}
	e.publish(1)
	n := e.Stats().Published
	d.awaitSeen(n)
	d.expect(0)
	d.expectPayloads("a", 0, n)
	t.Logf("%+v", s.Stats())
}

func TestABusyEngineLosesNothingWhileHistoryIsRead(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	e.publish(5000)
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), quickStream, d)
	for range 5000 {
		e.publish(1)
	}
	d.await("the connection", func() bool { return d.connected && d.complete > 0 })
	e.untilSubscribed(t, d)
	d.awaitSeen(e.Stats().Published)
	d.expectPayloads("a", 0, e.Stats().Published)
	d.expect(0)
	t.Logf("%+v", s.Stats())
}

func TestTopicsAreFilteredAndMalformedMessagesCounted(t *testing.T) {
	pub := script(t, zmtp.PUB, nil)
	d := newDiary(t)
	s, _ := subscribe(t, fleet.EventSource{Endpoint: pub.Endpoint(), Topic: "t"}, quickStream, d)
	publishUntilSeen(t, pub, d, "a")
	pub.Publish(liveMessage("other", 7, "")...)
	pub.Publish([]byte("t"))
	pub.Publish([]byte("t"), []byte("short"), nil)
	pub.Publish([]byte("t"), []byte("12345678"))
	pub.Publish(liveMessage("t", endSeq, "")...)
	pub.Publish(liveMessage("t", 1, "")...)
	d.awaitSeen(2)
	d.expect(0)
	if st := s.Stats(); st.Malformed != 4 {
		t.Errorf("%d malformed, want 4", st.Malformed)
	}
}

// Publishers of older engines and of other routers send two frames: topic and payload.
func TestMessagesWithoutSequenceNumbersAreHandedOverAndTheirHistoryIsNeverWhole(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	for connection := 1; connection < 3; connection++ {
		s.connect()
		for i := range 5 {
			s.receive([][]byte{[]byte("t"), []byte(payload("a", uint64(i)))})
		}
		if s.canReplay() || d.unnumbered != connection || d.complete != 0 || d.messages != 5*connection || s.stats.malformed.Load() != 0 {
			t.Errorf("connection %d: %d messages, unnumbered %d times, complete %d times", connection, d.messages, d.unnumbered, d.complete)
		}
		s.disconnect(errors.New("gone"))
	}
	// The publisher begins to send sequence numbers.
	s.connect()
	replayed(s, "b", 3)
	s.receive(liveMessage("t", 3, payload("b", 3)))
	replayed(s, "b", 4)
	d.expectPayloads("b", 0, 4)
	if d.complete == 0 {
		t.Error("the history with numbers is whole, but Complete was not called")
	}
}

// The subscriber checks an idle stream regularly by a replay. Such checks do not count in Stats.Replays.
func TestReplaysOfAnIdleEngineDoNotGrow(t *testing.T) {
	e := startEngine(t, "a", withReplay())
	e.publish(5)
	cfg := quickStream
	cfg.Verify = 5 * time.Millisecond
	d := newDiary(t)
	s, _ := subscribe(t, e.source(), cfg, d)
	d.awaitComplete(1)
	before := s.Stats()
	testenv.Until(t, "the stream is checked", func() bool { return s.Stats().Checks > before.Checks+5 })
	if after := s.Stats(); after.Replays != before.Replays {
		t.Errorf("%d replays, %d before the checks", after.Replays, before.Replays)
	}
}

func TestErrorsNameTheEndpoint(t *testing.T) {
	for _, src := range []fleet.EventSource{{Endpoint: "tcp://no-port"}, {Endpoint: "tcp://*:5557"}, {Endpoint: "tcp://h:1", Replay: "bogus"}} {
		err := NewSubscriber(src, StreamConfig{}, newDiary(t)).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), src.Endpoint) || !strings.Contains(err.Error(), src.Replay) {
			t.Errorf("%+v: %v", src, err)
		}
	}
	endpoint := nobody(t)
	d := newDiary(t)
	_, stop := subscribe(t, fleet.EventSource{Endpoint: endpoint}, quickStream, d)
	d.await("several tries", func() bool { return len(d.errs) > 5 })
	stop()
	for _, err := range d.errs {
		if !strings.Contains(err.Error(), endpoint) {
			t.Errorf("the error does not name the endpoint: %v", err)
		}
	}
}

// TestRecordedFrames reads the recorded frames of real engines with the parsers, and plays them as a live stream and a
// replay.
func TestRecordedFrames(t *testing.T) {
	type frames [][]string
	var all struct {
		Recordings []struct {
			ID     string `json:"id"`
			Config struct {
				Topic string `json:"topic"`
				Steps int    `json:"buffer_steps"`
			} `json:"config"`
			Live    frames   `json:"live_multipart_frames_hex"`
			Request []string `json:"replay_request_from_dealer_frames_hex"`
			Reply   frames   `json:"replay_reply_multipart_frames_at_dealer_hex"`
		} `json:"zmq_frames"`
	}
	testenv.Vectors(t, &all)
	for _, r := range all.Recordings {
		t.Run(r.ID, func(t *testing.T) {
			// Our subscriber understands what the engine sent.
			pub := script(t, zmtp.PUB, nil)
			var request [][]byte
			asked := make(chan struct{}, 100)
			router := script(t, zmtp.ROUTER, func(p *zmtp.Peer, parts [][]byte) {
				request = nil
				for _, part := range parts {
					request = append(request, []byte(string(part)))
				}
				asked <- struct{}{}
				for _, m := range r.Reply {
					_ = p.Send(unhex(t, m)...)
				}
			})
			d := newDiary(t)
			subscribe(t, fleet.EventSource{Endpoint: pub.Endpoint(), Replay: router.Endpoint(), Topic: r.Config.Topic}, quickStream, d)
			<-asked
			// The recorded reply begins at message 1, as if message 0 had left the engine's buffer.
			d.await("replay", func() bool { return d.next == 4 })
			d.expect(0, [2]uint64{0, 1})
			for seq, m := range r.Live {
				want := unhex(t, m)[2]
				if got := d.payloads[uint64(seq)]; seq > 0 && got != string(want) {
					t.Errorf("message %d is %x, want %x", seq, got, want)
				}
				if s, p, err := parseLive(unhex(t, m)); err != nil || s != uint64(seq) || string(p) != string(want) {
					t.Errorf("parseLive(%q) = %d, %x, %v", m, s, p, err)
				}
			}
			// Our publisher answers as the engine did.
			e := mockengine.NewPublisher(mockengine.PublisherConfig{Topic: r.Config.Topic, BufferSteps: r.Config.Steps, ReplayWithoutTopic: len(r.Reply[0]) == 3})
			for _, m := range r.Live {
				e.Publish(unhex(t, m)[2])
			}
			var got frames
			answering := script(t, zmtp.ROUTER, e.Answer)
			done := make(chan struct{})
			dealer, err := zmtp.New(zmtp.DEALER, answering.Endpoint(), zmtp.Config{
				OnConnect: func(p *zmtp.Peer) { _ = p.Send(unhex(t, r.Request)...) },
				OnMessage: func(_ *zmtp.Peer, parts [][]byte) {
					var m []string
					for _, p := range parts {
						m = append(m, hex.EncodeToString(p))
					}
					if got = append(got, m); len(got) == len(r.Reply) {
						close(done)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			stop := runUntilStopped(t, dealer.Run)
			<-done
			stop()
			if diff := cmp.Diff(r.Reply, got); diff != "" {
				t.Errorf("replay (-engine +ours):\n%s", diff)
			}
		})
	}
}

func unhex(t testing.TB, frames []string) (parts [][]byte) {
	t.Helper()
	for _, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, b)
	}
	return parts
}

// When a replay turned out to be another engine's, the router no longer uses it. The history is then whole only if the
// live stream began at message 0.
func TestAnEngineThatRestartsAfterItsReplayWasDistrustedIsComplete(t *testing.T) {
	d := newDiary(t)
	s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
	s.connect()
	live := func(run string, seq uint64) { s.receive(liveMessage("t", seq, payload(run, seq))) }
	replayed(s, "b", 50)
	for seq := range uint64(maxStrikes) {
		live("a", seq)
		replayed(s, "b", 50)
	}
	if !s.distrust {
		t.Fatalf("the replay is not distrusted after restarts %q", d.restarts)
	}
	complete := d.complete
	for seq := range uint64(3) { // the new engine's messages come on the same connection, as behind a forwarder
		live("c", seq)
	}
	if d.complete != complete+1 || d.behind || d.next != 3 {
		t.Errorf("complete again %d times, behind %v, next %d", d.complete-complete, d.behind, d.next)
	}
	d.expectPayloads("c", 0, 3)
}
