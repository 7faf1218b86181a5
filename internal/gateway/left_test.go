package gateway_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/test/testenv"
)

// A reload or a probe removes the last worker of a model while the worker answers a request. The answer must still
// arrive.
func TestAWorkerThatLeavesStillAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   int
	}{
		"404":           {answering(404, "application/json", `{"error":{"message":"no"}}`), 404},
		"500":           {answering(500, "application/json", `{"error":{"message":"no"}}`), 500},
		"HTML":          {answering(200, "text/html", "<html></html>"), 502},
		"another model": {answering(200, "application/json", strings.Replace(whole, "{", `{"model":"other",`, 1)), 200},
	} {
		t.Run(name, func(t *testing.T) {
			var f *fixture
			f = serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
				f.fleet.Remove(fleet.WorkerID(0))
				c.answer(w, r)
			}))
			resp, text, err := f.try(t.Context(), chat)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.want {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, c.want, text)
			}
			if !strings.Contains(f.metrics(t), "warmpath_panics_total 0\n") {
				t.Error("the request panicked")
			}
		})
	}
}

func TestTheConnectionsToAWorkerThatLeftAreClosed(t *testing.T) {
	var closed atomic.Int32
	left := httptest.NewUnstartedServer(http.HandlerFunc(plain))
	left.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed.Add(1)
		}
	}
	left.Start()
	t.Cleanup(left.Close)
	f := serve(t, func(s *settings) {
		s.parts = func(p *gateway.Parts) {
			cfg := proxy.DefaultConfig()
			cfg.IdleTimeout = time.Hour
			p.Client = proxy.New(cfg)
		}
	}, left.URL)
	if resp, text := f.post(t, chat); resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, text)
	}
	if n := closed.Load(); n != 0 {
		t.Fatalf("%d connections are closed while the worker is in the fleet", n)
	}
	f.fleet.Remove(fleet.WorkerID(0))
	testenv.Until(t, "the connection is closed", func() bool { return closed.Load() == 1 })
}
