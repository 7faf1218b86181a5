package warmpath_test

import (
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

func TestWhatWasNotSentIsNotExpected(t *testing.T) {
	p, text := prompt(1, 8001), story("ant", 4*8001)
	for name, request := range map[string]func(tokens int) warmpath.Request{
		"tokens": func(n int) warmpath.Request { return warmpath.Request{Tokens: p[:n]} },
		"text":   func(n int) warmpath.Request { return warmpath.Request{Text: text[:4*n]} },
		"learned": func(n int) warmpath.Request {
			return warmpath.Request{Tokens: p[:n], Policy: "kv"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, warmpath.Options{Policies: []policy.Spec{withoutEvents(t)}}, vllm())
			ask := func(n int, now int64, unsent bool) {
				req := request(n)
				req.Now = now
				d := w.route(req)
				if unsent {
					d.Unsent()
				}
				d.Done(fleet.OutcomeUnknown, now)
				d.Recycle()
			}
			want := func(what string, n int) {
				t.Helper()
				req := request(8001)
				req.Now = 100
				if d := w.explain(req); d.PredictedTokens != n {
					t.Errorf("%s: %d tokens are expected, want %d", what, d.PredictedTokens, n)
				}
			}
			ask(8001, 1, true)
			want("nothing was sent", 0)
			if s := w.router.IndexStats()[0]; s.Speculative != 0 || s.Blocks != 0 {
				t.Errorf("%d blocks are expected, %d are in the index, want 0 and 0", s.Speculative, s.Blocks)
			}
			ask(4801, 2, false)
			ask(8001, 3, true)
			want("the beginning was sent", 4800)
			if name == "tokens" {
				w.store(0, p[:1600], kvindex.Stored{})
				ask(8001, 4, true)
				want("some of it is confirmed", 4800)
			}
			ask(8001, 5, false)
			want("all was sent", 8000)
		})
	}
}

// A shadow policy without events has its own memory of the prompts that were sent. If a request was not sent, its
// prompt must be removed from this memory. The part of the prompt that an earlier request sent must stay there.
func TestAShadowUnlearnsWhatItLearned(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policies: []policy.Spec{withoutEvents(t)}, Shadow: "kv"}, vllm())
	p := prompt(1, 801)
	unsent := func(now int64) {
		d := w.route(warmpath.Request{Tokens: p, Now: now})
		d.Unsent()
		d.Recycle()
	}
	want := func(tokens int) {
		t.Helper()
		if d := w.explain(warmpath.Request{Tokens: p, Policy: "kv", Now: 9}); d.PredictedTokens != tokens {
			t.Errorf("the shadow expects %d tokens, want %d", d.PredictedTokens, tokens)
		}
	}
	w.store(0, p[:480], kvindex.Stored{})
	unsent(1)
	want(0)
	w.route(warmpath.Request{Tokens: p[:641], Now: 2}).Recycle()
	w.store(0, p[:720], kvindex.Stored{})
	unsent(3)
	want(640)
}

// Two requests with the same prompt come one after the other, and only the second request is sent. The prompt must stay
// expected, because of the second request.
func TestWhatAnotherRequestSentIsExpected(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 801)
	first, second := w.route(warmpath.Request{Tokens: p, Now: 1}), w.route(warmpath.Request{Tokens: p, Now: 2})
	first.Unsent()
	first.Recycle()
	if d := w.explain(warmpath.Request{Tokens: p, Now: 3}); d.PredictedTokens != 800 {
		t.Errorf("%d tokens are expected, want 800", d.PredictedTokens)
	}
	second.Recycle()
}
