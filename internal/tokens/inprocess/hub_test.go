package inprocess

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// fakeHub serves one model, org/m, as a hub does.
type fakeHub struct {
	*httptest.Server
	files fstest.MapFS
	token string // token that a client must send; empty: no token is needed

	mu       sync.Mutex
	answered []string // guarded by mu; requested files, each with the position of the first requested byte
	breakAt  int      // guarded by mu; the connection of the next file breaks after this many bytes; 0: it does not break
	lie      bool     // guarded by mu; the listing has wrong digests
	status   int      // guarded by mu; status of every answer; 0: the normal status
}

func newHub(t *testing.T) *fakeHub {
	t.Helper()
	f := &fakeHub{files: files()}
	f.files["model-00001-of-00002.safetensors"] = &fstest.MapFile{Data: []byte("weights")}
	f.files["README.md"] = &fstest.MapFile{Data: []byte("words")}
	f.files["additional_chat_templates/tool_use.jinja"] = &fstest.MapFile{Data: []byte("t")}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/org/m/revision/{revision}", f.list)
	mux.HandleFunc("GET /org/m/resolve/"+commit+"/{name...}", f.file)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		status := f.status
		f.mu.Unlock()
		switch {
		case status != 0:
			w.WriteHeader(status)
		case f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeHub) list(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("revision") != "main" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	out := map[string]any{"sha": commit}
	var siblings []map[string]any
	for name, file := range f.files {
		git := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(file.Data)), file.Data...))
		entry := map[string]any{"rfilename": name, "size": len(file.Data), "blobId": hex.EncodeToString(git[:])}
		if name == "tokenizer.json" {
			digest := sha256.Sum256(file.Data)
			if f.lie {
				digest[0]++
			}
			entry["lfs"] = map[string]any{"sha256": hex.EncodeToString(digest[:])}
		}
		siblings = append(siblings, entry)
	}
	siblings = append(siblings, map[string]any{"rfilename": "../../x.tiktoken"},
		map[string]any{"rfilename": "additional_chat_templates/../../x.jinja"})
	out["siblings"] = siblings
	_ = json.NewEncoder(w).Encode(out)
}

func (f *fakeHub) file(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	f.mu.Lock()
	f.answered = append(f.answered, name+" "+strings.TrimSuffix(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-"))
	breakAt := f.breakAt
	f.breakAt = 0
	f.mu.Unlock()
	data := f.files[name].Data
	if breakAt > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:breakAt])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// fetch downloads org/m, after change has changed the configuration.
func (f *fakeHub) fetch(t *testing.T, cache, path string, change func(*HubConfig)) (string, error) {
	t.Helper()
	cfg := HubConfig{Allow: true, Endpoint: f.URL + "/", Cache: cache}
	if change != nil {
		change(&cfg)
	}
	h := NewHub(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	h.retry = time.Millisecond
	got, err := h.Folders(t.Context(), []Path{{Name: "n", Path: path}})
	if len(got) != 1 || got[0].Name != "n" {
		t.Fatalf("paths %v", got)
	}
	return got[0].Path, err
}

func TestAModelIsDownloadedOnceAndWithoutItsWeights(t *testing.T) {
	hub, cache := newHub(t), t.TempDir()
	for range 2 {
		dir, err := hub.fetch(t, cache, "hub:org/m", nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(cache, "models--org--m", "snapshots", commit); dir != want {
			t.Errorf("folder %s, want %s", dir, want)
		}
		if _, err := OpenOne(dir); err != nil {
			t.Error(err)
		}
	}
	if len(hub.answered) != 3 || strings.Contains(strings.Join(hub.answered, " "), "safetensors") {
		t.Errorf("files asked for: %q", hub.answered)
	}
	if _, err := OpenOne(filepath.Join(cache, "models--org--m")); err != nil {
		t.Errorf("the cache is not laid out as Hugging Face's tools do: %v", err)
	}
	var rest []string
	_ = filepath.WalkDir(filepath.Dir(cache), func(name string, d os.DirEntry, _ error) error {
		if strings.HasSuffix(name, ".incomplete") || strings.Contains(name, "x.") {
			rest = append(rest, name)
		}
		return nil
	})
	if rest != nil {
		t.Errorf("left behind or outside: %v", rest)
	}
}

func TestABrokenDownloadIsContinued(t *testing.T) {
	hub, cache := newHub(t), t.TempDir()
	for name := range hub.files {
		if name != "tokenizer.json" {
			delete(hub.files, name)
		}
	}
	hub.breakAt = 100
	if _, err := hub.fetch(t, cache, "hub:org/m@main", nil); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(hub.answered, ","); got != "tokenizer.json ,tokenizer.json 100" {
		t.Errorf("asked for %s", got)
	}
}

func TestAFileWithAnotherDigestIsRefused(t *testing.T) {
	hub, cache := newHub(t), t.TempDir()
	hub.lie = true
	if _, err := hub.fetch(t, cache, "hub:org/m", nil); err == nil ||
		!strings.Contains(err.Error(), "differs from the hub") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(cache, "models--org--m", "snapshots", commit, "tokenizer.json")); err == nil {
		t.Error("it was put in place")
	}
	if _, err := os.Stat(filepath.Join(cache, "models--org--m", "refs", "main")); err == nil {
		t.Error("a broken download became the revision")
	}
}

func TestErrorsOfTheHubSayWhatToDo(t *testing.T) {
	hub := newHub(t)
	f := func(path string, status int, change func(*HubConfig), want ...string) {
		t.Helper()
		hub.mu.Lock()
		hub.status = status
		hub.mu.Unlock()
		_, err := hub.fetch(t, t.TempDir(), path, change)
		for _, w := range append(want, "model path "+path) {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v does not say %q", path, err, w)
			}
		}
	}
	f("hub:org/m", 0, func(c *HubConfig) { c.Allow = false }, "--allow-hub", "hub: {allow: true}", "name their folder")
	f("hub:org/other", 0, nil, "there is no org/other at main", "404")
	f("hub:org/m@v2", 0, nil, "there is no org/m at v2")
	f("hub:org/m", 401, nil, "set HF_TOKEN", "401")
	f("hub:org/m", 401, func(c *HubConfig) { c.Token = "t" }, "refuses HF_TOKEN")
	f("hub:org/m", 403, func(c *HubConfig) { c.Token = "t" }, "licence must be accepted")
	f("hub:org/m", 503, nil, "cannot be reached", "without a network, copy the model's folder here")
	f("hub:org/m", 0, func(c *HubConfig) { c.Endpoint = "http://127.0.0.1:1" }, "cannot be reached")
	f("hub:org/m", 0, func(c *HubConfig) { c.Offline = true }, "HF_HUB_OFFLINE")
	f("hub:org/m", 204, nil, "unexpected status 204")
	for _, path := range []string{"hub:m", "hub:../m", "hub:a/..", "hub:a/b/c", "hub:a/b@", "hub:a/b@../c", "hub:",
		"hub:a/b?c"} {
		f(path, 0, nil, "is not hub:ORG/NAME")
	}
	delete(hub.files, "tokenizer.json")
	f("hub:org/m", 0, nil, "has no tokenizer.json")
	if _, err := OpenOne("hub:org/m"); err == nil || !strings.Contains(err.Error(), "not fetched") {
		t.Errorf("opened without being fetched: %v", err)
	}
}

func TestATokenOpensAGatedModel(t *testing.T) {
	hub := newHub(t)
	hub.token = "secret"
	if _, err := hub.fetch(t, t.TempDir(), "hub:org/m", func(c *HubConfig) { c.Token = "secret" }); err != nil {
		t.Error(err)
	}
}

func TestWithoutANetworkTheLastDownloadIsUsed(t *testing.T) {
	hub, cache := newHub(t), t.TempDir()
	want, err := hub.fetch(t, cache, "hub:org/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*HubConfig){
		func(c *HubConfig) { c.Endpoint = "http://127.0.0.1:1" },
		func(c *HubConfig) { c.Endpoint, c.Offline = "http://127.0.0.1:1", true },
	} {
		if dir, err := hub.fetch(t, cache, "hub:org/m", change); err != nil || dir != want {
			t.Errorf("folder %s, error %v", dir, err)
		}
	}
}

func TestADownloadThatStallsOrIsStoppedEnds(t *testing.T) {
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			_, _ = fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"tokenizer.json"}]}`, commit)
			return
		}
		_, _ = io.WriteString(w, "{")
		w.(http.Flusher).Flush()
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(hold)
	h := NewHub(HubConfig{Allow: true, Endpoint: server.URL, Cache: t.TempDir()}, slog.New(slog.DiscardHandler))
	h.retry, h.stall = time.Millisecond, 20*time.Millisecond
	if _, err := h.Folders(t.Context(), []Path{{Path: "hub:org/m"}}); err == nil ||
		!strings.Contains(err.Error(), "nothing came for 20ms") {
		t.Errorf("stalled: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Folders(ctx, []Path{{Path: "hub:org/m"}}); err == nil {
		t.Error("it continues after its context ended")
	}
}
