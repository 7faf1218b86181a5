package tokens

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestAModelThatDiffersIsNotBelievedUntilTwentyPromptsAgree(t *testing.T) {
	var c checks
	if !c.believed("m") {
		t.Fatal("a model is not believed from the start")
	}
	if turned := c.note("m", "", true); turned || !c.believed("m") {
		t.Error("an equal prompt changed something")
	}
	if turned := c.note("m", "", false); !turned || c.believed("m") || !c.believed("other") {
		t.Error("a different prompt must stop the belief in that model, and in no other")
	}
	for i := range checkPasses {
		if c.believed("m") {
			t.Fatalf("believed again after %d equal prompts", i)
		}
		if turned := c.note("m", "", true); turned != (i == checkPasses-1) {
			t.Errorf("equal prompt %d: turned %v", i, turned)
		}
	}
	if !c.believed("m") || c.checked.Load() != 2+checkPasses || c.differed.Load() != 1 {
		t.Errorf("believed %v, checked %d, differed %d", c.believed("m"), c.checked.Load(), c.differed.Load())
	}
}

func TestTheFirstTwentyOfEachWorkerAreComparedThenOneInAThousand(t *testing.T) {
	var c checks
	workers := []Worker{{URL: "a"}, {URL: "b"}}
	compared := map[string]int{}
	for range 5000 {
		if w, ok := c.due("m", workers, checkFirst, time.Time{}); ok {
			compared[w.URL]++
		}
	}
	if sum := compared["a"] + compared["b"]; compared["a"] < checkFirst || compared["b"] < checkFirst ||
		sum != 2*checkFirst+5 {
		t.Errorf("compared %v", compared)
	}
}

func TestWorkersThatAreGoneAreForgotten(t *testing.T) {
	var c checks
	for i := range 10_000 {
		if _, ok := c.due("m", []Worker{{URL: "a"}, {URL: fmt.Sprint(i)}}, 1, time.Time{}); !ok {
			t.Fatalf("no prompt of worker %d is compared", i)
		}
		c.due("m", []Worker{{URL: "a"}, {URL: fmt.Sprint(i)}}, 1, time.Time{})
	}
	if n := len(c.of("m").started); n > 100 {
		t.Errorf("%d workers are remembered of two", n)
	}
}

// When an engine does not answer a comparison, a later prompt is compared instead. A failing engine is not asked about
// every prompt.
func TestAFailedComparisonIsRepeatedWithAnotherPrompt(t *testing.T) {
	says := func(status int) handler {
		return func(*http.Request, string) (int, string) { return status, `{"error":"no"}` }
	}
	for name, fails := range map[string]handler{"a wrong key": says(401), "a limit": says(429),
		"a refused prompt": says(400), "500": says(500), "503": says(503), "no answer": frozen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, e := newSource(map[string]handler{"b": rendering, "a": func(r *http.Request, body string) (int, string) {
					if r.Header.Get("Authorization") == "Bearer bad" {
						return fails(r, body)
					}
					return 200, `{"token_ids":[1,2,4]}`
				}})
				defer s.Close()
				s.Local = made{1, 2, 3}
				const prompts, apart = 1000, 20 * time.Millisecond
				for i := range prompts {
					wants(t, find(t, s, as("bad", chat(fmt.Sprint(i))), a, b), InProcess, 1, 2, 3)
					pass(apart)
				}
				if n, most := e.asked("a"), 5*int(prompts*apart/s.cfg.Pause); n > most {
					t.Errorf("the failing engine was asked %d times in %v, want %d at most", n, prompts*apart, most)
				}
				if n := s.Stats().Checked; n < checkFirst {
					t.Errorf("%d prompts were compared with the other engine", n)
				}
				pass(callTimeout + s.cfg.Pause)
				for i := range 2 {
					find(t, s, as("good", chat(fmt.Sprint("good", i))), a, b)
					synctest.Wait()
				}
				if s.Stats().Differed == 0 {
					t.Error("ids that are not the engine's were not found out")
				}
			})
		})
	}
}

// If the engine has no token endpoint, few prompts are prepared for a comparison.
func TestAnEngineWithoutTokenEndpointsCostsNoComparisons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": func(*http.Request, string) (int, string) {
			return 404,
				`{"detail":"Not Found"}`
		}})
		defer s.Close()
		s.Local = made{1, 2, 3}
		due := 0
		for i := range 500 {
			p := chat(fmt.Sprint(i))
			wants(t, find(t, s, p, a), InProcess, 1, 2, 3)
			pass(100 * time.Millisecond)
			if w, ok := s.checks.due(p.Model, []Worker{a}, checkFirst, time.Now()); ok {
				s.checks.undo(p.Model, w, time.Time{})
				due++
			}
		}
		if n := e.asked("a"); n > 50 || due > 50 {
			t.Errorf("it was asked %d times, and %d of 500 prompts were to be compared", n, due)
		}
	})
}
