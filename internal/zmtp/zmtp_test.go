package zmtp

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event that normally comes within milliseconds. patience is long because a
// busy machine may be slow.
const patience = time.Minute

// probe collects the calls of a socket's callbacks.
type probe struct {
	messages     chan []string
	connected    chan *Peer
	disconnected chan error
	failures     chan error
}

func newProbe() *probe {
	return &probe{make(chan []string, 10000), make(chan *Peer, 1000), make(chan error, 1000), make(chan error, 1000)}
}

func (o *probe) attach(c Config) Config {
	c.OnMessage = func(_ *Peer, parts [][]byte) {
		var m []string
		for _, p := range parts {
			m = append(m, string(p))
		}
		o.messages <- m
	}
	c.OnConnect = func(p *Peer) { o.connected <- p }
	c.OnDisconnect = func(_ *Peer, err error) { o.disconnected <- err }
	c.OnFailure = func(err error) {
		select {
		case o.failures <- err:
		default:
		}
	}
	return c
}

func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

// start runs a socket until the test ends or until stop is called. stop waits until Run has returned.
func start(t testing.TB, typ Type, endpoint string, cfg Config) (s *Socket, stop func()) {
	t.Helper()
	if cfg.BackoffMin == 0 {
		cfg.BackoffMin, cfg.BackoffMax = 5*time.Millisecond, 50*time.Millisecond
	}
	s, err := New(typ, endpoint, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := receive(t, done, "return of Run"); err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

// untilSubscribed waits until exactly n peers of a PUB socket are subscribed to topic.
func untilSubscribed(t testing.TB, s *Socket, topic string, n int) {
	t.Helper()
	subscribed := testenv.Poll(patience, func() bool {
		have := 0
		for _, p := range s.snapshot() {
			p.mu.Lock()
			if p.subs.matches([]byte(topic)) {
				have++
			}
			p.mu.Unlock()
		}
		return have == n
	})
	if !subscribed {
		t.Fatalf("%d peers did not subscribe within %v", n, patience)
	}
}

func endpointsUnderTest(t *testing.T) map[string]string {
	endpoints := map[string]string{
		"tcp":      "tcp://127.0.0.1:*",
		"wildcard": "tcp://*:0",
		"ipc":      "ipc://" + filepath.Join(t.TempDir(), "s"),
		"abstract": "ipc://@warmpath-zmtp-test-" + strings.ReplaceAll(t.Name(), "/", "-"),
	}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		l.Close()
		endpoints["IPv6"] = "tcp://[::1]:0"
		endpoints["bare IPv6"] = "tcp://::1:0"
	}
	return endpoints
}

func dialable(endpoint string) string { return strings.Replace(endpoint, "*", "127.0.0.1", 1) }

func TestPublishedMessagesReachSubscribersOnEveryTransport(t *testing.T) {
	for name, endpoint := range endpointsUnderTest(t) {
		for _, pubBinds := range []bool{true, false} {
			t.Run(map[bool]string{true: name + "/pub binds", false: name + "/sub binds"}[pubBinds], func(t *testing.T) {
				o := newProbe()
				subCfg := o.attach(Config{Topics: []string{"kv@"}, Bind: !pubBinds})
				var pub *Socket
				if pubBinds {
					pub, _ = start(t, PUB, endpoint, Config{Bind: true})
					start(t, SUB, dialable(pub.Endpoint()), subCfg)
				} else {
					sub, _ := start(t, SUB, endpoint, subCfg)
					pub, _ = start(t, PUB, dialable(sub.Endpoint()), Config{})
				}
				untilSubscribed(t, pub, "kv@a", 1)
				big := strings.Repeat("x", 300_000)
				pub.Publish([]byte("other"), []byte("no"))
				pub.Publish([]byte("kv@a"), []byte("1"), []byte(big))
				pub.Publish([]byte("kv@b"), nil, []byte("last"))
				if m := receive(t, o.messages, "message"); len(m) != 3 || m[0] != "kv@a" || m[1] != "1" || m[2] != big {
					t.Errorf("got %d parts, want the large message whole", len(m))
				}
				if m := receive(t, o.messages, "message"); len(m) != 3 || m[0] != "kv@b" || m[1] != "" || m[2] != "last" {
					t.Errorf("got %q", m)
				}
			})
		}
	}
}

func TestDealerAndRouterTalkBothWays(t *testing.T) {
	for _, identity := range []string{"", "worker-7"} {
		var router *Socket
		asked := make(chan string, 1)
		router, _ = start(t, ROUTER, "tcp://127.0.0.1:0", Config{Bind: true, OnMessage: func(p *Peer, parts [][]byte) {
			asked <- p.Identity()
			if err := router.SendTo(p.Identity(), append([][]byte{{}}, parts[1:]...)...); err != nil {
				t.Error(err)
			}
		}})
		o := newProbe()
		dealer, stop := start(t, DEALER, router.Endpoint(), o.attach(Config{Identity: identity}))
		receive(t, o.connected, "connection")
		if err := dealer.Send(nil, []byte("\x00\x01")); err != nil {
			t.Fatal(err)
		}
		if m := receive(t, o.messages, "reply"); len(m) != 2 || m[0] != "" || m[1] != "\x00\x01" {
			t.Errorf("reply %q", m)
		}
		if got := receive(t, asked, "request"); got == "" || (identity != "" && got != identity) {
			t.Errorf("the router knows the dealer as %q, want %q or one made up", got, identity)
		}
		stop()
		if err := dealer.Send([]byte("x")); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), router.Endpoint()) {
			t.Errorf("send after the end: %v", err)
		}
		if err := router.SendTo("nobody", []byte("x")); !errors.Is(err, ErrNoPeer) {
			t.Errorf("send to nobody: %v", err)
		}
	}
}

func TestARouterHandsAnIdentityOverToTheNewestConnection(t *testing.T) {
	o := newProbe()
	router, _ := start(t, ROUTER, "tcp://127.0.0.1:0", o.attach(Config{Bind: true}))
	first := newProbe()
	_, stop := start(t, DEALER, router.Endpoint(), first.attach(Config{Identity: "same", BackoffMin: time.Hour}))
	receive(t, first.connected, "connection")
	receive(t, o.connected, "connection at the router")
	second := newProbe()
	start(t, DEALER, router.Endpoint(), second.attach(Config{Identity: "same"}))
	receive(t, second.connected, "second connection")
	receive(t, first.disconnected, "end of the first")
	stop()
	if err := router.SendTo("same", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	receive(t, second.messages, "message at the second")
}

func TestASlowSubscriberLosesMessagesAndBlocksNobody(t *testing.T) {
	pub, _ := start(t, PUB, "tcp://127.0.0.1:0", Config{Bind: true, SendQueue: 10})
	release := make(chan struct{})
	start(t, SUB, pub.Endpoint(), Config{Topics: []string{""}, OnMessage: func(*Peer, [][]byte) { <-release }})
	fast := newProbe()
	start(t, SUB, pub.Endpoint(), fast.attach(Config{Topics: []string{""}}))
	untilSubscribed(t, pub, "", 2)
	body := make([]byte, 1<<20)
	for range 50 {
		pub.Publish([]byte("t"), body)
		receive(t, fast.messages, "message at the fast subscriber")
	}
	if d := pub.Stats().Dropped; d == 0 || d > 45 {
		t.Errorf("%d of 50 messages dropped for the slow subscriber", d)
	}
	close(release)
}

func TestAPublisherThatComesBackIsFoundAgain(t *testing.T) {
	pub, stop := start(t, PUB, fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t)), Config{Bind: true})
	endpoint := pub.Endpoint()
	o := newProbe()
	start(t, SUB, endpoint, o.attach(Config{Topics: []string{""}}))
	receive(t, o.connected, "connection")
	stop()
	if err := receive(t, o.disconnected, "disconnect"); !strings.Contains(err.Error(), endpoint) {
		t.Errorf("the error does not name the endpoint: %v", err)
	}
	if err := receive(t, o.failures, "failure"); !strings.Contains(err.Error(), endpoint) {
		t.Errorf("the error does not name the endpoint: %v", err)
	}
	again, _ := start(t, PUB, endpoint, Config{Bind: true})
	receive(t, o.connected, "connection to the new publisher")
	untilSubscribed(t, again, "", 1)
	again.Publish([]byte("back"))
	receive(t, o.messages, "message of the new publisher")
}

func TestBadEndpointsAndConfigurationsAreErrors(t *testing.T) {
	for _, endpoint := range []string{"", "5557", "tcp://", "tcp://host", "tcp://host:", "tcp://host:70000", "tcp://:5557", "tcp://*:5557",
		"tcp://host:0", "tcp://[::1:5557", "tcp://a/b:1", "udp://h:1", "ipc://", "inproc://x"} {
		if _, err := New(SUB, endpoint, Config{}); err == nil || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("New(%q) = %v, want an error that names it", endpoint, err)
		}
	}
	for _, cfg := range []Config{{Identity: strings.Repeat("x", 256)}, {Identity: "\x00x"}, {Topics: []string{"x"}}} {
		if _, err := New(DEALER, "tcp://h:1", cfg); err == nil {
			t.Errorf("New(%+v) accepted", cfg)
		}
	}
	busy, _ := start(t, PUB, "tcp://127.0.0.1:0", Config{Bind: true})
	s, err := New(PUB, busy.Endpoint(), Config{Bind: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), busy.Endpoint()) {
		t.Errorf("binding a used port: %v", err)
	}
}

func TestASocketFileLeftBehindIsReplacedButALivingOneIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	_, stop := start(t, PUB, "ipc://"+path, Config{Bind: true})
	s, _ := New(PUB, "ipc://"+path, Config{Bind: true})
	if err := s.Listen(); err == nil {
		t.Error("a living endpoint was taken over")
	}
	stop()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket file stays behind")
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err == nil {
		t.Error("an ordinary file was replaced")
	}
}

func TestPeersOverTheBoundAreTurnedAway(t *testing.T) {
	o := newProbe()
	pub, _ := start(t, PUB, "tcp://127.0.0.1:0", o.attach(Config{Bind: true, MaxPeers: 1}))
	start(t, SUB, pub.Endpoint(), Config{})
	receive(t, o.connected, "first peer")
	start(t, SUB, pub.Endpoint(), Config{})
	receive(t, o.failures, "refusal")
	if n := pub.Stats().Peers; n != 1 {
		t.Errorf("%d peers", n)
	}
}

func TestASubscriptionCountsAndIsCancelled(t *testing.T) {
	var s subscriptions
	for _, p := range []string{"a", "a", "b"} {
		if err := s.add([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	for n := 2; n < maxSubscriptions; n++ {
		if err := s.add(fmt.Appendf(nil, "c%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	if s.add([]byte("d")) == nil || s.add(make([]byte, maxCommand+1)) == nil {
		t.Error("bounds not kept")
	}
	s.cancel([]byte("a"))
	s.cancel([]byte("unknown"))
	if !s.matches([]byte("ab")) {
		t.Error("cancelled once of twice: gone")
	}
	s.cancel([]byte("a"))
	if s.matches([]byte("ab")) || !s.matches([]byte("bb")) || s.matches(nil) {
		t.Error("the wrong one was cancelled")
	}
}

// transcript has the raw bytes of a connection between libzmq and the publisher of an engine. It is one entry of
// zmtp_transcripts in the engine vectors.
type transcript struct {
	ID     string `json:"id"`
	Chunks []struct {
		Direction string `json:"direction"`
		Hex       string `json:"hex"`
	} `json:"chunks"`
}

func readTranscripts(t testing.TB) []transcript {
	t.Helper()
	var all struct {
		Transcripts []transcript `json:"zmtp_transcripts"`
	}
	testenv.Vectors(t, &all)
	return all.Transcripts
}

// side returns all bytes that one side of the connection sent.
func (tr transcript) side(t testing.TB, direction string) (data []byte) {
	t.Helper()
	for _, c := range tr.Chunks {
		if c.Direction == direction {
			chunk, err := hex.DecodeString(c.Hex)
			if err != nil {
				t.Fatal(err)
			}
			data = append(data, chunk...)
		}
	}
	return data
}
