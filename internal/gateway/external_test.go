package gateway_test

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// The source gets the prompt's tokens. It is asked once for each request, and only if its own policy decides.
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

// The shadow policy uses the answer of its own source, and the deciding policy uses the answer of its own source. The
// shadow's source is asked only about the sampled requests.
func TestAShadowsSourceIsAsked(t *testing.T) {
	workers := []string{worker(t, plain), worker(t, plain), worker(t, plain)}
	asked := map[string]*atomic.Int64{"decides": {}, "shadow": {}}
	spec := func(name string, holder fleet.WorkerID) policy.Spec {
		s := peers.DefaultLMCacheAware().Spec(name)
		s.Source = func(context.Context, []block.Token) []policy.Cached {
			asked[name].Add(1)
			return []policy.Cached{{Worker: holder, Keys: 9}}
		}
		return s
	}
	f := serve(t, func(s *settings) {
		s.specs = []policy.Spec{spec("decides", 1), spec("shadow", 2)}
		s.policy, s.shadow, s.sample = "decides", "shadow", 1
	}, workers...)
	for i := range 4 {
		resp, text := f.post(t, chat)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		if rec := f.last(t, i+1); rec.Worker != workers[1] || rec.Shadow == nil || rec.Shadow.Worker != workers[2] {
			t.Errorf("sent to %s; the shadow %+v, want %s", rec.Worker, rec.Shadow, workers[2])
		}
	}
	if a, b := asked["decides"].Load(), asked["shadow"].Load(); a != 4 || b != 4 {
		t.Errorf("asked %d and %d times for 4 requests", a, b)
	}
	f.SampleShadow(0)
	f.post(t, chat)
	if n := asked["shadow"].Load(); n != 4 {
		t.Error("asked for a request of which the shadow is not asked")
	}
}
