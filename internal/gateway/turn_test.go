package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// hesitant is a policy whose decisions end only when the test allows it.
type hesitant struct {
	asked  chan struct{} // receives a value when a decision begins
	answer chan struct{} // each value lets one decision end
}

func (h hesitant) Choose(*policy.Query, []policy.Candidate) policy.Pick {
	h.asked <- struct{}{}
	<-h.answer
	return policy.Pick{Branch: policy.BranchMatchUnused}
}
func (hesitant) Routed(*policy.Query, *policy.Candidate) {}
func (hesitant) Finished(*policy.Finished)               {}
func (hesitant) Forget(fleet.Holder)                     {}

// duringATurn returns a gateway with one worker and three waiters. The worker has answered one request. The first
// waiter has its turn: its decision has begun, and ends when the test allows it.
func duringATurn(t *testing.T) (g *gate, f *fixture, h hesitant, waiters []*asking) {
	t.Helper()
	g, h = newGate(), hesitant{make(chan struct{}, 100), make(chan struct{}, 100)}
	f = serve(t, func(s *settings) {
		s.queue, s.most, s.policy = queue.DefaultConfig(), 1, "hesitant"
		s.queue.Order = queue.FCFS
		s.specs = []policy.Spec{{Name: "hesitant", Chooser: func() policy.Chooser { return h }}}
	}, worker(t, g.ServeHTTP))
	h.answer <- struct{}{}
	f.ask(t, "first", "")
	<-h.asked
	testenv.Until(t, "the first is at the worker", func() bool { return len(g.seen()) == 1 })
	for i, user := range []string{"a", "b", "c"} {
		waiters = append(waiters, f.ask(t, user, ""))
		f.line(t, i+1)
	}
	g.open <- struct{}{}
	<-h.asked // the first waiter has its turn
	return g, f, h, waiters
}

func TestOneRequestDecidesAtATime(t *testing.T) {
	g, f, h, waiters := duringATurn(t)
	select {
	case <-h.asked:
		t.Error("a second request decides at the same time")
	default:
	}
	f.line(t, 3) // the request that decides still counts as waiting
	for range 3 {
		h.answer <- struct{}{}
		g.open <- struct{}{}
	}
	for _, a := range waiters {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	if got := g.seen(); len(got) != 4 || got[1] != "a" || got[2] != "b" || got[3] != "c" {
		t.Errorf("served in the order %v", got)
	}
	f.line(t, 0)
	f.idle(t)
}

func TestAClientThatLeavesDuringItsTurnPassesTheTurnOn(t *testing.T) {
	g, f, h, waiters := duringATurn(t)
	waiters[0].cancel()
	for range 3 {
		h.answer <- struct{}{}
		g.open <- struct{}{}
	}
	for _, a := range waiters[1:] {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	f.line(t, 0)
	f.idle(t)
}

func TestADrainLeavesATurnToItsRequest(t *testing.T) {
	g, f, h, waiters := duringATurn(t)
	f.Drain()
	for _, a := range waiters[1:] {
		if a.status() != http.StatusServiceUnavailable || a.code() != "draining" {
			t.Errorf("one without a turn: %d %s", a.status(), a.text)
		}
	}
	h.answer <- struct{}{}
	g.open <- struct{}{}
	if a := waiters[0]; a.status() != http.StatusOK {
		t.Errorf("the one that had its turn: %d %s", a.status(), a.text)
	}
	f.line(t, 0)
	f.idle(t)
}

// A request that has its turn while the process drains may find no room. It must not go back into the queue, since no
// further turn would come.
func TestADrainSendsARequestAwayThatFindsNoRoomInItsTurn(t *testing.T) {
	g, f, h, waiters := duringATurn(t)
	other, err := f.Router.Route(t.Context(), &warmpath.Request{Model: "m", Policy: "random", Tokens: make([]block.Token, 16), Now: time.Now().UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	f.Drain()
	h.answer <- struct{}{}
	for i, a := range waiters {
		if a.status() != http.StatusServiceUnavailable || a.code() != "draining" {
			t.Errorf("waiter %d: %d %s", i, a.status(), a.text)
		}
	}
	f.line(t, 0)
	if n := len(g.seen()); n != 1 {
		t.Errorf("the worker got %d requests, want 1", n)
	}
	other.Done(fleet.OutcomeServed, time.Now().UnixNano())
	other.Recycle()
	f.idle(t)
}

func TestTheOrderMayChangeDuringATurn(t *testing.T) {
	g, f, h, waiters := duringATurn(t)
	for _, order := range []string{queue.Fair, queue.Off, queue.Shortest} {
		c := queue.DefaultConfig()
		c.Order = order
		f.UseQueue(c)
		f.line(t, 3)
	}
	for range 3 {
		h.answer <- struct{}{}
		g.open <- struct{}{}
	}
	for _, a := range waiters {
		if a.status() != http.StatusOK {
			t.Errorf("%d %s", a.status(), a.text)
		}
	}
	f.line(t, 0)
	f.idle(t)
}
