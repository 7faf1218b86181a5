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
	"github.com/warmpath/warmpath/test/testenv"
)

// A policy may have an external source, which says what the workers have cached. The source gets the prompt's tokens.
// The gateway asks the source once for each request, and only if its policy decides.
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
		spec.Source = func(_ context.Context, prompt []block.Token) []fleet.Cached {
			asked <- prompt
			return []fleet.Cached{{Worker: 2, Keys: 9}}
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

// The shadow policy uses the answer of its own source, and the deciding policy uses the answer of another source. The
// shadow's source is asked only about the sampled requests.
func TestAShadowsSourceIsAsked(t *testing.T) {
	workers := []string{worker(t, plain), worker(t, plain), worker(t, plain)}
	asked := map[string]*atomic.Int64{"decides": {}, "shadow": {}}
	spec := func(name string, holder fleet.WorkerID) policy.Spec {
		s := peers.DefaultLMCacheAware().Spec(name)
		s.Source = func(context.Context, []block.Token) []fleet.Cached {
			asked[name].Add(1)
			return []fleet.Cached{{Worker: holder, Keys: 9}}
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

// lookingUp returns a policy that looks up each prompt at a source.
func lookingUp(name string, source policy.Source) policy.Spec {
	p := peers.DefaultLMCacheAware()
	p.LookupMode = peers.LookupPrefix
	spec := p.Spec(name)
	spec.Source = source
	return spec
}

// A request does not wait for a lookup of the shadow's source. Without the answer the shadow makes no decision, and the
// lookups under way are bounded.
func TestALookupForTheShadowDelaysNoRequest(t *testing.T) {
	hang := make(chan struct{})
	var asked atomic.Int64
	f := serve(t, func(s *settings) {
		s.specs = []policy.Spec{lookingUp("shadow", func(context.Context, []block.Token) []fleet.Cached {
			asked.Add(1)
			<-hang
			return nil
		})}
		s.policy, s.shadow, s.sample = "random", "shadow", 1
	}, worker(t, plain))
	for i := range 40 {
		if resp := f.complete(t, completion(7, 64)); resp.StatusCode != http.StatusOK {
			t.Fatalf("answered %d", resp.StatusCode)
		}
		if rec := f.last(t, i+1); rec.Shadow == nil || rec.Shadow.Worker != "" || rec.Shadow.Error == "" || rec.Shadow.Agrees {
			t.Errorf("the shadow decided: %+v", rec.Shadow)
		}
	}
	testenv.Until(t, "32 lookups are under way", func() bool { return asked.Load() == 32 })
	close(hang)
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if n := f.ShadowLookups(); n != 0 {
		t.Errorf("%d lookups are under way after Serve", n)
	}
}

// The shadow's source is asked before the deciding policy's source has answered. If the answer of the shadow's source
// has come when the request is routed, the shadow uses this answer.
func TestTwoSourcesAreAskedAtTheSameTime(t *testing.T) {
	workers := []string{worker(t, plain), worker(t, plain), worker(t, plain)}
	var asked atomic.Bool
	var f *fixture
	f = serve(t, func(s *settings) {
		s.specs = []policy.Spec{
			lookingUp("decides", func(context.Context, []block.Token) []fleet.Cached {
				if !testenv.Poll(10*time.Second, func() bool { return asked.Load() && f.ShadowLookups() == 0 }) {
					t.Error("the source of the shadow was not asked")
				}
				return []fleet.Cached{{Worker: 1, Tokens: 64}}
			}),
			lookingUp("shadow", func(_ context.Context, prompt []block.Token) []fleet.Cached {
				asked.Store(true)
				return []fleet.Cached{{Worker: 2, Tokens: len(prompt)}}
			}),
		}
		s.policy, s.shadow, s.sample = "decides", "shadow", 1
	}, workers...)
	f.complete(t, completion(7, 64))
	if rec := f.last(t, 1); rec.Worker != workers[1] || rec.Shadow == nil || rec.Shadow.Worker != workers[2] {
		t.Errorf("sent to %s; the shadow %+v, want %s", rec.Worker, rec.Shadow, workers[2])
	}
}
