package discovery

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// transport has fake workers by host. It reaches them without sockets, so that time can be virtual.
type transport struct {
	mu      sync.Mutex
	workers map[string]http.Handler // nil: the connection is refused
	asked   map[string]int          // number of requests by host and path
}

func newTransport() *transport {
	return &transport{workers: map[string]http.Handler{}, asked: map[string]int{}}
}

func (n *transport) set(host string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.workers[host] = h
}

func (n *transport) count(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[what]
}

func (n *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	h := n.workers[r.URL.Host]
	n.asked[r.URL.Host+r.URL.Path]++
	n.mu.Unlock()
	if h == nil {
		return nil, fmt.Errorf("dial tcp: %w", syscall.ECONNREFUSED)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// frozen is an engine that takes requests and never answers.
var frozen = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })

type watch struct {
	*Watcher
	*transport
	fleet *fleet.Fleet
	log   *bytes.Buffer
	stop  func()
}

func watching(t *testing.T, n *transport, targets ...Target) *watch {
	t.Helper()
	f := fleet.New(fleet.Config{})
	log := &bytes.Buffer{}
	s, err := NewWatcher(f, targets, Config{}, &http.Client{Transport: n}, slog.New(slog.NewTextHandler(&lockedWriter{w: log}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return &watch{s, n, f, log, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}}
}

// watchingOne watches a vLLM at http://a that answers.
func watchingOne(t *testing.T) *watch {
	t.Helper()
	n := newTransport()
	n.set("a", vllm032())
	return watching(t, n, Target{URL: "http://a"})
}

type lockedWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (w *watch) worker(t *testing.T, url string) *fleet.Worker {
	t.Helper()
	for _, fw := range w.fleet.Snapshot().Workers() {
		if fw.URL == url {
			return fw
		}
	}
	t.Fatalf("%s is not in the fleet", url)
	return nil
}

func TestWorkerIsProbedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, newTransport(), Target{URL: "http://a:8000"})
		defer w.stop()
		testenv.Pass(20 * time.Second)
		if got := w.worker(t, "http://a:8000"); got.Ready || !strings.Contains(got.Why, "connection refused") {
			t.Errorf("ready %v, why %q", got.Ready, got.Why)
		}
		if log := w.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "worker does not answer yet") {
			t.Errorf("log, want one line:\n%s", log)
		}
		w.set("a:8000", vllm032())
		testenv.Pass(6 * time.Second)
		got := w.worker(t, "http://a:8000")
		if !got.Ready || got.Facts.Version != "0.32.0" || got.Facts.Events[0].Endpoint != "tcp://a:5557" {
			t.Errorf("after it came up: %+v", got)
		}
	})
}

// TestTheLogSaysThatAWorkerNeedsAKey: vLLM with --api-key answers /health, but refuses every path below /v1.
func TestTheLogSaysThatAWorkerNeedsAKey(t *testing.T) {
	for _, test := range []struct{ name, key, log, why string }{
		{"no key", "", "worker refuses the router's questions: it gets no requests", "workers: [{url: …, api_key: …}]"},
		{"a wrong key", "wr0ng", "worker refuses the api_key: it gets no requests", "refuses the api_key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newTransport()
				n.set("a", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, "/v1/") {
						http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
						return
					}
					vllm032().ServeHTTP(w, r)
				}))
				w := watching(t, n, Target{URL: "http://a", APIKey: test.key})
				testenv.Pass(time.Minute)
				if got := w.worker(t, "http://a"); got.Ready || !strings.Contains(got.Why, test.why) {
					t.Errorf("ready %v, why %q", got.Ready, got.Why)
				}
				w.stop()
				if log := w.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, test.log) || strings.Contains(log, "wr0ng") {
					t.Errorf("the log is not one line with %q:\n%s", test.log, log)
				}
			})
		})
	}
}

func TestHealthFollowsTheWorker(t *testing.T) {
	for _, test := range []struct {
		name   string
		broken http.Handler
		within time.Duration
		why    string
	}{
		{"refused", nil, 6 * time.Second, "connection refused"},
		{"bad status", answers{"GET /health": "503 starting"}, 6 * time.Second, "GET /health answered 503 Service Unavailable: starting"},
		{"frozen", frozen, 20 * time.Second, "GET /health: no answer within 4s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchingOne(t)
				defer w.stop()
				testenv.Pass(7 * time.Second)
				if !w.worker(t, "http://a").Ready {
					t.Fatal("not ready")
				}
				w.set("a", test.broken)
				testenv.Pass(test.within)
				if got := w.worker(t, "http://a"); got.Ready || !strings.Contains(got.Why, test.why) {
					t.Errorf("ready %v, why %q", got.Ready, got.Why)
				}
				// The worker comes back with another version.
				w.set("a", vllm032().with("GET /version", `{"version":"0.33.0"}`))
				testenv.Pass(10 * time.Second)
				if got := w.worker(t, "http://a"); !got.Ready || got.Facts.Version != "0.33.0" {
					t.Errorf("after recovery: ready %v (%s), version %s", got.Ready, got.Why, got.Facts.Version)
				}
			})
		})
	}
}

func TestOneSlowCheckIsForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(4 * time.Second)
		w.set("a", frozen)
		testenv.Pass(6 * time.Second) // the check that began at 5 s times out only at 9 s
		w.set("a", vllm032())
		for range 40 {
			if got := w.worker(t, "http://a"); !got.Ready {
				t.Fatalf("not ready: %s", got.Why)
			}
			testenv.Pass(250 * time.Millisecond)
		}
	})
}

func TestAdaptersThatComeLaterAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(time.Second)
		w.fleet.SetBlockSize(w.worker(t, "http://a").ID, 64) // the block size that events reported
		w.set("a", vllm032().with("GET /v1/models", strings.ReplaceAll(vllmModels, `"sql"`, `"law"`)))
		testenv.Pass(70 * time.Second)
		got := w.worker(t, "http://a")
		if got.Facts.Models[1].ID != "law" {
			t.Errorf("models %v", got.Facts.Models)
		}
		if got.Facts.BlockSize != 64 {
			t.Errorf("block size %d: what the events reported is lost", got.Facts.BlockSize)
		}
		generation := w.fleet.Snapshot().Generation()
		testenv.Pass(3 * time.Minute)
		if w.fleet.Snapshot().Generation() != generation {
			t.Error("the fleet changes though nothing did")
		}
		if c := w.count("a/v1/models"); c != 5 {
			t.Errorf("probed %d times in four minutes", c)
		}
	})
}

func TestNotesAreThoseOfTheLastProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTransport()
		n.set("a", vllm032().with("GET /kv_event_sources", "{}"))
		w := watching(t, n, Target{URL: "http://a"})
		defer w.stop()
		testenv.Pass(time.Second)
		if got := w.Notes()["http://a"]; len(got) != 1 || !strings.Contains(got[0], "publishes no KV events") {
			t.Errorf("notes %q", got)
		}
		n.set("a", vllm032())
		testenv.Pass(70 * time.Second)
		if got := w.Notes(); len(got) != 0 {
			t.Errorf("after events were turned on: %q", got)
		}
		n.set("a", vllm032().with("GET /kv_event_sources", "{}"))
		testenv.Pass(70 * time.Second)
		if err := w.Replace(nil); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		if got := w.Notes(); len(got) != 0 {
			t.Errorf("after the worker left: %q", got)
		}
	})
}

func TestWorkersAreReplacedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTransport()
		for _, host := range []string{"a", "b", "c"} {
			n.set(host, vllm032())
		}
		w := watching(t, n, Target{URL: "http://a"}, Target{URL: "http://b"})
		defer w.stop()
		testenv.Pass(time.Second)
		a := w.worker(t, "http://a")
		if err := w.Replace([]Target{{URL: "http://a"}, {URL: "http://c"}, {URL: "ftp://x"}}); err == nil {
			t.Error("a bad target was accepted")
		}
		if err := w.Replace([]Target{{URL: "http://a"}, {URL: "http://a/"}}); err == nil {
			t.Error("the same worker twice was accepted")
		}
		if err := w.Replace([]Target{{URL: "http://a/"}, {URL: "http://c", Events: None}}); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		if w.worker(t, "http://a") != a {
			t.Error("a worker that stayed was disturbed")
		}
		if c := w.worker(t, "http://c"); !c.Ready || c.Facts.Events != nil {
			t.Errorf("the new worker is %+v", c)
		}
		if len(w.fleet.Snapshot().Workers()) != 2 {
			t.Error("the removed worker is still there")
		}
		if err := w.Replace([]Target{{URL: "http://a", Events: "tcp://*:9"}, {URL: "http://c"}}); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		if got := w.worker(t, "http://a").Facts.Events; len(got) != 1 || got[0].Endpoint != "tcp://a:9" {
			t.Errorf("events after the change: %v", got)
		}
	})
}

// A worker's settings change while its health check takes longer than usual, or times out once. The worker keeps
// getting requests, and its event stream stays connected.
func TestAWorkerWhoseSettingsChangeKeepsItsRequests(t *testing.T) {
	for _, delay := range []time.Duration{0, 3 * time.Second, 5 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchingOne(t)
				defer w.stop()
				testenv.Pass(time.Second)
				before, engine := w.worker(t, "http://a"), vllm032()
				var slow sync.Once
				w.set("a", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/health" {
						slow.Do(func() {
							select {
							case <-time.After(delay):
							case <-r.Context().Done():
							}
						})
					}
					engine.ServeHTTP(rw, r)
				}))
				if err := w.Replace([]Target{{URL: "http://a", Labels: map[string]string{"zone": "b"}, APIKey: "new"}}); err != nil {
					t.Fatal(err)
				}
				for range 400 {
					testenv.Pass(50 * time.Millisecond)
					a := w.worker(t, "http://a")
					if !a.Ready || len(a.Facts.Events) != len(before.Facts.Events) || a.Holders[0] != before.Holders[0] {
						t.Fatalf("after the change the worker is %+v, before it was %+v", a, before)
					}
					if a.Facts.Labels["zone"] != "b" {
						t.Fatalf("labels %v", a.Facts.Labels)
					}
				}
				if delay == 0 && w.count("a/v1/models") < 2 {
					t.Error("the changed worker was not probed again")
				}
			})
		})
	}
}

func TestOnePublisherIsNotTwoWorkers(t *testing.T) {
	older := vllm032().with("GET /kv_event_sources", "404")
	reported := Target{URL: "http://h:2", Events: "tcp://*:5557"}
	for _, test := range []struct {
		name string
		// the target first is listed from the beginning, and the target second is added later
		first, second Target
		want          [2]int // the number of event sources of each target in the end
	}{
		{"both guessed", Target{URL: "http://h:1"}, Target{URL: "http://h:2"}, [2]int{0, 0}},
		{"reported after guessed", Target{URL: "http://h:1"}, reported, [2]int{0, 1}},
		{"guessed after reported", reported, Target{URL: "http://h:1"}, [2]int{1, 0}},
		{"both reported", Target{URL: "http://h:1", Events: "tcp://*:5557"}, reported, [2]int{1, 0}},
		{"apart", Target{URL: "http://h:1", Events: "tcp://*:5556"}, reported, [2]int{1, 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newTransport()
				n.set("h:1", older)
				n.set("h:2", older)
				w := watching(t, n, test.first)
				testenv.Pass(time.Second)
				if got := w.worker(t, test.first.URL).Facts.Events; len(got) != 1 {
					t.Errorf("alone it has %v", got)
				}
				if err := w.Replace([]Target{test.first, test.second}); err != nil {
					t.Fatal(err)
				}
				testenv.Pass(100 * time.Second)
				for i, target := range []Target{test.first, test.second} {
					if got := w.worker(t, target.URL).Facts.Events; len(got) != test.want[i] {
						t.Errorf("%s has %v, want %d", target.URL, got, test.want[i])
					}
				}
				w.stop()
				if log := w.log.String(); test.want != [2]int{1, 1} && !(strings.Contains(log, "may be those of http://h:") && strings.Contains(log, "or list the engine once")) {
					t.Errorf("the log does not say so:\n%s", w.log)
				}
			})
		})
	}
}
