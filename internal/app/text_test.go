package app_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// mute returns the URL of an engine that publishes no events and has no endpoint for token ids.
func mute(t *testing.T) string {
	t.Helper()
	e := engine(t, func(c *mockengine.Config) { c.Events, c.Replay, c.HideEventSources = "", "", true })
	target, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	through := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "tokenize") || strings.Contains(r.URL.Path, "render") {
			http.NotFound(w, r)
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	return s.URL
}

func TestConversationsStickToTheirWorkersWithoutTokensAndEvents(t *testing.T) {
	cfg := settings()
	cfg.Tokens.Budget = time.Hour // so long that each request waits until the engine has said that it gives no ids
	for range 3 {
		cfg.Workers = append(cfg.Workers, discovery.Target{URL: mute(t), Events: "none"})
	}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.wait("three workers are ready", func() bool {
		ready := 0
		for _, w := range r.Router().Fleet().Snapshot().Workers() {
			if w.Ready {
				ready++
			}
		}
		return ready == 3
	})
	turn := func(messages string) (worker string) {
		t.Helper()
		resp, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(
			fmt.Sprintf(`{"model":"mock","max_tokens":4,"messages":[%s]}`, messages)))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Match") != "0" || resp.Header.Get("X-Warmpath-Trust") != "approximate" {
			t.Errorf("status %d, match %q, trust %q\n%s", resp.StatusCode, resp.Header.Get("X-Warmpath-Match"), resp.Header.Get("X-Warmpath-Trust"), text)
		}
		return resp.Header.Get("X-Warmpath-Worker")
	}
	say := func(role string, talk, n int) string {
		return fmt.Sprintf(`{"role":%q,"content":%q}`, role, strings.Repeat(fmt.Sprintf("talk %d turn %d. ", talk, n), 30))
	}
	const talks, turns = 6, 4
	homes, histories := map[int]string{}, map[int]string{}
	sent := 0
	for n := range turns {
		for talk := range talks {
			histories[talk] += say("user", talk, n)
			worker := turn(histories[talk])
			sent++
			if n == 0 {
				homes[talk] = worker
			}
			if worker != homes[talk] {
				t.Errorf("turn %d of talk %d went to %s, not to %s", n, talk, worker, homes[talk])
			}
			histories[talk] += "," + say("assistant", talk, n) + ","
		}
	}
	used := map[string]bool{}
	for _, w := range homes {
		used[w] = true
	}
	if len(used) != 3 {
		t.Errorf("six talks live on %d of three workers", len(used))
	}
	r.wait("all are booked", func() bool { return len(r.Telemetry().Last(0)) == sent })
	for i, d := range r.Telemetry().Last(sent) { // Last returns the newest decision first
		late := i < (turns-1)*talks
		if d.TokenSource != "text" || d.TokensMissing != "unsupported" || d.MatchTokens != 0 || d.PromptTokens != 0 {
			t.Errorf("decision %d: %+v", i, d)
		}
		if late && (d.Branch != "affinity" || d.PredictedTokens == 0) || !late && d.Branch != "miss" {
			t.Errorf("decision %d is a %s that predicts %d tokens", i, d.Branch, d.PredictedTokens)
		}
	}
	metrics := r.get("/metrics")
	if want := fmt.Sprintf("warmpath_token_requests_total{missing=\"unsupported\",outcome=\"text\"} %d\n", sent); !strings.Contains(metrics, want) {
		t.Errorf("/metrics lacks %s", want)
	}
	for _, line := range strings.Split(metrics, "\n") {
		for _, outcome := range []string{"equal", "over", "under"} {
			if strings.HasPrefix(line, `warmpath_predictions_total{outcome="`+outcome) && !strings.HasSuffix(line, " 0") {
				t.Errorf("guesses are counted among the predictions: %s", line)
			}
		}
	}
}
