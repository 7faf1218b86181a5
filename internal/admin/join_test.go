package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/discovery"
)

// changeable returns an admin handler over two workers of the configuration. Nothing probes them.
func changeable(t *testing.T, cfg admin.Config) (*admin.Admin, *fleet.Fleet, *discovery.Watcher) {
	t.Helper()
	a, f := newAdmin(t, cfg, nil)
	workers, err := discovery.NewWatcher(f, []discovery.Target{{URL: "http://a:1"}, {URL: "http://b:1"}}, discovery.Config{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a.Workers = workers
	return a, f, workers
}

func TestChangesOfWorkersAreCheckedAndBounded(t *testing.T) {
	a, _, workers := changeable(t, admin.DefaultConfig())
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "", `{"url": "http://c:1/v1", "labels": {"zone": "a"}, "ranks": 2, "api_key": "secret"}`, 201, `"url": "http://c:1"`},
		{"POST", "", `{"url": "http://c:1"}`, 409, "a worker with this URL is there already; PATCH /admin/workers changes it"},
		{"POST", "", `{"url": "http://a:1/"}`, 409, "is there already"},
		{"POST", "", `{"url": "d:1"}`, 400, "write http://d:1"},
		{"POST", "", `{"url": "http://user:pass@d:1"}`, 400, "must not contain a user"},
		{"POST", "", `{"url": "http://d:1", "api_key_file": "/etc/shadow"}`, 400, "send the key itself in api_key;"},
		{"POST", "", `{"url": "http://d:1", "ranks": 5000}`, 400, "ranks: 5000 is outside"},
		{"POST", "", `{"url": "https://d:1", "tls": {"ca_file": "/none"}}`, 400, "/none"},
		{"POST", "", `{"url": "http://d:1"} {}`, 400, "more than one value"},
		{"POST", "", ``, 400, "send a body such as"},
		{"POST", "", `{"url": "` + strings.Repeat("x", 70<<10), 413, "too large"},
		{"PATCH", "", `{"url": "http://a:1", "labels": {}}`, 409, "another source: list; change them there, and reload"},
		{"PATCH", "", `{"url": "http://d:1", "labels": {}}`, 404, "no worker has the URL"},
		{"DELETE", "", ``, 400, "DELETE /admin/workers?url="},
		{"DELETE", "?url=http://d:1", ``, 404, "no worker has this URL"},
		{"DELETE", "?url=http://c:1&drain=soon", ``, 400, "is not a duration"},
		{"DELETE", "?url=http://c:1&drain=-1s", ``, 400, "is not a duration"},
		{"DELETE", "?url=http://c:1/v1", ``, 200, `"requests": 0`},
		{"DELETE", "?url=http://c:1", ``, 404, "no worker has this URL"},
	} {
		if status, text := ask(t, a, c.method, "/admin/workers"+c.path, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s %.80s: %d %s, want %d %q", c.method, c.path, c.body, status, text, c.status, c.says)
		}
		if c.status == 201 {
			got := workers.Target("http://c:1")
			if from, _, _ := workers.SourceOf(got.URL); from != discovery.SourceAdmin || got.APIKey != "secret" || got.Ranks != 2 || got.Labels["zone"] != "a" {
				t.Errorf("the worker is %+v of %s", got, from)
			}
		}
	}
}

func TestAnOperatorRemovesAWorkerOfTheConfigurationAndBringsItBack(t *testing.T) {
	a, _, workers := changeable(t, admin.DefaultConfig())
	removed := func() (out admin.Workers) {
		_, text := ask(t, a, "GET", "/admin/workers", "")
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := removed(); len(got.Removed) != 0 || got.Workers[0].Source != "list" {
		t.Errorf("before: removed %v, source %q", got.Removed, got.Workers[0].Source)
	}
	ask(t, a, "DELETE", "/admin/workers?url=http://a:1", "")
	if err := workers.Replace([]discovery.Target{{URL: "http://a:1"}, {URL: "http://b:1"}}); err != nil { // a reload
		t.Fatal(err)
	}
	if got := removed(); len(got.Removed) != 1 || got.Removed[0] != "http://a:1" || workers.Target("http://a:1").URL != "" {
		t.Errorf("after the removal and a reload: %v removed, target %+v", got.Removed, workers.Target("http://a:1"))
	}
	if status, text := ask(t, a, "POST", "/admin/workers", `{"url": "http://a:1", "ranks": 3}`); status != 409 || !strings.Contains(text, "comes back if only its URL is given") {
		t.Errorf("with other settings: %d %s", status, text)
	}
	if status, text := ask(t, a, "POST", "/admin/workers", `{"url": "http://a:1"}`); status != 201 || len(removed().Removed) != 0 || workers.Target("http://a:1").URL == "" {
		t.Errorf("%d %s", status, text)
	}
}

// The settings that a PATCH does not name stay.
func TestAnOperatorChangesTheSettingsOfAnAddedWorker(t *testing.T) {
	a, f, workers := changeable(t, admin.DefaultConfig())
	ask(t, a, "POST", "/admin/workers", `{"url": "http://c:1", "labels": {"zone": "a", "node": "n"}, "model": "m"}`)
	f.Put("http://c:1", fleet.Facts{}) // as discovery does
	status, text := ask(t, a, "PATCH", "/admin/workers", `{"url": "http://c:1/", "labels": {"zone": "b"}}`)
	if got := workers.Target("http://c:1"); status != 200 || got.Model != "m" || len(got.Labels) != 1 || got.Labels["zone"] != "b" {
		t.Errorf("%d %s: %+v", status, text, got)
	}
	status, text = ask(t, a, "PATCH", "/admin/workers", `{"url": "http://c:1", "protocol": "http2"}`)
	if got := workers.Target("http://c:1"); status != 200 || got.Protocol != "http2" {
		t.Errorf("%d %s: %+v", status, text, got)
	}
	status, text = ask(t, a, "PATCH", "/admin/workers", `{"url": "http://c:1", "role": "prefill", "connector": "nixl", "transfer_host": "h", "transfer_port": 7, "engine_id": "e", "tensor_parallel": 2, "kv_bytes_per_token": 9}`)
	got, want := workers.Target("http://c:1"), discovery.Target{URL: "http://c:1", Role: "prefill", Connector: "nixl", TransferHost: "h", TransferPort: 7, EngineID: "e", TensorParallel: 2, KVBytesPerToken: 9,
		Model: "m", Protocol: "http2", Labels: map[string]string{"zone": "b"}}
	if status != 200 || !got.Equal(want) {
		t.Errorf("%d %s: %+v", status, text, got)
	}
	status, text = ask(t, a, "PATCH", "/admin/workers", `{"url": "http://c:1", "role": "kv_producer"}`)
	if status != 400 || !strings.Contains(text, "none of prefill, decode, both") || workers.Target("http://c:1").Role != "prefill" {
		t.Errorf("%d %s", status, text)
	}
	status, text = ask(t, a, "PATCH", "/admin/workers", `{"url": "http://c:1", "api_key_use": "always"}`)
	if status != 400 || !strings.Contains(text, "needs a key") || workers.Target("http://c:1").APIKeyUse != "" {
		t.Errorf("%d %s: %+v", status, text, workers.Target("http://c:1"))
	}
}

func TestThePathsOfPeersAreThereWhenTheyAreAskedFor(t *testing.T) {
	cfg := admin.DefaultConfig()
	cfg.Key = "a long key"
	without, _, _ := changeable(t, cfg)
	key := []string{"Authorization", "Bearer a long key"}
	if status, text := ask(t, without, "GET", "/list_workers", "", key...); status != http.StatusNotFound || !strings.Contains(text, "set admin.peer_paths to true") {
		t.Errorf("without the setting: %d %s", status, text)
	}
	if status, text := ask(t, without, "GET", "/v1/models", "", key...); status != http.StatusNotFound || !strings.Contains(text, "the clients' listener is at another port") {
		t.Errorf("a path of the clients' listener: %d %s", status, text)
	}
	if status, text := ask(t, without, "DELETE", "/admin/workers", "", key...); status != http.StatusBadRequest || !strings.Contains(text, "&drain=5m") {
		t.Errorf("without a URL: %d %s", status, text)
	}
	cfg.PeerPaths = true
	a, _, workers := changeable(t, cfg)
	for _, path := range []string{"/add_worker?url=http://c:1", "/remove_worker?url=http://a:1"} {
		if status, _ := ask(t, a, "POST", path, ""); status != http.StatusUnauthorized {
			t.Errorf("%s without the key: %d", path, status)
		}
	}
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/list_workers", 200, `"http://a:1"`},
		{"POST", "/add_worker?url=http%3A%2F%2Fc%3A1&api_key=secret", 200, "Successfully added worker: http://c:1\n"},
		{"POST", "/add_worker?url=http://c:1", 409, "is there already"},
		{"POST", "/add_worker", 400, "Worker URL required"},
		{"POST", "/add_worker?url=c:1", 400, "write http://c:1"},
		{"POST", "/remove_worker?url=http://b:1", 200, "Successfully removed worker: http://b:1\n"},
		{"POST", "/remove_worker?url=http://b:1", 200, "Successfully removed worker: http://b:1\n"},
		{"POST", "/remove_worker", 400, "Worker URL required"},
		{"GET", "/add_worker", 405, "only POST"},
	} {
		if status, text := ask(t, a, c.method, c.path, "", key...); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s, want %d %q", c.method, c.path, status, text, c.status, c.says)
		}
	}
	if workers.Target("http://c:1").APIKey != "secret" || workers.Target("http://b:1").URL != "" {
		t.Errorf("%+v %+v", workers.Target("http://c:1"), workers.Target("http://b:1"))
	}
}

func TestARouterWithoutDiscoveryRefusesChangesOfWorkers(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	for _, c := range [][3]string{{"POST", "", `{"url": "http://c:1"}`}, {"DELETE", "?url=http://a:1", ""}, {"PATCH", "", `{"url": "http://a:1", "ranks": 2}`}} {
		if status, text := ask(t, a, c[0], "/admin/workers"+c[1], c[2]); status != http.StatusConflict || !strings.Contains(text, "cannot be changed") {
			t.Errorf("%s: %d %s", c[0], status, text)
		}
	}
}
