package gateway

import "sync/atomic"

// budget is a token bucket that requests fill and extra attempts empty: it keeps the extra attempts to a share of the
// traffic. It is safe for concurrent use.
type budget struct{ thousandths atomic.Int64 }

const (
	earned = 100         // thousandths of a token for each request: one extra attempt for ten requests
	most   = 100 * token // enough for the requests that one worker has under way when it freezes
	token  = 1000
)

func newBudget() *budget {
	b := &budget{}
	b.thousandths.Store(most)
	return b
}

// earn adds a request's share of a token.
func (b *budget) earn() {
	if b.thousandths.Load() < most {
		b.thousandths.Add(earned)
	}
}

// take takes a token if there is one.
func (b *budget) take() bool {
	if b.thousandths.Add(-token) >= 0 {
		return true
	}
	b.giveBack()
	return false
}

// giveBack puts back a token that was not used.
func (b *budget) giveBack() { b.thousandths.Add(token) }
