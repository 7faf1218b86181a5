package fleet

import (
	"sync/atomic"
	"time"
)

// Constants of slow start. A holder that returns gets the share firstShare of its usual requests at first. The share
// grows with each answer and with time. It is whole after rampServed answers or after rampTime, whichever comes first.
//
// One rule lets a holder take requests in spite of a small share: with n answers since its return, it may have n+1
// requests under way. A failure restarts the slow start, and from then on this rule does not apply. Otherwise a holder
// that fails from time to time would get all requests of a quiet fleet.
const (
	firstShare = 0.1              // above 0: only requests show whether the holder works; a tenth can be retried elsewhere
	rampServed = 50               // answers; an engine that fails under load fails after fewer
	rampTime   = 10 * time.Second // two intervals of active checks; it ends the slow start of a holder with few requests
)

// ramp is the slow start of a holder that was away: its breaker was open, it was not ready, it was frozen, or it
// asked for a pause. It is safe for concurrent use without a lock. With the zero value the holder has its whole share.
type ramp struct {
	since  atomic.Int64 // when the ramp began, Unix nanoseconds; 0: the ramp is over; rampPending: it has not begun
	served atomic.Int64 // answers since the holder returned
	failed atomic.Bool  // a request failed since the holder returned
}

// rampPending, in ramp.since, means that the ramp begins with the next request that could be sent to the holder.
const rampPending = 1

// begin starts the ramp at now, in Unix nanoseconds. If now is rampPending, the ramp starts with the next request that
// could be sent to the holder.
func (r *ramp) begin(now int64) {
	r.failed.Store(false)
	r.served.Store(0)
	r.since.Store(max(now, rampPending))
}

// fail restarts the ramp, if it has begun and is not over.
func (r *ramp) fail(now int64) {
	if r.since.Load() > rampPending {
		r.begin(now)
		r.failed.Store(true)
	}
}

func (r *ramp) serve() {
	if r.since.Load() != 0 {
		r.served.Add(1)
	}
}

// standing returns the share of its usual requests that the holder gets at now, from firstShare to 1. underWay is the
// number of its requests under way. The router calls standing for each decision: so standing also begins a pending
// ramp, and clears a ramp that is over.
func (r *ramp) standing(now, underWay int64) float64 {
	since := r.since.Load()
	if since == 0 {
		return 1
	}
	share := r.share(now)
	switch {
	case since == rampPending:
		r.since.CompareAndSwap(since, now)
	case share == 1 && now >= since:
		r.since.CompareAndSwap(since, 0)
	}
	if underWay <= r.served.Load() && !r.failed.Load() {
		return 1
	}
	return share
}

// share returns the share at now, from firstShare to 1, without the rule of n+1 requests (see the constants). It
// changes nothing, because metrics call it, too: a pending ramp must not begin with a scrape of metrics.
func (r *ramp) share(now int64) float64 {
	since := r.since.Load()
	switch {
	case since == 0 || now < since:
		return 1
	case since == rampPending:
		return firstShare
	}
	earned := max(float64(r.served.Load())/rampServed, float64(now-since)/float64(rampTime))
	return min(firstShare+(1-firstShare)*max(earned, 0), 1)
}
