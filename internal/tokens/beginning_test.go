package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

// turn is one message of a chat.
type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// templated is an engine with a chat template: it renders one turn after another, with one id for each word, and a
// generation prompt at the end.
type templated struct {
	takes        time.Duration
	dropsThought bool         // the template leaves words that begin with "think" out of the assistant's turns before the last user turn
	date         atomic.Int32 // a number that the template prints at the beginning
	counts       bool         // the template prints the number of turns at the beginning
	merges       bool         // a turn's first word and the marker before it are one id
}

func (e *templated) ids(turns []turn) []block.Token {
	ids := []block.Token{1, block.Token(2000 + e.date.Load())}
	if e.counts {
		ids = append(ids, block.Token(3000+len(turns)))
	}
	last := 0
	for i, t := range turns {
		if t.Role == "user" {
			last = i
		}
	}
	for i, t := range turns {
		ids = append(ids, 100, word(t.Role), 101)
		for j, w := range strings.Fields(t.Content) {
			if e.dropsThought && t.Role == "assistant" && i < last && strings.HasPrefix(w, "think") {
				continue
			}
			if e.merges && j == 0 {
				ids = ids[:len(ids)-1]
			}
			ids = append(ids, word(w))
		}
		ids = append(ids, 102)
	}
	return append(ids, 100, word("assistant"), 101)
}

func word(w string) block.Token {
	h := fnv.New32a()
	_, _ = h.Write([]byte(w))
	return 10_000 + block.Token(h.Sum32()%1_000_000)
}

func (e *templated) answer(r *http.Request, body string) (int, string) {
	select {
	case <-time.After(e.takes):
	case <-r.Context().Done():
	}
	var asked struct{ Messages []turn }
	if err := json.Unmarshal([]byte(body), &asked); err != nil {
		return 400, err.Error()
	}
	out, _ := json.Marshal(map[string]any{"token_ids": e.ids(asked.Messages)})
	return 200, string(out)
}

// words returns n words that begin with prefix.
func words(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", prefix, i)
	}
	return b.String()
}

func turnsPrompt(turns []turn) Prompt {
	raw, _ := json.Marshal(map[string]any{"model": "m", "messages": turns})
	p := prompt(api.OpenAIChat, string(raw))
	p.Model = "m"
	return p
}

// conversation plays a chat with a system prompt and n requests, and returns the result of each request. The pause
// between two requests is long enough for the engine's answer.
func conversation(t *testing.T, s *Source, e *templated, system, name string, n int) (found []Found) {
	t.Helper()
	turns := []turn{{"system", system}}
	for i := range n {
		turns = append(turns, turn{"user", words(fmt.Sprintf("%s-u%d-", name, i), 60)})
		got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a})
		right := e.ids(turns)
		if got.Sure > len(right) || !slices.Equal(got.Tokens[:got.Sure], right[:got.Sure]) {
			t.Errorf("%s, turn %d: %d ids are said to be the engine's, %d are", name, i, got.Sure,
				common(got.Tokens[:got.Sure], right))
		}
		if got.Outcome == Beginning {
			for _, id := range got.Tokens[got.Sure:] {
				if id < standIn {
					t.Fatalf("%s, turn %d: %d stands for unknown text", name, i, id)
				}
			}
		}
		found = append(found, got)
		turns = append(turns, turn{"assistant", words(fmt.Sprintf("%s-a%d-", name, i), 40)})
		pass(time.Second)
	}
	return found
}

func (e *templated) source() (*Source, *engines) { return newSource(map[string]handler{"a": e.answer}) }

func TestAGrowingChatIsMatchedByItsBeginningAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond} // the engine takes longer than a request waits
		s, _ := e.source()
		defer s.Close()
		system := words("s", 400)
		conversation(t, s, e, system, "A", 4)
		conversation(t, s, e, system, "B", 4)
		began := time.Now()
		for i, got := range conversation(t, s, e, system, "C", 5) {
			if got.Outcome != Beginning {
				t.Errorf("turn %d: %s %s", i, got.Outcome, got.Missing)
				continue
			}
			whole := 400
			if i > 0 {
				whole = 473 + (i-1)*108 // number of ids of the previous prompt
			}
			if got.Sure < whole-margin || len(got.Tokens) < got.Sure+60 {
				t.Errorf("turn %d: %d of %d ids are known", i, got.Sure, len(got.Tokens))
			}
		}
		if took := time.Since(began); took > 5*time.Second+leastWait { // the first turn's new text is worth a short wait
			t.Errorf("the chat waited %v for ids", took-5*time.Second)
		}
		if got := s.Stats(); got.BeginningsChecked == 0 || got.BeginningsDiffered != 0 || got.BeginningsOff != nil {
			t.Errorf("%+v", got)
		}
	})
}

func TestABeginningIsUsedOnlyAfterAnswersAgreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		for i, got := range conversation(t, s, e, words("s", 400), "A", 4) {
			if want := i >= 3; (got.Outcome == Beginning) != want { // a beginning is used after two answers agreed about it
				t.Errorf("turn %d: %s %s", i, got.Outcome, got.Missing)
			}
		}
	})
}

func TestTemplatesThatRewriteEarlierTurnsHaveNoKnownBeginnings(t *testing.T) {
	for name, e := range map[string]*templated{
		"thoughts are dropped": {dropsThought: true}, "turns are counted": {counts: true},
		"words merge over the edge": {merges: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e.takes = 30 * time.Millisecond
				s, _ := e.source()
				defer s.Close()
				for i := range 6 { // conversation fails the test if ids are not the engine's
					conversation(t, s, e, words("s", 200), fmt.Sprintf("think%d", i), 5)
				}
				if got := s.Stats(); got.BeginningsDiffered != 0 {
					t.Errorf("%d of %d beginnings differed", got.BeginningsDiffered, got.BeginningsChecked)
				}
			})
		})
	}
}

func TestAnAgentsThoughtsAreNotPartOfAKnownBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond, dropsThought: true}
		s, _ := e.source()
		defer s.Close()
		for i := range 8 {
			turns := []turn{{"system", words("s", 100)}, {"user", words(fmt.Sprint("u", i), 30)}}
			grow := func(more ...turn) {
				turns = append(turns, more...)
				got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a})
				right := e.ids(turns)
				if !slices.Equal(got.Tokens[:got.Sure], right[:min(got.Sure, len(right))]) {
					t.Errorf("agent %d, %d turns: ids that are not the engine's", i, len(turns))
				}
				pass(time.Second)
			}
			grow()
			for j := range 4 {
				grow(turn{"assistant", words(fmt.Sprint("think", i, j), 20)}, turn{"tool", words(fmt.Sprint("r", i, j), 20)})
			}
			grow(turn{"assistant", "done"}, turn{"user", words(fmt.Sprint("v", i), 20)})
		}
		if got := s.Stats(); got.BeginningsDiffered != 0 || got.BeginningsChecked == 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestADifferenceStopsBeginningsUntilTwentyAnswersAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		var log strings.Builder
		s.Log = slog.New(slog.NewTextHandler(&log, nil))
		conversation(t, s, e, words("s", 100), "A", 5)
		turns := []turn{{"system", words("s", 100)}, {"user", words("A-u0-", 60)}, {"assistant", words("A-a0-", 40)},
			{"user", "other"}}
		e.date.Store(1)
		if got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a}); got.Outcome != Beginning {
			t.Fatalf("%s %s: the test wants a beginning that is wrong", got.Outcome, got.Missing)
		}
		pass(time.Second)
		if got := s.Stats(); got.BeginningsDiffered != 1 || !slices.Equal(got.BeginningsOff, []string{"m"}) {
			t.Errorf("%+v", got)
		}
		if !strings.Contains(log.String(), "model=m") {
			t.Errorf("the log has %q", log.String())
		}
		used := 0
		for i := range 10 {
			for _, got := range conversation(t, s, e, words("s", 100), fmt.Sprint("B", i), 4) {
				if got.Outcome == Beginning {
					if used == 0 && s.Stats().BeginningsChecked < agreeAgain {
						t.Errorf("used after %d answers", s.Stats().BeginningsChecked)
					}
					used++
				}
			}
		}
		if got := s.Stats(); used == 0 || got.BeginningsOff != nil || got.BeginningsDiffered != 1 {
			t.Errorf("used %d times, %+v", used, got)
		}
	})
}

func TestChatsWithTheSameSystemPromptShareItsIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond, merges: true}
		s, _ := e.source()
		defer s.Close()
		system := words("s", 300)
		for i, first := range []string{"Hello there, x", "Why is the sky blue?", "Hello there, y", "x"} {
			turns := []turn{{"system", system}, {"user", first}}
			got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a})
			right := e.ids(turns)
			if !slices.Equal(got.Tokens[:got.Sure], right[:got.Sure]) {
				t.Errorf("chat %d: wrong ids", i)
			}
			if (got.Outcome == Beginning) != (i >= 2) || i >= 2 && got.Sure < 300-margin {
				t.Errorf("chat %d: %d ids by %s", i, got.Sure, got.Outcome)
			}
			pass(time.Second)
		}
	})
}

func TestEqualTextsDoNotShowWhereABeginningEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		for i, first := range []string{"the same long beginning of a question: one",
			"the same long beginning of a question: two", "else"} {
			turns := []turn{{"system", words("s", 100)}, {"user", first}}
			got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a})
			if got.Outcome == Beginning {
				t.Errorf("chat %d: a beginning of %d ids is known from two texts with the same words", i, got.Sure)
			}
			pass(time.Second)
		}
	})
}

func TestABusyEngineIsNotAskedForEachTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond}
		s, calls := e.source()
		defer s.Close()
		load := 5
		s.Loads = func() func(Worker) Load {
			return func(Worker) Load { return Load{Requests: load} }
		}
		conversation(t, s, e, words("s", 2000), "A", 4)
		before := calls.asked("a")
		conversation(t, s, e, words("s", 2000), "B", 12)
		if n := calls.asked("a") - before; n > 8 {
			t.Errorf("asked %d times for 12 turns of a busy engine", n)
		}
		load, before = 0, calls.asked("a")
		conversation(t, s, e, words("s", 2000), "C", 12)
		if n := calls.asked("a") - before; n != 12 {
			t.Errorf("asked %d times for 12 turns of an idle engine", n)
		}
	})
}

func TestAQuestionInTheBackgroundWaitsForACalmEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 30 * time.Millisecond}
		s, calls := e.source()
		defer s.Close()
		var waiting atomic.Int32
		s.Loads = func() func(Worker) Load {
			return func(Worker) Load { return Load{Requests: 1, Waiting: int(waiting.Load())} }
		}
		conversation(t, s, e, words("s", 100), "A", 5)
		before := calls.asked("a")
		waiting.Store(1)
		turns := []turn{{"system", words("s", 100)}, {"user", words("A-u0-", 60)}, {"assistant", "x"},
			{"user", words("new", 400)}}
		if got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a}); got.Outcome != Beginning {
			t.Fatalf("%s %s", got.Outcome, got.Missing)
		}
		pass(time.Second)
		if n := calls.asked("a") - before; n != 0 {
			t.Error("asked while a request waits for its first token")
		}
		waiting.Store(0)
		pass(100 * time.Millisecond)
		if n := calls.asked("a") - before; n != 1 {
			t.Errorf("asked %d times once the engine was calm", n)
		}
		waiting.Store(1)
		turns[3].Content = words("newer", 400)
		find(t, s, turnsPrompt(turns), a)
		pass(max(backgroundFor, s.cfg.Budget) + time.Second)
		if n := calls.asked("a") - before; n != 2 {
			t.Errorf("asked %d times: an engine that is never calm is asked in the end", n)
		}
	})
}

func TestAWaiterMakesAQuestionUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 5 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		s.Loads = func() func(Worker) Load {
			return func(Worker) Load { return Load{Requests: 1, Waiting: 1} }
		}
		p := chat("hello")
		l := turnsOf(p.Request)
		f := s.flights.inBackground(l.key().of(s.states.client("")), 100)
		s.fly(f, &p, l, []Worker{a})
		pass(time.Millisecond)
		if got := find(t, s, p, a); got.Outcome != Shared {
			t.Errorf("%s %s", got.Outcome, got.Missing)
		}
	})
}

func TestQuestionsInTheBackgroundComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 20 * time.Millisecond}
		s, calls := e.source()
		defer s.Close()
		s.Loads = busy(time.Millisecond, map[string]int{a.URL: 1})
		for i := range 3 {
			conversation(t, s, e, words("s", 100), fmt.Sprint(i), 4)
		}
		before := calls.asked("a")
		var wg sync.WaitGroup
		// The beginning of each of these chats is known. So Find returns the beginning without waiting, and asks for the
		// other ids in the background.
		for i := range 40 {
			wg.Go(func() {
				turns := []turn{{"system", words("s", 100)}, {"user", words("0-u0-", 60)}, {"assistant", fmt.Sprint(i)},
					{"user", words("x", 300)}}
				if got := s.Find(context.Background(), turnsPrompt(turns), []Worker{a}); got.Outcome != Beginning {
					t.Errorf("%s %s", got.Outcome, got.Missing)
				}
			})
		}
		wg.Wait()
		began := time.Now()
		if got := s.Find(t.Context(), long("worth waiting for", 3000), []Worker{a}); got.Outcome != Render {
			t.Errorf("%s %s", got.Outcome, got.Missing)
		}
		if took := time.Since(began); took > 2*e.takes {
			t.Errorf("waited %v behind questions in the background", took)
		}
		pass(time.Minute)
		if n := calls.asked("a") - before; n > maxBackground+1 {
			t.Errorf("%d questions were asked", n)
		}
	})
}

func TestARequestWaitsForAnIdleEngineDespiteAKnownBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 5 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		requests := map[string]int{a.URL: 1}
		s.Loads = busy(time.Millisecond, requests)
		for i := range 3 {
			conversation(t, s, e, words("s", 100), fmt.Sprint(i), 4)
		}
		ask := func(answer string, want Outcome) {
			t.Helper()
			turns := []turn{{"system", words("s", 100)}, {"user", words("0-u0-", 60)}, {"assistant", answer},
				{"user", words("x", 30)}}
			if got := s.Find(t.Context(), turnsPrompt(turns), []Worker{a}); got.Outcome != want {
				t.Errorf("%s %s, want %s", got.Outcome, got.Missing, want)
			}
			pass(time.Minute)
		}
		ask("one", Beginning)
		requests[a.URL] = 0
		ask("two", Render)
		requests[a.URL] = 1
		ask("three", Beginning)
		s.cfg.Budget = time.Second
		ask("four", Render)
	})
}

// The engine takes longer than leastWait for a long prompt. The prompt's beginning is known, and only the ids of the
// text after it are unknown. No cache has the blocks of this new text, so waiting for its ids hardly improves the
// match.
func TestAnIdleEngineThatIsSlowIsAskedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 15 * time.Millisecond}
		s, calls := e.source()
		defer s.Close()
		s.Loads = busy(time.Millisecond, map[string]int{a.URL: 1})
		for i := range 3 {
			conversation(t, s, e, words("s", 100), fmt.Sprint(i), 4)
		}
		s.Loads = busy(time.Millisecond, map[string]int{a.URL: 0})
		first := []turn{{"system", words("s", 100)}, {"user", words("new", 60)}}
		grown := append(slices.Clone(first), turn{"assistant", "one"}, turn{"user", words("x", 30)})
		for _, turns := range [][]turn{first, grown} {
			asked, began := len(calls.calls()), time.Now()
			found := s.Find(t.Context(), turnsPrompt(turns), []Worker{a})
			if found.Outcome != Beginning || time.Since(began) > 0 {
				t.Errorf("%s %s after %v, want a beginning at once", found.Outcome, found.Missing, time.Since(began))
			}
			pass(time.Minute)
			if n := len(calls.calls()) - asked; n != 1 {
				t.Errorf("asked %d times in the background, want once", n)
			}
		}
		turns, want := append(slices.Clone(grown), turn{"assistant", "two"}, turn{"user", "y"}), len(e.ids(grown))-3-margin
		if found := s.Find(t.Context(), turnsPrompt(turns), []Worker{a}); found.Sure < want {
			t.Errorf("%d ids of the chat are known, want %d of the turns before", found.Sure, want)
		}
	})
}

func TestAPromptWithImagesHasNoKnownBeginning(t *testing.T) {
	if l := turnsOf(prompt(api.OpenAIChat, withImage).Request); l.textChat {
		t.Errorf("%+v", l)
	}
}

func TestListsHaveTheSameKeysUntilTheyDiverge(t *testing.T) {
	list := func(turns ...turn) *promptTurns {
		return turnsOf(turnsPrompt(turns).Request)
	}
	s, u, v := turn{"system", "s"}, turn{"user", "u"}, turn{"user", "v"}
	x, y := list(s, u, turn{"assistant", "a"}, u), list(s, u, turn{"assistant", "b"}, u)
	for i := range x.steps {
		if same := x.steps[i].key == y.steps[i].key; same != (i < 3) {
			t.Errorf("step %d: same is %v", i, same)
		}
	}
	if list(s, u).key() != x.steps[2].key || list(s, v).key() == x.steps[2].key {
		t.Error("a shorter list's key is not the longer one's at its end")
	}
	if list(s, u).steps[0].key == (key{}) || string(x.turns[x.steps[1].at:][:8]) != `,{"role"` {
		t.Errorf("the first turn ends at %d of %s", x.steps[1].at, x.turns)
	}
}

func TestALongListKeepsItsFirstAndLastSteps(t *testing.T) {
	many := make([]turn, 1000)
	for i := range many {
		many[i] = turn{[]string{"user", "assistant"}[i%2], fmt.Sprint(i)}
	}
	l := turnsOf(turnsPrompt(many).Request)
	if len(l.steps) > firstSteps+2*lastSteps {
		t.Fatalf("%d steps", len(l.steps))
	}
	for _, n := range []int{1, firstSteps - 1, len(many) - lastSteps + 2, len(many) - 1, len(many)} {
		shorter := turnsOf(turnsPrompt(many[:n]).Request)
		if !slices.ContainsFunc(l.steps, func(s step) bool { return s.key == shorter.key() }) {
			t.Errorf("the first %d turns are not found", n)
		}
	}
}

// A body of 4 MiB has room for 1.4 million turns, and each turn would cost a hash. So a list of more than maxTurns
// turns gets one hash for all its turns.
func TestTurnsBeyondTheBoundAreHashedAsOne(t *testing.T) {
	list := func(n int) *promptTurns {
		return turnsOf(prompt(api.OpenAIChat, `{"messages":[`+strings.Repeat(`{"role":"user"},`, n-1)+
			`{"role":"user"}]}`).Request)
	}
	most, more := list(maxTurns), list(maxTurns+1)
	if !most.textChat || len(most.steps) < lastSteps {
		t.Errorf("%d turns make %d steps", maxTurns, len(most.steps))
	}
	if more.textChat || len(more.steps) != 2 {
		t.Errorf("%d turns make %d steps", maxTurns+1, len(more.steps))
	}
	if more.key() == most.key() || more.key() == list(maxTurns+2).key() || more.key() != list(maxTurns+1).key() {
		t.Error("different lists of many turns have the same key")
	}
	// A body with more fields than any engine accepts is hashed as a whole, because sorting its fields would take long.
	fields := func(last string) key {
		p := prompt(api.OpenAIChat, `{"messages":[{"role":"user"}]`+strings.Repeat(`,"x":1`, 1000)+`,"x":`+last+`}`)
		l := turnsOf(p.Request)
		if len(l.steps) != 1 {
			t.Fatalf("1,000 fields make %d steps", len(l.steps))
		}
		return l.key()
	}
	if one := fields("1"); one != fields("1") || one == fields("2") {
		t.Error("different bodies of many fields have the same key")
	}
}

func BenchmarkListOfManyTurns(b *testing.B) {
	for _, body := range []string{`{"messages":[` + strings.Repeat(`{},`, 4<<20/3) + `{}]}`, `{"messages":[{}]` +
		strings.Repeat(`,"x":1`, 4<<20/6) + `}`} {
		b.Run(body[:16], func(b *testing.B) {
			r := prompt(api.OpenAIChat, body).Request
			for b.Loop() {
				turnsOf(r)
			}
		})
	}
}

func TestBeginningsStayWithinTheCachesBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{}
		s, _ := e.source()
		defer s.Close()
		s.cache.limit = 64 << 10
		for i := range 30 {
			conversation(t, s, e, words(fmt.Sprint("s", i/3), 200), fmt.Sprint(i), 4)
		}
		if got := s.Stats(); got.Bytes > s.cache.limit || got.Entries == 0 {
			t.Errorf("%d bytes", got.Bytes)
		}
		for i := range 2 * maxClasses {
			s.beginnings.of("m").learn(key{byte(i), byte(i >> 8)}, 0)
		}
		if n := len(s.beginnings.of("m").classes); n > maxClasses {
			t.Errorf("%d classes", n)
		}
	})
}

func BenchmarkKnownBeginning(b *testing.B) {
	e := &templated{}
	s, _ := e.source()
	defer s.Close()
	s.Loads = busy(0, map[string]int{a.URL: 5})
	turns := []turn{{"system", words("s", 4000)}}
	for i := range 6 {
		turns = append(turns, turn{"user", words(fmt.Sprint("u", i), 100)})
		for s.Find(b.Context(), turnsPrompt(turns), []Worker{a}).Outcome != Cached {
			s.calls.Wait()
		}
		turns = append(turns, turn{"assistant", words(fmt.Sprint("a", i), 100)})
	}
	p := turnsPrompt(append(turns, turn{"user", "next"}))
	s.states.of(a.URL).noTokens = time.Now().Add(time.Hour) // no engine is asked during this benchmark
	b.SetBytes(int64(len(p.Request.Body())))
	b.ReportAllocs()
	for b.Loop() {
		if got := s.Find(b.Context(), p, []Worker{a}); got.Outcome != Beginning {
			b.Fatal(got.Outcome, got.Missing)
		}
	}
}
