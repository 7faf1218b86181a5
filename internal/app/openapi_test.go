package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// asked is a request that a test makes of an operation, and its answer.
type asked struct {
	status int
	kind   string
	body   []byte
}

// send sends the example of an operation's body, changed by fields, to a path.
func (r *router) send(base string, o testenv.Operation, path string, fields map[string]any) asked {
	r.t.Helper()
	var body bytes.Buffer
	kind := "application/json"
	example, _ := o.Example.(map[string]any)
	if o.Form {
		form := multipart.NewWriter(&body)
		for name, value := range example {
			var part io.Writer
			var err error
			if name == "model" {
				part, err = form.CreateFormField(name)
			} else {
				part, err = form.CreateFormFile(name, name+".bin")
			}
			if err != nil {
				r.t.Fatal(err)
			}
			fmt.Fprint(part, value)
		}
		kind = form.FormDataContentType()
		_ = form.Close() // it writes into memory
	} else if example != nil {
		all := map[string]any{}
		for _, from := range []map[string]any{example, fields} {
			for name, value := range from {
				all[name] = value
			}
		}
		if err := json.NewEncoder(&body).Encode(all); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), o.Method, base+path, &body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("X-Api-Key", "test")
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return asked{resp.StatusCode, resp.Header.Get("Content-Type"), text}
}

// described starts a router over a vLLM and an SGLang, with a tenant, an alias and the queue, so that its answers have
// as many members as possible.
func described(t *testing.T) *router {
	t.Helper()
	named := func(kind mockengine.Kind) *mockengine.Server {
		return engine(t, func(c *mockengine.Config) { c.Kind, c.Model, c.LoRA = kind, "my-model", []string{"my-adapter"} })
	}
	cfg := settings(named(mockengine.VLLM), named(mockengine.SGLang))
	cfg.Tenants = []tenant.Config{{Name: "acme", KeysSHA256: []string{"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}, RequestsPerSecond: 1e6, Burst: 1000, TokensPerMinute: 1e9}}
	cfg.AllTenants = cfg.Tenants
	cfg.Gateway.WorkerOrders = true
	cfg.Shadow = "round_robin"
	again := *cfg
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler), File: "f.yaml", Load: func() (*config.Config, error) { c := again; return &c, nil }})
	r.exact(2)
	return r
}

// wake wakes the workers up after an order to sleep.
func (r *router) wake() {
	r.t.Helper()
	r.send(r.url, testenv.Operation{Method: http.MethodPost}, "/wake_up", nil)
}

// document asks a listener for its description.
func (r *router) document(base string, loose ...string) *testenv.OpenAPI {
	r.t.Helper()
	got := r.send(base, testenv.Operation{Method: http.MethodGet}, "/openapi.json", nil)
	if got.status != 200 || got.kind != "application/json" {
		r.t.Fatalf("%d %s", got.status, got.kind)
	}
	return testenv.ReadOpenAPI(r.t, got.body, loose...)
}

// Each operation gets its example, and an example that it refuses. A path whose example no engine serves gets the
// engine's 404, which is described, too.
func TestAnswersOfTheGatewayAreAsDescribed(t *testing.T) {
	r := described(t)
	d := r.document(r.url, "EngineRequest", "StreamableRequest", "EngineForm", "Error", "AnthropicError")
	served := 0
	check := func(o testenv.Operation, what string, got asked) {
		t.Helper()
		if err := d.CheckAnswer(o, got.status, got.kind, got.body); err != nil {
			t.Errorf("%s %s%s: %d %s: %v\n%.300s", o.Method, o.Path, what, got.status, got.kind, err, got.body)
		}
	}
	for _, o := range d.Operations() {
		if err := d.CheckRequest(o); err != nil {
			t.Errorf("the example of %s %s: %v", o.Method, o.Path, err)
		}
		path := strings.NewReplacer("{model}", "my-model", "{task}", "other").Replace(o.Path)
		if strings.Contains(path, "{id}") {
			made := r.send(r.url, testenv.Operation{Method: http.MethodPost, Example: map[string]any{"model": "my-model", "input": "Hi", "max_output_tokens": 4.0}}, "/v1/responses", nil)
			var response struct{ ID string }
			if err := json.Unmarshal(made.body, &response); err != nil || response.ID == "" {
				t.Fatalf("%d %s", made.status, made.body)
			}
			check(o, " of another", r.send(r.url, o, strings.Replace(path, "{id}", "resp_0", 1), nil))
			path = strings.Replace(path, "{id}", response.ID, 1)
		}
		got := r.send(r.url, o, path, nil)
		check(o, "", got)
		if path == "/sleep" {
			r.wake()
		}
		if got.status == 200 {
			served++
		} else if got.status >= 500 && o.Path != "/sleep" && o.Path != "/wake_up" {
			t.Errorf("%s %s: %d %s", o.Method, o.Path, got.status, got.body)
		}
		if o.Example != nil && !o.Form {
			check(o, ", unknown model", r.send(r.url, o, path, map[string]any{"model": "nobody"}))
			if strings.Contains(path, "chat") || strings.Contains(path, "/responses") || path == "/v1/completions" || path == "/v1/messages" || path == "/generate" {
				streamed := r.send(r.url, o, path, map[string]any{"stream": true})
				if !strings.HasPrefix(streamed.kind, "text/event-stream") {
					t.Errorf("%s is not streamed: %d %s", o.Path, streamed.status, streamed.body)
				}
				check(o, ", streamed", streamed)
			}
		}
	}
	if served < 30 {
		t.Errorf("%d operations were served", served)
	}
}

func TestAnswersOfTheAdminListenerAreAsDescribed(t *testing.T) {
	r := described(t)
	base := "http://" + r.AdminAddr().String()
	d := r.document(base)
	for range 3 {
		r.send(r.url, testenv.Operation{Method: http.MethodPost, Example: map[string]any{"model": "my-model", "prompt": strings.Repeat("Hello ", 40), "max_tokens": 4.0}}, "/v1/completions", nil)
	}
	r.wait("all are booked", func() bool { return len(r.Telemetry().Last(0)) == 3 })
	queries := map[string][]string{
		"GET /admin/decisions": {"?n=1", "?n=x"}, "GET /admin/tenants": {"?name=acme", "?name=nobody"},
		"POST /admin/explain": {"?policy=marginal,random&tenant=acme", "?policy=nobody", "?path=/nowhere"}, "POST /flush_cache": {"?worker=nobody"}, "POST /admin/workers/role": {"?predict=1"},
	}
	for _, o := range d.Operations() {
		if err := d.CheckRequest(o); err != nil {
			t.Errorf("the example of %s %s: %v", o.Method, o.Path, err)
		}
		for _, query := range append(queries[o.Method+" "+o.Path], "") {
			if o.Path == "/admin/workers" && (o.Method == http.MethodPost || o.Method == http.MethodDelete) {
				continue // see below
			}
			got := r.send(base, o, o.Path+query, map[string]any{"url": r.Router().Fleet().Snapshot().Workers()[0].URL, "draining": false})
			if o.Path == "/admin/workers/role" {
				got = r.send(base, o, o.Path+query, map[string]any{"url": r.Router().Fleet().Snapshot().Workers()[0].URL})
			}
			if o.Path == "/admin/explain" {
				got = r.send(base, o, o.Path+query, nil)
			}
			if err := d.CheckAnswer(o, got.status, got.kind, got.body); err != nil {
				t.Errorf("%s %s%s: %d %s: %v\n%.600s", o.Method, o.Path, query, got.status, got.kind, err, got.body)
			}
			if query == "" && got.status != 200 && o.Path != "/sleep" && o.Path != "/wake_up" {
				t.Errorf("%s %s: %d %s", o.Method, o.Path, got.status, got.body)
			}
		}
	}
	const joining = "http://127.0.0.1:1"
	for _, c := range []struct {
		method, query string
		status        int
	}{
		{http.MethodPost, "", 201}, {http.MethodPost, "", 409}, {http.MethodDelete, "", 400},
		{http.MethodDelete, "?url=" + joining, 200}, {http.MethodDelete, "?url=" + joining, 404},
	} {
		i := slices.IndexFunc(d.Operations(), func(o testenv.Operation) bool { return o.Method == c.method && o.Path == "/admin/workers" })
		o := d.Operations()[i]
		got := r.send(base, o, o.Path+c.query, map[string]any{"url": joining})
		if err := d.CheckAnswer(o, got.status, got.kind, got.body); err != nil || got.status != c.status {
			t.Errorf("%s %s%s: %d %s, want %d: %v", c.method, o.Path, c.query, got.status, got.body, c.status, err)
		}
	}
}
