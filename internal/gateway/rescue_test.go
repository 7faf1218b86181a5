package gateway

import "testing"

// A frozen worker may hold thousands of streams, which stay there. The search for another worker walks the pool, and
// is not made for streams: these exchanges have no fleet.
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
