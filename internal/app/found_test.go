package app_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/test/testenv"
)

// modelFolder writes the files of a model with a few words, and returns their folder. Its chat template begins each
// chat with the text in opens.
func modelFolder(t *testing.T, opens string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json": `{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"decoder":null,"post_processor":null,
			"model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1,"world":2,"plain":3,"fancy":4},"unk_token":"[UNK]"}}`,
		"chat_template.jinja": opens + `{% for m in messages %} {{ m.content }}{% endfor %}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// anEngine starts a fake engine with the model in folder. reported is the path from which the engine says that it
// loaded the model. key is the API key that the engine requires. asked counts the requests for token ids.
func anEngine(t *testing.T, reported, folder, key string) (url string, asked *atomic.Int64) {
	t.Helper()
	m, err := inprocess.OpenOne(folder)
	if err != nil {
		t.Fatal(err)
	}
	asked = new(atomic.Int64)
	ids := func(w http.ResponseWriter, r *http.Request, d api.Dialect) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		var read api.Request
		made, err := []uint32(nil), api.Read(d, body, &read)
		if err == nil {
			made, err = m.Tokens(nil, &read, tokens.VLLM)
		}
		if err != nil {
			http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": made, "count": len(made)})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]any{"id": "words", "root": reported, "owned_by": "vllm", "max_model_len": 8192}}})
	})
	mux.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		d := api.OpenAICompletions
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"messages"`) {
			d = api.OpenAIChat
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		ids(w, r, d)
	})
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, asked
}

func TestAModelsFilesAreFoundWithoutASetting(t *testing.T) {
	t.Setenv(config.EnvHubCache, t.TempDir())
	right, wrong := modelFolder(t, "plain"), modelFolder(t, "fancy")
	for name, c := range map[string]struct {
		reported, source string
		says             []string
		requests         int64 // number of times that the router asks the engine for the ids of a request
	}{
		"the reported folder":   {right, "local", []string{`"source":"files"`, `"folder":"` + right + `"`}, 0},
		"another model's files": {wrong, "tokenize", []string{`"source":"engine"`, "one user turn", `"advice":"is it the same model`}, 1},
		"a folder elsewhere":    {"/models/words", "tokenize", []string{`"source":"engine"`, `\"/models/words\" is not on this machine`, "--model-path words=DIR"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			url, asked := anEngine(t, c.reported, right, "secret")
			cfg := settings()
			cfg.Workers = []discovery.Target{{URL: url, APIKey: "secret"}}
			cfg.Tokens.Budget = time.Hour // so long that each request gets its ids, also on a busy machine
			var log testenv.Buffer
			r := startWith(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			r.wait("it is known where ids come from", func() bool { return strings.Contains(log.String(), "token ids are") })
			probes := asked.Load()
			req, _ := http.NewRequest(http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(`{"model":"words","messages":[{"role":"user","content":"hello world"}]}`))
			req.Header.Set("Authorization", "Bearer secret")
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) == 1 })
			if got := r.Telemetry().Last(1)[0]; resp.StatusCode != 200 || got.TokenSource != c.source || got.PromptTokens != 3 {
				t.Errorf("status %d, %d ids from %s, want %s", resp.StatusCode, got.PromptTokens, got.TokenSource, c.source)
			}
			workers := r.get("/admin/workers")
			for _, want := range c.says {
				if !strings.Contains(workers, want) {
					t.Errorf("/admin/workers lacks %s: %s", want, workers[strings.Index(workers, `"tokens"`):])
				}
			}
			if c.source != "local" && asked.Load() != probes+c.requests {
				t.Errorf("%d questions for one request", asked.Load()-probes)
			}
			if strings.Contains(log.String(), "secret") {
				t.Error("the key is in the log")
			}
		})
	}
}
