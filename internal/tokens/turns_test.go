package tokens

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// byLength is an engine that answers after 2 ms plus 1 ms for each KiB of the prompt.
func byLength(r *http.Request, body string) (int, string) {
	return after(2*time.Millisecond+time.Duration(len(body)>>10)*time.Millisecond)(r, body)
}

// An engine gets a limited number of calls at the same time. Long prompts leave one of these calls free for short
// questions, even if all clients have the same key.
func TestLongPromptsLeaveShortOnesTheirTurn(t *testing.T) {
	for _, key := range []string{"bulk", "short"} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, e := newSource(map[string]handler{"a": byLength})
				defer s.Close()
				s.Loads = busy(100*time.Microsecond, nil)
				wants(t, find(t, s, as("short", chat("first")), a), Render, 1, 2, 3)
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for c := range 10 {
					wg.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							s.Find(ctx, as(key, long(fmt.Sprint("bulk ", c, i), 50_000)), []Worker{a})
						}
					})
				}
				pass(time.Second)
				lost, before := 0, e.asked("a")
				const shorts = 100
				for i := range shorts {
					if got := find(t, s, as("short", chat(fmt.Sprint("short", i))), a); got.Tokens == nil {
						lost++
					}
					pass(20 * time.Millisecond)
				}
				if lost > 0 {
					t.Errorf("%d of %d short prompts got no ids beside long ones", lost, shorts)
				}
				if n := e.asked("a") - before - shorts; n < 5 {
					t.Errorf("%d long questions were asked in 2 s", n)
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

// A client with many questions takes turns with other clients, even if its prompts are worth more. Among the questions
// of one client, the question that is worth most comes first.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			mu.Lock()
			order = append(order, r.Header.Get("Authorization")[len("Bearer "):]+body[strings.Index(body, "#"):][:3])
			mu.Unlock()
			return after(10*time.Millisecond)(r, body)
		}})
		defer s.Close()
		s.Loads = busy(time.Millisecond, nil)
		var wg sync.WaitGroup
		ask := func(key string, i, tokens int) {
			wg.Go(func() { s.Find(context.Background(), as(key, long(fmt.Sprintf("#%02d", i), tokens)), []Worker{a}) })
			synctest.Wait()
		}
		for i := range 8 {
			ask("heavy", i, 4000+10*i)
			if i == 0 {
				pass(5 * time.Millisecond) // the pause prevents two calls from ending at the same time
			}
		}
		for i := range 3 {
			ask("light", i, 2000-10*i)
		}
		ask("other", 0, 1000)
		wg.Wait()
		want := []string{"heavy#00", "heavy#01", "heavy#07", "light#00", "other#00", "heavy#06", "light#01", "heavy#05",
			"light#02", "heavy#04", "heavy#03", "heavy#02"}
		if !slices.Equal(order, want) {
			t.Errorf("asked %v\nwant  %v", order, want)
		}
	})
}

// Questions to other engines and short questions count as turns, too. A new client waits for at most one question of
// each client in line, not for all questions of these clients.
func TestQuestionsToOtherEnginesDoNotDelayAClient(t *testing.T) {
	ps := &workerStates{turns: map[uint64]uint64{}}
	enter := func(client uint64, worth time.Duration) *question {
		q := &question{client: client, worth: worth, granted: make(chan grant, 1)}
		if !ps.enter(q) {
			t.Fatal("there is no room")
		}
		return q
	}
	for i := range maxLine - 2 {
		enter(1, time.Hour+time.Duration(i))
	}
	for range 1000 {
		q := enter(3, time.Minute)
		ps.leave(q)
		ps.took(q)
	}
	light := enter(2, time.Second)
	if at := slices.Index(ps.line, light); at != 1 {
		t.Fatalf("the newcomer is number %d of the line", at)
	}
	heavy := ps.line[0]
	ps.leave(heavy)
	ps.took(heavy)
	enter(1, 2*time.Hour)
	if ps.line[0] != light {
		t.Error("the newcomer is not next")
	}
	ps.leave(light)
	ps.took(light)
	again := enter(2, time.Second)
	if at := slices.Index(ps.line, again); at != 1 || ps.line[0].client != 1 {
		t.Errorf("its second question is number %d of the line", at)
	}
}

// A line that is full of one client's questions still takes another client's question.
func TestAnotherClientEntersALineThatOneClientFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newSource(map[string]handler{"a": after(10 * time.Millisecond)})
		defer s.Close()
		s.Loads = busy(time.Millisecond, nil)
		var wg sync.WaitGroup
		for i := range 2 * maxLine {
			wg.Go(func() { s.Find(context.Background(), as("heavy", long(fmt.Sprint(i), 4000)), []Worker{a}) })
		}
		synctest.Wait()
		wants(t, find(t, s, as("light", long("x", 2000)), a), Render, 1, 2, 3)
		wg.Wait()
		synctest.Wait()
		s.states.mu.Lock()
		defer s.states.mu.Unlock()
		if len(s.states.turns) > 2 {
			t.Errorf("the turns of %d clients are remembered", len(s.states.turns))
		}
	})
}
