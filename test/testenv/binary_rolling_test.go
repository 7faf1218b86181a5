package testenv_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// drainWorker begins or ends the drain of a worker, and returns the number of its requests under way.
func drainWorker(t *testing.T, g *testenv.Gateway, url string, on bool) int64 {
	t.Helper()
	body := fmt.Sprintf(`{"url": %q, "draining": %v}`, url, on)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, g.Admin+"/admin/workers", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct{ Requests int64 }
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("drain %s: %s, %v", url, resp.Status, err)
	}
	return out.Requests
}

// TestARollingRestartOfEveryWorkerFailsNoRequest restarts three engine processes one after another, each at the same
// address, while clients stream.
func TestARollingRestartOfEveryWorkerFailsNoRequest(t *testing.T) {
	binary := testenv.Binary(t)
	var args []string
	start := func(port int) *testenv.Process {
		return testenv.Start(t, fmt.Sprintf("mock engine %d", port), binary, "mock", "--listen", fmt.Sprintf("127.0.0.1:%d", port),
			"--events", "tcp://127.0.0.1:0", "--speed", "5", "--output-tokens", "40")
	}
	engines := map[int]*testenv.Process{}
	for range 3 {
		port := testenv.FreePort(t)
		engines[port] = start(port)
		args = append(args, "--worker", fmt.Sprintf("http://127.0.0.1:%d", port))
	}
	g := testenv.Serve(t, args...)
	ready := func() { g.WorkersReady(t, len(engines)) }
	ready()
	var clients sync.WaitGroup
	var stop atomic.Bool
	var served, failed atomic.Int64
	for i := range 8 {
		clients.Go(func() { // ends when stop is set
			for n := 0; !stop.Load(); n++ {
				body := fmt.Sprintf(`{"model":"mock","stream":true,"messages":[{"role":"user","content":"client %d asks question %d"}]}`, i, n)
				resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					failed.Add(1)
					continue
				}
				answer, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK || err != nil || !strings.HasSuffix(string(answer), "data: [DONE]\n\n") {
					failed.Add(1)
					t.Errorf("%s, %v: %.300s", resp.Status, err, answer)
				}
				served.Add(1)
			}
		})
	}
	for port, engine := range engines {
		url := fmt.Sprintf("http://127.0.0.1:%d", port)
		drainWorker(t, g, url, true)
		testenv.WaitFor(t, 30*time.Second, "the worker's requests to end", func() error {
			if n := drainWorker(t, g, url, true); n > 0 {
				return fmt.Errorf("%d requests are under way", n)
			}
			return nil
		})
		engine.Stop(syscall.SIGTERM)
		engines[port] = start(port)
		testenv.WaitFor(t, 30*time.Second, "the engine to be back", func() error { return testenv.Reachable(url + "/health") })
		drainWorker(t, g, url, false)
		ready()
		back := served.Load()
		testenv.WaitFor(t, 30*time.Second, "requests after the restart", func() error {
			if n := served.Load() - back; n < 40 {
				return fmt.Errorf("%d were served", n)
			}
			return nil
		})
	}
	stop.Store(true)
	clients.Wait()
	t.Logf("%d requests were served, %d failed", served.Load(), failed.Load())
	if failed.Load() > 0 || served.Load() == 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), served.Load())
	}
}
