package testenv_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// talk is a growing conversation. home is the worker that answered its last turn.
type talk struct {
	history []message
	home    string
}

func newTalk(name string) *talk {
	return &talk{history: []message{{"system", prose(name, 60)}}}
}

// turn asks the next question, fails the test if there is no whole answer, and adds the answer to the history.
func (k *talk) turn(t *testing.T, f *mockFleet, text string) answer {
	t.Helper()
	k.history = append(k.history, message{"user", text})
	a := f.chat(t, k.history, "")
	if a.status != 200 || a.finish == "" {
		t.Fatalf("turn failed: status %d, finish %q, body %.300s", a.status, a.finish, a.body)
	}
	k.history = append(k.history, message{"assistant", a.text})
	return a
}

func exact(t *testing.T, a answer, what string) {
	t.Helper()
	if a.match != a.cached {
		t.Errorf("%s: predicted %d cached tokens, the engine reports %d (worker %s, trust %s)", what, a.match, a.cached, a.worker, a.trust)
	}
}

// home runs one turn of each talk. It fails the test if a talk goes to a worker other than the worker of its last turn.
func home(t *testing.T, f *mockFleet, talks []*talk, what string) {
	t.Helper()
	for i, k := range talks {
		a := k.turn(t, f, prose(fmt.Sprintf("%s%d", what, i), 20))
		name := fmt.Sprintf("%s, conversation %d", what, i)
		exact(t, a, name)
		if k.home != "" && a.worker != k.home {
			t.Errorf("%s went to %s, its prefix is on %s", name, a.worker, k.home)
		}
		k.home = a.worker
		f.settle(t)
	}
}

func TestPlacementSurvivesARestartOfTheGateway(t *testing.T) {
	workers := []*mockengine.Server{mock(t, nil), mock(t, nil), mock(t, nil)}
	f := serve(t, workers)
	f.trusted(t)
	var talks []*talk
	for i := range 9 {
		talks = append(talks, newTalk(fmt.Sprintf("agent%d", i)))
	}
	home(t, f, talks, "before")
	home(t, f, talks, "again")
	f.Stop(syscall.SIGTERM)
	f = serve(t, workers)
	f.trusted(t)
	f.settle(t)
	home(t, f, talks, "after the restart")
}

func TestAnEngineThatRestartsIsForgotten(t *testing.T) {
	workers := []*mockengine.Server{mock(t, nil), mock(t, nil)}
	f := serve(t, workers)
	f.trusted(t)
	var talks []*talk
	for i := range 6 {
		talks = append(talks, newTalk(fmt.Sprintf("agent%d", i)))
	}
	home(t, f, talks, "before")
	url := workers[0].URL()
	if err := workers[0].Restart(300 * time.Millisecond); err != nil {
		t.Fatalf("restart an engine: %v", err)
	}
	testenv.WaitFor(t, 30*time.Second, "the restarted engine to be exact again", func() error {
		for _, w := range f.state(t).Workers {
			if w.URL == url && w.Healthy && len(w.Holders) == 1 && w.Holders[0].Trust == "exact" && w.Holders[0].Restarts > 0 {
				return nil
			}
		}
		return fmt.Errorf("state %+v", f.state(t))
	})
	for i, k := range talks {
		a := k.turn(t, f, "after the engine's restart")
		exact(t, a, fmt.Sprintf("conversation %d after the engine's restart", i))
		if k.home == url && a.worker == url && a.cached != 0 {
			t.Errorf("conversation %d: an empty engine reports %d cached tokens", i, a.cached)
		}
		f.settle(t)
	}
}

func TestLostEventMessagesAreReplayed(t *testing.T) {
	lossy := func(c *mockengine.Config) { c.Faults.DropEvents = 0.01 }
	f := serve(t, []*mockengine.Server{mock(t, lossy), mock(t, lossy)})
	f.trusted(t)
	over, requests := 0, 0
	for i := range 60 {
		k := newTalk(fmt.Sprintf("agent%d", i))
		for turn := range 4 {
			a := k.turn(t, f, prose(fmt.Sprintf("t%d", turn), 30))
			requests++
			if a.match > a.cached {
				over++
			}
		}
	}
	if over > 0 {
		t.Errorf("%d of %d predictions were above the engine's report", over, requests)
	}
	f.trusted(t) // exact trust shows that a replay has closed every gap
	gaps := uint64(0)
	for _, w := range f.state(t).Workers {
		for _, h := range w.Holders {
			gaps += h.Gaps
		}
	}
	if gaps == 0 {
		t.Errorf("no gap was seen in %d requests although 1%% of the messages were dropped", requests)
	}
}

func TestAReplayThatLosesMostMessagesIsAskedAgain(t *testing.T) {
	w := mock(t, func(c *mockengine.Config) { c.Faults.LoseReplay = 0.7 })
	f := serve(t, []*mockengine.Server{w})
	f.trusted(t)
	var talks []*talk
	for i := range 8 {
		talks = append(talks, newTalk(fmt.Sprintf("agent%d", i)))
	}
	home(t, f, talks, "before")
	f.Stop(syscall.SIGTERM)
	f = serve(t, []*mockengine.Server{w})
	f.trustedWithin(t, time.Minute) // a message arrives after at most about twenty replays
	f.settle(t)
	home(t, f, talks, "after")
	for _, k := range talks {
		a := k.turn(t, f, "once more")
		if a.cached == 0 {
			t.Error("nothing is cached in a conversation of three turns")
		}
		f.settle(t)
	}
}

func TestTwoRanksBehindOneURL(t *testing.T) {
	f := serve(t, []*mockengine.Server{mock(t, func(c *mockengine.Config) { c.Ranks = 2 })})
	f.trusted(t)
	var talks []*talk
	for i := range 8 {
		talks = append(talks, newTalk(fmt.Sprintf("agent%d", i)))
	}
	for turn := range 3 {
		home(t, f, talks, fmt.Sprintf("turn%d", turn))
	}
	for i, k := range talks {
		if a := k.turn(t, f, "last"); a.cached == 0 {
			t.Errorf("conversation %d: nothing cached: it went to the other rank", i)
		}
		f.settle(t)
	}
}

// TestPredictionEqualsReport tests the main promise with a thousand conversations and without faults: the number of
// cached tokens that the router predicts equals the number that the engine reports.
func TestPredictionEqualsReport(t *testing.T) {
	const conversations = 1000
	workers := []*mockengine.Server{mock(t, nil), mock(t, nil), mock(t, nil), mock(t, nil)}
	f := serve(t, workers)
	f.trusted(t)
	wrong := 0
	for i := range conversations {
		k := newTalk(fmt.Sprintf("kind%d", i%7)) // the conversations have seven different system prompts
		for turn := range 3 {
			f.settleQuickly(t)
			a := k.turn(t, f, prose(fmt.Sprintf("c%dt%d", i, turn), 15+i%40))
			if a.match != a.cached {
				if wrong++; wrong < 10 {
					t.Errorf("conversation %d turn %d: predicted %d, reported %d of %d", i, turn, a.match, a.cached, a.prompt)
				}
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d predictions differ from the report", wrong, conversations*3)
	}
}
