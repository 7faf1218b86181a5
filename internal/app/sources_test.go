package app_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
)

// aHub serves the model in folder under the name org/words.
func aHub(t *testing.T, folder string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("/api/models/org/words/revision/main", func(w http.ResponseWriter, _ *http.Request) {
		var files []any
		entries, _ := os.ReadDir(folder)
		for _, e := range entries {
			files = append(files, map[string]any{"rfilename": e.Name()})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": revision, "siblings": files})
	})
	mux.Handle("/org/words/resolve/"+revision+"/", http.StripPrefix("/org/words/resolve/"+revision, http.FileServer(http.Dir(folder))))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

const revision = "0123456789abcdef0123456789abcdef01234567"

// snapshot returns the folder of org/words in a Hugging Face cache.
func snapshot(cache string) string {
	return filepath.Join(cache, "models--org--words", "snapshots", revision)
}

// Files are looked for in this machine's Hugging Face cache, on the hub if that is allowed, and nowhere if
// tokens.discover is off.
func TestSettingsSayWhereModelsFilesAreLookedFor(t *testing.T) {
	folder := modelFolder(t, "plain")
	full := t.TempDir()
	if err := os.CopyFS(snapshot(full), os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	hub, asked := aHub(t, folder)
	for name, c := range map[string]struct {
		reported, cache string
		change          func(*config.Config)
		hub             bool // whether the hub is asked
		says            string
	}{
		"the cache of this machine": {"org/words", full, nil, false, `"folder":"` + snapshot(full) + `"`},
		"the hub, not allowed":      {"org/words", t.TempDir(), nil, false, `or let them be downloaded: --allow-hub`},
		"the hub, allowed":          {"org/words", t.TempDir(), func(c *config.Config) { c.Hub.Allow = true }, true, `"source":"files"`},
		"tokens.discover is off": {folder, full, func(c *config.Config) { c.Tokens.Discover, c.Hub.Allow = false, true }, false,
			`"why":"tokens.discover is off"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(config.EnvHubCache, c.cache)
			t.Setenv(config.EnvHubEndpoint, hub)
			before := asked.Load()
			engine, _ := anEngine(t, c.reported, folder, "secret")
			cfg := settings()
			cfg.Workers = []discovery.Target{{URL: engine, APIKey: "secret"}}
			if c.change != nil {
				c.change(cfg)
			}
			r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
			r.wait("/admin/workers says "+c.says, func() bool { return strings.Contains(r.get("/admin/workers"), c.says) })
			if got := asked.Load() > before; got != c.hub {
				t.Errorf("the hub was asked: %v, want %v", got, c.hub)
			}
		})
	}
}
