package testenv_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// mockProcess runs `warmpath mock` as a process, so that SIGSTOP can freeze it like a real engine.
func mockProcess(t *testing.T, args ...string) (p *testenv.Process, url string) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	args = append([]string{"mock", "--listen", address, "--events", "", "--replay", "", "--output-tokens", "16"}, args...)
	p = testenv.Start(t, "warmpath mock", testenv.Binary(t), args...)
	t.Cleanup(func() { p.Signal(syscall.SIGCONT) }) // a frozen process does not react to SIGTERM
	testenv.WaitFor(t, 20*time.Second, "the mock engine to answer", func() error { return testenv.Reachable("http://" + address + "/health") })
	return p, "http://" + address
}

// load is a closed loop of clients: each client sends its next request when its last request is answered.
type load struct {
	mu             sync.Mutex // guards the counts
	changed        *sync.Cond
	served, failed int
	whole          string // text that each good answer must contain
	stop           func()
}

// closedLoop starts clients that send requests to url until stop is called.
func closedLoop(url string, clients int, fields, whole string) *load {
	l := &load{whole: whole}
	l.changed = sync.NewCond(&l.mu)
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.ask(ctx, client, url, fmt.Sprintf(`{"model":"mock",%s,"messages":[{"role":"user","content":"client %d asks %d"}]}`, fields, i, n))
			}
		})
	}
	l.stop = func() { cancel(); all.Wait(); client.CloseIdleConnections() }
	return l
}

func (l *load) ask(ctx context.Context, client *http.Client, url, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(req)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), l.whole):
		l.failed++
	default:
		l.served++
	}
	l.changed.Broadcast()
}

// rate waits for n good answers and returns the number of answers a second.
func (l *load) rate(n int) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	for until := l.served + n; l.served < until; {
		l.changed.Wait()
	}
	return float64(n) / time.Since(began).Seconds()
}

// answers returns the number of good answers.
func (l *load) answers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served
}

// TestAFrozenWorkerCostsASecond freezes one of two workers with SIGSTOP. When the router has noticed this, the
// throughput must be at least 95 % of the throughput that the other worker has alone. An engine runs 8 requests at the
// same time, each for a fixed time, and more requests wait. So the engines limit the throughput, not this machine.
// Rounds with and without a frozen worker alternate. Streams that have begun stay at the frozen worker, so the test
// uses more clients for streams.
func TestAFrozenWorkerCostsASecond(t *testing.T) {
	for name, c := range map[string]struct {
		clients       int
		fields, whole string
	}{
		"whole":    {slots * 3 / 2, `"max_tokens":16,"ignore_eos":true`, `"finish_reason":"length"`},
		"streamed": {slots * 5 / 2, `"max_tokens":16,"ignore_eos":true,"stream":true`, "data: [DONE]"},
	} {
		t.Run(name, func(t *testing.T) { stopOneOfTwo(t, c.clients, c.fields, c.whole) })
	}
}

// slots is the number of requests that an engine runs at the same time.
const slots = 8

func stopOneOfTwo(t *testing.T, clients int, fields, whole string) {
	const rounds, answers = 3, 240
	engine := []string{"--max-sequences", fmt.Sprint(slots), "--speed", "4"}
	stopped, ill := mockProcess(t, engine...)
	_, good := mockProcess(t, engine...)
	alone := testenv.Serve(t, "--worker", good)
	alone.Ready(t)
	both := testenv.Serve(t, "--worker", ill, "--worker", good)
	both.Ready(t)
	suspect := func(want string) {
		t.Helper()
		testenv.WaitFor(t, 20*time.Second, "the worker's state to be "+want, func() error {
			if !strings.Contains(metricsOf(t, both), `warmpath_holder_suspect{rank="0",worker="`+ill+`"} `+want) {
				return fmt.Errorf("it is not")
			}
			return nil
		})
	}
	suspect("0") // the metrics already have the worker, and say that it is not suspect
	var shares []float64
	failed := 0
	for range rounds {
		l := closedLoop(alone.URL, clients, fields, whole)
		l.rate(2 * slots) // wait until the engine is full
		could := l.rate(answers)
		l.stop()
		failed += l.failed

		l = closedLoop(both.URL, clients, fields, whole)
		healthy := l.rate(answers)
		stopped.Signal(syscall.SIGSTOP)
		frozen := time.Now()
		suspect("1")
		noticed := time.Since(frozen)
		l.rate(slots) // wait until the requests that waited at the frozen worker are at the other worker
		did := l.rate(answers)
		stopped.Signal(syscall.SIGCONT)
		suspect("0")
		l.stop()
		failed += l.failed
		t.Logf("requests/s: both %.1f, one stopped %.1f, the other alone %.1f: %.1f %%; noticed within %v", healthy, did, could, 100*did/could, noticed.Round(10*time.Millisecond))
		shares = append(shares, did/could)
	}
	slices.Sort(shares)
	// If the router did not detect the frozen worker, the share would be far lower, because clients would wait there.
	if share := shares[len(shares)/2]; share < 0.95 {
		t.Errorf("%.0f %% of what the other worker can serve remained, want 95 %%", 100*share)
	}
	if failed > 0 {
		t.Errorf("%d requests failed", failed)
	}
}

func metricsOf(t *testing.T, g *testenv.Gateway) string {
	t.Helper()
	f := mockFleet{Gateway: g}
	return f.scrape(t)
}
