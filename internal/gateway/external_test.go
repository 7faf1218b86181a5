package gateway_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// The source is asked with the prompt's tokens, once for a request, and only for its policy.
func TestAPolicysSourceIsAskedBeforeItDecides(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" || r.URL.Path == "/v1/chat/completions/render" {
			_, _ = io.WriteString(w, `{"count":3,"tokens":[7,8,9]}`)
			return
		}
		plain(w, r)
	}
	workers := []string{worker(t, answer), worker(t, answer), worker(t, answer)}
	asked := make(chan []block.Token, 8)
	f := serve(t, func(s *settings) {
		spec := peers.DefaultLMCacheAware().Spec("lmcache_aware")
		spec.Source = func(_ context.Context, prompt []block.Token) []policy.Cached {
			asked <- prompt
			return []policy.Cached{{Worker: 2, Keys: 9}}
		}
		s.specs = []policy.Spec{spec}
		s.policy, s.allowed, s.tokens.Budget = "lmcache_aware", []string{"random"}, 5*time.Second
	}, workers...)
	for range 4 {
		resp, text := f.post(t, chat)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Warmpath-Worker") != workers[2] {
			t.Fatalf("%d %s from %s", resp.StatusCode, text, resp.Header.Get("X-Warmpath-Worker"))
		}
	}
	if len(asked) != 4 {
		t.Errorf("asked %d times for 4 requests", len(asked))
	}
	f.post(t, chat, "X-Warmpath-Policy", "random")
	if len(asked) != 4 {
		t.Error("asked for a policy that does not look at it")
	}
}
