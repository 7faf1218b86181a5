package sharedindex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

// Problems are logged when their text changes, and each attempt to connect has another port of our own.
func TestAProblemHasTheSameTextOnEachConnection(t *testing.T) {
	problem := func(port int) string {
		return problemOf(fmt.Errorf("read the list of writers: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET,
			Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 6379}}))
	}
	one, two := problem(1234), problem(5678)
	if one != two || !strings.Contains(one, "10.0.0.2:6379") || !strings.Contains(one, "write valkeys://") {
		t.Errorf("%s\n%s", one, two)
	}
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
			r.problem.become(problemOf(down)) // it was logged
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
