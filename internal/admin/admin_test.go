package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
)

// always is a token source that returns the same ids for every prompt.
type always []block.Token

func (a always) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) {
	return tokens.Found{Tokens: a, Outcome: tokens.InProcess}, true
}

func (always) Text(string, []block.Token) string { return "" }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prompt has the tokens of every request in these tests.
var prompt = func() []block.Token {
	ids := make([]block.Token, 100)
	for i := range ids {
		ids[i] = block.Token(i)
	}
	return ids
}()

// newAdmin returns an admin handler over two workers. The first worker has 48 tokens of prompt on the GPU, and 16
// further tokens on the CPU tier.
func newAdmin(t *testing.T, cfg admin.Config, reload func(context.Context) ([]string, error)) (*admin.Admin, *fleet.Fleet) {
	t.Helper()
	f := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: f})
	if err != nil {
		t.Fatal(err)
	}
	facts := fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, BlocksPerRank: 1000}
	f.Put("http://a:1", facts)
	f.Put("http://b:1", facts)
	h := f.Snapshot().Workers()[0].Holders[0]
	f.SetTrust(h, fleet.TrustExact, "the history is whole")
	router.Store(h, &kvindex.Stored{Group: -1, Hashes: []uint64{1, 2, 3}, Tokens: prompt[:48], BlockSize: 16})
	router.Store(h, &kvindex.Stored{Group: -1, Tier: block.TierCPU, Hashes: []uint64{1, 2, 3, 4}, Tokens: prompt[:64], BlockSize: 16})
	source := tokens.New(tokens.DefaultConfig(), http.DefaultClient)
	source.Local = always(prompt)
	t.Cleanup(source.Close)
	tel := telemetry.New(telemetry.DefaultConfig())
	log := slog.New(slog.DiscardHandler)
	bodies := proxy.NewBodies(proxy.DefaultBodyConfig())
	g := gateway.New(gateway.DefaultConfig(), gateway.Parts{Router: router, Fleet: f, Tokens: source, Bodies: bodies, Telemetry: tel, Log: log})
	for i := range 3 {
		tel.Finished(&telemetry.Record{ID: uint64(i + 1), Worker: "http://a:1", Status: 200})
	}
	return admin.New(cfg, admin.Parts{
		Router: router, Gateway: g, Telemetry: tel, Bodies: bodies, Log: log, Reload: reload,
		Sources: telemetry.Sources{Index: func() []telemetry.Index { return []telemetry.Index{{Model: "m", BlockSize: 16}} }},
		Streams: func() map[fleet.Holder]*kvfeed.Stats {
			return map[fleet.Holder]*kvfeed.Stats{h: {Endpoint: "tcp://a:5557", StreamStats: kvfeed.StreamStats{Sequence: 41, Gaps: 1, Replays: 2}}}
		},
		Notes: func() map[string][]string { return map[string][]string{"http://b:1": {"it publishes no events"}} },
		IndexHolders: func() map[fleet.Holder]admin.IndexHolder {
			return map[fleet.Holder]admin.IndexHolder{h: {IndexBlocks: 7}}
		},
	}), f
}

func ask(t *testing.T, h http.Handler, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	text, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(text)
}

func TestWorkersShowWhereAHolderIsLeftOut(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	now := time.Now()
	for range 3 {
		f.ObserveScope(0, fleet.ScopeOf("m", "/v1/completions"), fleet.OutcomeFailed, now.UnixNano())
	}
	f.Limit(0, "tenant", now.Add(time.Minute).UnixNano(), now.UnixNano())
	_, text := ask(t, a, "GET", "/admin/workers", "")
	var got admin.Workers
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	h, other := got.Workers[0].Holders[0], got.Workers[1].Holders[0]
	if h.LimitedUntil == nil || !h.LimitedUntil.Equal(now.Add(time.Minute)) || len(h.Useless) != 1 || !h.Useless[0].Until.After(now) {
		t.Errorf("%+v", h)
	}
	if other.LimitedUntil != nil || other.Useless != nil {
		t.Errorf("the other worker: %+v", other)
	}
}

func TestWorkersShowEachHolder(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	status, text := ask(t, a, "GET", "/admin/workers", "")
	var got map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 {
		t.Fatalf("%d %v: %s", status, err, text)
	}
	w := got["workers"].([]any)[0].(map[string]any)
	h := w["holders"].([]any)[0].(map[string]any)
	for key, want := range map[string]any{"url": "http://a:1", "engine": "vllm", "version": "0.32.0", "block_size": 16.0, "blocks": 1000.0, "ready": true} {
		if w[key] != want {
			t.Errorf("worker %s is %v, want %v", key, w[key], want)
		}
	}
	for key, want := range map[string]any{"rank": 0.0, "trust": "exact", "trust_reason": "the history is whole", "last_sequence": 41.0,
		"gaps": 1.0, "replays": 2.0, "index_blocks": 7.0, "events_endpoint": "tcp://a:5557"} {
		if h[key] != want {
			t.Errorf("holder %s is %v, want %v", key, h[key], want)
		}
	}
	if load, ok := h["load"].(map[string]any); !ok || load["requests"] != 0.0 {
		t.Errorf("load %v", h["load"])
	}
}

func TestWorkersShowTheirLabels(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	f.Put("http://c:1", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, Labels: map[string]string{"hardware": "h100"}})
	_, text := ask(t, a, "GET", "/admin/workers", "")
	var got admin.Workers
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Workers) != 3 {
		t.Fatal(err, text)
	}
	if got.Workers[2].Labels["hardware"] != "h100" || got.Workers[0].Labels != nil {
		t.Errorf("labels %q, %q", got.Workers[2].Labels, got.Workers[0].Labels)
	}
}

func TestAMistypedPolicyGetsAHint(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	a.Meant = func(unknown string, known []string) string {
		if unknown != "margnal" || !slices.Contains(known, "marginal") {
			t.Errorf("asked what %q may mean, of %q", unknown, known)
		}
		return "; did you mean marginal?"
	}
	if status, text := ask(t, a, "POST", "/admin/explain?policy=margnal", question); status != 400 || !strings.Contains(text, "; did you mean marginal?") {
		t.Errorf("%d %s", status, text)
	}
}

func TestWorkersShowTheAssumptionsOfDiscovery(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	_, text := ask(t, a, "GET", "/admin/workers", "")
	var got admin.Workers
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Workers[0].Notes != nil || len(got.Workers[1].Notes) != 1 || got.Workers[1].Notes[0] != "it publishes no events" {
		t.Errorf("notes %q, %q", got.Workers[0].Notes, got.Workers[1].Notes)
	}
}

func TestExplainByAnotherPolicy(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	if err := a.Router.ChangePolicies(warmpath.PolicyChange{Standard: "round_robin"}); err != nil {
		t.Fatal(err)
	}
	const body = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	for _, path := range []string{"/admin/explain", "/admin/explain?policy=kv_aware", "/admin/explain?policy=least_load"} {
		status, text := ask(t, a, "POST", path, body)
		var e admin.Explanation
		if err := json.Unmarshal([]byte(text), &e); err != nil || status != 200 {
			t.Fatalf("%s: %d %v: %s", path, status, err, text)
		}
		best := 0
		for _, c := range e.Candidates {
			best = max(best, c.MatchTokens)
		}
		if best != 64 || !e.TokensKnown {
			t.Errorf("%s: what the caches hold is asked, whatever the policy looks at: %+v", path, e)
		}
	}
	if status, text := ask(t, a, "POST", "/admin/explain?policy=best", body); status != 400 || !strings.Contains(text, "kv_aware") {
		t.Errorf("%d %s", status, text)
	}
}

func TestExplainShowsEveryCandidateAndSendsNothing(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	status, text := ask(t, a, "POST", "/admin/explain", `{"model":"m","messages":[{"role":"user","content":"x"}]}`)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil || status != 200 {
		t.Fatalf("%d %v: %s", status, err, text)
	}
	if e.Worker != "http://a:1" || e.MatchTokens != 64 || e.Branch != "affinity" || e.PromptTokens != 100 || e.TokenSource != "local" || e.Reason == "" {
		t.Errorf("decision %+v", e)
	}
	if len(e.Candidates) != 2 {
		t.Fatalf("candidates %+v", e.Candidates)
	}
	for _, c := range e.Candidates {
		switch c.Worker {
		case "http://a:1":
			if !c.Chosen || c.MatchTokens != 64 || c.Tiers["gpu"] != 48 || c.Tiers["cpu"] != 16 || c.Score >= 0 || c.TrustReason == "" {
				t.Errorf("a: %+v", c)
			}
		case "http://b:1":
			if c.Chosen || c.MatchTokens != 0 || c.UncachedTokens != 100 || c.Trust != "approximate" {
				t.Errorf("b: %+v", c)
			}
		}
	}
	if !strings.Contains(e.Summary, "http://a:1") || !strings.Contains(e.Summary, "64") {
		t.Errorf("summary %q", e.Summary)
	}
	for _, c := range e.Candidates {
		if c.Why == "" {
			t.Errorf("why not %s?", c.Worker)
		}
	}
	snapshot := f.Snapshot()
	if l := snapshot.Load(0); l.Requests != 0 || l.Processed != 0 {
		t.Errorf("explaining reserved %+v", l)
	}
	if status, text = ask(t, a, "POST", "/admin/explain?policy=round_robin", `{"model":"m","prompt":"x"}`); status != 200 || !strings.Contains(text, `"round_robin"`) {
		t.Errorf("another policy: %d %s", status, text)
	}
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/admin/explain", `{`, 400},
		{"/admin/explain", `{"model":"other","messages":[]}`, 404},
		{"/admin/explain?policy=best", `{"model":"m","messages":[]}`, 400},
	} {
		if status, text := ask(t, a, "POST", c.path, c.body); status != c.status || !strings.Contains(text, `"message"`) {
			t.Errorf("%s %s: %d %s", c.path, c.body, status, text)
		}
	}
	if status, text := ask(t, a, "POST", "/admin/explain?path=/v1/embeddings", `{"model":"m"}`); status != 400 ||
		!strings.Contains(text, `/v1/embeddings\" are not routed by prompts: give one of /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses, /generate`) {
		t.Errorf("an unknown path: %d %s", status, text)
	}
}

// TestAWrongMethodIsAnsweredWithTheAllowedOne: the answer to a GET of /admin/explain is 405 and names POST; it is not
// 404.
func TestAWrongMethodIsAnsweredWithTheAllowedOne(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/admin/explain", 405, "only POST with the body of a request"},
		{"GET", "/admin/reload", 405, "only POST"},
		{"PUT", "/admin/workers", 405, "only GET, HEAD, POST, PATCH, DELETE"},
		{"DELETE", "/metrics", 405, "only GET, HEAD"},
		{"GET", "/admin/nothing", 404, "try GET /metrics, GET /health, GET /readiness, "},
	} {
		if status, text := ask(t, a, c.method, c.path, ""); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s, want %d %q", c.method, c.path, status, text, c.status, c.says)
		}
	}
}

func TestExplainSaysWhyNoHolderCanBeChosen(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	for _, w := range f.Snapshot().Workers() {
		f.SetHealth(w.ID, false, "away")
	}
	status, text := ask(t, a, "POST", "/admin/explain", `{"model":"m","messages":[]}`)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil || status != 200 || e.Error == "" || e.Worker != "" {
		t.Errorf("%d %v: %s", status, err, text)
	}
	for _, c := range e.Candidates {
		if c.LeftOut != "unavailable" || c.Why != "unavailable: away" {
			t.Errorf("%s is left out: %q, why: %q", c.Worker, c.LeftOut, c.Why)
		}
	}
}

func TestDecisionsComeNewestFirst(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	_, text := ask(t, a, "GET", "/admin/decisions?n=2", "")
	var d admin.Decisions
	if err := json.Unmarshal([]byte(text), &d); err != nil || len(d.Decisions) != 2 || d.Decisions[0].ID != 3 {
		t.Errorf("%v: %s", err, text)
	}
	if status, _ := ask(t, a, "GET", "/admin/decisions?n=x", ""); status != 400 {
		t.Errorf("n=x: %d", status)
	}
}

func TestKeyGuardsAdminAlone(t *testing.T) {
	a, _ := newAdmin(t, admin.Config{Listen: ":9090", Key: "correct-key"}, nil)
	for _, c := range []struct {
		path, key string
		status    int
	}{
		{"/admin/workers", "", 401},
		{"/admin/workers", "Bearer wrong-key!!", 401},
		{"/admin/workers", "correct-key", 401},
		{"/admin/workers", "Bearer correct-key", 200},
		{"/admin/nothing", "", 401},
		{"/admin", "", 401},
		{"/is_sleeping", "", 401},
		{"/is_sleeping", "Bearer correct-key", 200},
		{"/sleep", "", 401},
		{"/wake_up", "", 401},
		{"/flush_cache", "Bearer wrong-key!!", 401},
		{"/metrics", "", 200},
		{"/health", "", 200},
	} {
		status, text := ask(t, a, "GET", c.path, "", "Authorization", c.key)
		if status != c.status {
			t.Errorf("%s with %q: %d, want %d", c.path, c.key, status, c.status)
		}
		want := map[bool]string{true: "the admin key is missing: send", false: "the admin key is wrong: send"}[c.key == ""]
		if status == 401 && (!strings.Contains(text, want) || !strings.Contains(text, "where KEY is WARMPATH_ADMIN_KEY, admin.key_file or")) {
			t.Errorf("%s with %q: %s", c.path, c.key, text)
		}
	}
}

func TestExplainSaysWhatABodyWithoutAPromptLacks(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	for _, c := range []struct{ path, body, want string }{
		{"", `{}`, "there are no ids: the body has no messages: add messages for a request to /v1/chat/completions, or prompt for a request to /v1/completions"},
		{"", `{"messages":[]}`, "the body has no messages: add messages"},
		{"?path=/v1/completions", `{"messages":[{"role":"user","content":"x"}]}`, "the body has no prompt: add prompt for a request to /v1/completions, or explain a body with messages"},
		{"?path=/v1/completions", `{"prompt_embeds":"AAAA"}`, "the engine does not tokenize this body"},
		{"?path=/v1/completions", `{"prompt":"x"}`, "the ids are made in the router"},
	} {
		var e admin.Explanation
		status, text := ask(t, a, "POST", "/admin/explain"+c.path, c.body)
		if err := json.Unmarshal([]byte(text), &e); err != nil || status != 200 || !strings.Contains(e.TokenOrigin, c.want) {
			t.Errorf("%s %s: %d %s", c.path, c.body, status, text)
		}
	}
}

func TestPathTricksDoNotPassTheGuard(t *testing.T) {
	a, _ := newAdmin(t, admin.Config{Listen: ":9090", Key: "correct-key"}, nil)
	for _, path := range []string{"//admin/workers", "/./admin/workers", "/x/../admin/workers", "/%61dmin/workers", "/ADMIN/workers"} {
		if status, text := ask(t, a, "GET", path, ""); status == 200 || strings.Contains(text, "holders") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestReload(t *testing.T) {
	changes, failure := []string{"policy: random, was kv_aware"}, error(nil)
	a, _ := newAdmin(t, admin.DefaultConfig(), func(context.Context) ([]string, error) { return changes, failure })
	if status, text := ask(t, a, "POST", "/admin/reload", ""); status != 200 || !strings.Contains(text, "policy: random") {
		t.Errorf("%d %s", status, text)
	}
	failure = errors.New("w.yaml:3:1: unknown field")
	if status, text := ask(t, a, "POST", "/admin/reload", ""); status != 422 || !strings.Contains(text, "w.yaml:3:1") {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := ask(t, a, "GET", "/admin/reload", ""); status == 200 {
		t.Error("GET reloads")
	}
	if status, _ := ask(t, a, "POST", "/admin/reload", "", "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("a page of another site may reload: %d", status)
	}
	none, _ := newAdmin(t, admin.DefaultConfig(), nil)
	if status, _ := ask(t, none, "POST", "/admin/reload", ""); status != 409 {
		t.Errorf("without a file: %d", status)
	}
}

func TestOnlyLoopbackNeedsNoKey(t *testing.T) {
	for _, c := range []struct {
		listen, key string
		ok          bool
	}{
		{"127.0.0.1:9090", "", true}, {"[::1]:9090", "", true}, {"localhost:9090", "", true}, {"127.8.8.8:1", "", true}, {"", "", true},
		{"[::ffff:127.0.0.1]:1", "", true},
		{":9090", "", false}, {"0.0.0.0:9090", "", false}, {"10.0.0.1:9090", "", false}, {"[::]:9090", "", false}, {"host:9090", "", false},
		{"localhost.example.com:1", "", false},
		{":9090", "long-enough", true}, {":9090", "short", false}, {"nonsense", "", false},
	} {
		if err := (admin.Config{Listen: c.listen, Key: c.key}).Validate(); (err == nil) != c.ok {
			t.Errorf("%q with key %q: %v", c.listen, c.key, err)
		}
	}
}
