package replica

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// hostile are streams of a server that end a process whose client sees them, or make it take all memory.
var hostile = []struct {
	name, stream string
	err          error
}{
	{"the largest size", "MSG warmpath.sync.all 1 9223372036854775807\r\nabc", errTooLarge},
	{"a size that overflows", "MSG warmpath.sync.all 1 18446744073709551617\r\nabc", errTooLarge},
	{"a huge message", "MSG warmpath.sync.all 1 900000000000\r\nabc", errTooLarge},
	{"a huge message with a reply", "msg\twarmpath.sync.all 1 reply 900000000000 \r\nabc", errTooLarge},
	{"a huge message with headers", "HMSG warmpath.sync.all 1 12 99999999999\r\nabc", errTooLarge},
	{"a negative size", "MSG warmpath.sync.all 1 -1\r\n", errNoSize},
	{"no size", "MSG\r\n", errNoSize},
	{"a return within a line", "MSG warmpath.sync.all 1 5\r 900000000000\r\n", errNoLine},
	{"a line in the argument of another", "INFO \nMSG warmpath.sync.all 1 5\r\n", errNoLine},
	{"a message that is longer than it says", "MSG warmpath.sync.all 1 3\r\nabcd\r\n", errNoLine},
	{"an endless error", "-ERR " + strings.Repeat("A", 1<<20), errLongLine},
	{"an endless message line", "MSG " + strings.Repeat("A", 1<<20), errLongLine},
}

// stream is a connection that reads from a text, some bytes at a time.
type stream struct {
	net.Conn
	rest  string
	piece int
}

func (s *stream) Close() error { return nil }

func (s *stream) Write(p []byte) (int, error) { return len(p), nil }

func (s *stream) Read(p []byte) (int, error) {
	if s.rest == "" {
		return 0, io.EOF
	}
	n := copy(p, s.rest[:min(len(s.rest), s.piece)])
	s.rest = s.rest[n:]
	return n, nil
}

func TestTheGuardBreaksAConnectionWithAHostileStream(t *testing.T) {
	for _, test := range hostile {
		for _, piece := range []int{1, 3, 4096} {
			g := &guard{Conn: &stream{rest: "INFO {}\r\nPONG\r\nMSG a 1 4\r\n\r\nMS\r\n" + test.stream, piece: piece}}
			if _, err := io.Copy(io.Discard, g); !errors.Is(err, test.err) {
				t.Errorf("%s, in pieces of %d: the error is %v, want %v", test.name, piece, err, test.err)
			}
			if n, err := g.Read(make([]byte, 1)); n != 0 || !errors.Is(err, test.err) {
				t.Errorf("%s: a further read gives %d bytes and %v", test.name, n, err)
			}
		}
	}
}

func TestTheGuardPassesWhatServersSend(t *testing.T) {
	text := "INFO {\"max_payload\":1048576} \r\n+OK\r\nPING\r\nPONG\r\n-ERR 'no'\r\nMSG a 1 0\r\n\r\nMSG a 1 reply 100000\r\n" +
		strings.Repeat("\n", 100000) + "\r\nHMSG a 1 12 14\r\nNATS/1.0\r\n\r\nab\r\nPING\r\n"
	tls := "INFO {}\r\n\x16\x03\x03" + strings.Repeat("\n", 1<<20)
	for _, piece := range []int{1, 3, 4096} {
		g := &guard{Conn: &stream{rest: text, piece: piece}}
		_, _ = io.WriteString(g, "CONNECT {}\r\n")
		if got, err := io.ReadAll(g); err != nil || string(got) != text {
			t.Errorf("in pieces of %d: %v; %d of %d bytes passed", piece, err, len(got), len(text))
		}
		g = &guard{Conn: &stream{rest: tls, piece: piece}}
		_, _ = io.WriteString(g, "\x16\x03\x01")
		if got, err := io.ReadAll(g); err != nil || string(got) != tls {
			t.Errorf("TLS, in pieces of %d: %v; %d of %d bytes passed", piece, err, len(got), len(tls))
		}
	}
}

func TestAHostileServerOfNATSEndsNothing(t *testing.T) {
	for _, test := range hostile {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{}, 1000)
		go func() { // ends with the listener
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() { // ends with the router's connection
					serveHostile(conn, test.stream)
					closed <- struct{}{}
				}()
			}
		}()
		cfg := DefaultConfig()
		cfg.NATS = "nats://" + l.Addr().String()
		m := connect(t, cfg)
		testenv.Until(t, test.name+": the router has given up two connections", func() bool { return len(closed) >= 2 })
		done(m.route(1, 64, ""))
		m.stop()
		_ = l.Close()
	}
}

// serveHostile is a server that lets the router subscribe, and sends a stream then.
func serveHostile(conn net.Conn, stream string) {
	defer func() { _ = conn.Close() }()
	if serve(conn, "", stream) {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// serve is a server that lets the router subscribe, and sends a stream then. info is more of its INFO. It reports
// whether the router stayed so long.
func serve(conn net.Conn, info, stream string) bool {
	_, _ = io.WriteString(conn, `INFO {"server_id":"x","version":"2.10","proto":1,"headers":true,"max_payload":1048576`+info+"}\r\n")
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), "PING") {
		n, err := conn.Read(buf)
		if err != nil {
			return false
		}
		seen.Write(buf[:n])
	}
	_, _ = io.WriteString(conn, "PONG\r\n"+stream)
	return true
}

// A server tells of further servers at each connection. They do not grow the client's list, and nobody connects there.
func TestTheServersThatAServerTellsOfAreNotTried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connections := make(chan int, 1000)
	go func() { // ends with the listener
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn, fmt.Sprintf(`,"connect_urls":["127.0.0.1:%d"]`, n), "")
			_ = conn.Close()
			connections <- n
		}
	}()
	cfg := DefaultConfig()
	cfg.NATS = "nats://" + l.Addr().String()
	m := connect(t, cfg)
	testenv.Until(t, "the server has told of others", func() bool { return len(connections) >= 3 })
	if all := m.sync.link.(*natsLink).conn.Load().Servers(); len(all) != 1 {
		t.Errorf("the client knows the servers %q", all)
	}
	m.stop()
}
