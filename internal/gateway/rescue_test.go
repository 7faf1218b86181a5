package gateway

import "testing"

// TestARescueLooksOnlyAtRequestsThatWait: a frozen worker may hold thousands of streams, which stay there. The search
// for another worker, which walks the pool, is not made for them: these exchanges have no fleet to search.
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
