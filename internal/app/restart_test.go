package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// A worker without events has restarted, so its cache is empty. The router must expect no cached tokens there, although
// no health check failed.
func TestNothingIsExpectedOfAWorkerWithoutEventsThatRestarted(t *testing.T) {
	engines := []*mockengine.Server{engine(t, nil), engine(t, nil)}
	cfg := settings(engines...)
	cfg.Policy = "estimated"
	cfg.Reports.Interval = 50 * time.Millisecond
	for i := range cfg.Workers {
		cfg.Workers[i].Events = discovery.None
	}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.wait("both workers are ready", func() bool {
		ready := 0
		for _, w := range r.Router().Fleet().Snapshot().Workers() {
			if w.Ready {
				ready++
			}
		}
		return ready == 2
	})
	prompt := strings.Repeat("alpha beta ", 200)
	// expected returns the number of the prompt's tokens that are expected at a worker.
	expected := func(url string) int {
		t.Helper()
		body := fmt.Sprintf(`{"model":"mock","messages":[{"role":"user","content":%q}]}`, prompt)
		resp, err := r.client.Post("http://"+r.AdminAddr().String()+"/admin/explain", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var e admin.Explanation
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			t.Fatal(err)
		}
		for _, c := range e.Candidates {
			if c.Worker == url {
				return c.PredictedTokens
			}
		}
		t.Fatalf("%s is no candidate", url)
		return 0
	}
	worker := func(url string) *fleet.Worker {
		for _, w := range r.Router().Fleet().Snapshot().Workers() {
			if w.URL == url {
				return w
			}
		}
		t.Fatalf("%s is not in the fleet", url)
		return nil
	}
	resp, body := r.chat(prompt)
	home := resp.Header.Get("X-Warmpath-Worker")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	r.wait("the prompt is expected where it was answered", func() bool { return expected(home) > 0 })
	before := worker(home).Incarnation
	for _, e := range engines {
		if e.URL() == home {
			if err := e.Restart(200 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.wait("another process is found", func() bool { w := worker(home); return w.Ready && w.Incarnation > before })
	r.wait("what was learned is forgotten", func() bool { return expected(home) == 0 })
}
