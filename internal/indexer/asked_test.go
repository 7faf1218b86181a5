package indexer

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Without a key, any program of the machine may register a URL. It must not get the prompts of other clients.
func TestARegisteredWorkerSeesPromptsOnlyIfTheServiceHasAKey(t *testing.T) {
	const secret = "a text of another client"
	for _, c := range []struct {
		name, key string
		listed    bool
		asked     bool
	}{
		{"registered without a key", "", false, false},
		{"registered with the key", "secret-key", false, true},
		{"listed", "", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var seen []string
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, string(body))
				if r.URL.Path != "/tokenize" {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"count":3,"max_model_len":100,"tokens":[1,2,3]}`)
			}))
			defer engine.Close()
			cfg := tokens.DefaultConfig()
			cfg.Budget = 10 * time.Second // the machine may be busy
			source := tokens.New(cfg, engine.Client())
			defer source.Close()
			w := serve(t, Config{Key: c.key}, func(p *Parts) { p.Tokens = source })
			if c.listed {
				w.worker(engine.URL, func(f *fleet.Facts) { f.CanTokenize = true })
			} else if status, text := w.ask("POST", "/register", `{"instance_id":"`+engine.URL+`","model_name":"m","block_size":16,"endpoint":"tcp://127.0.0.1:9"}`,
				"Authorization", "Bearer "+c.key); status != http.StatusCreated {
				t.Fatalf("%d %s", status, text)
			}
			status, text := w.ask("POST", "/query", `{"model":"m","prompt":"`+secret+`"}`, "Authorization", "Bearer "+c.key)
			mu.Lock()
			defer mu.Unlock()
			saw := slices.ContainsFunc(seen, func(body string) bool { return strings.Contains(body, secret) })
			switch {
			case saw != c.asked:
				t.Errorf("the worker saw %q", seen)
			case c.asked && status != http.StatusOK:
				t.Errorf("%d %s", status, text)
			case !c.asked && (status != http.StatusUnprocessableEntity || !strings.Contains(text, "list the worker (--worker)")):
				t.Errorf("%d %s", status, text)
			}
		})
	}
}
