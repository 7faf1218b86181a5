package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/policy"
)

// logs are the journals of a test's gateway.
type logs struct {
	dir              string
	access, decision *telemetry.Journal
}

// withLogs makes a gateway write both logs.
func withLogs(t *testing.T, l *logs) func(*gateway.Parts) {
	l.dir = t.TempDir()
	return func(p *gateway.Parts) {
		log := slog.New(slog.DiscardHandler)
		l.access = p.Telemetry.NewJournal("access", telemetry.JournalConfig{File: filepath.Join(l.dir, "access"), Sample: 1}, log)
		l.decision = p.Telemetry.NewJournal("decision", telemetry.JournalConfig{File: filepath.Join(l.dir, "decision"), Sample: 1}, log)
		p.AccessLog, p.DecisionLog = l.access, l.decision
	}
}

// read returns the lines of both logs so far.
func (l *logs) read(t *testing.T) (access []telemetry.Access, decisions []telemetry.Decided, text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, j := range []*telemetry.Journal{l.access, l.decision} {
		if err := j.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := os.ReadFile(filepath.Join(l.dir, "access"))
	d, _ := os.ReadFile(filepath.Join(l.dir, "decision"))
	for line := range bytes.Lines(a) {
		var v telemetry.Access
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		access = append(access, v)
	}
	for line := range bytes.Lines(d) {
		var v telemetry.Decided
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		decisions = append(decisions, v)
	}
	return access, decisions, string(a) + string(d)
}

func TestTheAccessLogHasOneLineForEachRequest(t *testing.T) {
	var l logs
	f := serve(t, func(s *settings) { s.parts = withLogs(t, &l) }, worker(t, streaming))
	f.post(t, chatStreamed, "X-Request-Id", "mine")
	f.post(t, `{"model":"other","messages":[]}`)
	for _, path := range []string{"/nowhere", "/v1/models", "/health", "/readiness"} {
		resp, err := f.client.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	lines, _, _ := l.read(t)
	if len(lines) != 4 {
		t.Fatalf("%d lines: %+v", len(lines), lines)
	}
	a := lines[0]
	if a.RequestID != "mine" || a.Status != 200 || a.Method != "POST" || a.Path != "/v1/chat/completions" || a.Client != "127.0.0.1" || a.Worker == "" ||
		a.BytesIn != int64(len(chatStreamed)) || a.BytesOut < 100 || a.TotalMS <= 0 || a.FirstTokenMS <= 0 || a.Model != "m" || !a.Stream || a.Finish != "success" {
		t.Errorf("%+v", a)
	}
	if a := lines[1]; a.Status != 404 || a.Refused == "" || a.Worker != "" || a.Model != "other" {
		t.Errorf("%+v", a)
	}
	if a := lines[2]; a.Status != 404 || a.Refused != "unknown_url" || a.Path != "/nowhere" {
		t.Errorf("%+v", a)
	}
	if a := lines[3]; a.Status != 200 || a.Path != "/v1/models" || a.BytesOut == 0 {
		t.Errorf("%+v", a)
	}
}

func TestTheAccessLogNamesTheTenantOfARequestBeyondItsLimit(t *testing.T) {
	var l logs
	_, tenants := withTenants(tenant.Config{Name: "acme", KeysSHA256: hashed("key"), RequestsPerSecond: 0.01, Burst: 1})
	f := serve(t, func(s *settings) {
		s.parts = withLogs(t, &l)
		tenants(s)
	}, worker(t, plain))
	f.post(t, chat, "X-Api-Key", "key")
	f.post(t, chat, "X-Api-Key", "key")
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	lines, _, _ := l.read(t)
	if len(lines) != 2 || lines[1].Status != 429 || lines[1].Refused != "requests_limited" || lines[1].Tenant != "acme" {
		t.Errorf("%+v", lines)
	}
}

func TestTheDecisionLogHasWhatThePolicySaw(t *testing.T) {
	var l logs
	f := serve(t, func(s *settings) { s.parts = withLogs(t, &l) }, worker(t, plain), worker(t, plain))
	f.post(t, chat, "X-Session-Id", "session-name")
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	_, lines, text := l.read(t)
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	d := lines[0]
	c := d.Choice
	if d.Status != 200 || d.Worker == "" || c == nil || len(c.Candidates) != 2 || c.Candidates[c.Chosen].Worker != d.Worker || c.At == 0 || c.Session == "" || len(c.Terms) == 0 {
		t.Errorf("%s", text)
	}
	if f.Telemetry.Last(1)[0].ID != d.ID {
		t.Error("the line and /admin/decisions have different ids")
	}
}

// The connector shared carries nothing from one leg to the other, so any worker can play either.
func TestTheLogSaysHowARequestWasDividedAndWhy(t *testing.T) {
	for _, c := range []struct {
		mode    policy.Mode
		divided bool
		bypass  string
	}{{policy.ModeAlways, true, ""}, {policy.ModeNever, false, "never"}} {
		var l logs
		f := serve(t, func(s *settings) {
			s.facts.Transfer.Connector = "shared"
			s.parts = func(p *gateway.Parts) {
				withLogs(t, &l)(p)
				if err := p.Router.ChangePolicies(warmpath.PolicyChange{Standard: "marginal", Legs: warmpath.Legs{Mode: c.mode}}); err != nil {
					t.Error(err)
				}
			}
		}, worker(t, plain), worker(t, plain))
		f.post(t, chat)
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		_, lines, text := l.read(t)
		if len(lines) != 1 {
			t.Fatalf("%d lines", len(lines))
		}
		d := lines[0]
		first := d.Choice.Prefill
		if (first != nil) != c.divided || (d.PrefillWorker != "") != c.divided || d.Bypass != c.bypass || (d.Division != nil) != c.divided || (d.TransferTokens > 0) != c.divided {
			t.Errorf("%s: %s", c.mode, text)
		}
		metric := `warmpath_bypassed_total{reason="never"} 1`
		if c.divided {
			metric = "warmpath_divided_total 1"
			at := d.Choice.Candidates[d.Choice.Chosen]
			if at.Worker != d.Worker || first.Candidates[first.Chosen].Worker != d.PrefillWorker || at.Source != d.PrefillWorker || at.Fetched != d.TransferTokens || d.Worker == d.PrefillWorker {
				t.Errorf("%s", text)
			}
		}
		if !strings.Contains(f.metrics(t), metric+"\n") {
			t.Errorf("no %s", metric)
		}
	}
}

// Both logs have the request that fails, and none of the client's secrets.
func TestNeitherLogShowsPromptsOrKeys(t *testing.T) {
	var l logs
	f := serve(t, func(s *settings) { s.parts = withLogs(t, &l) }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no "+r.Header.Get("Authorization"), http.StatusInternalServerError)
	}))
	body := `{"model":"m","user":"user-name","messages":[{"role":"user","content":"the secret of the prompt"}]}`
	f.post(t, body, "Authorization", "Bearer sk-very-secret", "X-Session-Id", "session-name", "Cookie", "c=cookie-secret")
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	access, decisions, text := l.read(t)
	if len(access) != 1 || len(decisions) != 1 {
		t.Fatalf("%d and %d lines", len(access), len(decisions))
	}
	for _, secret := range []string{"secret", "session-name", "user-name", "sk-very"} {
		if strings.Contains(text, secret) {
			t.Errorf("the logs have %q: %s", secret, text)
		}
	}
}
