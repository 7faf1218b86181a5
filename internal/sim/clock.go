package sim

import "time"

// moment is a planned event of the simulation. Moments happen in the order of at; moments at the same time happen in
// the order of kind, then in the order in which they were planned.
type moment struct {
	at   time.Duration
	kind kind
	seq  uint64
	a    int32  // index of a rank, router, fault or request, according to kind
	gen  uint32 // the gen of the rank, transfer or flight when the moment was planned; if it has grown, the moment is void
	with any    // the object of the event: a *flight, a *transfer, a batch of KV events or a metrics reading
}

type kind uint8

// Moments at the same time happen in the order of these kinds. Changes of the fleet come first, then what routers tell
// each other, KV events and load reports, then requests. atWake is last, so that an engine's next pass includes
// everything that happened at that time.
const (
	atFault kind = iota
	atRestart
	atHealth
	atScale
	atJoin
	atTold
	atDelivery
	atMetrics
	atReport
	atArrival
	atDispatch
	atSubmit
	atTransferred
	atPrefilled
	atLease
	atEnd
	atWake
)

// agenda is a binary heap of moments.
type agenda struct {
	heap []moment
	seq  uint64
}

func (m *moment) before(o *moment) bool {
	if m.at != o.at {
		return m.at < o.at
	}
	if m.kind != o.kind {
		return m.kind < o.kind
	}
	return m.seq < o.seq
}

func (g *agenda) plan(m moment) {
	g.seq++
	m.seq = g.seq
	h := append(g.heap, m)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !m.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = m
	g.heap = h
}

func (g *agenda) next() moment {
	h := g.heap
	top := h[0]
	last := h[len(h)-1]
	h[len(h)-1] = moment{}
	h = h[:len(h)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	if len(h) > 0 {
		h[i] = last
	}
	g.heap = h
	return top
}
