package binary

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/process"
)

// TestFewDescriptorsFailNoRequest runs the router under `ulimit -n 256` with 400 clients at once.
func TestFewDescriptorsFailNoRequest(t *testing.T) {
	const clients, requests = 400, 3
	engine := mock(t, func(c *mockengine.Config) { c.MaxSequences = 1024 })
	listen, admin := fmt.Sprintf("127.0.0.1:%d", process.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", process.FreePort(t))
	p := process.Start(t, "warmpath serve", "/bin/sh", "-c", `ulimit -n 256 && exec "$0" "$@"`, process.Binary(t), "serve", "--listen", listen, "--admin-listen", admin,
		"--worker", engine.URL())
	g := &process.Gateway{Process: p, URL: "http://" + listen, Admin: "http://" + admin}
	g.Ready(t)
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
				if err != nil { // its connection was closed because it was idle for a second, on a busy machine
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
