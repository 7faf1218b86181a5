package sim

import "time"

// moment is an event at a time. At the same time, lower kinds come first, then earlier plans.
type moment struct {
	at   time.Duration
	kind kind
	seq  uint64
	a    int32  // its subject: a rank, a router, …
	gen  uint32 // of a rank's plan: a moment with an older version is void
	with any    // a flight or a batch
}

type kind uint8

// The kinds, in their order at the same time: the world changes, KV events arrive, requests arrive, and then engines
// begin a pass, which includes all of these.
const (
	atFault kind = iota
	atRestart
	atHealth
	atScale
	atJoin
	atDelivery
	atMetrics
	atReport
	atArrival
	atDispatch
	atSubmit
	atHandover
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
