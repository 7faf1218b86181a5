package kvfeed

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/test/testenv"
)

// patience is how long a test waits for something that should happen soon. It is long because a busy machine is slow.
const patience = time.Minute

// quickStream has settings for tests on loopback: a subscriber dials again after a short pause, and a replay may take a
// long time.
var quickStream = StreamConfig{
	ReplayTimeout: 10 * time.Second, ReplayTime: patience, Verify: -1,
	BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, HeartbeatInterval: -1,
}

// diary is a Handler that checks the contract of its interface, and records all calls.
type diary struct {
	t      testing.TB
	inside atomic.Bool // a call is being recorded

	mu         sync.Mutex // guards the fields below, except slow
	next       uint64
	payloads   map[uint64]string // payloads of the current stream, by sequence number
	messages   int
	restarts   []string
	lost       [][2]uint64
	complete   int
	unnumbered int
	connected  bool
	behind     bool
	errs       []error
	changed    chan struct{} // gets a value after each recorded call, if it is empty; capacity 1
	slow       time.Duration
}

func newDiary(t testing.TB) *diary {
	return &diary{t: t, payloads: make(map[uint64]string), changed: make(chan struct{}, 1)}
}

// write runs f with the diary locked, as one recorded call. It fails the test if two calls come at the same time.
func (d *diary) write(f func()) {
	if !d.inside.CompareAndSwap(false, true) {
		d.t.Error("two calls at a time")
	}
	d.mu.Lock()
	f()
	d.mu.Unlock()
	d.inside.Store(false)
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *diary) Message(seq uint64, payload []byte) {
	if d.slow > 0 {
		<-time.After(d.slow)
	}
	d.write(func() {
		if seq != d.next {
			d.t.Errorf("message %d, want %d", seq, d.next)
		}
		d.next = seq + 1
		d.messages++
		d.payloads[seq] = string(payload)
	})
}

func (d *diary) Restarted(why string) {
	d.write(func() {
		d.next = 0
		clear(d.payloads)
		d.restarts = append(d.restarts, why)
	})
}

func (d *diary) Lost(from, to uint64) {
	d.write(func() {
		if from != d.next || to < from {
			d.t.Errorf("messages [%d, %d) are reported as lost, want them from %d on", from, to, d.next)
		}
		d.next = to
		d.lost = append(d.lost, [2]uint64{from, to})
	})
}

func (d *diary) Complete() { d.write(func() { d.complete, d.behind = d.complete+1, false }) }

func (d *diary) Behind(behind bool) {
	d.write(func() {
		if behind == d.behind {
			d.t.Errorf("Behind(%v) is called twice in a row", behind)
		}
		d.behind = behind
	})
}

func (d *diary) Unnumbered() { d.write(func() { d.unnumbered++ }) }

func (d *diary) State(connected bool, err error) {
	d.write(func() {
		if connected == (err != nil) {
			d.t.Errorf("State(%v, %v)", connected, err)
		}
		d.connected = connected
		if err != nil {
			d.errs = append(d.errs, err)
		}
	})
}

// await waits until the diary satisfies ok.
func (d *diary) await(what string, ok func() bool) {
	d.t.Helper()
	timeout := time.After(patience)
	for {
		d.mu.Lock()
		yes := ok()
		d.mu.Unlock()
		if yes {
			return
		}
		select {
		case <-d.changed:
		case <-time.After(10 * time.Millisecond): // ok may depend on something that changes without a call to the diary
		case <-timeout:
			d.mu.Lock()
			defer d.mu.Unlock()
			d.t.Fatalf("not within %v: %s; next %d, messages %d, restarts %q, lost %v, complete %d, connected %v, last errors %v",
				patience, what, d.next, d.messages, d.restarts, d.lost, d.complete, d.connected, d.errs[max(0, len(d.errs)-2):])
		}
	}
}

// awaitSeen waits until the stream is connected, and every message before n was handed over or lost.
func (d *diary) awaitSeen(n uint64) {
	d.t.Helper()
	d.await(fmt.Sprintf("messages before %d", n), func() bool { return d.connected && d.next >= n })
}

func (d *diary) awaitComplete(times int) {
	d.t.Helper()
	d.await(fmt.Sprintf("Complete %d times", times), func() bool { return d.complete >= times })
}

// expect compares the recorded calls.
func (d *diary) expect(restarts int, lost ...[2]uint64) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.restarts) != restarts {
		d.t.Errorf("restarts %q, want %d", d.restarts, restarts)
	}
	if fmt.Sprint(d.lost) != fmt.Sprint(lost) {
		d.t.Errorf("lost %v, want %v", d.lost, lost)
	}
}

// expectPayloads compares the current stream's messages with those of the run named run.
func (d *diary) expectPayloads(run string, from, to uint64) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for seq := from; seq < to; seq++ {
		if got, want := d.payloads[seq], payload(run, seq); got != want {
			d.t.Errorf("message %d is %.40q, want %.40q", seq, got, want)
			return
		}
	}
}

// payload returns the message that an engine publishes with the sequence number seq. run is the name of the engine's
// run: a restart begins a new run.
func payload(run string, seq uint64) string {
	return fmt.Sprintf("%s %d %s", run, seq, strings.Repeat("x", int(seq%100)))
}

// engine is a publisher that is running.
type engine struct {
	*mockengine.Publisher
	config mockengine.PublisherConfig
	run    string
	stop   func() // ends the publisher and waits for its end
}

func startEngine(t testing.TB, run string, cfg mockengine.PublisherConfig) *engine {
	t.Helper()
	p := mockengine.NewPublisher(cfg)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	return &engine{p, cfg, run, runUntilStopped(t, p.Run)}
}

// publish publishes the next n messages.
func (e *engine) publish(n int) {
	for range n {
		seq := e.Stats().Published
		e.Publish([]byte(payload(e.run, seq)))
	}
}

// runUntilStopped starts run, and returns a function that ends run. run ends with the test at the latest.
func runUntilStopped(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run returned %v", err)
				}
			case <-time.After(patience):
				t.Errorf("Run did not return within %v", patience)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func subscribe(t testing.TB, src fleet.EventSource, cfg StreamConfig, d *diary) (*Subscriber, func()) {
	t.Helper()
	s := NewSubscriber(src, cfg, d)
	return s, runUntilStopped(t, s.Run)
}

// source returns the engine's endpoints.
func (e *engine) source() fleet.EventSource {
	return fleet.EventSource{Endpoint: e.Endpoint(), Replay: e.ReplayEndpoint()}
}

// withReplay returns the configuration of a publisher with a replay endpoint, on free loopback ports.
func withReplay() mockengine.PublisherConfig {
	return mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv-events"}
}

// again returns the configuration of a publisher at the same endpoints as e.
func (e *engine) again() mockengine.PublisherConfig {
	c := e.config
	c.Endpoint, c.Replay = e.Endpoint(), e.ReplayEndpoint()
	return c
}

// untilHeard publishes messages until a subscriber gets one. A subscription begins later than its connection.
func (e *engine) untilHeard(t testing.TB) {
	t.Helper()
	testenv.Until(t, "somebody subscribes", func() bool {
		before := e.Stats().Sent
		e.publish(1)
		return e.Stats().Sent > before
	})
}

// untilSubscribed does the same as untilHeard, and then waits until the subscriber has got all messages.
func (e *engine) untilSubscribed(t testing.TB, d *diary) {
	t.Helper()
	e.untilHeard(t)
	d.awaitSeen(e.Stats().Published)
}

// liveMessage returns the three frames of a live message.
func liveMessage(topic string, seq uint64, payload string) [][]byte {
	return [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, seq), []byte(payload)}
}

// script returns a ROUTER or PUB socket that a test controls.
func script(t testing.TB, typ zmtp.Type, onMessage func(*zmtp.Peer, [][]byte)) *zmtp.Socket {
	t.Helper()
	s, err := zmtp.New(typ, "tcp://127.0.0.1:0", zmtp.Config{Bind: true, OnMessage: onMessage})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	runUntilStopped(t, s.Run)
	return s
}

// nobody returns an endpoint at which nothing listens. The test may listen there later, and again: the system gives the
// port to no other process.
func nobody(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
}
