package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
)

// TestClientsBeyondTheLimitWait: each of them is served, though more connections are kept alive than may be open.
func TestClientsBeyondTheLimitWait(t *testing.T) {
	const limit, clients, requests = 4, 20, 10
	var here, most atomic.Int64
	f := serve(t, func(s *settings) { s.parts = func(p *gateway.Parts) { p.MaxConnections = limit } }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		n := here.Add(1)
		defer here.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		plain(w, r)
	}))
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range requests {
				resp, text, err := f.try(context.Background(), chat)
				if err != nil { // its connection was closed because it was idle for a second, on a busy machine
					resp, text, err = f.try(context.Background(), chat)
				}
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("%v %s", err, text)
				}
			}
		})
	}
	all.Wait()
	if most.Load() > limit {
		t.Errorf("%d requests were served at once, want at most %d", most.Load(), limit)
	}
	// The remaining connections are idle and kept alive. Another client is served all the same.
	other := &http.Client{Transport: &http.Transport{}}
	defer other.CloseIdleConnections()
	resp, err := other.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}
