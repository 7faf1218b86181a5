package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

func hashed(key string) []string {
	d := sha256.Sum256([]byte(key))
	return []string{hex.EncodeToString(d[:])}
}

// withTenants configures the tenants.
func withTenants(list ...tenant.Config) (*tenant.Registry, func(*settings)) {
	registry := tenant.NewRegistry()
	registry.Use(list, []byte("secret"))
	return registry, func(s *settings) {
		before := s.parts
		s.parts = func(p *gateway.Parts) {
			p.Tenants = registry
			if before != nil {
				before(p)
			}
		}
	}
}

func TestOnlyKnownKeysPassWhenTenantsAreConfigured(t *testing.T) {
	var asked atomic.Int32
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a")})
	f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); plain(w, r) }))
	for _, c := range []struct {
		field, value string
		status       int
		code         string
	}{
		{"Authorization", "Bearer key-a", 200, ""}, {"Authorization", "bearer key-a", 200, ""}, {"X-Api-Key", "key-a", 200, ""}, {"Api-Key", "key-a", 200, ""},
		{"Authorization", "Bearer key-b", 401, "invalid_api_key"}, {"Authorization", "Basic key-a", 401, "invalid_api_key"},
		{"Authorization", "Bearer " + strings.Repeat("x", 20_000), 401, "invalid_api_key"}, {"Cookie", "key-a", 401, "missing_api_key"},
	} {
		resp, text := f.post(t, chat, c.field, c.value)
		if resp.StatusCode != c.status || !strings.Contains(text, c.code) {
			t.Errorf("%s: %.30s: %d %s", c.field, c.value, resp.StatusCode, text)
		}
		if resp.StatusCode == 401 && resp.Header.Get("WWW-Authenticate") == "" {
			t.Error("a 401 without WWW-Authenticate")
		}
	}
	if asked.Load() != 4 {
		t.Errorf("the worker got %d requests, want 4", asked.Load())
	}
	for path, want := range map[string]int{"/v1/models": 401, "/version": 401, "/get_loads": 401, "/is_sleeping": 401, "/health": 200, "/liveness": 200, "/readiness": 200} {
		resp, err := f.client.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a key: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestAnUnknownKeyPassesWithoutTenants(t *testing.T) {
	_, change := withTenants()
	f := serve(t, change, worker(t, plain))
	if resp, text := f.post(t, chat, "Authorization", "Bearer anything"); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

func TestAHeaderNamesOnlyTenantsWithoutKeys(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "keyed", KeysSHA256: hashed("key")}, tenant.Config{Name: "named"})
	f := serve(t, func(s *settings) { s.gateway.TenantHeader = "X-Customer"; change(s) }, worker(t, plain))
	for name, want := range map[string]int{"named": 200, "keyed": 401, "nobody": 401} {
		if resp, text := f.post(t, chat, "X-Customer", name); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, text, want)
		}
	}
	f.post(t, chat, "X-Customer", "named", "Authorization", "Bearer key")
	if rec := f.last(t, 2); rec.Tenant != "named" {
		t.Errorf("the tenant is %q", rec.Tenant)
	}
}

func TestRequestsBeyondATenantsLimitGet429WithTheHeadersThatClientsKnow(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), RequestsPerSecond: 0.01, Burst: 2, TokensPerMinute: 600}, tenant.Config{Name: "b", KeysSHA256: hashed("key-b")})
	f := serve(t, change, worker(t, plain)) // its usage: 40 tokens of the prompt, 1 of the answer
	resp, _ := f.post(t, chat, "Authorization", "Bearer key-a")
	for name, want := range map[string]string{"X-Ratelimit-Limit-Requests": "2", "X-Ratelimit-Remaining-Requests": "1", "X-Ratelimit-Limit-Tokens": "600"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	f.post(t, chat, "Authorization", "Bearer key-a")
	resp, text := f.post(t, chat, "Authorization", "Bearer key-a")
	if resp.StatusCode != 429 || !strings.Contains(text, `"requests_limited"`) || !strings.Contains(text, "rate_limit_error") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("X-Ratelimit-Remaining-Requests") != "0" || resp.Header.Get("X-Ratelimit-Reset-Requests") == "" {
		t.Errorf("headers %v", resp.Header)
	}
	if resp, text := f.post(t, chat, "Authorization", "Bearer key-b"); resp.StatusCode != 200 || resp.Header.Get("X-Ratelimit-Limit-Requests") != "" {
		t.Errorf("another tenant: %d %s %v", resp.StatusCode, text, resp.Header)
	}
	metrics := f.metrics(t)
	for _, want := range []string{`warmpath_tenant_requests_total{outcome="routed",tenant="a"} 2`, `{outcome="requests_limited",tenant="a"} 1`, `{kind="prompt",tenant="a"} 80`, `{kind="output",tenant="a"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(metrics, "key-a") {
		t.Error("the metrics have a key")
	}
}

func TestTokensOfATenantAreCorrectedByTheUsage(t *testing.T) {
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), TokensPerMinute: 1000})
	refuses := worker(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	})
	f := serve(t, change, worker(t, plain))
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 700) + `"}]}`
	f.post(t, long, "Authorization", "Bearer key-a")
	testenv.Until(t, "the usage is booked", func() bool { return registry.ByName("a").Counts().Prompt == 40 })
	if resp, text := f.post(t, long, "Authorization", "Bearer key-a"); resp.StatusCode != 200 { // the estimate of the first, 890 tokens, was given back
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	longer := strings.Replace(long, "word ", strings.Repeat("word ", 100), 1)
	resp, text := f.post(t, longer, "Authorization", "Bearer key-a")
	if resp.StatusCode != 429 || !strings.Contains(text, `"tokens_limited"`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	registry, change = withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), TokensPerMinute: 1000})
	f = serve(t, change, refuses)
	for range 3 { // a refused request uses no tokens
		if resp, text := f.post(t, long, "Authorization", "Bearer key-a"); resp.StatusCode != 400 {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		testenv.Until(t, "the request has ended", func() bool { return registry.ByName("a").Counts().Active == 0 })
	}
}

func TestALimitTimesChoicesThatNoIntHoldsMakesNoAnswerFree(t *testing.T) {
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), TokensPerMinute: 1000})
	f := serve(t, change, worker(t, plain))
	f.post(t, chat, "Authorization", "Bearer key-a")
	testenv.Until(t, "the first answer is booked", func() bool { return registry.ByName("a").Counts().Output > 0 })
	once := registry.ByName("a").Counts().Output
	for i, fields := range []string{`"max_tokens":4611686018427387904,"n":4`, `"max_tokens":4611686018427387904,"n":2`, `"max_tokens":9223372036854775807`} {
		body := `{` + fields + `,` + strings.TrimPrefix(chat, `{`)
		if resp, text := f.post(t, body, "Authorization", "Bearer key-a"); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		testenv.Until(t, "the request has ended", func() bool { return registry.ByName("a").Counts().Active == 0 })
		if got, want := registry.ByName("a").Counts().Output, once*uint64(i+2); got != want {
			t.Errorf("%s: %d tokens of answers in all, want %d", fields, got, want)
		}
	}
}

func TestAStreamWithoutUsageIsChargedForItsTokens(t *testing.T) {
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), TokensPerMinute: 1000})
	f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Repeat(firstChunk, 30)+lastChunk+doneChunk)
	}))
	f.post(t, chatStreamed, "Authorization", "Bearer key-a")
	testenv.Until(t, "the tokens are counted", func() bool { c := registry.ByName("a").Counts(); return c.Output == 30 && c.Prompt > 0 })
}

func TestATenantsPlaceIsFreedOnEveryWayOut(t *testing.T) {
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), MaxConcurrent: 1, Models: []string{"m"}})
	started := make(chan struct{}, 8)
	var kind atomic.Value
	kind.Store("hang")
	f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch kind.Load() {
		case "hang":
			started <- struct{}{}
			<-r.Context().Done()
		case "broken":
			w.WriteHeader(500)
		default:
			streaming(w, r)
		}
	}), dead(t))
	key := []string{"Authorization", "Bearer key-a"}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, _, err := f.try(ctx, chatStreamed, key...); left <- err }() // ends when ctx is cancelled, below
	<-started
	resp, text := f.post(t, chat, key...)
	if resp.StatusCode != 429 || !strings.Contains(text, `"concurrency_limited"`) || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("the second request at the same time: %d %s", resp.StatusCode, text)
	}
	leave()
	<-left
	for _, c := range []struct {
		kind, body string
		status     int
	}{
		{"good", chatStreamed, 200}, {"broken", chat, 500}, {"good", `{"model":"other"}`, 404}, {"good", `{`, 400}, {"good", chatStreamed, 200},
	} {
		kind.Store(c.kind)
		testenv.Until(t, "the place is free", func() bool { return registry.ByName("a").Counts().Active == 0 })
		if resp, text := f.post(t, c.body, key...); resp.StatusCode != c.status {
			t.Errorf("%s %s: %d %s", c.kind, c.body, resp.StatusCode, text)
		}
	}
	f.Gateway.Router = nil // a bug: each request panics
	testenv.Until(t, "the place is free", func() bool { return registry.ByName("a").Counts().Active == 0 })
	if _, _, err := f.try(t.Context(), chat, key...); err == nil {
		t.Error("the request did not panic")
	}
	testenv.Until(t, "the place is free after a panic", func() bool { return registry.ByName("a").Counts().Active == 0 })
}

func TestATenantSeesAndUsesOnlyItsModels(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"llama-*"}}, tenant.Config{Name: "b", KeysSHA256: hashed("key-b")})
	f := serve(t, func(s *settings) {
		s.facts.Models = []fleet.Model{{ID: "llama-8b"}, {ID: "other"}}
		change(s)
	}, worker(t, plain))
	list := func(key string) (ids []string) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var out struct{ Data []struct{ ID string } }
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Data {
			ids = append(ids, m.ID)
		}
		return ids
	}
	if a, b := list("key-a"), list("key-b"); !slices.Equal(a, []string{"llama-8b"}) || len(b) != 2 {
		t.Errorf("a sees %q, b sees %q", a, b)
	}
	for model, want := range map[string]int{"llama-8b": 200, "other": 404, "missing": 404} {
		resp, text := f.post(t, strings.Replace(chat, `"m"`, `"`+model+`"`, 1), "Authorization", "Bearer key-a")
		if resp.StatusCode != want || want == 404 && !strings.Contains(text, "this API key may not use it") {
			t.Errorf("%s: %d %s, want %d", model, resp.StatusCode, text, want)
		}
	}
}

func TestATenantUsesNoAdapterOfOthersBesideItsModel(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"m", "mine"}}, tenant.Config{Name: "b", KeysSHA256: hashed("key-b")})
	f := serve(t, change, worker(t, plain))
	for field, want := range map[string]int{
		`"lora_path":"other"`: 404, `"lora\u005fpath":"other"`: 404, `"lora_path":["mine","other"]`: 404, `"lora_path":"mine","lora_path":"other"`: 404, `"lora_path":{}`: 400,
		`"lora_path":"mine"`: 200, `"lora_path":null`: 200, `"lora_path":[null,"mine"]`: 200,
	} {
		body := `{` + field + `,` + strings.TrimPrefix(chat, `{`)
		if resp, text := f.post(t, body, "Authorization", "Bearer key-a"); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", field, resp.StatusCode, text, want)
		}
	}
	if resp, text := f.post(t, `{"lora_path":"other",`+strings.TrimPrefix(chat, `{`), "Authorization", "Bearer key-b"); resp.StatusCode != 200 {
		t.Errorf("a tenant that may use all models: %d %s", resp.StatusCode, text)
	}
}

func TestATenantsModelsHoldAtEveryEndpoint(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"m*"}})
	f := serve(t, func(s *settings) {
		s.facts.Models = []fleet.Model{{ID: "m"}, {ID: "other"}}
		change(s)
	}, worker(t, func(_ http.ResponseWriter, r *http.Request) { t.Error("the worker was asked at", r.URL.Path) }))
	for _, path := range gateway.WorkerPaths() {
		if path == "/v1/responses/" { // by id: only the tenant's own responses are found
			continue
		}
		if strings.HasSuffix(path, "/") {
			path += "more"
		}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+path, strings.NewReader(`{"model":"other","messages":[],"prompt":"p","input":"i"}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Api-Key", "key-a")
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(text), "this API key may not use it") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
		checkErrorShape(t, path, string(text))
	}
}

func TestARequestWithoutAModelGetsTheTenantsDefault(t *testing.T) {
	bodies := make(chan string, 4)
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"m"}, DefaultModel: "m"}, tenant.Config{Name: "b", KeysSHA256: hashed("key-b"), Models: []string{"x"}})
	f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		plain(w, r)
	}))
	const nameless = `{ "messages":[{"role":"user","content":"hi"}],  "zzz": 1e5}`
	f.post(t, nameless, "Authorization", "Bearer key-a")
	if got, want := <-bodies, `{"model":"m", "messages":[{"role":"user","content":"hi"}],  "zzz": 1e5}`; got != want {
		t.Errorf("the worker got %s, want %s", got, want)
	}
	f.post(t, chat, "Authorization", "Bearer key-a")
	if got := <-bodies; got != chat {
		t.Errorf("a body with a model was changed: %s", got)
	}
	if resp, text := f.post(t, nameless, "Authorization", "Bearer key-b"); resp.StatusCode != 404 {
		t.Errorf("a tenant got the fleet's only model, which is not its own: %d %s", resp.StatusCode, text)
	}
}

func TestATenantsOwnSaltReachesTheEngineAndTheRoutersHashes(t *testing.T) {
	salts := make(chan string, 8)
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), CacheSalt: tenant.SaltOwn}, tenant.Config{Name: "b", KeysSHA256: hashed("key-b")})
	f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Salt string `json:"cache_salt"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		salts <- body.Salt
		plain(w, r)
	}))
	salted := strings.Replace(chat, "{", `{"cache_salt":"mine",`, 1)
	for _, c := range []struct{ key, body, want string }{
		{"key-a", chat, registry.ByName("a").Salt("")}, {"key-a", salted, registry.ByName("a").Salt("mine")}, {"key-b", salted, "mine"},
	} {
		f.post(t, c.body, "Authorization", "Bearer "+c.key)
		if got := <-salts; got != c.want {
			t.Errorf("%s: the engine got the salt %q, want %q", c.key, got, c.want)
		}
		if got := <-f.scoped; got != c.want+"/" {
			t.Errorf("%s: the router's hashes have the salt %q, want %q", c.key, got, c.want)
		}
	}
	if resp, text := f.post(t, strings.Replace(chat, "{", `{"cache_salt":["x","y"],`, 1), "Authorization", "Bearer key-a"); resp.StatusCode != 400 {
		t.Errorf("a list of salts: %d %s", resp.StatusCode, text)
	}
}

func TestTheTenantsPriorityOrdersTheQueue(t *testing.T) {
	order := make(chan string, 8)
	hold := make(chan struct{})
	_, change := withTenants(tenant.Config{Name: "low", KeysSHA256: hashed("low"), Priority: 5}, tenant.Config{Name: "high", KeysSHA256: hashed("high"), Priority: -5})
	f := serve(t, func(s *settings) {
		s.most, s.queue = 1, queue.DefaultConfig()
		s.queue.Order = queue.Priority
		change(s)
	}, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		order <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		<-hold
		plain(w, r)
	}))
	ended := make(chan error, 3)
	send := func(key string, priority, waiting int) {
		go func() { // ends with its answer, which is awaited below
			_, _, err := f.try(t.Context(), strings.Replace(chat, "{", fmt.Sprintf(`{"priority":%d,`, priority), 1), "Authorization", "Bearer "+key)
			ended <- err
		}()
		testenv.Until(t, "the request waits", func() bool {
			_, lines := f.Queue()
			n := 0
			for _, l := range lines {
				n += l.Requests
			}
			return n == waiting
		})
	}
	send("low", 0, 0)
	if first := <-order; first != "low" {
		t.Fatal(first)
	}
	send("low", -1000, 1) // a client cannot raise its own priority
	send("high", 0, 2)
	close(hold)
	if second, third := <-order, <-order; second != "high" || third != "low" {
		t.Errorf("served %s before %s", second, third)
	}
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A tenant's models and its cache salt count in an explanation, as in its requests.
func TestAnExplanationCountsTheTenantsSettings(t *testing.T) {
	_, change := withTenants(
		tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"m"}, DefaultModel: "m"},
		tenant.Config{Name: "b", KeysSHA256: hashed("key-b"), Models: []string{"other"}})
	f := serve(t, change, worker(t, plain))
	body := []byte(`{"messages":[{"role":"user","content":"hi"}]}`)
	key := http.Header{"X-Api-Key": {"key-a"}}
	for _, q := range []*gateway.Question{{Tenant: "a", Body: body}, {Header: key, Body: body}} {
		e, err := f.Explain(t.Context(), q)
		if err != nil || e[0].Tenant != "a" || e[0].Record.Model != "m" {
			t.Errorf("%+v: %+v, %v", q, e, err)
		}
	}
	for _, c := range []struct{ tenant, says string }{{"b", "m"}, {"nobody", "no tenant"}} {
		if _, err := f.Explain(t.Context(), &gateway.Question{Tenant: c.tenant, Body: []byte(chat)}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("tenant %s: %v", c.tenant, err)
		}
	}
	if e, err := f.Explain(t.Context(), &gateway.Question{Body: []byte(chat)}); err != nil || e[0].Tenant != "" {
		t.Errorf("without a tenant: %+v, %v", e, err)
	}
}
