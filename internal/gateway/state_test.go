package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestAModelIsShownByItsName(t *testing.T) {
	f := serve(t, func(s *settings) { s.facts.Models = []fleet.Model{{ID: "org/m:1", MaxModelLen: 4096}} }, dead(t))
	const line = `{"id":"org/m:1","object":"model","created":0,"owned_by":"warmpath","parent":null,"max_model_len":4096}`
	for _, path := range []string{"/v1/models/org/m:1", "/v1/models/org%2Fm%3A1"} {
		if status, text := f.call(t, "GET", path, ""); status != 200 || strings.TrimSpace(text) != line {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for path, code := range map[string]string{"/v1/models/other": "model_not_found", "/v1/models/": "unknown_url", "/v1/models/org": "model_not_found"} {
		if status, text := f.call(t, "GET", path, ""); status != 404 || !strings.Contains(text, code) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, _ := f.call(t, "DELETE", "/v1/models/org/m:1", ""); status != 405 {
		t.Errorf("delete: %d", status)
	}
}

// A tenant cannot tell a model that it may not use from one that does not exist, as at the endpoints that use models.
func TestAModelOfOthersIsAnsweredAsAnUnknownOne(t *testing.T) {
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), Models: []string{"mine", "alias"}})
	f := serve(t, func(s *settings) {
		change(s)
		s.facts.Models = []fleet.Model{{ID: "mine"}, {ID: "other"}, {ID: "shared"}}
	}, worker(t, plain))
	f.UseModelNames(gateway.ModelNames{Aliases: map[string]string{"alias": "shared", "nick": "mine", "secret": "other"}})
	for _, name := range []string{"other", "absent", "secret", "shared"} {
		status, text := f.call(t, "GET", "/v1/models/"+name, "", "X-Api-Key", "key-a")
		want := strings.ReplaceAll(`the model \"NAME\" does not exist, or this API key may not use it`, "NAME", name)
		if status != 404 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if used, same := f.call(t, "POST", "/v1/chat/completions", strings.Replace(chat, `"m"`, `"`+name+`"`, 1), "X-Api-Key", "key-a"); used != status || same != text {
			t.Errorf("%s: %s\na chat: %s", name, text, same)
		}
	}
	for _, name := range []string{"mine", "alias", "nick"} {
		if status, text := f.call(t, "GET", "/v1/models/"+name, "", "X-Api-Key", "key-a"); status != 200 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}

func TestVersionAndLoadsAreShown(t *testing.T) {
	release := make(chan struct{})
	slow := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, whole)
	})
	for _, headers := range []bool{true, false} {
		f := serve(t, func(s *settings) {
			s.gateway.Headers, s.facts.Version = headers, "0.32.0"
			s.parts = func(p *gateway.Parts) { p.Version = "v1.2.3" }
		}, slow)
		f.fleet.Put("http://other:1", fleet.Facts{})
		const version = `{"version":"v1.2.3","router":"warmpath","engines":[{"engine":"unknown","version":"","workers":1},{"engine":"vllm","version":"0.32.0","workers":1}]}`
		if status, text := f.call(t, "GET", "/version", ""); status != 200 || strings.TrimSpace(text) != version {
			t.Errorf("version: %d %s", status, text)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = f.try(t.Context(), chat)
		}()
		want := `{"workers":[{"worker":"` + slow + `","load":1},{"worker":"http://other:1","load":0}]}`
		if !headers {
			want = `{"workers":[{"worker":"0","load":1},{"worker":"1","load":0}]}`
		}
		testenv.Until(t, "the load is shown", func() bool {
			_, text := f.call(t, "GET", "/get_loads", "")
			return strings.TrimSpace(text) == want
		})
		release <- struct{}{}
		<-done
	}
}
