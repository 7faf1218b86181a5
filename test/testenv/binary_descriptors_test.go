package testenv_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// serveFew runs the router under `ulimit -n 256`.
func serveFew(t *testing.T, worker string) *testenv.Gateway {
	t.Helper()
	listen, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	p := testenv.Start(t, "warmpath serve", "/bin/sh", "-c", `ulimit -n 256 && exec "$0" "$@"`, testenv.Binary(t),
		"serve", "--listen", listen, "--admin-listen", admin, "--worker", worker)
	g := &testenv.Gateway{Process: p, URL: "http://" + listen, Admin: "http://" + admin}
	g.Ready(t)
	return g
}

// TestFewDescriptorsFailNoRequest runs the router under `ulimit -n 256` with 400 clients at the same time.
func TestFewDescriptorsFailNoRequest(t *testing.T) {
	const clients, requests = 400, 3
	engine := mock(t, func(c *mockengine.Config) { c.MaxSequences = 1024 })
	g := serveFew(t, engine.URL())
	if !strings.Contains(g.Log(), "limit=256") {
		t.Errorf("the log does not tell the limit: %s", g.Log())
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var failed atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range requests {
				body := fmt.Sprintf(`{"model":"mock","max_tokens":8,"messages":[{"role":"user","content":"client %d asks %d"}]}`, i, n)
				resp, err := client.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
				// On a busy machine a connection may be idle for a second, and the router then closes it. So try once more.
				if err != nil {
					resp, err = client.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
				}
				if err != nil || resp.StatusCode != http.StatusOK {
					if failed.Add(1) < 5 {
						t.Errorf("%v %v", err, resp)
					}
				}
				if err == nil {
					_ = resp.Body.Close()
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d requests failed", failed.Load(), clients*requests)
}

var openFiles = regexp.MustCompile(`(?m)^process_open_fds (\d+)$`)

// TestProbesDoNotWaitBehindClients probes the router while 400 clients connect to it. 100 clients send nothing, 100
// clients keep an idle connection, and 200 clients wait for an engine that makes no step. A client whose connection is
// closed or refused connects again.
func TestProbesDoNotWaitBehindClients(t *testing.T) {
	const probes = 12
	engine := mock(t, func(c *mockengine.Config) { c.MaxSequences, c.Faults.Stalled = 1024, true })
	g := serveFew(t, engine.URL())
	address := strings.TrimPrefix(g.URL, "http://")
	var here, answered, refused, closed atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	// come opens a connection, sends text, waits until the connection ends, and returns the received bytes.
	come := func(text string) string {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return ""
		}
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		defer func() { _ = conn.Close() }()
		here.Add(1)
		defer here.Add(-1)
		_, _ = io.WriteString(conn, text)
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	const chat = `{"model":"mock","max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`
	texts := []string{"", "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
		fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(chat), chat)}
	var clients sync.WaitGroup
	for i := range 400 {
		clients.Go(func() {
			for pause := time.Duration(0); ctx.Err() == nil; {
				switch answer := come(texts[[]int{0, 1, 2, 2}[i%4]]); {
				case strings.HasPrefix(answer, "HTTP/1.1 503 ") && strings.Contains(answer, "\r\nRetry-After: 2\r\n"):
					refused.Add(1)
					pause = 2 * time.Second
				case strings.Contains(answer, "chat.completion"):
					answered.Add(1)
				case ctx.Err() == nil:
					closed.Add(1)
					pause = 100 * time.Millisecond
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	defer clients.Wait()
	defer cancel()
	testenv.WaitFor(t, time.Minute, "the clients to be there", func() error {
		if n := here.Load(); n < 300 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	longest, most := map[string]time.Duration{}, 0
	for i := range probes {
		for _, url := range []string{g.URL + "/health", g.URL + "/readiness", g.Admin + "/health", g.Admin + "/metrics", g.Admin + "/admin/workers"} {
			began := time.Now()
			resp, err := client.Get(url)
			longest[url] = max(longest[url], time.Since(began))
			if err != nil {
				t.Fatalf("probe %d of %s: %v", i, url, err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if found := openFiles.FindSubmatch(text); found != nil {
				n, _ := strconv.Atoi(string(found[1]))
				most = max(most, n)
			}
			// /readiness may answer with an error, because the engine is stalled.
			if resp.StatusCode != http.StatusOK && !strings.HasSuffix(url, "/readiness") {
				t.Errorf("probe %d of %s: %d", i, url, resp.StatusCode)
			}
		}
		if n := answered.Load(); n > 0 {
			t.Fatalf("%d requests were answered by an engine that makes no step", n)
		}
	}
	t.Logf("%d probes of each kind were answered before %d clients; %d refusals, %d closed connections", probes, here.Load(), refused.Load(), closed.Load())
	t.Logf("the longest waits: %v; at most %d descriptors were open", longest, most)
	if most == 0 || most > 256-32 {
		t.Errorf("%d descriptors were open, want at most %d", most, 256-32)
	}
	if err := engine.SetFaults(mockengine.Faults{}); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, time.Minute, "clients to be answered", func() error {
		if n := answered.Load(); n < 100 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
