package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/test/testenv"
)

// bufferedConn is one end of a net.Pipe, with a buffer for a few writes. A real connection has such a buffer. Without a
// buffer, two sides that both begin with a write would wait for each other. Unlike a real connection, a bufferedConn
// works in a synctest bubble.
type bufferedConn struct {
	net.Conn
	out    chan []byte
	closed chan struct{}
	once   *sync.Once
}

func pipe() (ours, theirs net.Conn) {
	a, b := net.Pipe()
	return buffered(a), buffered(b)
}

func buffered(conn net.Conn) net.Conn {
	c := bufferedConn{conn, make(chan []byte, 4), make(chan struct{}), new(sync.Once)}
	go func() {
		for {
			select {
			case b := <-c.out:
				if b == nil {
					c.Conn.Close()
					return
				}
				_, _ = c.Conn.Write(b)
			case <-c.closed:
				c.Conn.Close()
				return
			}
		}
	}()
	return c
}

func (c bufferedConn) Write(b []byte) (int, error) {
	select {
	case c.out <- bytes.Clone(b):
		return len(b), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

// SetReadDeadline returns no error when the other end is closed: a pipe refuses a deadline then, but a real socket does
// not.
func (c bufferedConn) SetReadDeadline(t time.Time) error {
	if err := c.Conn.SetReadDeadline(t); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

func (c bufferedConn) SetDeadline(t time.Time) error      { return c.SetReadDeadline(t) }
func (c bufferedConn) SetWriteDeadline(t time.Time) error { return nil }

// Close closes the pipe immediately; written bytes may be lost. The function finish delivers written bytes before it
// closes the pipe.
func (c bufferedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func finish(c net.Conn) {
	b := c.(bufferedConn)
	select {
	case b.out <- nil:
	case <-b.closed:
	}
}

// peerBytes returns the first bytes of a well-behaved peer: its greeting and its READY.
func peerBytes(minor byte, socketType string) []byte {
	g := greeting
	g[11] = minor
	return appendCommand(g[:], "READY", appendProperty(nil, "socket-TYPE", socketType))
}

// TestRecordedPublishersAreUnderstood plays the publisher's side of each recorded connection to a socket of this
// package. It checks the messages that the socket receives, and the bytes that the socket sends.
func TestRecordedPublishersAreUnderstood(t *testing.T) {
	for _, tr := range readTranscripts(t) {
		t.Run(tr.ID, func(t *testing.T) {
			server, client := tr.side(t, "server_to_client"), tr.side(t, "client_to_server")
			typ, cfg := SUB, Config{Topics: []string{"kv-events"}}
			if strings.HasSuffix(tr.ID, "dealer_to_router") {
				typ, cfg = DEALER, Config{}
			}
			var got [][]byte
			cfg.OnMessage = func(_ *Peer, parts [][]byte) { got = append(got, appendMessage(nil, parts...)) }
			if typ == DEALER {
				cfg.OnConnect = func(p *Peer) {
					if err := p.Send(nil, binary.BigEndian.AppendUint64(nil, 1)); err != nil {
						t.Error(err)
					}
				}
			}
			sent := playTo(t, typ, cfg, server, len(client))
			if !bytes.Equal(sent, client) {
				t.Errorf("we send\n%x, libzmq sends\n%x", sent, client)
			}
			want := server[bytes.Index(server, []byte("READY"))-3:]
			want = want[2+int(want[1]):]
			if diff := cmp.Diff(want, bytes.Join(got, nil)); diff != "" {
				t.Errorf("messages, re-encoded (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordedSubscribersAreUnderstood plays the client's side of each recorded connection to a PUB or ROUTER socket,
// and checks the bytes that the socket sends.
func TestRecordedSubscribersAreUnderstood(t *testing.T) {
	for _, tr := range readTranscripts(t) {
		t.Run(tr.ID, func(t *testing.T) {
			server, client := tr.side(t, "server_to_client"), tr.side(t, "client_to_server")
			start := bytes.Index(server, []byte("READY")) - 3
			start += 2 + int(server[start+1])
			messages := newReader(bytes.NewReader(server[start:]), 64, limits{1 << 16, 1 << 16, 8})
			o := newProbe()
			cfg := o.attach(Config{})
			typ := PUB
			if strings.HasSuffix(tr.ID, "dealer_to_router") {
				typ = ROUTER
				cfg.OnMessage = func(p *Peer, parts [][]byte) {
					if len(parts) != 2 || len(parts[0]) != 0 || !bytes.Equal(parts[1], binary.BigEndian.AppendUint64(nil, 1)) {
						t.Errorf("request %q", parts)
					}
					for m, err := messages.next(); err == nil; m, err = messages.next() {
						if err := p.SendWait(m...); err != nil {
							t.Error(err)
						}
					}
				}
			}
			ours, theirs := pipe()
			s := newTestSocket(t, typ, cfg)
			done := make(chan error, 1)
			go func() { done <- s.serve(t.Context(), ours) }()
			go func() { _, _ = theirs.Write(client) }()
			if typ == PUB {
				got := make([]byte, start)
				if _, err := io.ReadFull(theirs, got); err != nil {
					t.Fatal(err)
				}
				untilAdded(t, o, s)
				for m, err := messages.next(); err == nil; m, err = messages.next() {
					if s.Publish(m...) != 1 {
						t.Error("not published")
					}
				}
				s.Publish([]byte("kv-other"))
				server = server[start:]
			}
			got := make([]byte, len(server))
			if _, err := io.ReadFull(theirs, got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, server) {
				t.Errorf("we send\n%x, the engine sends\n%x", got, server)
			}
			theirs.Close()
			receive(t, done, "end")
		})
	}
}

func untilAdded(t *testing.T, o *probe, s *Socket) {
	t.Helper()
	receive(t, o.connected, "connection")
	untilSubscribed(t, s, "kv-events", 1)
}

func newTestSocket(t testing.TB, typ Type, cfg Config) *Socket {
	t.Helper()
	s, err := New(typ, "tcp://test:1", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// playTo serves one connection of a socket. The other side of the connection sends the bytes in wire, reads want bytes,
// and then closes. playTo returns the bytes that the other side read.
func playTo(t testing.TB, typ Type, cfg Config, wire []byte, want int) []byte {
	t.Helper()
	ours, theirs := pipe()
	s := newTestSocket(t, typ, cfg)
	done := make(chan error, 1)
	go func() { done <- s.serve(t.Context(), ours) }()
	sent := make(chan []byte, 1)
	go func() {
		got := make([]byte, want)
		n, _ := io.ReadFull(theirs, got)
		sent <- got[:n]
	}()
	_, _ = theirs.Write(wire)
	got := receive(t, sent, "bytes")
	theirs.Close()
	receive(t, done, "end")
	return got
}

func TestHandshakesThatCannotWorkEndWithAReason(t *testing.T) {
	g := greeting
	ready := func(properties []byte) []byte { return appendCommand(g[:], "READY", properties) }
	old, curve := greeting, greeting
	old[10] = 1
	copy(curve[12:], "CURVE")
	for name, tc := range map[string]struct {
		wire []byte
		want string
	}{
		"HTTP":                  {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat(" ", 64)), "does not speak ZMTP 3"},
		"ZMTP 2":                {old[:], "version is 1"},
		"CURVE":                 {curve[:], `mechanism is "CURVE"`},
		"closed at once":        {nil, "read greeting: EOF"},
		"closed after greeting": {g[:], "read READY: EOF"},
		"wrong type":            {peerBytes(1, "PUSH"), "cannot talk to a PUSH"},
		"no type":               {ready(nil), "cannot talk to a "},
		"ERROR":                 {appendCommand(g[:], "ERROR", []byte("\x04nope")), `"nope"`},
		"other command":         {appendCommand(g[:], "HELLO", nil), `"HELLO" first`},
		"message first":         {appendFrame(g[:], 0, []byte("hi")), "a message first"},
		"bad metadata":          {ready([]byte{5, 'a'}), "malformed metadata"},
		"long value":            {ready([]byte{1, 'a', 0xff, 0xff, 0xff, 0xff}), "reaches past"},
		"zero identity":         {ready(appendProperty(nil, "Identity", "\x00a")), "invalid identity"},
		"huge READY":            {append(g[:], flagCommand|flagLong, 0, 0, 0, 0, 1, 0, 0, 0), "over the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pipe()
			s := newTestSocket(t, SUB, Config{OnConnect: func(*Peer) { t.Error("connected") }})
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() { _, _ = theirs.Write(tc.wire); finish(theirs) }()
			if err := s.serve(t.Context(), ours); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "tcp://test:1") {
				t.Errorf("got %v, want %q and the endpoint", err, tc.want)
			}
		})
	}
}

func TestHostileFramesEndTheConnection(t *testing.T) {
	hello := peerBytes(1, "PUB")
	ping := appendCommand(nil, "PING", []byte{0, 0})
	for name, tc := range map[string]struct {
		wire []byte
		want string
	}{
		"64-bit length":      {[]byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "over the limit"},
		"length over int64":  {[]byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "over the limit"},
		"reserved flags":     {[]byte{0x80, 0}, "invalid flags"},
		"command with more":  {[]byte{flagCommand | flagMore, 0}, "invalid flags"},
		"many parts":         {bytes.Repeat([]byte{flagMore, 0}, 9), "more than 8 parts"},
		"large message":      {bytes.Repeat(append([]byte{flagMore, 200}, make([]byte, 200)...), 6), "message of more than"},
		"empty command":      {[]byte{flagCommand, 0}, "malformed command"},
		"long command name":  {[]byte{flagCommand, 1, 200}, "malformed command"},
		"short PING":         {appendCommand(nil, "PING", nil), "malformed PING"},
		"long PING":          {appendCommand(nil, "PING", make([]byte, 19)), "malformed PING"},
		"commands inside":    {append([]byte{flagMore, 0}, bytes.Repeat(ping, 5000)...), "too many commands"},
		"PINGs without read": {bytes.Repeat(appendCommand(nil, "PING", make([]byte, 18)), 5000), "reads nothing"},
		"cut off":            {[]byte{0, 10, 1, 2}, "unexpected EOF"},
		"ERROR":              {appendCommand(nil, "ERROR", []byte("\x03bad")), `"bad"`},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pipe()
			s := newTestSocket(t, SUB, Config{MaxFrame: 1000, MaxParts: 8, OnMessage: func(*Peer, [][]byte) { t.Error("a message") }})
			go func() {
				_, _ = theirs.Write(hello)
				// The handshake of the socket is as long as hello. After the handshake the peer reads nothing.
				_, _ = io.ReadFull(theirs, make([]byte, len(hello)))
				_, _ = theirs.Write(tc.wire)
				if tc.want == "unexpected EOF" {
					finish(theirs)
				}
			}()
			if err := s.serve(t.Context(), ours); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			theirs.Close()
		})
	}
}

func TestAnAnnouncedLengthCostsNoMemory(t *testing.T) {
	wire := append([]byte{flagLong, 0, 0, 0, 0, 3, 0, 0, 0}, make([]byte, 1000)...)
	r := newReader(bytes.NewReader(wire), 1<<10, limits{64 << 20, 64 << 20, 8})
	if _, err := r.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	if len(r.buf) > 4<<10 {
		t.Errorf("a buffer of %d bytes for 1009 received", len(r.buf))
	}
}

func TestAGrownBufferIsGivenBack(t *testing.T) {
	wire := appendMessage(nil, make([]byte, 1<<20))
	for range 2 * shrinkAfter {
		wire = appendMessage(wire, []byte("small"))
	}
	r := newReader(bytes.NewReader(wire), 1<<10, limits{64 << 20, 64 << 20, 8})
	for i := 0; ; i++ {
		parts, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil || (i > 0 && string(parts[0]) != "small") {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if len(r.buf) != 1<<10 {
		t.Errorf("the buffer still has %d bytes", len(r.buf))
	}
}

func TestMessagesSurviveEveryCutOfTheStream(t *testing.T) {
	var wire []byte
	var want [][]string
	ping := appendCommand(nil, "PING", []byte{0, 0})
	commands := 0
	for i := range 200 {
		parts := [][]byte{{}, bytes.Repeat([]byte{byte(i)}, i*i%700), []byte(fmt.Sprint(i))}
		m := []string{"", string(parts[1]), string(parts[2])}
		wire = append(wire, ping...)
		wire = appendFrame(wire, flagMore, parts[0])
		wire = append(wire, ping...) // libzmq may put a PING between the frames of a message
		wire = appendFrame(wire, flagMore, parts[1])
		wire = appendFrame(wire, 0, parts[2])
		want = append(want, m)
	}
	for name, src := range map[string]io.Reader{
		"whole": bytes.NewReader(wire), "bytes": iotest.OneByteReader(bytes.NewReader(wire)), "halves": iotest.HalfReader(bytes.NewReader(wire)),
		"with EOF": iotest.DataErrReader(bytes.NewReader(wire)),
	} {
		r := newReader(src, 128, limits{1000, 2000, 4})
		r.onCommand = func([]byte) error { commands++; return nil }
		var got [][]string
		for {
			parts, err := r.next()
			if err != nil {
				if err != io.EOF {
					t.Fatal(name, err)
				}
				break
			}
			var m []string
			for _, p := range parts {
				m = append(m, string(p))
			}
			got = append(got, m)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if commands != 4*400 {
		t.Errorf("%d commands seen", commands)
	}
}

func TestAPeerThatNeverGreetsIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		defer theirs.Close()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		s := newTestSocket(t, SUB, Config{HandshakeTimeout: 3 * time.Second})
		began := time.Now()
		if err := s.serve(t.Context(), ours); err == nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestAPeerThatFreezesIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		defer theirs.Close()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go func() { _, _ = theirs.Write(peerBytes(1, "PUB")) }()
		s := newTestSocket(t, SUB, Config{HeartbeatInterval: time.Second, HeartbeatTimeout: 2 * time.Second})
		began := time.Now()
		if err := s.serve(t.Context(), ours); !errors.Is(err, errSilent) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A peer of version 3.0 gets no PING, because ZMTP 3.0 does not define PING. Such a peer gets subscriptions as
// messages, because it does not know the command SUBSCRIBE.
func TestAnOlderPeerGetsTheFormOfItsVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		go func() {
			_, _ = theirs.Write(peerBytes(0, "PUB"))
			<-time.After(time.Hour)
			finish(theirs)
		}()
		var sent bytes.Buffer
		copied := make(chan struct{})
		go func() {
			_, _ = io.Copy(&sent, theirs)
			close(copied)
		}()
		s := newTestSocket(t, SUB, Config{Topics: []string{"t"}, HeartbeatInterval: time.Second})
		began := time.Now()
		if err := s.serve(t.Context(), ours); !errors.Is(err, io.EOF) || time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		<-copied
		if !bytes.HasSuffix(sent.Bytes(), []byte{0, 2, 1, 't'}) {
			t.Errorf("it gets %x, want a subscription as a message at the end", sent.Bytes())
		}
	})
}

func TestAPingIsAnsweredAndItsTTLKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		defer theirs.Close()
		sent := make(chan byte, 10_000)
		go func() {
			b := make([]byte, 1)
			for _, err := theirs.Read(b); err == nil; _, err = theirs.Read(b) {
				sent <- b[0]
			}
		}()
		go func() {
			_, _ = theirs.Write(peerBytes(1, "PUB"))
			_, _ = theirs.Write(appendCommand(nil, "PING", []byte("\x00\x19context")))
		}()
		began := time.Now()
		s := newTestSocket(t, SUB, Config{})
		if err := s.serve(t.Context(), ours); !errors.Is(err, errSilent) || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("after the TTL: %v after %v", err, time.Since(began))
		}
		var got []byte
		for len(sent) > 0 {
			got = append(got, <-sent)
		}
		if pong := appendCommand(nil, "PONG", []byte("context")); !bytes.HasSuffix(got, pong) {
			t.Errorf("we sent %x, want a PONG with the context at the end", got)
		}
	})
}

func TestHeartbeatsKeepAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		ctx, cancel := context.WithCancel(t.Context())
		beat := Config{HeartbeatInterval: time.Second}
		var ends []chan error
		for _, side := range []struct {
			typ  Type
			conn net.Conn
		}{{SUB, ours}, {PUB, theirs}} {
			s, done := newTestSocket(t, side.typ, beat), make(chan error, 1)
			ends = append(ends, done)
			go func() { done <- s.serve(ctx, side.conn) }()
		}
		testenv.Pass(time.Hour)
		for _, done := range ends {
			select {
			case err := <-done:
				t.Errorf("ended: %v", err)
			default:
			}
		}
		cancel()
		for _, done := range ends {
			<-done
		}
	})
}

func TestDiallingGoesOnForEverWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var tries []time.Time
		s := newTestSocket(t, SUB, Config{BackoffMin: 100 * time.Millisecond, BackoffMax: 2 * time.Second})
		s.dial = func(context.Context) (net.Conn, error) {
			tries = append(tries, time.Now())
			return nil, errors.New("refused")
		}
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := len(tries); n < 1400 || n > 2400 {
			t.Errorf("%d tries in an hour, want about 1800", n)
		}
		var pauses []time.Duration
		for i := 1; i < len(tries); i++ {
			pauses = append(pauses, tries[i].Sub(tries[i-1]))
		}
		if pauses[0] > 150*time.Millisecond || slices.Max(pauses) > 3*time.Second || slices.Min(pauses) < 50*time.Millisecond {
			t.Errorf("first pause %v, all between %v and %v", pauses[0], slices.Min(pauses), slices.Max(pauses))
		}
		if slices.Min(pauses[10:]) > 1500*time.Millisecond {
			t.Error("no jitter")
		}
		if err := s.Run(ctx); err == nil {
			t.Error("a second Run is accepted")
		}
	})
}

func TestAResetRightAfterTheHandshakeIsSurvived(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(peerBytes(1, "PUB"))
			_, _ = io.ReadFull(conn, make([]byte, greetingSize+20))
			if i < 20 {
				_ = conn.(*net.TCPConn).SetLinger(0) // with SetLinger(0), Close resets the connection
				conn.Close()
				continue
			}
			_, _ = conn.Write(appendMessage(nil, []byte("at last")))
		}
	}()
	o := newProbe()
	start(t, SUB, "tcp://"+l.Addr().String(), o.attach(Config{Topics: []string{""}, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond}))
	if m := receive(t, o.messages, "message after 20 resets"); m[0] != "at last" {
		t.Errorf("got %q", m)
	}
}

func TestRunReturnsWhileAPeerNeverGreetsOrNeverReads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, stop := start(t, SUB, "tcp://"+l.Addr().String(), Config{HandshakeTimeout: time.Hour})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stop() // stop is called while the peer still has nearly an hour for its greeting

	o := newProbe()
	router, stop := start(t, ROUTER, "tcp://127.0.0.1:0", Config{Bind: true, SendQueue: 2, OnMessage: func(p *Peer, _ [][]byte) {
		for p.SendWait(make([]byte, 1<<20)) == nil {
		}
		o.disconnected <- nil
	}})
	reader, err := net.Dial("tcp", strings.TrimPrefix(router.Endpoint(), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	_, _ = reader.Write(appendMessage(peerBytes(1, "DEALER"), []byte("flood me")))
	receive(t, waitFull(router), "full queue")
	stop()
	receive(t, o.disconnected, "end of the blocked callback")
}

// waitFull returns a channel. The channel gets a value when two messages wait in the queue of a peer: the queue is
// full.
func waitFull(s *Socket) <-chan bool {
	full := make(chan bool, 1)
	go func() {
		for {
			for _, p := range s.snapshot() {
				p.mu.Lock()
				n := p.queue.len()
				p.mu.Unlock()
				if n == 2 {
					full <- true
					return
				}
			}
			<-time.After(time.Millisecond)
		}
	}()
	return full
}

func TestReceivingAllocatesNothing(t *testing.T) {
	var wire []byte
	for range 100 {
		wire = appendMessage(wire, []byte("kv-events"), make([]byte, 8), make([]byte, 20_000))
	}
	src := bytes.NewReader(wire)
	r := newReader(src, 64<<10, limits{1 << 20, 1 << 20, 8})
	read := func() {
		src.Reset(wire)
		for range 100 {
			if _, err := r.next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	read()
	if n := testing.AllocsPerRun(10, read); n != 0 {
		t.Errorf("%v allocations for 100 messages", n)
	}
}

func TestTheQueueKeepsOrderWhenItGrowsAndWraps(t *testing.T) {
	var q queue
	next, want := 0, 0
	for round := range 100 {
		for range round % 37 {
			q.push([]byte(fmt.Sprint(next)))
			next++
		}
		for q.len() > round%5 {
			if got := string(q.pop()); got != fmt.Sprint(want) {
				t.Fatalf("got %s, want %d", got, want)
			}
			want++
		}
	}
	for q.len() > 0 {
		q.pop()
	}
	if q.bytes != 0 || q.full(1<<30, 1, 1) {
		t.Errorf("an empty queue counts %d bytes and is full for a large message", q.bytes)
	}
}
