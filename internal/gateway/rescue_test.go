package gateway

import (
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/proxy"
)

// A frozen worker may have thousands of streams that have begun, which cannot be retried. The rescue must not search
// another worker for such a stream, because a search walks the whole pool. The exchanges of this test have no fleet: a
// search would panic.
func TestARescueLooksOnlyAtRequestsThatWait(t *testing.T) {
	g := &Gateway{rescues: newBudget()}
	for range 3 {
		g.roster(0).enter(&exchange{})
	}
	g.rescueFrom(0)
	if left := g.rescues.thousandths.Load(); left != budgetMax {
		t.Errorf("the budget is %d, was %d", left, budgetMax)
	}
}

func TestAWorkerThatLeftIsForgotten(t *testing.T) {
	g := &Gateway{Parts: Parts{Client: proxy.New(proxy.DefaultConfig())}}
	g.adapters = newAdapters(g)
	workers := fleet.New(fleet.Config{})
	facts := fleet.Facts{Models: []fleet.Model{{ID: "m"}}}
	left, stays := workers.Put("http://left", facts), workers.Put("http://stays", facts)
	for _, id := range []fleet.WorkerID{left, stays} {
		g.roster(id)
		g.reporting.Store(id, struct{}{})
		g.evidence.blame(fleet.Scope(1), workers.Snapshot().ByID(id), 0)
	}
	kept := g.roster(stays)
	workers.Remove(left)
	g.forgetAbsent(workers.Snapshot())
	_, roster := g.rosters.Load(left)
	_, reporting := g.reporting.Load(left)
	if roster || reporting || g.evidence.streaks[left] != nil {
		t.Errorf("the worker that left has a roster: %t, reports: %t, a streak: %v", roster, reporting, g.evidence.streaks[left])
	}
	if _, reporting = g.reporting.Load(stays); !reporting || g.roster(stays) != kept || g.evidence.streaks[stays] == nil {
		t.Error("the worker that stays is forgotten")
	}
}
