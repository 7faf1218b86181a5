package gateway

import "sync/atomic"

// budget is a token bucket for extra attempts. Each request adds a part of a token, and an extra attempt takes a whole
// token. So extra attempts stay a fixed share of the traffic. budget is safe for concurrent use.
type budget struct{ thousandths atomic.Int64 }

const (
	budgetEarned = 100               // thousandths of a token for each request: one extra attempt for ten requests
	budgetMax    = 100 * budgetToken // enough for the requests that one worker has under way when it freezes
	budgetToken  = 1000
)

func newBudget() *budget {
	b := &budget{}
	b.thousandths.Store(budgetMax)
	return b
}

// earn adds the part of a token that each request brings.
func (b *budget) earn() {
	if b.thousandths.Load() < budgetMax {
		b.thousandths.Add(budgetEarned)
	}
}

// take takes a token and returns true, or returns false if there is no whole token.
func (b *budget) take() bool {
	if b.thousandths.Add(-budgetToken) >= 0 {
		return true
	}
	b.giveBack()
	return false
}

// giveBack puts back a token that was not used.
func (b *budget) giveBack() { b.thousandths.Add(budgetToken) }
