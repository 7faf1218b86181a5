package replica

import (
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
)

const (
	// deadAfter is the silence after which a peer counts as dead, and its load is dropped. It is longer than a stall of a
	// second (a machine that swaps, a long garbage collection, a virtual machine that moves) plus one heartbeat, so that
	// such a stall costs nothing. It is below 2 s, after which the load of a dead router must be gone.
	deadAfter = 1600 * time.Millisecond
	// askAgain is the time after which an ask without an answer is repeated, and mostAskAgain the time after which it is
	// repeated again. An answer to one of the last four asks is taken, so it may come after more than a second. Longer
	// times would be in the way of one view a second after a network is whole again.
	askAgain     = 250 * time.Millisecond
	mostAskAgain = 500 * time.Millisecond
	// maxPeers bounds the routers that are followed.
	maxPeers = 256
	// maxFreed bounds the ended requests of a peer that are remembered: a request must not begin again because an older
	// answer to an ask comes late. The bound is some seconds of requests of a very busy router.
	maxFreed = 8192
	// maxParts bounds the parts of an answer: it is enough for maxUnderWay long requests.
	maxParts = 1 << 14
)

// peer is what this router knows of another router. Sync.mu guards it.
type peer struct {
	id, started uint64
	heartbeat   heartbeat
	heard       time.Time     // when its last packet came
	excused     time.Duration // how much of the time since then this process stood still
	beat        time.Time     // when its last heartbeat came
	retained    time.Time     // when its requests last got a sign of life
	clock       int64         // of its last heartbeat, microseconds of its own clock
	clockAt     time.Time     // when this came
	echoed      int64         // the clock of this router's heartbeat that it echoed last
	delay       time.Duration // mean time that messages take; 0: not known
	number      uint64        // of the last packet to all
	direct      uint64        // of the last packet to this router

	// heardUntil is when the last packet of the peer came before it was dropped: this router heard of the requests that
	// the peer placed before. Zero: it was not dropped.
	heardUntil time.Time

	placements *warmpath.Peer
	underWay   map[uint64]followed
	most       int  // requests in underWay, at most, since its memory was made: see forget
	all        *int // requests under way of all peers
	digest     uint64
	freed      map[uint64]struct{} // the last maxFreed requests that have ended
	freedRing  []uint64
	freedAt    int
	refused    waitingAdds // requests under way whose worker is not known here
	ended      waitingAdds // requests that have ended, whose worker is not known here
	unknown    unknown
	tenants    map[string]spent
	charged    map[string]int64 // tokens that reports of the peer took from the tenants' limits

	noRoom   time.Time // when a request was not followed for want of room first, since the last ask; zero: never
	retried  uint64    // the generation of the fleet at the last retry of refused and ended
	overfull bool      // requests of refused were dropped for want of memory, and the peer was not asked for them
	mend     bool      // overfull, and the fleet has changed since: the peer is to be asked for the dropped requests
	mended   time.Time // when the peer was asked for dropped requests last

	keysDropped uint64 // requests of placements that lost their keys, as counted so far

	answered bool      // it has answered an ask
	differs  bool      // its digest differed from the digest here
	asked    time.Time // when it was asked last; zero: no answer is due
	tries    int       // asks since the last answer
	nonces   [4]uint64 // of the last asks: an answer may take longer than the time to the next ask
	state    *state    // the parts of the answer so far
	answers  uint32    // the number of the answer of state: see followed
}

// state collects the parts of an answer to an ask. The requests that the answer has are marked in underWay.
type state struct {
	nonce  uint64
	number uint64
	have   []bool // by part
	left   int    // parts that have not come
}

// newPeer returns a peer without requests. all counts the requests under way of all peers.
func newPeer(h header, placements *warmpath.Peer, all *int) *peer {
	return &peer{id: h.from, started: h.started, placements: placements, all: all, underWay: map[uint64]followed{}, freed: map[uint64]struct{}{},
		tenants: map[string]spent{}, charged: map[string]int64{}}
}

// prefilled notes that the prefill of a request has ended.
func (p *peer) prefilled(id uint64, now time.Time) {
	f, known := p.underWay[id]
	if !known || f.prefilled {
		return
	}
	f.prefilled = true
	p.underWay[id] = f
	p.digest ^= digestOf(id, false) ^ digestOf(id, true)
	p.placements.PrefillCompleted(id, now.UnixNano())
}

// free notes that a request has ended, also if it was never heard of.
func (p *peer) free(e ending, now time.Time) {
	id := e.id
	if _, ended := p.freed[id]; ended {
		return
	}
	if len(p.freedRing) < maxFreed {
		p.freedRing = append(p.freedRing, id)
	} else {
		delete(p.freed, p.freedRing[p.freedAt])
		p.freedRing[p.freedAt] = id
		p.freedAt = (p.freedAt + 1) % maxFreed
	}
	p.freed[id] = struct{}{}
	p.forget(id)
	p.placements.Free(id, e.Ending, now.UnixNano())
}

// retain gives the requests under way a sign of life. The view of them equals that of the peer. A request whose load is
// gone all the same is forgotten, so that the views differ and the peer tells of it again.
func (p *peer) retain(now time.Time) {
	p.retained = now
	if p.keep(now) > 0 {
		p.forgetLost()
	}
}

// forgetLost forgets the requests that count as no load here, apart from those that are tried again: so the views
// differ, and the peer tells of them again.
func (p *peer) forgetLost() {
	for id := range maps.Clone(p.underWay) {
		if !p.refused.has(id) && !p.placements.Has(id) {
			p.forget(id)
			p.differs = true
		}
	}
}

// keep gives the requests under way a sign of life, and ends all others. It returns how many it ended.
func (p *peer) keep(now time.Time) int {
	return p.placements.Retain(func(id uint64) bool {
		_, has := p.underWay[id]
		return has
	}, now.UnixNano())
}

// mostDelay bounds the time that a message takes. A peer whose messages take longer counts as dead half of the time.
const mostDelay = time.Second

// learnDelay takes half of a round trip. The mean is over about eight heartbeats, as TCP's (RFC 6298, section 2). A
// process that was not scheduled for a while counts little: nothing above four times the mean is believed at once.
func (p *peer) learnDelay(half time.Duration) {
	if half = min(half, mostDelay); p.delay == 0 {
		p.delay = half
	} else {
		p.delay += (min(half, 4*p.delay) - p.delay) / 8
	}
	p.placements.SetDelay(p.delay)
}

// begin notes that a part of an answer to an ask came. It reports whether the part is of use: whether it answers one of
// the last asks, and has a place among its parts.
func (p *peer) begin(s statePart) bool {
	if p.asked.IsZero() || !slices.Contains(p.nonces[:], s.nonce) || s.parts < 1 || s.parts > maxParts || s.part >= s.parts {
		return false
	}
	if p.state == nil || p.state.nonce != s.nonce || p.state.number != s.number || len(p.state.have) != s.parts {
		p.state = &state{nonce: s.nonce, number: s.number, have: make([]bool, s.parts), left: s.parts}
		p.answers++
	}
	if !p.state.have[s.part] {
		p.state.have[s.part] = true
		p.state.left--
	}
	return true
}

// settled notes that the view of the peer's requests is whole.
func (p *peer) settled() {
	p.differs, p.asked, p.tries, p.state, p.nonces = false, time.Time{}, 0, nil, [4]uint64{}
}

// finish ends an answer if all parts have come: requests that it does not have are over, apart from those that a later
// packet told of. It reports whether the answer has ended.
func (p *peer) finish(now time.Time) bool {
	s := p.state
	if s == nil || s.left > 0 {
		return false
	}
	for id, f := range maps.Clone(p.underWay) {
		if f.answer != p.answers && f.number <= s.number {
			p.forget(id)
		}
	}
	p.retained = now
	p.keep(now)
	// Packets up to the answer's number need not come any more: the answer has what they told.
	p.number = max(p.number, s.number)
	p.settled()
	return true
}
