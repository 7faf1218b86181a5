package sharedindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// publishing returns a fleet of a worker whose engine publishes events.
func publishing() *fleet.Fleet {
	f := fleet.New(fleet.Config{})
	f.Put("http://worker-0", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16,
		Events: []fleet.EventSource{{Endpoint: "tcp://worker-0:5557"}}})
	return f
}

// reading runs a reader until the test ends.
func reading(t *testing.T, cfg Config) (f *fleet.Fleet, log *testenv.Buffer) {
	t.Helper()
	f, log = publishing(), new(testenv.Buffer)
	r := NewReader(cfg, ReaderParts{Fleet: f, Keying: anyKeys, Log: slog.New(slog.NewTextHandler(log, nil))})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f, log
}

// The waits between sessions grow, and begin anew after a session that lasted.
func TestSessionsAreTriedAgainUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var log testenv.Buffer
		p := problem{log: slog.New(slog.NewTextHandler(&log, nil)), server: "valkey://h"}
		var began []time.Duration
		start, failures := time.Now(), 0
		keepTrying(ctx, func(ctx context.Context) error {
			switch began = append(began, time.Since(start)); len(began) {
			case 7:
				long, end := context.WithTimeout(ctx, 3*time.Second)
				defer end()
				<-long.Done()
			case 9:
				stop()
				return ctx.Err()
			}
			return errors.New("no answer")
		}, func(waiting context.Context, err error) {
			failures++
			p.tell("trying again", err)
			if failures == 2 {
				<-waiting.Done()
			}
		})
		const ms = time.Millisecond
		want := []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 3100 * ms, 5100 * ms, 8200 * ms, 8400 * ms}
		if !slices.Equal(began, want) || failures != 8 {
			t.Errorf("%d failures, and sessions at %v, want %v", failures, began, want)
		}
		if n := strings.Count(log.String(), "no answer"); n != 1 {
			t.Errorf("the problem is logged %d times", n)
		}
		p.tell("trying again", nil)
		p.over()
		p.tell("trying again", errors.New("no answer"))
		if n := strings.Count(log.String(), "trying again"); n != 2 {
			t.Errorf("a problem that came back is logged %d times", n-1)
		}
	})
}

// The log, and the trust that /admin shows, say what the server said and which setting to correct.
func TestARefusalNamesTheSettingToCorrect(t *testing.T) {
	const secret = "corv1d-canary"
	locked := testenv.StartValkey(t, "redis", "--requirepass", secret)
	open := testenv.StartValkey(t, "valkey")
	command(t, open, "ACL", "SETUSER", "weak", "on", ">"+secret, "~*", "+ping", "+hello", "+client")
	taken := testenv.StartValkey(t, "redis")
	command(t, taken, "SET", newNames(DefaultConfig()).writers(), "x")
	down := testenv.StartValkey(t, "redis", "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(testenv.FreePort(t))) // without slots
	// Two servers of a cluster. All keys are at the other one.
	bus := strconv.Itoa(testenv.FreePort(t))
	cluster := testenv.StartValkey(t, "valkey", "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(testenv.FreePort(t)))
	other := testenv.StartValkey(t, "valkey", "--cluster-enabled", "yes", "--cluster-port", bus)
	command(t, other, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	host, port, _ := net.SplitHostPort(other.Address)
	command(t, cluster, "CLUSTER", "MEET", host, port, bus)
	testenv.Until(t, "the cluster is ready", func() bool { return strings.Contains(command(t, cluster, "CLUSTER", "INFO"), "cluster_state:ok") })
	for _, c := range []struct {
		server  *testenv.ValkeyServer
		change  func(*Config)
		says    string
		setting string
	}{
		{locked, func(*Config) {}, "NOAUTH", "set index.valkey.password_file"},
		{locked, func(c *Config) { c.Password = "x" }, "WRONGPASS", "correct index.valkey.username and password_file"},
		{open, func(c *Config) { c.Username, c.Password = "weak", secret }, "NOPERM", "index.valkey.username"},
		{open, func(c *Config) { c.Database = 99 }, "out of range", "index.valkey.database"},
		{cluster, func(*Config) {}, "MOVED", "set index.valkey.cluster: true"},
		{down, func(*Config) {}, "CLUSTERDOWN", "look at CLUSTER INFO"},
		{taken, func(*Config) {}, "WRONGTYPE", "another program uses this prefix: choose another one with index.valkey.prefix"},
	} {
		t.Run(c.says, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.URL = "valkey://" + c.server.Address
			c.change(&cfg)
			f, log := reading(t, cfg)
			told := func(text string) bool { return strings.Contains(text, c.says) && strings.Contains(text, c.setting) }
			if !testenv.Poll(time.Minute, func() bool {
				_, why := f.Snapshot().Trust(0)
				return told(log.String()) && told(why)
			}) {
				level, why := f.Snapshot().Trust(0)
				t.Errorf("trust %v: %s; the log:\n%s", level, why, log.String())
			}
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log has the password:\n%s", log.String())
			}
		})
	}
}

// bouncing are two servers of a cluster that send each command about keys to each other. They count these, and the
// connections that are open.
func bouncing(t *testing.T) (address string, bounced, open *atomic.Int64) {
	t.Helper()
	bounced, open = new(atomic.Int64), new(atomic.Int64)
	var servers [2]net.Listener
	for i := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		servers[i] = l
	}
	for i, l := range servers {
		other := servers[1-i].Addr().String()
		go func() { // ends with the listener
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				open.Add(1)
				go func() { // ends with the client's connection
					defer open.Add(-1)
					bounce(conn, other, bounced)
				}()
			}
		}()
	}
	return servers[0].Addr().String(), bounced, open
}

func bounce(conn net.Conn, other string, bounced *atomic.Int64) {
	defer func() { _ = conn.Close() }()
	host, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	var open []byte
	buf := make([]byte, 1<<12)
	for {
		name, rest, ok := cutCommand(open)
		if !ok {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			open = append(open, buf[:n]...)
			continue
		}
		open = rest
		answer := "+OK\r\n"
		switch name {
		case "HELLO":
			answer = "%2\r\n+version\r\n+7.2.0\r\n+proto\r\n:3\r\n"
		case "CLUSTER":
			answer = fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$1\r\na\r\n", len(host), host, port)
		case "ZREVRANGEBYSCORE":
			bounced.Add(1)
			answer = "-MOVED 1 " + other + "\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// A router that knows of the cluster is not told to set cluster, and does not follow the servers for long.
func TestAClusterWhoseServersKnowNoKeyIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("the client closes its connections 5 s later")
	}
	address, bounced, open := bouncing(t)
	cfg := DefaultConfig()
	cfg.URL, cfg.Cluster, cfg.ClientCache = "valkey://"+address, true, 0
	o, err := cfg.options(nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := valkey.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	defer testenv.Until(t, "the client closed its connections", func() bool { return open.Load() == 0 })
	defer client.Close()
	_, err = readDescriptions(t.Context(), client, newNames(cfg), time.Now())
	p := newProblem(slog.New(slog.DiscardHandler), cfg)
	if text := p.textOf(err); !strings.Contains(text, "MOVED") || strings.Contains(text, "(") {
		t.Errorf("the error is %q", text)
	}
	if n := bounced.Load(); n > mostRedirects+1 {
		t.Errorf("a command was sent %d times", n)
	}
}

func TestAServerThatIsNotThereIsTheReason(t *testing.T) {
	cfg := DefaultConfig()
	cfg.URL = "valkey://127.0.0.1:" + strconv.Itoa(testenv.FreePort(t))
	f, _ := reading(t, cfg)
	testenv.Until(t, "the reason is the server", func() bool {
		_, why := f.Snapshot().Trust(0)
		return why == "learned from requests, because "+errNoServer.Error()
	})
}

// An address that is wrong needs another step than a server that has failed.
func TestAWrongAddressNamesTheSettingToCorrect(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for _, c := range []struct{ url, says string }{
		{"valkey://127.0.0.1:" + strconv.Itoa(testenv.FreePort(t)), "nothing listens there: start the server, or correct index.valkey.url"},
		{"unix://" + t.TempDir() + "/none", "there is no such socket: start the server, or correct index.valkey.url"},
		{"valkey://" + web.Listener.Addr().String(), "this is no Valkey or Redis server: correct index.valkey.url"},
	} {
		cfg := DefaultConfig()
		cfg.URL = c.url
		_, log := reading(t, cfg)
		if !testenv.Poll(time.Minute, func() bool { return strings.Contains(log.String(), c.says) }) {
			t.Errorf("%s: the log has no %q:\n%s", c.url, c.says, log.String())
		}
	}
}

// Each attempt to connect has another port of our own.
func TestAProblemHasTheSameTextOnEachConnection(t *testing.T) {
	problem := func(port int) string {
		return new(problem).textOf(fmt.Errorf("read the list of writers: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET,
			Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 6379}}))
	}
	one, two := problem(1234), problem(5678)
	if one != two || !strings.Contains(one, "10.0.0.2:6379") || !strings.Contains(one, "write valkeys://") {
		t.Errorf("%s\n%s", one, two)
	}
}

// The server is missed by lookups, by a look at the writers and by an attempt to connect, in any order.
func TestAProblemThatShowsElsewhereIsLoggedOnce(t *testing.T) {
	var log testenv.Buffer
	p := newProblem(slog.New(slog.NewTextHandler(&log, nil)), DefaultConfig())
	refused := func(port int) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED, Source: &net.TCPAddr{Port: port}, Addr: &net.TCPAddr{Port: 6379}}
	}
	for i, what := range []string{"read the list of writers", "get slots", "read the list of writers"} {
		p.tell("trying again", refused(2*i))
		p.tell("trying again", fmt.Errorf("%s: %w", what, refused(2*i+1)))
	}
	if text := log.String(); strings.Count(text, "trying again") != 1 || !strings.Contains(text, "nothing listens there") {
		t.Errorf("the log:\n%s", text)
	}
	p.tell("trying again", fmt.Errorf("read the list of writers: %w", io.EOF))
	p.tell("trying again", fmt.Errorf("begin TLS: %w", io.EOF)) // another remedy
	if text := log.String(); strings.Count(text, "trying again") != 3 || !strings.Contains(text, "its port may have no TLS") {
		t.Errorf("the log:\n%s", text)
	}
}

// A server that was restarted has no writer for a moment.
func TestALeaseGoesByBeforeTheLogSaysThatNobodyWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Buffer
		r := NewReader(DefaultConfig(), ReaderParts{Fleet: publishing(), Keying: anyKeys, Log: slog.New(slog.NewTextHandler(&log, nil))})
		look := func(later time.Duration, when string, writers, said int) {
			t.Helper()
			<-time.After(later)
			r.use("", nil, writers, nil)
			if n := strings.Count(log.String(), "nobody writes"); n != said {
				t.Fatalf("%s, the log says %d times that nobody writes, want %d:\n%s", when, n, said, log.String())
			}
		}
		lease := r.config.Lease
		look(0, "at first", 0, 0)
		look(lease, "after a lease", 0, 0)
		look(1, "after more than a lease", 0, 1)
		look(2*lease, "later", 0, 1)
		r.lost(errors.New("no answer"))
		look(2*lease, "after a restart", 0, 1)
		look(lease/2, "when the writer is back", 1, 1)
		look(2*lease, "after a long time with a writer", 1, 1)
		look(lease/2, "shortly after the writer ended", 0, 1)
		look(lease, "long after the writer ended", 0, 2)
	})
}

// stuckLog is a log that takes no line until free is closed. stuck is closed when it has got a line.
type stuckLog struct {
	once        sync.Once
	stuck, free chan struct{}
}

func (l *stuckLog) Write(line []byte) (int, error) {
	l.once.Do(func() { close(l.stuck) })
	<-l.free
	return len(line), nil
}

// A request whose lookup failed does not wait for a log that is slow, except for its own line.
func TestNobodyWaitsForTheLogOfOthers(t *testing.T) {
	down := errors.New("no answer")
	for what, line := range map[string]func(*Reader){
		"the server is lost":  func(r *Reader) { r.lost(down) },
		"the server is there": func(r *Reader) { r.use("", nil, 0, nil) },
		"keys differ": func(r *Reader) {
			r.counts.connected.Store(true)
			r.use("", []*description{{Holders: []holderEntry{{URL: "http://worker-0", Slot: 1, BlockSize: 16, Algorithm: "other"}}}}, 1, nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			log := &stuckLog{stuck: make(chan struct{}), free: make(chan struct{})}
			xxh3 := func(string) (block.Algorithm, int, bool) { return block.XXH3, 16, true }
			r := NewReader(DefaultConfig(), ReaderParts{Fleet: fleetOf(1), Keying: xxh3, Log: slog.New(slog.NewTextHandler(log, nil))})
			var running sync.WaitGroup
			defer running.Wait()
			defer close(log.free)
			running.Go(func() { line(r) })
			<-log.stuck
			r.problem.become(r.problem.signatureOf(down)) // it was logged
			done := make(chan struct{})
			running.Go(func() {
				r.lost(down)
				close(done)
			})
			testenv.Until(t, "another request goes on", func() bool {
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
		})
	}
}

// A server without TLS waits for the rest of the line that it believes to get.
func TestAPortWithoutTLSIsNamed(t *testing.T) {
	cfg := DefaultConfig()
	cfg.URL = "valkeys://" + testenv.StartValkey(t, "valkey").Address
	_, log := reading(t, cfg)
	testenv.Until(t, "the log names the scheme to write", func() bool { return strings.Contains(log.String(), "write valkey://") })
}

func TestAnIndexThatNobodyWritesSaysWhatToStart(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		cfg := DefaultConfig()
		cfg.URL = "valkey://" + s.Address
		f, log := reading(t, cfg)
		testenv.Until(t, "the log and the trust say what to start", func() bool {
			level, why := f.Snapshot().Trust(0)
			return level == fleet.TrustApproximate && strings.Contains(why, "start warmpath index") && strings.Contains(log.String(), "start warmpath index")
		})
		w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address })
		testenv.Until(t, "the trust is that of the writer", func() bool {
			level, _ := f.Snapshot().Trust(0)
			return level == fleet.TrustExact && strings.Contains(log.String(), "somebody writes")
		})
		if n := strings.Count(log.String(), "nobody writes"); n != 1 {
			t.Errorf("the log says it %d times:\n%s", n, log.String())
		}
		w.writing.Remove(w.writing.Snapshot().Workers()[0].ID)
		testenv.Until(t, "the worker is one that no writer knows", func() bool {
			level, why := f.Snapshot().Trust(0)
			return level == fleet.TrustNone && strings.Contains(why, "no writer of the shared index knows")
		})
	})
}

// A server that is full is a problem of its own, which begins and ends in one session, also more than once.
func TestEachTimeThatTheServerIsFullIsLogged(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		h, err := block.NewHasher(block.XXH3, 16)
		if err != nil {
			t.Fatal(err)
		}
		m, log := newBench(t, s, 1).mirror(h, kvindex.Config{}), new(testenv.Buffer)
		m.writer.parts.Log = slog.New(slog.NewTextHandler(log, nil))
		m.writer.problem.log, m.writer.full.log = m.writer.parts.Log, m.writer.parts.Log
		w := &world{T: t, hasher: h, index: m.index}
		retry := func() {
			m.writer.retried = time.Time{}
			m.settle()
		}
		logged := func(when string, full, over int) {
			t.Helper()
			if a, b := strings.Count(log.String(), "is full"), strings.Count(log.String(), "no longer full"); a != full || b != over {
				t.Fatalf("%s, it is logged %d times that the server is full, and %d times that it is no longer, want %d and %d:\n%s", when, a, b, full, over, log.String())
			}
		}
		for round := range 3 {
			command(t, s, "CONFIG", "SET", "maxmemory", "1mb") // less than the server has
			w.store(0, uint64(round))
			m.settle()
			logged("after the server refused blocks", round+1, round)
			refused := m.writer.Stats().Refused
			m.writer.retried = time.Now().Add(-10 * time.Second)
			m.settle()
			if n := m.writer.Stats().Refused; n != refused {
				t.Errorf("%d blocks were tried again before their time", n-refused)
			}
			m.writer.retried = time.Now().Add(-31 * time.Second)
			m.settle()
			if m.writer.Stats().Refused == refused {
				t.Error("after 31 s the blocks were not tried again")
			}
			retry()
			logged("after it refused them again", round+1, round)
			m.writer.mirror.tellAgain()
			if m.writer.mirror.copies()[0].whole || !m.writer.mirror.lacking() {
				t.Error("a holder counts as whole while the blocks that the server refused are told again")
			}
			m.settle()
			logged("after all blocks were told again", round+1, round)
			command(t, s, "CONFIG", "SET", "maxmemory", "0")
			retry()
			logged("after it took them", round+1, round+1)
		}
		command(t, s, "CONFIG", "SET", "maxmemory", "1mb")
		w.store(0, 4)
		m.settle()
		m.index.Forget(0)
		m.settle()
		logged("after the holder was forgotten", 4, 4)
	})
}
