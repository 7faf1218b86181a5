package gateway

import "container/list"

// guest is what a request takes of a room: of the hold, or of the places where requests wait for adapters. Both rooms
// have the bounds of HoldConfig. The mutex of the room guards turn.
type guest struct {
	tenant string
	bytes  int64 // memory of its body
	turn   bool  // it has its turn, and cannot be sent away
}

// share is the part of a room that requests and bytes take, from 0 to 1.
func (c *HoldConfig) share(requests int, bytes int64) float64 {
	return max(float64(requests)/float64(c.MaxRequests), float64(bytes)/float64(c.MaxBytes))
}

// makeRoom reports whether a room has a place for a. order has the requests that wait there, the newest last, bytes is
// the memory of their bodies, and of returns the guest of a value of order. With tenants, a full room sheds the newest
// requests of tenants that have a greater share of it than the tenant of a would have. Otherwise the requests of one
// tenant could keep all others out. If no place can be made, nothing is shed. The caller holds the room's mutex, and
// sends away the values of shed.
func makeRoom(g *Gateway, order *list.List, bytes int64, a *guest, of func(any) *guest) (shed []any, ok bool) {
	cfg := g.hold.cfg.Load()
	fits := func(requests int, bytes int64) bool {
		return requests < cfg.MaxRequests && bytes+a.bytes <= cfg.MaxBytes
	}
	requests := order.Len()
	if fits(requests, bytes) {
		return nil, true
	}
	if g.Tenants.Open() {
		return nil, false // a header or a key names the tenant then, and a client could invent many
	}
	type use struct {
		requests int
		bytes    int64
	}
	uses := map[string]use{}
	for at := order.Front(); at != nil; at = at.Next() {
		b := of(at.Value)
		u := uses[b.tenant]
		uses[b.tenant] = use{u.requests + 1, u.bytes + b.bytes}
	}
	own := uses[a.tenant]
	mine := cfg.share(own.requests+1, own.bytes+a.bytes)
	for at := order.Back(); at != nil && !fits(requests, bytes); at = at.Prev() {
		b := of(at.Value)
		if u := uses[b.tenant]; b.tenant != a.tenant && !b.turn && cfg.share(u.requests, u.bytes) > mine {
			uses[b.tenant] = use{u.requests - 1, u.bytes - b.bytes}
			requests, bytes = requests-1, bytes-b.bytes
			shed = append(shed, at.Value)
		}
	}
	return shed, fits(requests, bytes)
}
