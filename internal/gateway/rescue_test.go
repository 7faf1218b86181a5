package gateway

import "testing"

// A frozen worker may hold thousands of streams, which cannot be retried. So no other worker is searched for them,
// which would walk the whole pool. The exchanges of this test have no fleet: a search would panic.
func TestARescueLooksOnlyAtRequestsThatWait(t *testing.T) {
	g := &Gateway{rescues: newBudget()}
	for range 3 {
		g.roster(0).enter(&exchange{})
	}
	g.rescueFrom(0)
	if left := g.rescues.thousandths.Load(); left != most {
		t.Errorf("the budget is %d, was %d", left, most)
	}
}
