package indexer

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvindex"
)

// made is a tokens.Local that has ids for each prompt.
type made struct{ tokens.Found }

func (m made) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) { return m.Found, true }

func (made) Text(string, []block.Token) string { return "" }

// finds runs a service that finds these ids for texts and chats, with a worker that has all their blocks under each
// salt.
func finds(t *testing.T, found tokens.Found, salts ...string) *world {
	t.Helper()
	source := tokens.New(tokens.DefaultConfig(), nil)
	t.Cleanup(source.Close)
	source.Local = made{found}
	w := serve(t, Config{}, func(p *Parts) { p.Tokens = source })
	a := w.worker("http://a", nil)
	for i, salt := range append(salts, "") {
		w.store(a.Holders[0], found.Tokens[:len(found.Tokens)-32*i], kvindex.Stored{Scope: block.Scope{Salt: salt}})
	}
	return w
}

// A chat has its cache salt in its body. The feed must hear of it, so that it counts the blocks of the engine's events.
func TestTheSaltOfAChatCounts(t *testing.T) {
	w := finds(t, tokens.Found{Tokens: prompt(1, 160), Outcome: tokens.InProcess}, "inner", "outer")
	const chat, salted = `{"messages":[{"role":"user","content":"x"}]}`, `{"cache_salt":"inner","messages":[{"role":"user","content":"x"}]}`
	for _, c := range []struct {
		body, salt string
		matched    int
		heard      string
	}{{salted, "", 144, "http://a inner/"}, {chat, "outer", 128, "http://a outer/"}, {salted, "outer", 128, "http://a outer/"}, {chat, "", 96, ""}} {
		w.service.scoping.mu.Lock()
		clear(w.service.scoping.told)
		w.service.scoping.mu.Unlock()
		w.mu.Lock()
		w.scoped = nil
		w.mu.Unlock()
		var a answer
		if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", body: []byte(c.body), salt: c.salt}, &a); err != nil || len(a.scores) != 1 || a.scores[0].matched != c.matched {
			t.Errorf("%s with the salt %q: %+v, want %d: %v", c.body, c.salt, a, c.matched, err)
		}
		w.mu.Lock()
		if c.heard == "" && len(w.scoped) > 0 || c.heard != "" && !slices.Equal(w.scoped, []string{c.heard}) {
			t.Errorf("%s with the salt %q: the feed heard of %q, want %q", c.body, c.salt, w.scoped, c.heard)
		}
		w.mu.Unlock()
	}
}

// The ids after the first Sure ones stand for text whose ids are not known: no engine has them.
func TestOnlyIDsThatAreKnownCount(t *testing.T) {
	w := finds(t, tokens.Found{Tokens: prompt(1, 160), Outcome: tokens.Beginning, Sure: 48})
	var a answer
	if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", text: "x", hasText: true}, &a); err != nil || a.tokens != 48 || len(a.scores) != 1 || a.scores[0].matched != 32 {
		t.Errorf("%+v: %v", a, err)
	}
}

// An engine may take longer to make token ids than a request would wait for them. A question waits tokens.budget. What
// then follows depends on whether another try may help.
func TestAQuestionWaitsForAnEngineThatIsSlow(t *testing.T) {
	answers := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		busy, done := context.WithTimeout(context.Background(), 300*time.Millisecond) // a request would wait 200 ms
		defer done()
		switch text := string(body); {
		case r.URL.Path != "/tokenize":
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(text, "slow"):
			<-busy.Done()
			_, _ = io.WriteString(w, `{"tokens":[1,2,3]}`)
		case strings.Contains(text, "silent"):
			<-answers
		default:
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer engine.Close()
	defer close(answers)
	serveFor := func(budget time.Duration) *world {
		cfg := tokens.DefaultConfig()
		cfg.Budget = budget
		source := tokens.New(cfg, engine.Client())
		t.Cleanup(source.Close)
		w := serve(t, Config{}, func(p *Parts) { p.Tokens = source })
		w.worker(engine.URL, func(f *fleet.Facts) { f.CanTokenize = true })
		w.worker("http://none", func(f *fleet.Facts) { f.Models[0].ID = "other" })
		return w
	}
	patient, hasty := serveFor(10*time.Second), serveFor(20*time.Millisecond)
	for _, c := range []struct {
		w      *world
		fields string
		status int
		says   string
	}{
		{patient, `"model":"m","prompt":"slow"`, 200, `"tokens":3`},
		{patient, `"model":"m","messages":[{"role":"user","content":"slow"}]`, 200, `"tokens":3`},
		{hasty, `"model":"m","prompt":"silent"`, 503, "try again; tokens.budget"},
		{patient, `"model":"m","prompt":"bad"`, 400, "the worker refuses"},
		{patient, `"model":"m","messages":[]`, 400, "has nothing in it"},
		{patient, `"model":"m","prompt":["a","b"]`, 400, "one prompt at a time"},
		{patient, `"model":"other","prompt":"slow"`, 422, "--model-path"},
	} {
		fields := `{` + c.fields + `}`
		resp, err := http.Post(c.w.url+"/query", "application/json", strings.NewReader(fields))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(text), c.says) || (resp.Header.Get("Retry-After") != "") != (c.status == 503) {
			t.Errorf("%s: %d %s %v, want %d and %q", fields, resp.StatusCode, text, resp.Header, c.status, c.says)
		}
		if c.status == 400 && strings.Contains(string(text), "--model-path") {
			t.Errorf("%s: %s", fields, text)
		}
	}
	err := hasty.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", text: "silent", hasText: true}, new(answer))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "try again") {
		t.Errorf("over gRPC: %v", err)
	}
	err = patient.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", body: []byte(`{"messages":[]}`)}, new(answer))
	if status.Code(err) != codes.InvalidArgument || strings.Contains(err.Error(), "--model-path") {
		t.Errorf("a chat without messages over gRPC: %v", err)
	}
}
