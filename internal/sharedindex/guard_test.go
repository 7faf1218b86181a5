package sharedindex

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// hostile are streams that end a process whose client sees them, or make it take all memory.
var hostile = []struct {
	name, stream string
	err          error
}{
	{"reply to nobody", "+OK\r\n-ERR idle timeout, closing\r\n", errNobodyAsked},
	{"reply to nobody after a push", "+OK\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n", errNobodyAsked},
	{"negative array", "*-5\r\n", errNoLength},
	{"negative string", "$-7\r\n", errNoLength},
	{"negative map", "%-1\r\n", errNoLength},
	{"negative push", ">-1\r\n", errNoLength},
	{"huge string", "$20000000000\r\n", errTooLong},
	{"string of the largest length", "$9223372036854775807\r\n", errTooLong},
	{"string of a length that overflows", "$18446744073709551617\r\n", errTooLong},
	{"length without an end", "$" + strings.Repeat("0", 100), errNoLength},
	{"huge strings in one reply", "*2\r\n$60000000\r\n" + strings.Repeat("a", 60000000) + "\r\n$60000000\r\n", errTooLong},
	{"huge array", "*2000000000\r\n", errTooMany},
	{"huge map", "%1000000000\r\n", errTooMany},
	{"huge arrays in one reply", "*2\r\n*600000\r\n" + strings.Repeat("_\r\n", 600000) + "*600000\r\n", errTooMany},
	{"nested arrays", strings.Repeat("*1\r\n", 1000), errTooDeep},
	{"nested maps", strings.Repeat("%1\r\n+k\r\n", 1000), errTooDeep},
	{"endless line", "+" + strings.Repeat("A", 1<<20), errLongLine},
	{"endless number", ":" + strings.Repeat("1", 1<<20), errLongLine},
	{"string of unknown length", "$?\r\n;1000000\r\n", errNoLength},
	{"array of unknown length", "*?\r\n", errNoLength},
	{"attribute", "|1000000000\r\n", errUnknownFrame},
	{"no length", "$\r\n", errNoLength},
	{"length without digits", "*-\r\n", errNoLength},
	{"line without a carriage return", "+OK\n", errNoEnd},
	{"length without a carriage return", "$1\n", errNoLength},
	{"null with text", "_x\r\n", errNoEnd},
	{"truth without a value", "#\r\n", errNoEnd},
	{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", errUnknownFrame},
	{"subscription", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", errUnknownPush},
	{"subscription in disguise", ">2\r\n$9\r\nsubscribe\r\n:1\r\n", errUnknownPush},
	{"push of another name", ">2\r\n$10\r\ninvalidatd\r\n_\r\n", errUnknownPush},
	{"push with a name in a line", ">2\r\n+subscribe\r\n_\r\n", errUnknownPush},
	{"push without elements", ">0\r\n", errUnknownPush},
	{"push without a name", ">2\r\n$-1\r\n_\r\n", errNoLength},
	{"push in an array", "*1\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n", errUnknownPush},
}

// stream is a connection that reads from a text, some bytes at a time, and takes all that is written.
type stream struct {
	net.Conn
	rest  string
	piece int // 0: no limit
}

func (s *stream) Write(p []byte) (int, error) { return len(p), nil }

func (s *stream) Read(p []byte) (int, error) {
	if s.rest == "" {
		return 0, io.EOF
	}
	n := min(len(p), len(s.rest))
	if s.piece > 0 {
		n = min(n, s.piece)
	}
	copy(p, s.rest[:n])
	s.rest = s.rest[n:]
	return n, nil
}

// ping is a command as the client writes it.
const ping = "*1\r\n$4\r\nPING\r\n"

func TestTheGuardBreaksAConnectionWithAHostileStream(t *testing.T) {
	for _, test := range hostile {
		for _, piece := range []int{0, 1, 3} {
			if piece > 0 && len(test.stream) > 10<<20 {
				continue // it takes long
			}
			g := guarded(&stream{rest: test.stream, piece: piece})
			_, _ = io.WriteString(g, ping)
			if _, err := io.Copy(io.Discard, g); !errors.Is(err, test.err) {
				t.Errorf("%s, read in pieces of %d: the error is %v, want %v", test.name, piece, err, test.err)
			}
			if n, err := g.Read(make([]byte, 1)); n != 0 || !errors.Is(err, test.err) {
				t.Errorf("%s: a further read gives %d bytes and %v", test.name, n, err)
			}
		}
	}
}

func TestTheGuardPassesWhatServersSend(t *testing.T) {
	invalidate := ">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$3\r\n\r\nb\r\n"
	for name, test := range map[string]struct {
		commands int
		replies  string
	}{
		"nothing":         {0, ""},
		"a push":          {0, invalidate},
		"all is new":      {0, ">2\r\n$10\r\ninvalidate\r\n_\r\n"},
		"lines":           {4, "+OK\r\n-ERR no\r\n:-17\r\n,1.5\r\n"},
		"an empty line":   {1, "+\r\n"},
		"a return within": {1, "+a\rb\r\n"},
		"values":          {5, "_\r\n#t\r\n(123456789012345678901234567890\r\n=5\r\ntxt:a\r\n!3\r\nERR\r\n"},
		"nulls":           {2, "$-1\r\n*-1\r\n"},
		"empty":           {5, "$0\r\n\r\n*0\r\n%0\r\n~0\r\n*2\r\n*0\r\n*1\r\n*0\r\n"},
		"a transaction":   {4, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n$1\r\nx\r\n"},
		"pushes between":  {2, invalidate + "*2\r\n$4\r\n\r\n\r\n\r\n_\r\n" + invalidate + "+OK\r\n" + invalidate},
		"a greeting":      {1, "%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nmodules\r\n*1\r\n%2\r\n$4\r\nname\r\n$1\r\nx\r\n$4\r\nargs\r\n*1\r\n*0\r\n"},
		"long":            {2, "+" + strings.Repeat("a", mostLine) + "\r\n$100000\r\n" + strings.Repeat("\n", 100000) + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{0, 1, 2, 7} {
				g := guarded(&stream{rest: test.replies, piece: piece}).(*guard)
				for range test.commands {
					// A command that is written in two pieces is one command.
					for _, part := range []string{ping[:6], ping[6:]} {
						if _, err := io.WriteString(g, part); err != nil {
							t.Fatal(err)
						}
					}
				}
				got, err := io.ReadAll(g)
				if err != nil || string(got) != test.replies {
					t.Fatalf("in pieces of %d: %v; %d of %d bytes passed", piece, err, len(got), len(test.replies))
				}
				if n := g.open.Load(); n != 0 {
					t.Errorf("in pieces of %d: %d commands have no reply", piece, n)
				}
			}
		})
	}
}

// fakeServer serves connections until the test ends. It sends the stream after so many commands, as play does.
func fakeServer(t testing.TB, address string, commands int, stream string) (at string, closed chan struct{}) {
	t.Helper()
	kind, where, _ := strings.Cut(address, ":")
	l, err := net.Listen(kind, where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	closed = make(chan struct{}, 1000)
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the client's connection
				play(conn, commands, stream)
				closed <- struct{}{}
			}()
		}
	}()
	return l.Addr().String(), closed
}

// greetings is how many commands a client begins a connection with: HELLO, and CLIENT SETINFO twice.
const greetings = 3

// play is a server that waits for so many commands, answers the greetings if it waits for all of them, sends a stream,
// and waits for the client to close the connection.
func play(conn net.Conn, commands int, stream string) {
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 1<<16)
	var read frames
	for seen := 0; seen < commands; {
		n, err := conn.Read(buf)
		begun, bad := read.scan(buf[:n])
		if err != nil || bad != nil {
			return
		}
		for range begun {
			seen++
			switch {
			case commands < greetings || seen > greetings:
			case seen == 1:
				_, _ = io.WriteString(conn, "%2\r\n+version\r\n+8.0.0\r\n+proto\r\n:3\r\n")
			default:
				_, _ = io.WriteString(conn, "+OK\r\n")
			}
		}
	}
	_, _ = io.WriteString(conn, stream)
	_, _ = io.Copy(io.Discard, conn)
}

func TestALineToNobodyBreaksAnIdleConnectionAndNothingElse(t *testing.T) {
	for _, address := range []string{"tcp:127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		at, closed := fakeServer(t, address, greetings+1, "+PONG\r\n-ERR idle timeout, closing\r\n")
		cfg := DefaultConfig()
		cfg.URL, cfg.Connections = "valkey://"+at, 1
		if strings.HasPrefix(address, "unix:") {
			cfg.URL = "unix://" + at
		}
		o, err := cfg.options(nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := valkey.NewClient(o)
		if err != nil {
			t.Fatal(err)
		}
		_ = client.Do(t.Context(), client.B().Ping().Build()).Error() // it has its answer, or is told that the connection broke
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Errorf("the connection to %s is open", address)
		}
		client.Close()
	}
}

func TestAHostileServerCostsTrustAndNothingElse(t *testing.T) {
	for _, test := range hostile {
		if len(test.stream) > 10<<20 {
			continue
		}
		for _, commands := range []int{1, greetings + 1} {
			at, _ := fakeServer(t, "tcp:127.0.0.1:0", commands, test.stream)
			var log testenv.Buffer
			cfg := DefaultConfig()
			cfg.URL, cfg.Connections = "valkey://"+at, 1
			f := fleetOf(1)
			f.SetTrust(0, fleet.TrustExact, "")
			r := NewReader(cfg, ReaderParts{Fleet: f, Log: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }() // ends with stop
			testenv.Until(t, test.name+": the log says that the index is not read", func() bool { return strings.Contains(log.String(), "the shared index is not read") })
			stop()
			<-ended
		}
	}
}

// pipeClient returns a client whose server is the other end of a connection in memory.
func pipeClient(serve func(net.Conn)) (valkey.Client, error) {
	cfg := DefaultConfig()
	cfg.URL, cfg.Connections = "valkey://x", 1
	o, err := cfg.options(nil)
	if err != nil {
		return nil, err
	}
	o.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serve(theirs) // ends with the connection
		return guarded(ours), nil
	}
	o.ReadBufferEachConn, o.WriteBufferEachConn, o.RingScaleEachConn = 1<<12, 1<<12, 2
	return valkey.NewClient(o)
}

// FuzzClient lets a server send any bytes to a client that waits, and to one that asks.
func FuzzClient(f *testing.F) {
	for _, test := range hostile {
		if len(test.stream) < 1<<12 {
			f.Add([]byte(test.stream), false)
			f.Add([]byte(test.stream), true)
		}
	}
	f.Add([]byte(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*1\r\n%1\r\n+a\r\n_\r\n"), true)
	f.Fuzz(func(t *testing.T, data []byte, asks bool) {
		commands := greetings
		if asks {
			commands++
		}
		closed := make(chan struct{}, 8)
		client, err := pipeClient(func(conn net.Conn) {
			play(conn, commands, string(data)+"+OK\r\n+OK\r\n") // the client closes the connection
			closed <- struct{}{}
		})
		if err != nil {
			return // the client has read the data together with the greetings
		}
		if asks {
			_, _ = client.Do(context.Background(), client.B().Mget().Key("a", "b").Build()).ToArray()
		}
		client.Close()
		<-closed
	})
}

// FuzzFrames checks that no way to cut a stream into pieces changes what the guard sees.
func FuzzFrames(f *testing.F) {
	for _, test := range hostile {
		if len(test.stream) < 1<<12 {
			f.Add([]byte(test.stream), 3)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		piece = max(piece, 1)
		var one, other frames
		begun, err := one.scan(data)
		again, bad := 0, error(nil)
		for rest := data; len(rest) > 0 && bad == nil; {
			n, part := 0, rest[:min(piece, len(rest))]
			n, bad = other.scan(part)
			again += n
			rest = rest[len(part):]
		}
		if begun != again || (err == nil) != (bad == nil) || err == nil && one != other {
			t.Errorf("%d frames and %v; in pieces %d and %v", begun, err, again, bad)
		}
	})
}

// BenchmarkGuard measures what the guard costs for the answer to a question about 512 records of 100 bytes.
func BenchmarkGuard(b *testing.B) {
	answer := []byte("*512\r\n" + strings.Repeat("$100\r\n"+strings.Repeat("a", 100)+"\r\n", 512))
	question := bytes.Repeat([]byte("$30\r\n"+strings.Repeat("a", 30)+"\r\n"), 512)
	b.SetBytes(int64(len(answer)))
	for b.Loop() {
		var commands, replies frames
		if _, err := commands.scan([]byte("*512\r\n")); err != nil {
			b.Fatal(err)
		}
		if _, err := commands.scan(question); err != nil {
			b.Fatal(err)
		}
		if begun, err := replies.scan(answer); err != nil || begun != 1 {
			b.Fatal(begun, err)
		}
	}
}
