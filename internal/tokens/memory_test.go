package tokens

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// held returns the number of bytes of the bodies that the flights' questions hold.
func held(s *Source) (n int64) {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	for _, f := range s.flights.all {
		n += int64(len(f.question.whole) + len(f.question.tokenize))
	}
	return n
}

func TestQuestionsTakeBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": frozen, "b": rendering})
		defer s.Close()
		ctx, leave := context.WithCancel(t.Context())
		text := strings.Repeat("x", 1<<20)
		var clients sync.WaitGroup
		var mu sync.Mutex
		outcomes := map[Outcome]int{}
		for i := range 100 {
			clients.Go(func() {
				got := s.Find(ctx, chat(fmt.Sprint(i, text)), []Worker{a})
				mu.Lock()
				defer mu.Unlock()
				outcomes[got.Missing]++
			})
		}
		synctest.Wait()
		most := memoryShare * s.cfg.MaxPromptBytes
		if n := held(s); n > most || n < most/2 {
			t.Errorf("questions hold %d bytes of %d", n, most)
		}
		mu.Lock()
		if outcomes[Limited] < 60 {
			t.Errorf("at once: %v", outcomes)
		}
		mu.Unlock()
		// Short prompts find room although long prompts wait.
		wants(t, find(t, s, chat("short"), b), Render, 1, 2, 3)
		leave()
		clients.Wait()
		synctest.Wait()
		if used := s.memory.used.Load(); used < 2*callsPerEngine*(1<<20) {
			t.Errorf("%d bytes are booked while calls hold their questions", used)
		}
		pass(callTimeout + backgroundFor)
		synctest.Wait()
		if used := s.memory.used.Load(); used != 0 {
			t.Errorf("%d bytes are booked when nothing is under way", used)
		}
	})
}

// If a worker answered a short prompt with millions of ids, these ids would evict all other prompts from the cache.
func TestAnAnswerHasNoMoreIDsThanItsPromptCanHave(t *testing.T) {
	ids := func(n int) handler {
		return func(*http.Request, string) (int, string) {
			return 200, `{"token_ids":[1` + strings.Repeat(`,1`, n-1) + `]}`
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": rendering, "flood": ids(1 << 20), "more": ids(100_000),
			"long": ids(200_000)})
		defer s.Close()
		for i := range 100 {
			wants(t, find(t, s, chat(fmt.Sprint(i)), a), Render, 1, 2, 3)
		}
		wants(t, find(t, s, chat("hi"), Worker{URL: "http://flood"}), Failed)
		wants(t, find(t, s, chat("hi"), Worker{URL: "http://more"}), Failed)
		if got := find(t, s, chat(strings.Repeat("a ", 200_000)), Worker{URL: "http://long"}); len(got.Tokens) != 200_000 {
			t.Errorf("a long prompt: %s %s", got.Outcome, got.Missing)
		}
		if got := s.Stats(); got.Entries < 100 {
			t.Errorf("%d prompts are remembered", got.Entries)
		}
	})
}

func TestAComparisonIsBoundedLikeAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": tokenizing})
		defer s.Close()
		s.Local = made{4, 5}
		s.cfg.MaxPromptBytes = 1024
		wants(t, find(t, s, chat(strings.Repeat("x", 1024)), a), InProcess, 4, 5)
		synctest.Wait()
		if got := e.calls(); got != nil {
			t.Errorf("calls %v with a body beyond the limit", got)
		}
		wants(t, find(t, s, chat("x"), a), InProcess, 4, 5)
		synctest.Wait()
		if got := e.calls(); len(got) == 0 || s.memory.used.Load() != 0 {
			t.Errorf("calls %v, %d bytes are booked", got, s.memory.used.Load())
		}
	})
}
