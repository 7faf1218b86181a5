package kvfeed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
)

// lab is an engine that two routers follow. The first router has followed the engine from its start. The second one
// joins later, and gets a checkpoint of the first.
type lab struct {
	t        *testing.T
	random   *rand.Rand
	replay   bool     // the engine has a replay endpoint
	buffer   int      // how many messages a replay has
	messages [][]byte // of the present process
	begun    int      // number of processes so far
	length   [lines]int
	truth    *kvindextest.Door // has what the present process has cached
	hasher   *block.Hasher
	a, b     *party
}

// lines is the number of the engine's conversations. A conversation has at most deepest blocks.
const lines, deepest = 3, 4

// party is one router, which follows the engine.
type party struct {
	*rig
	stream   *stream
	sequence *sequence
	got      int  // messages that were sent to it, or dropped
	blind    bool // its last message was dropped, or the engine restarted since: the router cannot know it yet
}

func newLab(t *testing.T, seed uint64, replay bool) *lab {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, random: rand.New(rand.NewPCG(seed, 1)), replay: replay, buffer: 1000, hasher: h}
	l.restart()
	l.a, l.b = l.router(), l.router()
	l.a.sequence.connect()
	return l
}

func (l *lab) router() *party {
	return newParty(l.t, facts(fleet.EngineVLLM, 16), kvindex.Config{Bytes: 4 << 20}, l.replay)
}

// newParty returns a router that follows a worker. It has not connected yet.
func newParty(t *testing.T, engine fleet.Facts, index kvindex.Config, replay bool) *party {
	r := &rig{t: t, fleet: fleet.New(fleet.Config{})}
	var err error
	if r.router, err = warmpath.New(warmpath.Options{Fleet: r.fleet, SpeculativeTTL: -1, ApproximateTTL: -1, Index: index}); err != nil {
		t.Fatal(err)
	}
	r.feed = New(r.router, Config{}, slog.New(slog.DiscardHandler))
	r.feed.KeepMessages()
	r.fleet.Put(workerURL, engine)
	w := r.fleet.Snapshot().Workers()[0]
	source := fleet.EventSource{Endpoint: "tcp://127.0.0.1:1"}
	if replay {
		source.Replay = "tcp://127.0.0.1:2"
	}
	s := r.feed.newStream(w, w.Holders[0], source)
	q := newSequence(r.feed.config.wire(1).withDefaults(), source.Replay, s)
	s.wire = q.snapshot
	f := &follower{stream: s, done: make(chan struct{}), sequence: q}
	r.feed.supply(f)
	r.feed.insert(f)
	return &party{rig: r, stream: s, sequence: q}
}

// restart begins another process of the engine.
func (l *lab) restart() {
	l.begun++
	l.messages, l.length = nil, [lines]int{}
	l.truth = kvindextest.Reference(l.hasher, kvindex.Config{})
	for _, f := range []*party{l.a, l.b} {
		if f != nil {
			f.got, f.blind = 0, true
		}
	}
}

// publish lets the engine change its cache and publish a message about that.
func (l *lab) publish() {
	c := l.random.IntN(lines)
	var e kvevent.Event
	switch n := l.length[c]; {
	case n > 0 && (n == deepest || l.random.IntN(3) == 0):
		l.length[c]--
		e = removed(c+1, n-1, 1)
		l.truth.Remove(0, block.TierGPU, 0, e.Hashes)
	case l.random.IntN(25) == 0:
		l.length = [lines]int{}
		e = kvevent.Event{Kind: kvevent.Cleared, Group: -1}
		l.truth.Clear(0, block.TierGPU)
	default:
		e = stored(c+1, 16*n, 16, 16)
		l.length[c]++
		l.truth.Store(0, &kvindex.Stored{Hashes: e.Hashes, Tokens: e.Tokens, BlockSize: 16, HasParent: e.HasParent, Parent: e.Parent})
	}
	b := batch(e)
	b.Time = float64(l.begun*1000 + len(l.messages)) // as an engine's payloads, no two are equal
	l.messages = append(l.messages, wire(l.t, "vllm-0.32.0", b))
}

// send sends the next message to a router, or drops it.
func (l *lab) send(f *party, drop bool) {
	seq := f.got
	f.got++
	if drop {
		f.blind = true
		return
	}
	f.sequence.receive([][]byte{[]byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(seq)), l.messages[seq]})
	f.blind = false
}

// recover answers the replay requests of a router until it wants no more.
func (l *lab) recover(f *party) {
	var a attempt
	for range 100 {
		if !f.sequence.begin(&a) {
			return
		}
		enough := false
		for seq := max(int(a.from), len(l.messages)-l.buffer); seq < len(l.messages) && !enough; seq++ {
			enough = f.sequence.replayed(&a, [][]byte{nil, binary.BigEndian.AppendUint64(nil, uint64(seq)), l.messages[seq]})
		}
		if !enough {
			f.sequence.replayed(&a, [][]byte{nil, binary.BigEndian.AppendUint64(nil, endSeq), nil})
		}
		if done, _, _ := f.sequence.judge(&a, nil); done {
			f.blind = f.blind && (len(l.messages) == 0 || f.sequence.next < uint64(len(l.messages)))
			return
		}
	}
	l.t.Fatalf("the recovery does not end: %+v", a)
}

// check compares the second router's index with the engine's cache.
func (l *lab) check(what string) (exact bool) {
	l.t.Helper()
	trust, why := l.b.fleet.Snapshot().Trust(l.b.stream.holder)
	exact = trust == fleet.TrustExact
	if l.b.blind || l.b.got < len(l.messages) || !l.b.sequence.connected {
		return exact
	}
	for c := range lines {
		tokens := prompt(c+1, 16*deepest+1)
		has := 0
		for _, m := range l.truth.Match(l.hasher.Append(nil, l.hasher.Root(block.Scope{}), 0, tokens, nil), nil) {
			has = int(m.Blocks) * 16
		}
		if got := l.b.match(tokens); got > has || exact && got != has {
			l.t.Fatalf("%s: conversation %d matches %d tokens, the engine has %d; trust %v: %s", what, c, got, has, trust, why)
		}
	}
	return exact
}

// fault is what goes wrong in one run.
type fault uint8

const (
	noFault    fault = iota
	lossAtB          // the second router does not get a message
	lossAtA          // the first router does not get a message
	repeated         // the second router gets a message twice
	restarted        // the engine restarts, and both routers see their connections end
	unnoticed        // the engine restarts behind a forwarder, so that no connection ends
	reconnects       // the second router loses its connection, and no message
	faults
)

func (f fault) String() string {
	return [...]string{"nothing", "a loss at the receiver", "a loss at the giver", "a repetition", "a restart", "an unnoticed restart", "a reconnect"}[f]
}

// schedule is one run: the second router joins after some messages, the checkpoint is made and offered after some, and
// a fault comes after some.
type schedule struct {
	joins, made, offered, at int
	fault                    fault
	asks                     bool // the second router asks the first one as often as the feed says
	replay                   bool
	buffer                   int
}

func (s schedule) String() string {
	return fmt.Sprintf("replay %v of %d, joins %d, made %d, offered %d, %v at %d", s.replay, s.buffer, s.joins, s.made, s.offered, s.fault, s.at)
}

// run plays a schedule of n messages, and reports whether trust was exact in the end, and whether a checkpoint was
// confirmed.
func (s schedule) run(t *testing.T, seed uint64, n int) (exact, confirmed bool) {
	l := newLab(t, seed, s.replay)
	l.buffer = s.buffer
	var c *Checkpoint
	for i := 0; i <= n; i++ {
		if i == s.at {
			switch s.fault {
			case restarted, unnoticed:
				l.restart()
				for _, f := range []*party{l.a, l.b} {
					if f.sequence.connected && s.fault == restarted {
						f.sequence.disconnect(errors.New("gone"))
						f.sequence.connect()
					}
				}
			case reconnects:
				if l.b.sequence.connected {
					l.b.sequence.disconnect(errors.New("gone"))
					l.b.sequence.connect()
				}
			}
		}
		if i == s.joins {
			l.b.sequence.connect()
			l.b.got, l.b.blind = len(l.messages), true
			if s.replay && s.offered > i {
				l.recover(l.b)
			}
		}
		if i == s.made {
			if l.a.sequence.canReplay() {
				l.recover(l.a)
			}
			made, err := l.a.feed.Checkpoint(Place{workerURL, 0})
			if err != nil && s.fault == noFault && len(l.messages) > 0 {
				t.Fatalf("%v: %v", s, err)
			}
			c = made
		}
		if i == s.offered && c != nil {
			_ = l.b.feed.Offer(c) // an error says that the checkpoint cannot be confirmed
		}
		if s.replay && l.b.sequence.connected && i >= s.joins {
			l.recover(l.b)
		}
		l.check(s.String())
		if i == n {
			break
		}
		l.publish()
		l.send(l.a, s.fault == lossAtA && i == s.at)
		if l.b.sequence.connected {
			l.send(l.b, s.fault == lossAtB && i == s.at)
			if s.fault == repeated && i == s.at {
				l.b.got--
				l.send(l.b, false)
			}
		}
		if s.asks {
			l.ask(i)
		}
		l.check(s.String())
	}
	return l.check(s.String()), l.b.feed.CheckpointStats().Confirmed > 0
}

// TestACheckpointIsBelievedOnlyIfTheEngineConfirmsIt plays every order of a join, a checkpoint and its offer, with each
// fault after every message. The naive index gets the events of the engine's present process. While trust is exact, the
// second router's index must equal it. It must never claim more.
func TestACheckpointIsBelievedOnlyIfTheEngineConfirmsIt(t *testing.T) {
	const n = 5
	for _, replay := range []bool{false, true} {
		for f := range faults {
			t.Run(fmt.Sprintf("replay=%v/%v", replay, f), func(t *testing.T) {
				t.Parallel()
				runs, exact, confirmed := 0, 0, 0
				play := func(s schedule) {
					s.replay, s.fault = replay, f
					e, c := s.run(t, uint64(runs), n)
					runs++
					exact += int(one(e))
					confirmed += int(one(c))
					if wanted := f == noFault && !replay && s.joins > 0 && s.made > s.joins && s.buffer == 1000; wanted && !(e && c) {
						t.Errorf("%v: trust exact %v, confirmed %v", s, e, c)
					}
				}
				for joins := range n {
					for made := range n + 1 {
						for offered := made; offered <= n; offered++ {
							for at := range n {
								play(schedule{joins: joins, made: made, offered: offered, at: at, buffer: 1000})
								if replay {
									play(schedule{joins: joins, made: made, offered: offered, at: at, buffer: 2})
								}
								if f == noFault {
									break
								}
							}
						}
					}
				}
				if confirmed == 0 && f != lossAtA || exact == 0 {
					t.Errorf("of %d runs %d are exact, %d have a confirmed checkpoint", runs, exact, confirmed)
				}
				t.Logf("%d runs, %d exact, %d confirmed", runs, exact, confirmed)
			})
		}
	}
}

// ask gives the second router the checkpoints that it lacks.
func (l *lab) ask(step int) {
	later := time.Now().Add(time.Duration(step) * time.Hour) // the pauses between two questions are over
	lacking, _ := l.b.feed.Lacking(later, 1000)
	for _, at := range lacking {
		if c, err := l.a.feed.Checkpoint(at); err == nil {
			_ = l.b.feed.Offer(c) // an error says that the checkpoint cannot be confirmed
		}
	}
}

// A router without a replay asks again after each loss, and is exact again when it has the message after the loss.
func TestALaterCheckpointMendsALoss(t *testing.T) {
	const n = 8
	for joins := range n - 1 {
		for at := joins; at < n-1; at++ {
			for seed := range uint64(20) {
				s := schedule{joins: joins, made: n + 1, offered: n + 1, at: at, fault: lossAtB, asks: true, buffer: 1000}
				if exact, confirmed := s.run(t, seed, n); !exact || !confirmed {
					t.Errorf("%v: trust exact %v, confirmed %v", s, exact, confirmed)
				}
			}
		}
	}
}

// Without a replay, nothing but a message of the present process confirms a checkpoint. A checkpoint of an earlier
// process, whose messages have higher numbers than any message of the present process, must not be believed.
func TestACheckpointWithoutAMessageOfThisConnectionIsNotBelieved(t *testing.T) {
	l := newLab(t, 1, false)
	for range 2 * MaxDigests {
		l.publish()
		l.send(l.a, false)
	}
	c, err := l.a.feed.Checkpoint(Place{workerURL, 0})
	if err != nil || c.Blocks() == 0 {
		t.Fatalf("the checkpoint of the earlier process: %v", err)
	}
	l.restart()
	l.b.sequence.connect()
	for i := range 10 {
		l.publish()
		l.send(l.b, i < 3) // it connects late, so its history is not whole
	}
	if err := l.b.feed.Offer(c); !errors.Is(err, ErrTooOld) {
		t.Errorf("the checkpoint's messages begin at %d, the router has had messages up to %d: %v", c.Next-uint64(len(c.Digests)), l.b.got-1, err)
	}
	if l.check("after the offer") {
		t.Error("trust is exact by a checkpoint that nothing confirmed")
	}
	if got := l.b.feed.CheckpointStats(); got != (CheckpointStats{}) {
		t.Errorf("checkpoints: %+v", got)
	}
}

func one(b bool) (n int) {
	if b {
		n = 1
	}
	return n
}

// A stream that begins looks for its checkpoint, while the checkpoint is being offered.
func TestACheckpointThatComesAsItsStreamBeginsIsUsed(t *testing.T) {
	l := newLab(t, 1, true)
	for range 20 {
		l.publish()
		l.send(l.a, false)
	}
	l.recover(l.a)
	c, err := l.a.feed.Checkpoint(Place{workerURL, 0})
	if err != nil {
		t.Fatal(err)
	}
	feed := l.b.feed
	f := feed.at(Place{workerURL, 0})
	for range 3000 {
		f.sequence = newSequence(feed.config.wire(1).withDefaults(), "tcp://127.0.0.1:2", f.stream)
		feed.mu.Lock()
		delete(feed.streams, f.holder)
		feed.mu.Unlock()
		var both sync.WaitGroup
		both.Go(func() {
			feed.insert(f)
			feed.useOffered(f)
		})
		both.Go(func() {
			if err := feed.Offer(c); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if f.sequence.resume == nil || len(feed.offered) != 0 {
			t.Fatalf("the checkpoint is not used; %d wait", len(feed.offered))
		}
	}
}
