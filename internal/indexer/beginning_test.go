package indexer

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// The token ids of a known system prompt are no answer to a question about a longer chat: without the other ids its
// figures would be too small. The answer is the same error as without the known ids.
func TestAKnownSystemPromptIsNoAnswerAboutALongerChat(t *testing.T) {
	answers := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch text := string(body); {
		case r.URL.Path != "/tokenize":
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(text, "silent"):
			<-answers
		case strings.Contains(text, "bad"):
			w.WriteHeader(http.StatusBadRequest)
		default: // the ids of the system prompt, and one for the user's turn
			_, _ = fmt.Fprintf(w, `{"tokens":%s}`, list(append(prompt(1, 64), prompt(len(text), 1)...)))
		}
	}))
	defer engine.Close()
	defer close(answers)
	cfg := tokens.DefaultConfig()
	cfg.Budget = 200 * time.Millisecond
	source := tokens.New(cfg, engine.Client())
	defer source.Close()
	w := serve(t, Config{}, func(p *Parts) { p.Tokens = source })
	w.worker(engine.URL, func(f *fleet.Facts) { f.CanTokenize = true })
	ask := func(user string) (status int, text, retry string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`, strings.Repeat("system ", 64), user)
		resp, err := http.Post(w.url+"/query", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		all, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(all), resp.Header.Get("Retry-After")
	}
	for _, c := range []struct {
		user   string
		status int
		says   string
	}{
		{"a", 200, `"tokens":65`},
		{"of b", 200, `"tokens":65`}, // from here on, the beginning is known
		{"and of c", 200, `"tokens":65`},
		{"bad", 400, "the worker refuses"},
		{"silent", 503, "try again; tokens.budget"},
	} {
		var status int
		var text, retry string
		testenv.Until(t, "the engine answers in time", func() bool { // if the machine is busy, it may be late
			status, text, retry = ask(c.user)
			return status != 503 || c.status == 503
		})
		if status != c.status || !strings.Contains(text, c.says) || (retry != "") != (c.status == 503) {
			t.Errorf("%s: %d %s, Retry-After %q, want %d and %q", c.user, status, text, retry, c.status, c.says)
		}
	}
	if s := source.Stats(); s.BeginningsChecked == 0 || s.BeginningsDiffered > 0 {
		t.Errorf("no beginning is known: %+v", s)
	}
}
