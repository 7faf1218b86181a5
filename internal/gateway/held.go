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
	guest
	q       *warmpath.Request // not changed while the request is held and does not have its turn
	plain   bool              // any worker of the model can serve the request
	refused []*fleet.Worker   // the workers that did not take the request, as they were then
	retryAt time.Time         // as in holding
	choice  modelChoice       // a fall-back may take the request in place of its model
	came    time.Time
	at      *list.Element // guarded by hold.mu; nil when the request is held no longer
	round   uint64        // guarded by hold.mu; the last round of turns in which the request had one
	// called has capacity 1. It receives nil when the request has its turn, else the reason why it is held no longer.
	called chan error
	ended  chan struct{} // capacity 1; receives a value when the turn has ended
}

// enter adds x to the held requests, or returns the outcome and the error for x's client.
func (h *hold) enter(x *exchange) (a *held, outcome string, err error) {
	a = &held{
		q: &x.prepared.route, plain: unpinned(&x.prepared.route), refused: x.unreached, retryAt: x.retryAt, came: x.rec.Time,
		called: make(chan error, 1), ended: make(chan struct{}, 1), choice: x.prepared.choice,
		guest: guest{tenant: x.prepared.route.Tenant, bytes: int64(len(x.body.Bytes))},
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return nil, "drained", errDraining
	}
	shed, ok := makeRoom(h.g, &h.order, h.bytes, &a.guest, func(v any) *guest { return &v.(*held).guest })
	if !ok {
		return nil, "full", api.HoldFull()
	}
	for _, v := range shed {
		b := v.(*held)
		h.remove(b)
		b.called <- errShed
	}
	h.add(a)
	h.changed() // a worker may have come back after the decision
	return a, "", nil
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

// again lets a continue to wait after its turn, in its place. It returns false if the process drains. x is a's
// exchange.
func (h *hold) again(a *held, x *exchange) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.refused, a.retryAt = x.unreached, x.retryAt // run reads them at any time
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
