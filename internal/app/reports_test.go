package app_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// Other clients send requests to an engine directly. The router must see this load, show it, and use it in decisions.
func TestLoadThatOthersPutOnAnEngineIsSeen(t *testing.T) {
	for _, kind := range []mockengine.Kind{mockengine.VLLM, mockengine.SGLang} {
		e := engine(t, func(c *mockengine.Config) { c.Kind, c.Speed = kind, 0.02 })
		cfg := settings(e)
		cfg.Reports.Interval = 50 * time.Millisecond
		r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
		r.exact(1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions",
				strings.NewReader(`{"model":"mock","max_tokens":1000,"ignore_eos":true,"messages":[{"role":"user","content":"for another router"}]}`))
			if resp, err := r.client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		var load admin.Load
		r.wait("the request of another router is reported", func() bool {
			var w admin.Workers
			r.adminJSON("/admin/workers", &w)
			load = w.Workers[0].Holders[0].Load
			return load.Others != nil
		})
		if load.Report == nil || load.Report.Running+load.Report.Waiting != 1 || load.Others.Requests != 1 || load.Requests != 1 {
			t.Errorf("%s: %+v of others %+v, reported %+v", kind, load, load.Others, load.Report)
		}
		text := r.scrape()
		for _, want := range []string{`warmpath_reports_total{result="ok",worker="`, `warmpath_holder_running_requests{rank="0"`,
			`warmpath_holder_waiting_requests{rank="0"`, `warmpath_holder_kv_used_ratio{`, `warmpath_holder_report_age_seconds{`, `warmpath_holder_leaked_requests_total{`} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in the scrape", want)
			}
		}
		cancel()
		<-ended
	}
}

// adminJSON reads an answer of the admin listener.
func (r *router) adminJSON(path string, into any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.adminText(path)), into); err != nil {
		r.t.Fatal(err)
	}
}

func (r *router) scrape() string { return r.adminText("/metrics") }

func (r *router) adminText(path string) string {
	r.t.Helper()
	resp, err := r.client.Get("http://" + r.AdminAddr().String() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %d %v %s", path, resp.StatusCode, err, text)
	}
	return string(text)
}

// An answer in one piece sends no byte before its end. The fleet must not count its request as lost while the request's
// time limit has not passed.
func TestALongAnswerIsNotLost(t *testing.T) {
	cfg := config.Default()
	a, err := app.New(&cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f := a.Router().Fleet()
	f.Put("http://w", fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
	var r fleet.Reservation
	const now = int64(1e18)
	f.Reserve(&r, 0, fleet.Work{UncachedTokens: 10, PromptTokens: 10, Whole: true}, now)
	if n := f.Expire(now + int64(cfg.Gateway.RequestTimeout)); n != 0 || !r.Held() {
		t.Errorf("%d requests are lost", n)
	}
	if n := f.Expire(now + int64(cfg.Gateway.RequestTimeout+2*time.Minute)); n != 1 {
		t.Errorf("%d requests are lost after any has ended", n)
	}
}
