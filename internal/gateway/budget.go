package gateway

import "sync/atomic"

// budget is a bucket of tokens that requests fill and extra attempts empty: attempts that nobody asked for stay a share of the
// traffic, however many would be useful. It is safe for concurrent use.
type budget struct{ thousandths atomic.Int64 }

const (
	earned = 100         // thousandths of a token for each request: one extra attempt in ten
	most   = 100 * token // enough for the requests that one worker has under way when it freezes
	token  = 1000
)

func newBudget() *budget {
	b := &budget{}
	b.thousandths.Store(most)
	return b
}

// earn notes a request.
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

// giveBack returns a token that was not needed.
func (b *budget) giveBack() { b.thousandths.Add(token) }
