package gateway

import (
	"container/list"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// held is a held request.
type held struct {
	q       *warmpath.Request // not changed while the request is held and does not have its turn
	plain   bool              // any worker of the model can serve the request
	refused []*fleet.Worker   // the workers that did not take the request, as they were then
	retryAt time.Time         // as in holding
	tenant  string            // as q names it; it does not change
	choice  modelChoice       // a fall-back may take the request in place of its model
	bytes   int64
	came    time.Time
	at      *list.Element // guarded by hold.mu; nil when the request is held no longer
	turn    bool          // guarded by hold.mu
	round   uint64        // guarded by hold.mu; the last round of turns in which the request had one
	// called has capacity 1. It receives nil when the request has its turn, else the reason why it is held no longer.
	called chan error
	ended  chan struct{} // capacity 1; receives a value when the turn has ended
}

// enter adds x to the held requests, or returns the outcome and the error for x's client.
func (h *hold) enter(x *exchange) (a *held, outcome string, err error) {
	a = &held{
		q: &x.prepared.route, plain: unpinned(&x.prepared.route), refused: x.unreached, retryAt: x.retryAt, bytes: int64(len(x.body.Bytes)), came: x.rec.Time,
		called: make(chan error, 1), ended: make(chan struct{}, 1), choice: x.prepared.choice,
		tenant: x.prepared.route.Tenant,
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := h.cfg.Load()
	switch {
	case h.over:
		return nil, "drained", errDraining
	case !h.makeRoom(a, cfg):
		return nil, "full", api.HoldFull()
	}
	h.add(a)
	h.changed() // a worker may have come back after the decision
	return a, "", nil
}

// share is the part of the hold that requests and bytes take, from 0 to 1.
func (c *HoldConfig) share(requests int, bytes int64) float64 {
	return max(float64(requests)/float64(c.MaxRequests), float64(bytes)/float64(c.MaxBytes))
}

// makeRoom reports whether the hold has room for a. With tenants, a full hold sheds the newest requests of tenants that
// have a greater share of the hold than the tenant of a would have. Otherwise the requests of one tenant could keep all
// others out. If no room can be made, nothing is shed. h.mu is held.
func (h *hold) makeRoom(a *held, cfg *HoldConfig) bool {
	fits := func(requests int, bytes int64) bool {
		return requests < cfg.MaxRequests && bytes+a.bytes <= cfg.MaxBytes
	}
	requests, bytes := h.order.Len(), h.bytes
	if fits(requests, bytes) {
		return true
	}
	if h.g.Tenants.Open() {
		return false // a header or a key names the tenant then, and a client could invent many
	}
	type use struct {
		requests int
		bytes    int64
	}
	uses := map[string]use{}
	for at := h.order.Front(); at != nil; at = at.Next() {
		b := at.Value.(*held)
		u := uses[b.tenant]
		uses[b.tenant] = use{u.requests + 1, u.bytes + b.bytes}
	}
	own := uses[a.tenant]
	mine := cfg.share(own.requests+1, own.bytes+a.bytes)
	var shed []*held
	for at := h.order.Back(); at != nil && !fits(requests, bytes); at = at.Prev() {
		b := at.Value.(*held)
		if u := uses[b.tenant]; b.tenant != a.tenant && !b.turn && cfg.share(u.requests, u.bytes) > mine {
			uses[b.tenant] = use{u.requests - 1, u.bytes - b.bytes}
			requests, bytes = requests-1, bytes-b.bytes
			shed = append(shed, b)
		}
	}
	if !fits(requests, bytes) {
		return false
	}
	for _, b := range shed {
		h.remove(b)
		b.called <- errShed
	}
	return true
}

// add puts a behind the requests that came before it. h.mu is held.
func (h *hold) add(a *held) {
	before := h.order.Back()
	for before != nil && before.Value.(*held).came.After(a.came) {
		before = before.Prev()
	}
	if before == nil {
		a.at = h.order.PushFront(a)
	} else {
		a.at = h.order.InsertAfter(a, before)
	}
	h.all.Add(1)
	h.bytes += a.bytes
	if a.plain {
		h.plain[a.q.Model]++
	}
	h.g.Telemetry.Holding(1, a.bytes)
}

// remove undoes add. h.mu is held.
func (h *hold) remove(a *held) {
	h.order.Remove(a.at)
	a.at = nil
	h.bytes -= a.bytes
	if a.plain {
		if h.plain[a.q.Model]--; h.plain[a.q.Model] == 0 {
			delete(h.plain, a.q.Model)
		}
	}
	h.all.Add(-1)
	h.g.Telemetry.Holding(-1, -a.bytes)
}

// leave removes a. It returns false if a was called just before: then a.called has the reason.
func (h *hold) leave(a *held) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.turn || a.at == nil {
		return false
	}
	h.remove(a)
	return true
}

// forget removes a, which has or had its turn.
func (h *hold) forget(a *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.at != nil {
		h.remove(a)
	}
}

// again lets a continue to wait after its turn, in its place. It returns false if the process drains.
func (h *hold) again(a *held) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		if a.at != nil {
			h.remove(a)
		}
		return false
	case a.at == nil: // the request was in the queue meanwhile
		h.add(a)
	}
	a.turn = false
	return true
}

// sendAll ends the wait of all held requests that do not have their turn. h.mu is held.
func (h *hold) sendAll(why error) {
	for at := h.order.Front(); at != nil; {
		a := at.Value.(*held)
		at = at.Next()
		if !a.turn {
			h.remove(a)
			a.called <- why
		}
	}
}

// flush sends away all held requests, and all that come later.
func (h *hold) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.sendAll(errDraining)
}
