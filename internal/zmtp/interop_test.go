//go:build unix

package zmtp

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// followNumbers receives n messages that pub.py numbered, and checks that no number is missing.
func followNumbers(t *testing.T, o *probe, n int) {
	t.Helper()
	var last uint64
	for i := range n {
		m := receive(t, o.messages, "message of libzmq")
		if len(m) != 3 || m[0] != "kv" || len(m[1]) != 8 || m[2] != strings.Repeat("x", 1000) {
			t.Fatalf("got %.80q", m)
		}
		seq := binary.BigEndian.Uint64([]byte(m[1]))
		if i > 0 && seq != last+1 {
			t.Fatalf("message %d after %d", seq, last)
		}
		last = seq
	}
}

func none[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case v := <-c:
		t.Errorf("%s: %v", what, v)
	default:
	}
}

func TestLibzmqPublishesToUs(t *testing.T) {
	for name, endpoint := range map[string]string{"tcp": "tcp://127.0.0.1:*", "IPv6": "tcp://[::1]:*", "ipc": "ipc://" + filepath.Join(t.TempDir(), "s")} {
		t.Run(name+"/libzmq binds", func(t *testing.T) {
			p := testenv.StartScript(t, "testdata/pub.py", "bind", endpoint, "0")
			o := newProbe()
			start(t, SUB, p.Line(), o.attach(Config{Topics: []string{"kv"}}))
			followNumbers(t, o, 50)
			none(t, o.disconnected, "a disconnect")
		})
		t.Run(name+"/libzmq connects", func(t *testing.T) {
			o := newProbe()
			if name == "ipc" {
				endpoint += "2"
			}
			sub, _ := start(t, SUB, endpoint, o.attach(Config{Topics: []string{"kv"}, Bind: true}))
			testenv.StartScript(t, "testdata/pub.py", "connect", sub.Endpoint(), "0")
			followNumbers(t, o, 50)
		})
	}
}

func TestWePublishToLibzmq(t *testing.T) {
	for _, mode := range []string{"connect", "bind"} {
		t.Run("libzmq "+mode+"s", func(t *testing.T) {
			var pub *Socket
			var p *testenv.Script
			if mode == "connect" {
				pub, _ = start(t, PUB, "tcp://127.0.0.1:0", Config{Bind: true})
				p = testenv.StartScript(t, "testdata/sub.py", mode, pub.Endpoint(), "0")
				p.Line()
			} else {
				p = testenv.StartScript(t, "testdata/sub.py", mode, "tcp://127.0.0.1:*", "0")
				pub, _ = start(t, PUB, p.Line(), Config{})
			}
			untilSubscribed(t, pub, "kv", 1)
			pub.Publish([]byte("other"))
			pub.Publish([]byte("kv"), nil, make([]byte, 300))
			if got, want := p.Line(), "6b76 - "+strings.Repeat("00", 300); got != want {
				t.Errorf("libzmq received %q", got)
			}
			p.Say("cancel")
			if got := p.Line(); got != "cancelled" {
				t.Errorf("got %q", got)
			}
			untilSubscribed(t, pub, "kv", 0)
			if n := pub.Publish([]byte("kv")); n != 0 {
				t.Error("published after the subscription was cancelled")
			}
		})
	}
}

func TestLibzmqRouterAnswersUs(t *testing.T) {
	p := testenv.StartScript(t, "testdata/router.py", "bind", "tcp://127.0.0.1:*", "100")
	o := newProbe()
	dealer, _ := start(t, DEALER, p.Line(), o.attach(Config{Identity: "we"}))
	receive(t, o.connected, "connection")
	if err := dealer.Send(nil, []byte("q")); err != nil {
		t.Fatal(err)
	}
	if got := p.Line(); got != "7765 - 71" {
		t.Errorf("the router received %q", got)
	}
	for _, i := range []string{"0", "1", "2"} {
		if m := receive(t, o.messages, "reply"); len(m) != 3 || m[0] != "" || m[1] != "q" || m[2] != i {
			t.Errorf("reply %q", m)
		}
	}
}

func TestWeAnswerLibzmq(t *testing.T) {
	identities := make(chan string, 10)
	router, _ := start(t, ROUTER, "tcp://127.0.0.1:0", Config{Bind: true, OnMessage: func(p *Peer, parts [][]byte) {
		identities <- p.Identity()
		for _, x := range []string{"a", "b"} {
			// A REQ peer disconnects after the first reply. So the second reply may find the connection closed.
			if err := p.SendWait(append(append([][]byte{}, parts...), []byte(x))...); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	}})
	for _, tc := range []struct {
		kind, identity string
		want           []string
	}{
		{"DEALER", "", []string{"- 7175657374696f6e 61", "- 7175657374696f6e 62"}},
		{"DEALER", "named", []string{"- 7175657374696f6e 61", "- 7175657374696f6e 62"}},
		{"REQ", "", []string{"7175657374696f6e 61"}}, // a REQ peer gets only the first of the two replies
	} {
		p := testenv.StartScript(t, "testdata/ask.py", tc.kind, router.Endpoint(), tc.identity)
		for _, want := range tc.want {
			if got := p.Line(); got != want {
				t.Errorf("%s received %q, want %q", tc.kind, got, want)
			}
		}
		if id := receive(t, identities, "request"); id == "" || (tc.identity != "" && id != tc.identity) {
			t.Errorf("identity %q", id)
		}
		p.Kill()
	}
}

func TestHeartbeatsWithLibzmqKeepAnIdleConnection(t *testing.T) {
	// libzmq sends a PING every 500 ms and waits 1.5 s for an answer. Its PING has a TTL of 2.5 s: if libzmq were silent
	// for this time, the socket would disconnect. Even a busy machine sends and answers in this time.
	const theirs = "500"
	ours := Config{HeartbeatInterval: 400 * time.Millisecond, HeartbeatTimeout: 4 * time.Second}
	p := testenv.StartScript(t, "testdata/pub.py", "bind", "tcp://127.0.0.1:*", theirs)
	o, subscribing := newProbe(), ours
	subscribing.Topics = []string{"kv"}
	start(t, SUB, p.Line(), o.attach(subscribing))
	followNumbers(t, o, 5)
	pubSide, publishing := newProbe(), ours
	publishing.Bind = true
	pub, _ := start(t, PUB, "tcp://127.0.0.1:0", pubSide.attach(publishing))
	sub := testenv.StartScript(t, "testdata/sub.py", "connect", pub.Endpoint(), theirs)
	sub.Line()
	untilSubscribed(t, pub, "kv", 1)
	p.Say("pause")
	if got := p.Line(); got != "paused" {
		t.Fatal(got)
	}
	for len(o.messages) > 0 {
		<-o.messages
	}
	// The connection is idle for several heartbeat intervals of both sides, and longer than libzmq waits for an answer.
	<-time.After(3 * time.Second)
	none(t, o.disconnected, "a disconnect while idle")
	none(t, pubSide.disconnected, "a subscriber lost while idle")
	p.Say("go on")
	followNumbers(t, o, 20)
	none(t, o.disconnected, "a disconnect")
	pub.Publish([]byte("kv"))
	if got := sub.Line(); got != "6b76" {
		t.Errorf("got %q", got)
	}
}

func TestAFrozenLibzmqPeerIsNoticedAndTakenBack(t *testing.T) {
	p := testenv.StartScript(t, "testdata/pub.py", "bind", "tcp://127.0.0.1:*", "0")
	o := newProbe()
	start(t, SUB, p.Line(), o.attach(Config{
		Topics: []string{"kv"}, HeartbeatInterval: 100 * time.Millisecond, HeartbeatTimeout: 200 * time.Millisecond, HandshakeTimeout: 200 * time.Millisecond,
	}))
	followNumbers(t, o, 5)
	p.Signal(syscall.SIGSTOP)
	began := time.Now()
	if err := receive(t, o.disconnected, "disconnect"); !strings.Contains(err.Error(), errSilent.Error()) {
		t.Errorf("ended with %v", err)
	}
	t.Logf("noticed after %v", time.Since(began))
	receive(t, o.failures, "failed handshake with the frozen peer")
	p.Signal(syscall.SIGCONT)
	for len(o.messages) > 0 {
		<-o.messages
	}
	followNumbers(t, o, 1)
}

func TestALibzmqPublisherThatRestartsIsFoundAgain(t *testing.T) {
	first := testenv.StartScript(t, "testdata/pub.py", "bind", "tcp://127.0.0.1:*", "0")
	endpoint := first.Line()
	o := newProbe()
	start(t, SUB, endpoint, o.attach(Config{Topics: []string{"kv"}}))
	for range 3 {
		followNumbers(t, o, 5)
		first.Kill()
		receive(t, o.disconnected, "disconnect")
		for len(o.messages) > 0 {
			<-o.messages
		}
		first = testenv.StartScript(t, "testdata/pub.py", "bind", endpoint, "0")
	}
	followNumbers(t, o, 5)
}
