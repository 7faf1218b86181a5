package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// asked sends one request through a new gateway, and returns the record of the request.
func asked(t *testing.T, change func(*settings), body string, headers ...string) telemetry.Record {
	t.Helper()
	f := serve(t, change, worker(t, plain))
	if resp, text := f.post(t, body, headers...); resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	return f.last(t, 1)
}

func TestTheSessionIsFoundInTheOrderOfTheField(t *testing.T) {
	const body = `{"model":"m","messages":[{"role":"user","content":"my user is \"user\":\"x\""}]%s}`
	for _, c := range []struct {
		fields  string
		headers []string
		want    string
	}{
		{``, nil, ""},
		{`,"prompt_cache_key":"k"`, nil, "prompt_cache_key"},
		{`,"prompt_cache_key":"k","user_id":"u"`, nil, "user_id"},
		{`,"session_id":"k","user_id":"u"`, nil, "session_id"},
		{`,"session_id":"k","user":"u"`, nil, "user"},
		{`,"session_params":{"session_id":"s"},"user":"u"`, nil, "session_params"},
		{`,"user":"u"`, []string{"X-Correlation-ID", "c"}, "x-correlation-id"},
		{``, []string{"X-Correlation-ID", "c", "X-Tenant-ID", "t"}, "x-tenant-id"},
		{``, []string{"X-User-ID", "u", "X-Tenant-ID", "t"}, "x-user-id"},
		{``, []string{"X-User-ID", "u", "X-Session-ID", "s"}, "x-session-id"},
		{``, []string{"X-Semantic-Cluster-ID", "c", "X-Session-ID", "s"}, "x-semantic-cluster-id"},
		{``, []string{"X-SMG-Routing-Key", "r", "X-Session-ID", "s"}, "x-smg-routing-key"},
		{``, []string{"X-Session-ID", "  ", "X-User-ID", "u"}, "x-user-id"},
		{``, []string{"X-Request-ID", "one for each request", "X-Trace-ID", "t"}, ""},
	} {
		if rec := asked(t, nil, fmt.Sprintf(body, c.fields), c.headers...); rec.SessionSource != c.want {
			t.Errorf("%s %v: the session is from %q, want %q", c.fields, c.headers, rec.SessionSource, c.want)
		}
	}
	rec := asked(t, func(s *settings) { s.gateway.SessionHeaders = []string{"X-Request-ID"} }, chat, "X-Request-ID", "r")
	if rec.SessionSource != "x-request-id" {
		t.Errorf("a header that the configuration adds: %q", rec.SessionSource)
	}
}

func TestATenantHeaderThatHoldsAKeyIsShownAsItsHash(t *testing.T) {
	for _, name := range []string{"authorization", "X-Api-Key", "api-key", "Proxy-Authorization", "cookie"} {
		f := serve(t, func(s *settings) { s.gateway.TenantHeader = name }, worker(t, plain))
		f.post(t, chat, name, "Bearer sk-very-secret")
		if tenant := f.last(t, 1).Tenant; !strings.HasPrefix(tenant, "key-") || strings.Contains(tenant, "secret") {
			t.Errorf("%s: tenant %q", name, tenant)
		}
	}
}

func TestTheTenantIsNeverTheKeyItself(t *testing.T) {
	const key = "sk-very-secret-0123456789"
	var mu sync.Mutex
	var seen []string
	w := worker(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		plain(w, r)
	})
	f := serve(t, func(s *settings) { s.gateway.TenantHeader = "x-customer" }, w)
	f.post(t, chat, "Authorization", "Bearer "+key)
	byKey := f.last(t, 1)
	f.post(t, chat, "Authorization", "Bearer "+key)
	again := f.last(t, 2)
	f.post(t, chat, "Authorization", "Bearer other")
	other := f.last(t, 3)
	f.post(t, chat, "Authorization", "Bearer "+key, "X-Customer", "acme")
	named := f.last(t, 4)
	f.post(t, chat, "Authorization", "Bearer "+key, "X-Customer", strings.Repeat("x", 5000))
	long := f.last(t, 5)
	if byKey.Tenant == "" || strings.Contains(byKey.Tenant, "secret") || byKey.Tenant != again.Tenant || byKey.Tenant == other.Tenant {
		t.Errorf("tenants %q, %q, %q", byKey.Tenant, again.Tenant, other.Tenant)
	}
	if named.Tenant != "acme" || len(long.Tenant) > 256 {
		t.Errorf("tenants %q, %q", named.Tenant, long.Tenant)
	}
	if mu.Lock(); len(seen) != 5 || seen[0] != "Bearer "+key {
		t.Errorf("the engine got the keys %q", seen)
	}
	mu.Unlock()
}

func TestARequestMayChooseItsPolicyWhereThatIsAllowed(t *testing.T) {
	f := serve(t, func(s *settings) {
		s.allowed = []string{"round_robin", "least_load"}
		s.modelPolicies = map[string]string{"m": "random"}
	}, worker(t, plain))
	resp, _ := f.post(t, chat)
	if got := resp.Header.Get("X-Warmpath-Policy"); got != "random" {
		t.Errorf("the model's policy is random, decided by %q", got)
	}
	resp, _ = f.post(t, chat, "X-Warmpath-Policy", "least_load")
	if got := resp.Header.Get("X-Warmpath-Policy"); got != "least_load" {
		t.Errorf("asked for least_load, decided by %q", got)
	}
	for _, c := range []struct {
		allowed []string
		asked   string
		want    []string
	}{
		{[]string{"round_robin", "least_load"}, "kv_aware", []string{"kv_aware", "least_load, round_robin"}},
		{[]string{"round_robin", "least_load"}, strings.Repeat("x", 4000), []string{"least_load, round_robin"}},
		{nil, "kv_aware", []string{"request_policies"}},
	} {
		f.AllowPolicies(c.allowed)
		resp, text := f.post(t, chat, "X-Warmpath-Policy", c.asked)
		if resp.StatusCode != http.StatusBadRequest || len(text) > 1000 {
			t.Errorf("%.20q of %v: %d %.200s", c.asked, c.allowed, resp.StatusCode, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%.20q of %v: %s does not say %q", c.asked, c.allowed, text, want)
			}
		}
	}
}

// A policy that does not look at matches needs no token ids, so the gateway asks for none. The same rule holds for a
// policy that the client chose.
func TestTokensAreAskedForWhereThePolicyThatDecidesWantsThem(t *testing.T) {
	w := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/render") {
			http.NotFound(w, r)
			return
		}
		if r.URL.Path == "/tokenize" {
			_, _ = io.WriteString(w, `{"tokens":[1,2,3],"count":3}`)
			return
		}
		plain(w, r)
	})
	f := serve(t, func(s *settings) {
		s.tokens.Budget = 5e9
		s.allowed = []string{"round_robin"}
	}, w)
	f.post(t, chat, "X-Warmpath-Policy", "round_robin")
	if rec := f.last(t, 1); rec.TokenSource != "unneeded" || rec.PromptTokens != 0 {
		t.Errorf("round_robin: %q, %d tokens", rec.TokenSource, rec.PromptTokens)
	}
	f.post(t, chat)
	if rec := f.last(t, 2); rec.PromptTokens != 3 {
		t.Errorf("kv_aware: %q, %d tokens", rec.TokenSource, rec.PromptTokens)
	}
}
