package fleet

import (
	"sync/atomic"
	"time"
)

// Slow start of a holder that returns. It may always have one request more at once than its answers since its return.
// Of further requests it gets the share firstShare at first. It gets its whole share after rampServed answers or after
// rampTime, whichever comes first: on a busy fleet the answers, on a quiet one the time. A failure restarts the slow
// start, and then the rule of one more request does not apply: otherwise a holder that fails now and then would get all
// requests of a quiet fleet.
const (
	firstShare = 0.1              // without requests nothing would be learned; a tenth can be retried elsewhere
	rampServed = 50               // answers: an engine that fails under load fails earlier
	rampTime   = 10 * time.Second // two intervals of active checks: long enough for a quiet holder
)

// ramp is the slow start of a holder that was away: its breaker was open, it was not ready, it was frozen, or it
// asked for a pause. It is safe for concurrent use without a lock. The zero value gives the whole share.
type ramp struct {
	since  atomic.Int64 // Unix nanoseconds; 0: over; rampPending: it begins with the next request, see standing
	served atomic.Int64 // answers since it returned
	failed atomic.Bool  // since it returned
}

const rampPending = 1

// begin starts the ramp at now, in Unix nanoseconds. With rampPending it starts at the next request that could be sent
// there; until then the holder has its whole share.
func (r *ramp) begin(now int64) {
	r.failed.Store(false)
	r.served.Store(0)
	r.since.Store(max(now, rampPending))
}

// fail restarts a ramp that is not over.
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

// standing returns the part of the requests that the holder gets at now, firstShare to 1. underWay is its number of
// requests. The router calls it when it is about to choose: a pending ramp begins, and an ended one is cleared.
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

// share returns the part of the requests beyond the first: see [Snapshot.Share]. It changes nothing: a metrics scrape
// must not begin a ramp.
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
