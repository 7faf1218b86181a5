package tokens

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// frozen is an engine that accepts a call and never answers.
func frozen(r *http.Request, _ string) (int, string) {
	<-r.Context().Done()
	return 500, ""
}

// after returns an engine that answers each call after the time d, with the ids of rendering.
func after(d time.Duration) handler {
	return func(r *http.Request, body string) (int, string) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		return rendering(r, body)
	}
}

// asked returns the number of calls to a host.
func (e *engines) asked(host string) int {
	n := 0
	for _, c := range e.calls() {
		if strings.HasPrefix(c, host+"/") {
			n++
		}
	}
	return n
}

// busy returns a function for the field Source.Loads. The function reports, for each worker, the number of requests at
// its URL, and perToken as the time to compute a token.
func busy(perToken time.Duration, requests map[string]int) func() func(Worker) Load {
	return func() func(Worker) Load {
		return func(w Worker) Load { return Load{Requests: requests[w.URL], PerToken: perToken} }
	}
}

// long returns a chat that begins with text and has about the given number of tokens.
func long(text string, tokens int) Prompt { return chat(text + strings.Repeat(" abc", tokens)) }

func TestTheLeastBusyEngineIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": after(3 * time.Millisecond), "b": after(3 * time.Millisecond)})
		defer s.Close()
		s.Loads = busy(0, map[string]int{a.URL: 4})
		for i := range 20 {
			wants(t, find(t, s, chat(fmt.Sprint(i)), a, b), Render, 1, 2, 3)
		}
		if n := e.asked("a"); n > 1 { // one call was made before either host had answered
			t.Errorf("the busy engine was asked %d of 20 times", n)
		}
	})
}

func TestTheFasterOfTwoEquallyBusyEnginesIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": after(9 * time.Millisecond), "b": after(3 * time.Millisecond)})
		defer s.Close()
		s.Loads = busy(time.Millisecond, map[string]int{a.URL: 4, b.URL: 4})
		for i := range 20 {
			wants(t, find(t, s, long(fmt.Sprint(i), 1000), a, b), Render, 1, 2, 3)
		}
		if n := e.asked("a"); n > 2 {
			t.Errorf("the slow engine was asked %d of 20 times", n)
		}
	})
}

func TestAFrozenEngineIsAskedNothingUntilItsCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": frozen, "b": after(2 * time.Millisecond)})
		defer s.Close()
		for i := range 200 {
			began := time.Now()
			wants(t, find(t, s, chat(fmt.Sprint(i)), a, b), Render, 9-8, 2, 3)
			if took := time.Since(began); took > 6*time.Millisecond {
				t.Errorf("prompt %d waited %v beside a frozen engine", i, took)
			}
			pass(20 * time.Millisecond)
		}
		if n := e.asked("a"); n > 2 {
			t.Errorf("the frozen engine was asked %d times in 4 s", n)
		}
		if s.Stats().Opened != 0 {
			t.Error("the breaker opened, though nothing failed")
		}
	})
}

func TestASingleFrozenEngineDelaysOnlyAFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": frozen})
		defer s.Close()
		waited := 0
		for i := range 100 {
			began := time.Now()
			got := find(t, s, chat(fmt.Sprint(i)), a)
			if got.Missing != TimedOut && got.Missing != Limited {
				t.Fatalf("request %d: %s", i, got.Missing)
			}
			if time.Since(began) > 0 {
				waited++
			}
			pass(20 * time.Millisecond)
		}
		if waited > 6 { // only requests within the first 100 ms may wait
			t.Errorf("%d of 100 requests waited for a frozen engine", waited)
		}
		if n := e.asked("a"); n > callsPerEngine {
			t.Errorf("it was asked %d times", n)
		}
	})
}

func TestASlowEngineDoesNotOpenItsBreakerAndItsLateAnswersAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": after(80 * time.Millisecond)})
		defer s.Close()
		for i := range 10 {
			wants(t, find(t, s, chat(fmt.Sprint(i)), a), TimedOut)
			pass(100 * time.Millisecond)
			wants(t, find(t, s, chat(fmt.Sprint(i)), a), Cached, 1, 2, 3)
		}
		got := s.Stats()
		if got.Opened != 0 || got.Late != 10 || e.asked("a") != 10 {
			t.Errorf("opened %d, late %d, asked %d", got.Opened, got.Late, e.asked("a"))
		}
	})
}

func TestOnlyErrorsOpenTheBreaker(t *testing.T) {
	for name, c := range map[string]struct {
		engine handler
		opens  bool
	}{
		"5xx":     {func(*http.Request, string) (int, string) { return 503, "" }, true},
		"garbage": {func(*http.Request, string) (int, string) { return 200, `{"tokens":["x"]}` }, true},
		"refused": {func(*http.Request, string) (int, string) { return 400, "" }, false},
		"slow":    {after(time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := newSource(map[string]handler{"a": c.engine})
				defer s.Close()
				for i := range 10 {
					find(t, s, chat(fmt.Sprint(i)), a)
				}
				if got := s.Stats().Opened > 0; got != c.opens {
					t.Errorf("opened: %v, want %v", got, c.opens)
				}
			})
		})
	}
}

func TestARequestWaitsAsLongAsAMatchIsWorth(t *testing.T) {
	for _, c := range []struct {
		name     string
		tokens   int
		perToken time.Duration
		cached   bool
		budget   time.Duration
		want     time.Duration
	}{
		{"short", 500, 100 * time.Microsecond, true, 500 * time.Millisecond, leastWait},
		{"usual", 6000, 100 * time.Microsecond, true, 500 * time.Millisecond, 58 * time.Millisecond},
		{"long", 100_000, 100 * time.Microsecond, true, 500 * time.Millisecond, 500 * time.Millisecond},
		{"nothing was ever cached", 100_000, 100 * time.Microsecond, false, 500 * time.Millisecond, 21 * time.Millisecond},
		{"a large budget", 500, 100 * time.Microsecond, true, 5 * time.Second, 100 * time.Millisecond},
		{"the budget is the bound", 6000, 100 * time.Microsecond, true, 20 * time.Millisecond, 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := newSource(map[string]handler{"a": frozen})
				defer s.Close()
				s.cfg.Budget = c.budget
				s.Loads = busy(c.perToken, nil)
				for range 100 {
					s.Matched("", c.cached)
				}
				began := time.Now()
				wants(t, find(t, s, long("x", c.tokens), a), TimedOut)
				if took := time.Since(began); took < c.want*9/10 || took > c.want*11/10 {
					t.Errorf("waited %v, want about %v", took, c.want)
				}
			})
		})
	}
}

func TestCallsToAnEngineAreLimitedAndTheWorthiestGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu            sync.Mutex
			now, most     int
			first, second string // bodies of the first two calls that begin after the two calls under way
		)
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			mu.Lock()
			if now++; now > most {
				most = now
			}
			if !strings.Contains(body, "early") {
				if first == "" {
					first = body
				} else if second == "" {
					second = body
				}
			}
			mu.Unlock()
			pass(20 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return rendering(r, body)
		}})
		defer s.Close()
		s.Loads = busy(time.Millisecond, nil)
		var wg sync.WaitGroup
		ask := func(p Prompt) { wg.Go(func() { s.Find(context.Background(), p, []Worker{a}) }); synctest.Wait() }
		ask(long("early one", 4000))
		ask(long("early two", 4000))
		ask(long("short", 2000))
		ask(long("longest", 8000))
		ask(long("longer", 4000))
		wg.Wait()
		if most != callsPerEngine {
			t.Errorf("%d calls at once, want %d", most, callsPerEngine)
		}
		if !strings.Contains(first+second, "longest") || !strings.Contains(first+second, "longer") {
			t.Errorf("asked first: %.80s and %.80s", first, second)
		}
		if got := s.Stats().Waited; got != 3 {
			t.Errorf("%d questions waited for their turn, want 3", got)
		}
	})
}

func TestTheLineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": after(60 * time.Millisecond)})
		defer s.Close()
		s.Loads = busy(time.Millisecond, nil)
		outcomes := make(chan Outcome, 200)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { outcomes <- s.Find(context.Background(), long(fmt.Sprint(i), 1000), []Worker{a}).Missing })
		}
		wg.Wait()
		close(outcomes)
		got := map[Outcome]int{}
		for o := range outcomes {
			got[o]++
		}
		if got[Limited] < 200-callsPerEngine-maxLine || got[Failed] > 0 {
			t.Errorf("outcomes %v", got)
		}
		pass(20 * time.Second)
		if n := e.asked("a"); n > callsPerEngine+maxLine {
			t.Errorf("%d questions were asked", n)
		}
		synctest.Wait()
		s.flights.mu.Lock()
		defer s.flights.mu.Unlock()
		s.states.mu.Lock()
		defer s.states.mu.Unlock()
		if s.flights.background != 0 || s.flights.bytes != 0 || len(s.flights.all) != 0 || len(s.states.line) != 0 {
			t.Errorf("left: %d in the background, %d bytes, %d flights, %d in line", s.flights.background, s.flights.bytes,
				len(s.flights.all), len(s.states.line))
		}
	})
}

func TestEqualTextsShareOneQuestion(t *testing.T) {
	for name, bodies := range map[string][]string{
		"chat": {`{"model":"m","messages":[{"role":"user","content":"x"}]}`,
			`{"messages":[{"role":"user","content":"x"}],"model":"m","stream":true,"temperature":0.2,"max_tokens":7,"seed":1}`},
		"completions": {`{"model":"m","prompt":"x"}`, `{"prompt":["x"],"model":"m","top_p":0.5,"n":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, e := newSource(map[string]handler{"a": after(3 * time.Millisecond)})
				defer s.Close()
				dialect := api.OpenAIChat
				if name == "completions" {
					dialect = api.OpenAICompletions
				}
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() {
						if got := s.Find(context.Background(), prompt(dialect, bodies[i%2]), []Worker{a}); len(got.Tokens) != 3 {
							t.Errorf("request %d: %s %s", i, got.Outcome, got.Missing)
						}
					})
				}
				wg.Wait()
				if n := len(e.calls()); n != 1 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

func TestAQuestionInLineGoesToTheEngineThatIsFreeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": after(300 * time.Millisecond), "b": after(40 * time.Millisecond)})
		defer s.Close()
		s.Loads = busy(time.Millisecond, nil)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() { s.Find(context.Background(), long(fmt.Sprint(i), 8000), []Worker{a, b}) })
		}
		wg.Wait()
		if slow, took := e.asked("a"), time.Since(began); slow != 2 || took > 250*time.Millisecond {
			t.Errorf("the slow engine was asked %d times; the last answer came after %v", slow, took)
		}
	})
}

func TestAfterAFailureAnotherEngineIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": func(*http.Request, string) (int, string) { return 500, "" },
			"b": after(2 * time.Millisecond)})
		defer s.Close()
		for i := range 20 {
			wants(t, find(t, s, chat(fmt.Sprint(i)), a, b), Render, 1, 2, 3)
		}
	})
}

// The line has the questions that wait for a free call to an engine. If the line is full of questions that are worth
// more than a question in the background, this question tries again after a pause.
func TestAQuestionPausesBeforeItTriesAFullLineAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": rendering})
		defer s.Close()
		looks := 0
		s.Loads = func() func(Worker) Load {
			looks++
			return func(Worker) Load { return Load{} }
		}
		now := time.Now()
		p := s.states.of(a.URL)
		p.mean, p.meanBytes = time.Second, 1000
		for range callsPerEngine {
			s.states.book(p, &question{tokenize: make([]byte, 10)}, now)
		}
		for range maxLine {
			s.states.line = append(s.states.line, &question{worth: time.Hour, workers: []Worker{a}, granted: make(chan grant, 1)})
		}
		f := s.flights.inBackground(key{1}, 100)
		f.question.workers = []Worker{a}
		s.flights.join(key{1}, 100, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if g := s.acquire(ctx, f); g.admission != full {
			t.Errorf("admission %v, want full", g.admission)
		}
		if looks > 30 {
			t.Errorf("%d looks at the engines in 300 ms", looks)
		}
	})
}

func BenchmarkAsk(b *testing.B) {
	e := &engines{hosts: map[string]handler{"a": rendering}}
	cfg := DefaultConfig()
	cfg.Budget = 10 * time.Second
	s := New(cfg, &http.Client{Transport: e})
	defer s.Close()
	workers := []Worker{a}
	text := strings.Repeat(" word", 6000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		e.seen = e.seen[:0]
		if got := s.Find(b.Context(), chat(fmt.Sprint(n)+text), workers); got.Outcome != Render {
			b.Fatal(got.Outcome, got.Missing)
		}
	}
}
