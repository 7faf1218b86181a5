package tokens

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// guarded returns an engine that accepts only the key "good". It answers other keys with status. Each answer takes the
// time after.
func guarded(status int, after time.Duration) handler {
	return func(r *http.Request, body string) (int, string) {
		pass(after)
		if r.Header.Get("Authorization") != "Bearer good" {
			return status, `{"error":"Unauthorized"}`
		}
		if r.URL.Path == "/tokenize" {
			return 200, `{"count":3,"tokens":[1,2,3]}`
		}
		return rendering(r, body)
	}
}

// as returns p with the API key of a client.
func as(key string, p Prompt) Prompt {
	p.Authorization = "Bearer " + key
	return p
}

func TestARefusedKeyConcernsItsClientOnly(t *testing.T) {
	for _, kind := range []Kind{VLLM, SGLang} {
		for status, pause := range map[int]time.Duration{401: relearn, 403: relearn, 429: DefaultConfig().Pause} {
			t.Run(fmt.Sprint(kind, status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, e := newSource(map[string]handler{"a": guarded(status, 0), "b": guarded(status, 0)})
					defer s.Close()
					one, other := Worker{URL: a.URL, Kind: kind}, Worker{URL: b.URL, Kind: kind}
					for i := range 20 {
						wants(t, find(t, s, as("bad", chat(fmt.Sprint("bad", i))), one, other), Refused)
						if i == 0 {
							continue
						}
						got := find(t, s, as("good", chat(fmt.Sprint("good", i))), one, other)
						if len(got.Tokens) != 3 {
							t.Fatalf("another client's prompt %d: %s %s", i, got.Outcome, got.Missing)
						}
					}
					if n := len(e.calls()); n != 19+4 {
						t.Errorf("%d calls, want 19 for one client and each endpoint of both workers once for the other", n)
					}
					if opened := s.Stats().Opened; opened != 0 {
						t.Errorf("%d workers are left alone", opened)
					}
					pass(pause)
					before := len(e.calls())
					wants(t, find(t, s, as("bad", chat("again")), one, other), Refused)
					if len(e.calls()) == before {
						t.Errorf("after %v the key is not tried again", pause)
					}
				})
			})
		}
	}
}

// vLLM demands its API key at render, but not at /tokenize.
func TestAKeyThatIsRefusedAtRenderIsGoodForTokenize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := guarded(401, 0)
		s, e := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			if r.URL.Path == "/tokenize" {
				return tokenizing(r, body)
			}
			return guard(r, body)
		}})
		defer s.Close()
		wants(t, find(t, s, as("bad", chat("one")), a), Tokenize, 4, 5)
		wants(t, find(t, s, as("bad", chat("two")), a), Tokenize, 4, 5)
		wants(t, find(t, s, as("good", chat("three")), a), Render, 1, 2, 3)
		if n := e.asked("a"); n != 4 {
			t.Errorf("%d calls, want render once with the key that it refuses", n)
		}
	})
}

func TestEqualPromptsOfTwoClientsAreAskedWithTheirOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": guarded(401, 3*time.Millisecond)})
		defer s.Close()
		bad := make(chan Found)
		go func() { bad <- s.Find(context.Background(), as("bad", chat("same")), []Worker{a}) }()
		synctest.Wait()
		wants(t, find(t, s, as("good", chat("same")), a), Render, 1, 2, 3)
		wants(t, <-bad, Refused)
	})
}

func TestRefusalsDoNotCountForTheTimeOfAnswers(t *testing.T) {
	for name, refuse := range map[string]handler{
		"key":    guarded(403, 0),
		"prompt": func(*http.Request, string) (int, string) { return 400, `{"error":{"message":"bad template"}}` },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
					if r.Header.Get("Authorization") != "Bearer good" {
						return refuse(r, body)
					}
					return after(8*time.Millisecond)(r, body)
				}})
				defer s.Close()
				wants(t, find(t, s, as("good", chat("first")), a), Render, 1, 2, 3)
				for i := range 50 {
					wants(t, find(t, s, as(fmt.Sprint(i), chat(fmt.Sprint(i))), a), Refused)
				}
				if took := s.states.expected(a.URL, 10); took != 8*time.Millisecond {
					t.Errorf("an answer is expected after %v, the engine takes 8 ms", took)
				}
			})
		})
	}
}

// A worker that refused its first question may be the fastest worker, so this worker must be asked again.
func TestAWorkerThatOnlyRefusedIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusing := true
		s, e := newSource(map[string]handler{"a": after(3 * time.Millisecond),
			"b": func(r *http.Request, body string) (int, string) {
				if refusing {
					return 400, `{"error":{"message":"bad template"}}`
				}
				return after(time.Millisecond)(r, body)
			}})
		defer s.Close()
		ask := func(what string) (refused int) {
			for i := range 20 {
				if got := find(t, s, chat(fmt.Sprint(what, i)), a, b); got.Tokens == nil {
					refused++
				}
			}
			return refused
		}
		if n := ask("first"); n != 1 {
			t.Errorf("%d of 20 questions were refused by a worker that refuses all, beside one that answers", n)
		}
		refusing = false
		pass(s.cfg.Pause)
		before := e.asked("b")
		if n := ask("then"); n > 0 || e.asked("b")-before < 19 {
			t.Errorf("%d of 20 questions refused, %d asked of the quicker worker", n, e.asked("b")-before)
		}
	})
}

func TestRefusedKeysAreRememberedInBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": guarded(401, 0)})
		defer s.Close()
		for i := range 2 * maxRefusals {
			find(t, s, as(fmt.Sprint(i), chat(fmt.Sprint(i))), a)
		}
		if n := len(s.states.all[a.URL].refusals); n > maxRefusals {
			t.Errorf("%d refusals are remembered", n)
		}
		wants(t, find(t, s, as("good", chat("x")), a), Render, 1, 2, 3)
	})
}

// If an engine cannot fetch an image, only questions of the client with this image are late. If questions of two
// clients are late, the source treats the engine as frozen for all clients.
func TestOneClientsSlowPromptsDelayOnlyThatClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freezes atomic.Bool
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			if freezes.Load() || strings.Contains(body, "slow") {
				<-r.Context().Done()
				return 500, ""
			}
			return rendering(r, body)
		}})
		defer s.Close()
		for i := range DefaultConfig().Failures {
			find(t, s, as("bad", chat(fmt.Sprint("slower ", i))), a)
			pass(callTimeout)
		}
		for i := range 20 {
			find(t, s, as("bad", chat(fmt.Sprint("slow ", i))), a)
			wants(t, find(t, s, as("good", chat(fmt.Sprint("one ", i))), a), Render, 1, 2, 3)
			pass(time.Second)
		}
		pass(callTimeout)
		// A late call does not take one of the calls that an engine may have at the same time.
		for _, long := range []string{"", strings.Repeat("long ", longQuestion/5+1)} {
			for i := range 2 {
				go find(t, s, as("bad", chat(fmt.Sprint("slow ", long, i, " more"))), a)
			}
			pass(time.Second)
			began := time.Now()
			wants(t, find(t, s, as("good", chat("short after "+long[:min(len(long), 4)])), a), Render, 1, 2, 3)
			wants(t, find(t, s, as("good", chat("after "+long+long+"text")), a), Render, 1, 2, 3)
			if took := time.Since(began); took > 0 {
				t.Errorf("another client waited %v", took)
			}
			pass(callTimeout)
		}
		freezes.Store(true)
		wants(t, find(t, s, as("good", chat("two")), a), TimedOut)
		pass(time.Second)
		wants(t, find(t, s, as("good", chat("again")), a), Limited)
		wants(t, find(t, s, as("other", chat("two and a half")), a), TimedOut)
		pass(time.Second)
		wants(t, find(t, s, as("third", chat("three")), a), Limited)
	})
}

// Status 500 for prompts of one client counts as the engine's fault only after a question of another client has failed,
// too.
func TestPromptsThatBreakAnEngineConcernTheirClientOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ill := false
		s, e := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			if ill || strings.Contains(body, "break it") {
				return 500, "Internal Server Error"
			}
			return rendering(r, body)
		}})
		defer s.Close()
		for i := range 5 {
			outcome := Failed
			if i >= DefaultConfig().Failures {
				outcome = NoWorker
			}
			wants(t, find(t, s, as("bad", chat(fmt.Sprint("break it ", i))), a), outcome)
		}
		if n := len(e.calls()); n != DefaultConfig().Failures {
			t.Errorf("%d calls for a client whose prompts fail", n)
		}
		wants(t, find(t, s, as("good", chat("one")), a), Render, 1, 2, 3)
		wants(t, find(t, s, as("bad", chat("a sane one")), a), Render, 1, 2, 3)

		ill = true
		for i := range DefaultConfig().Failures {
			wants(t, find(t, s, as("bad", chat(fmt.Sprint("ill ", i))), a), Failed)
		}
		wants(t, find(t, s, as("good", chat("two")), a), Failed)
		before := len(e.calls())
		for _, key := range []string{"good", "bad", "third"} {
			wants(t, find(t, s, as(key, chat("three"+key)), a), NoWorker)
		}
		if len(e.calls()) != before {
			t.Error("an engine that fails for two clients is asked for a third")
		}
	})
}
