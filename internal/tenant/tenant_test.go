package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func hashed(key string) string {
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

func registry(list ...Config) *Registry {
	r := NewRegistry()
	r.Use(list, []byte("secret"))
	return r
}

// second is a time in Unix nanoseconds.
func second(s float64) int64 { return int64(1e18 + s*1e9) }

func TestAKeyFindsItsTenant(t *testing.T) {
	r := registry(Config{Name: "a", KeysSHA256: []string{hashed("key-1"), strings.ToUpper(hashed("key-2"))}}, Config{Name: "b", KeysSHA256: []string{hashed("key-3")}})
	for key, want := range map[string]string{"key-1": "a", "key-2": "a", "key-3": "b", "key-4": "", "": "", hashed("key-1"): ""} {
		name := ""
		if found := r.ByKey(key); found != nil {
			name = found.Name
		}
		if name != want {
			t.Errorf("%q is the key of %q, want %q", key, name, want)
		}
	}
}

func TestKeysWhoseDigestsBeginAlikeAreApart(t *testing.T) {
	r := registry(Config{Name: "a", KeysSHA256: []string{hashed("key")}})
	s := r.current.Load()
	other := s.keys[0]
	other.digest[31]++
	other.tenant = &Tenant{Config: Config{Name: "b"}}
	s.keys = []key{other, s.keys[0]}
	if found := r.ByKey("key"); found == nil || found.Name != "a" {
		t.Errorf("found %v", found)
	}
	s.keys = s.keys[:1]
	if found := r.ByKey("key"); found != nil {
		t.Errorf("found %v by the beginning of a digest alone", found.Name)
	}
}

func TestRequestsAreLimitedToTheRateAndTheBurst(t *testing.T) {
	a := registry(Config{Name: "a", RequestsPerSecond: 10, Burst: 20}).ByName("a")
	for i := range 20 {
		if l := a.Enter(second(0)); l != nil {
			t.Fatalf("request %d of a burst of 20 is refused", i+1)
		}
	}
	if l := a.Enter(second(0)); l == nil || l.Limit != Requests || l.RetryAfter != 100*time.Millisecond {
		t.Errorf("the 21st request: %+v", l)
	}
	if l := a.Enter(second(0.1)); l != nil {
		t.Errorf("a request is refused at the time that RetryAfter named: %+v", l)
	}
	served := 0
	for at := 1.0; at < 11; at += 0.01 {
		if a.Enter(second(at)) == nil {
			served++
		}
	}
	if served < 100 || served > 110 {
		t.Errorf("%d requests in 10 s at 10 a second", served)
	}
}

func TestABurstIsASecondOfRequestsByDefault(t *testing.T) {
	for rate, want := range map[float64]int{0.5: 1, 1: 1, 2.5: 3, 10: 10} {
		a := registry(Config{Name: "a", RequestsPerSecond: rate}).ByName("a")
		if requests, _ := a.Budgets(second(0)); requests.Limit != want || requests.Remaining != want {
			t.Errorf("rate %v: %+v, want a burst of %d", rate, requests, want)
		}
	}
}

func TestConcurrentRequestsAreLimited(t *testing.T) {
	a := registry(Config{Name: "a", MaxConcurrent: 2}).ByName("a")
	for range 2 {
		if a.Enter(second(0)) != nil {
			t.Fatal("two requests do not fit")
		}
	}
	if l := a.Enter(second(0)); l == nil || l.Limit != Concurrency || l.RetryAfter <= 0 {
		t.Errorf("the third request: %+v", l)
	}
	a.Leave()
	if l := a.Enter(second(0)); l != nil {
		t.Errorf("a request after the end of another: %+v", l)
	}
	if c := a.Counts(); c.Active != 2 || c.Requests != 4 || c.Limited != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestTokensAreCountedAtTheBeginningAndCorrectedAtTheEnd(t *testing.T) {
	a := registry(Config{Name: "a", TokensPerMinute: 600}).ByName("a")
	if l := a.Spend(500, second(0)); l != nil {
		t.Fatalf("a prompt of 500 of 600 tokens is refused: %+v", l)
	}
	if l := a.Spend(200, second(0)); l == nil || l.Limit != Tokens || l.RetryAfter != 10*time.Second {
		t.Errorf("a prompt beyond the limit: %+v, want a retry after 10 s", l)
	}
	a.Settle(500, 90, 10) // 400 tokens fewer than expected
	if _, tokens := a.Budgets(second(0)); tokens.Remaining != 500 || tokens.Reset != 10*time.Second {
		t.Errorf("budget %+v", tokens)
	}
	if l := a.Spend(500, second(0)); l != nil {
		t.Errorf("refused after the correction: %+v", l)
	}
	a.Settle(500, 500, 60) // the answer was not counted before: a debt of 60
	if l := a.Spend(10, second(6)); l == nil {
		t.Error("a tenant with a debt was served")
	}
	if l := a.Spend(10, second(7)); l != nil {
		t.Errorf("refused after the debt was paid: %+v", l)
	}
	if c := a.Counts(); c.Prompt != 590 || c.Output != 70 {
		t.Errorf("counts %+v", c)
	}
}

func TestAPromptLongerThanTheLimitFitsIntoAFullBucket(t *testing.T) {
	a := registry(Config{Name: "a", TokensPerMinute: 60}).ByName("a")
	if l := a.Spend(600, second(0)); l != nil {
		t.Fatalf("refused for ever: %+v", l)
	}
	if l := a.Spend(1, second(539)); l == nil {
		t.Error("served before the tokens were paid back")
	}
	if l := a.Spend(1, second(542)); l != nil {
		t.Errorf("refused after the tokens were paid back: %+v", l)
	}
}

func TestAReloadKeepsTheStateOfTenantsThatStay(t *testing.T) {
	r := registry(Config{Name: "a", KeysSHA256: []string{hashed("old")}, RequestsPerSecond: 1, MaxConcurrent: 2}, Config{Name: "gone"})
	before := r.ByKey("old")
	if before.Enter(second(0)) != nil {
		t.Fatal("refused")
	}
	r.Use([]Config{{Name: "a", KeysSHA256: []string{hashed("new")}, RequestsPerSecond: 1, MaxConcurrent: 1}}, nil)
	if r.ByKey("old") != nil || r.ByName("gone") != nil {
		t.Error("an old key or a removed tenant is still known")
	}
	after := r.ByKey("new")
	if l := after.Enter(second(2)); l == nil || l.Limit != Concurrency {
		t.Errorf("the request under way was forgotten: %+v", l)
	}
	before.Leave()
	if l := after.Enter(second(2)); l != nil {
		t.Errorf("the request that ended was not counted: %+v", l)
	}
	after.Leave()
	if l := after.Enter(second(2)); l == nil || l.Limit != Requests {
		t.Errorf("the bucket was forgotten: %+v", l)
	}
}

func TestAReloadDuringTheFirstRequestLosesNoCount(t *testing.T) {
	for range 100 {
		r := registry(Config{Name: "a"})
		old := r.ByName("a")
		var both sync.WaitGroup
		both.Go(func() { old.Enter(second(0)) })
		both.Go(func() { r.Use([]Config{{Name: "a"}}, nil) })
		both.Wait()
		if c := r.ByName("a").Counts(); c.Active != 1 {
			t.Fatalf("counts %+v", c)
		}
	}
}

func TestModelsMatchTheirPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, model string
		want           bool
	}{
		{"tiny", "tiny", true}, {"tiny", "tiny2", false}, {"tiny", "Tiny", false},
		{"llama-*", "llama-70b", true}, {"llama-*", "llama-", true}, {"llama-*", "my-llama-70b", false},
		{"*", "", true}, {"*", "x", true}, {"*-chat", "a-chat", true}, {"*-chat", "a-chat-b", false},
		{"a*b*c", "abc", true}, {"a*b*c", "a1b2c", true}, {"a*b*c", "acb", false}, {"a*a", "a", false},
		{"a**b", "ab", true}, {"*a*b", "xaab", true}, {"*ab", "aab", true}, {"", "", true},
	} {
		if got := matches(c.pattern, c.model); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.model, got)
		}
	}
	if a := (&Tenant{}); !a.Allows("anything") {
		t.Error("a tenant without models may use none")
	}
}

func TestASaltIsStableAndBelongsToOneTenant(t *testing.T) {
	list := []Config{{Name: "a", CacheSalt: SaltOwn}, {Name: "b", CacheSalt: SaltOwn}, {Name: "c"}}
	r := registry(list...)
	a, b := r.ByName("a"), r.ByName("b")
	if a.Salt("") == "" || a.Salt("") == b.Salt("") || a.Salt("x") == a.Salt("") || a.Salt("x") == b.Salt("x") {
		t.Error("salts are not apart")
	}
	if a.Salt(b.Salt("")) == b.Salt("") {
		t.Error("a client can write the salt of another tenant")
	}
	if a.Salt("") != registry(list...).ByName("a").Salt("") {
		t.Error("the salt differs after a restart")
	}
	other := NewRegistry()
	other.Use(list, []byte("another secret"))
	if a.Salt("") == other.ByName("a").Salt("") {
		t.Error("the salt does not depend on the secret")
	}
	if r.ByName("c").Salt("x") != "" {
		t.Error("a tenant without a salt of its own has one")
	}
	if len(a.Salt("")) > 128 {
		t.Error("vLLM refuses salts of more than 128 characters")
	}
}

func TestProblemsNameTheirPlaceAndNoKey(t *testing.T) {
	list := []Config{
		{Name: "a", KeysSHA256: []string{"sk-secret"}, Burst: 3, Models: []string{"x"}, DefaultModel: "y", CacheSalt: "mine"},
		{Name: "b", KeysSHA256: []string{hashed("k")}}, {Name: "b", KeysSHA256: []string{hashed("k")}}, {Name: Other, Priority: 1001},
		{RequestsPerSecond: -1, MaxConcurrent: -1, TokensPerMinute: -1},
	}
	var all strings.Builder
	for _, p := range Validate(list, func(i int) string { return fmt.Sprintf("tenants[%d]", i) }) {
		all.WriteString(p.Error() + "\n")
	}
	for _, want := range []string{"tenants[0].keys_sha256[0]: not a SHA-256", "tenants[0].burst: ", "tenants[0].default_model: ", "tenants[0].cache_salt: ",
		"tenants[2].name: \"b\" is also the name of tenants[1]", "tenants[2].keys_sha256[0]: tenants[1] has the same key", "tenants[3].name: other",
		"tenants[3].priority: ", "tenants[4].name: ", "tenants[4].requests_per_second: ", "tenants[4].max_concurrent: ", "tenants[4].tokens_per_minute: "} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no problem %q in\n%s", want, all.String())
		}
	}
	if strings.Contains(all.String(), "sk-secret") {
		t.Errorf("a problem shows a key: %s", all.String())
	}
}

func TestAFileHasATenantALine(t *testing.T) {
	text := `{"name": "a", "keys_sha256": ["` + hashed("k") + `"], "requests_per_second": 2.5, "models": ["m*"]}` + "\n\n" + `{"name": "b"}`
	list, err := read(strings.NewReader(text), "f")
	if err != nil || len(list) != 2 || list[0].RequestsPerSecond != 2.5 || list[1].Name != "b" {
		t.Fatalf("%+v, %v", list, err)
	}
	for line, want := range map[string]string{
		`{"name": "a"} x`:                       "f:2: text after",
		`{"name": "a", "api_key": "sk-secret"}`: "f:2: a key is unknown",
		`sk-secret`:                             "f:2: not a JSON object",
		`{"name": 5}`:                           "f:2: name: a number cannot stand here",
		`{"name":"a"}`:                          `f:2.name: "a" is also the name of f:1`,
		`{"name":"b","keys_sha256":["sk-secret"]}`: "f:2.keys_sha256[0]: not a SHA-256",
		`{"name":"` + strings.Repeat("x", maxLine): "a line is longer",
	} {
		_, err := read(strings.NewReader(`{"name": "a"}`+"\n"+line+"\n"), "f")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("%.40s: %v, want %q", line, err, want)
		}
	}
}

// FuzzFile: no file makes the reader fail in another way than by an error, and what it accepts can be put in force.
func FuzzFile(f *testing.F) {
	f.Add(`{"name": "a", "keys_sha256": ["` + hashed("k") + `"], "models": ["a*b"], "burst": 1, "requests_per_second": 1e300}` + "\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := read(strings.NewReader(text), "f")
		if err != nil {
			return
		}
		r := registry(list...)
		for _, a := range r.Tenants() {
			a.Allows("model")
			if a.Enter(second(0)) == nil {
				a.Leave()
			}
		}
	})
}

func many(n int) []Config {
	list := make([]Config, n)
	for i := range list {
		list[i] = Config{Name: fmt.Sprintf("tenant-%d", i), KeysSHA256: []string{hashed(fmt.Sprintf("key-%d", i))}, RequestsPerSecond: 1e6, MaxConcurrent: 100, TokensPerMinute: 1e9}
	}
	return list
}
