package replica

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/tenant"
)

const (
	// lookInterval is how often dead peers and answers that did not come are looked for. Each look wakes an idle process,
	// so they are few, and the heartbeats and what tenants have spent are told in the same moments.
	lookInterval = 150 * time.Millisecond
	// retainInterval is how often the requests of a peer whose view equals this router's get a sign of life. It is far
	// below the time after which the fleet takes a request for a leak.
	retainInterval = 2 * time.Second
	// lateRecent is how long recent requests wait for their worker: a router that starts does not know its workers yet.
	lateRecent = promptOld
)

// receiver applies what the peers tell. Callers of its methods hold Sync.mu.
type receiver struct {
	s         *Sync
	open      signer
	names     map[string]string
	placement warmpath.Placement
	looked    time.Time // when look was called last
	budget    waitingBudget
	underWay  int // requests under way of all peers
}

// take applies a packet. It is called by the goroutines of the connection.
func (s *Sync) take(data []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	defer s.survive()
	s.receiver.packet(data, now)
}

// survive ends a panic. If a policy panics over what a peer told, only the rest of the packet is lost: a message of
// another router must not end this one. It is deferred.
func (s *Sync) survive() {
	if cause := recover(); cause != nil {
		s.lines.log(s.parts.Log, slog.LevelError, linePanic, "a message of another router made the router panic, and is dropped; please report this", "cause", cause, "stack", string(debug.Stack()))
		s.drop(dropMalformed, 1)
	}
}

// order orders a packet. It reports whether there was room.
func (s *Sync) order(o order) bool {
	select {
	case s.orders <- o:
		return true
	default:
		return false
	}
}

// dropped counts a packet or a record that is dropped, and logs it at most once a minute for each reason that hints at
// a wrong configuration or at an attack.
func (r *receiver) dropped(why reason, now time.Time) {
	s := r.s
	s.drop(why, 1)
	advice := ""
	switch why {
	case dropMalformed:
		advice = "is the group used by another program?"
	case dropVersion:
		advice = "do all routers have versions that understand each other?"
	case dropUnsigned:
		advice = "set sync.key_file at the router that sends them, too"
	case dropSignature:
		advice = "set the same sync.key_file and sync.group at all routers"
	case dropTooMany:
		advice = "there are more routers, or more requests under way at one router or at all, than this router follows"
	default:
		return
	}
	s.lines.log(s.parts.Log, slog.LevelWarn, once(string(why)), "messages of other routers are dropped", "reason", string(why), "advice", advice)
}

// packet applies a packet. Callers hold s.mu.
func (r *receiver) packet(data []byte, now time.Time) {
	s := r.s
	s.counts.received.Add(1)
	s.counts.receivedBytes.Add(uint64(len(data)))
	h, records, err := r.open.open(data)
	switch {
	case err != nil:
		r.dropped(reasonOf(err), now)
		return
	case h.from == s.id:
		r.dropped(dropOwn, now)
		return
	case h.to != 0 && h.to != s.id:
		r.dropped(dropOther, now)
		return
	}
	p := r.peer(h, now)
	if p == nil {
		return
	}
	last := &p.number
	if h.to != 0 {
		last = &p.direct
	}
	if h.number <= *last {
		r.dropped(dropOld, now)
		return
	}
	*last = h.number
	p.heard, p.excused = now, 0
	if err := r.records(p, h, records, now); err != nil {
		r.dropped(dropMalformed, now)
		p.differs = true
	}
	if s.peers[p.id] != p {
		return // it said goodbye
	}
	if h.digested && h.to == 0 {
		if p.digest != h.digest {
			p.differs = true
		} else {
			if p.answered {
				p.settled()
			}
			if now.Sub(p.retained) >= retainInterval {
				p.retain(now)
			}
		}
	}
	r.ask(p, now)
}

// peer returns the peer that sent a packet; nil if its packets are not followed. Callers hold s.mu.
func (r *receiver) peer(h header, now time.Time) *peer {
	s := r.s
	if p := s.peers[h.from]; p != nil {
		if p.started == h.started {
			return p
		}
		r.dropped(dropOld, now)
		return nil
	}
	gone, was := s.gone[h.from]
	if was && (gone.started != h.started || h.to == 0 && h.number <= gone.number || h.to != 0 && h.number <= gone.direct) {
		r.dropped(dropOld, now)
		return nil
	}
	if len(s.peers) >= maxPeers {
		r.dropped(dropTooMany, now)
		return nil
	}
	p := newPeer(h, s.parts.NewPeer(), &r.underWay)
	p.heard, p.beat, p.retained, p.differs = now, now, now, true
	if was {
		p.number, p.direct, p.heardUntil = gone.number, gone.direct, gone.heard
		delete(s.gone, h.from)
	}
	s.peers[h.from] = p
	s.number()
	wake(s.greet) // so that the new router hears of this one at once
	return p
}

// ask asks a peer for all its requests, if its digest differs and no answer is due. Callers hold s.mu.
func (r *receiver) ask(p *peer, now time.Time) {
	if !p.differs || !p.asked.IsZero() && now.Sub(p.asked) < min(askAgain<<max(p.tries-1, 0), mostAskAgain) {
		return
	}
	if !p.noRoom.IsZero() {
		// Its answer would have the requests again for which there is no room. It may be megabytes.
		if now.Sub(p.noRoom) < mendInterval {
			return
		}
		p.noRoom = time.Time{}
	}
	nonce := random()
	// Recent requests may be megabytes, so they are not asked for each time.
	recent := !p.answered && p.tries%4 == 0
	if r.s.order(order{kind: recordAsk, to: p.id, ask: ask{nonce: nonce, recent: recent}}) {
		p.nonces[p.tries%len(p.nonces)] = nonce
		p.asked = now
		p.tries++
	}
}

// records applies the records of a packet.
func (r *receiver) records(p *peer, h header, records []byte, now time.Time) error {
	number, inState := p.number, false
	for len(records) > 0 {
		kind, body, rest, err := nextRecord(records)
		if err != nil {
			return err
		}
		records = rest
		c := content{data: body, names: r.names}
		switch kind {
		case recordState:
			part := c.statePart()
			if c.err == nil && !p.begin(part) {
				return nil // an answer that is not expected any more
			}
			inState, number = true, part.number
		case recordAsk:
			asked := c.ask()
			if c.err == nil {
				r.s.order(order{kind: recordState, to: p.id, ask: asked})
			}
		case recordGoodbye:
			r.drop(p, "it stops")
			return nil
		default:
			r.record(p, kind, &c, body, number, now)
		}
		if c.err != nil {
			if kind != recordAdd {
				return fmt.Errorf("read a record of kind %d: %w", kind, c.err)
			}
			// The record costs nobody else anything, and asking for it again would not make it better.
			r.dropped(dropMalformed, now)
			id, _ := binary.Uvarint(body)
			p.unreadable(id, number, now)
			r.placement.ID = id
		}
		if inState && kind == recordAdd {
			p.inAnswer(r.placement.ID)
		}
	}
	if inState && p.finish(now) {
		p.answered = true
		r.s.counts.repairs.Add(1)
	}
	return nil
}

// record applies one record about requests, tenants or the sender.
func (r *receiver) record(p *peer, kind byte, c *content, body []byte, number uint64, now time.Time) {
	switch kind {
	case recordAdd:
		if c.placement(&r.placement); c.err == nil {
			r.add(p, number, body, now)
		}
	case recordPrefilled:
		if id := c.uvarint(); c.err == nil {
			p.prefilled(id, now)
		}
	case recordFree:
		if e := c.ending(); c.err == nil {
			p.free(e, now)
		}
	case recordHeartbeat:
		if h := c.heartbeat(); c.err == nil {
			r.heartbeat(p, h, now)
		}
	case recordEcho:
		if own := c.clock(); c.err == nil {
			p.clock, p.clockAt = own, now
			r.echoes(p, c, now)
		}
	case recordSpent:
		if t := c.spent(); c.err == nil && t.tenant != "" {
			r.spent(p, t, now)
		}
	case recordRecent:
		since := c.age()
		body := c.data
		if now.Add(-since).Before(p.heardUntil) {
			return // this router heard of it when it was placed, and may have placed later turns of the talk itself
		}
		c.placement(&r.placement)
		r.placement.Age = max(r.placement.Age, since) // a router of an older version tells only the time since the end
		if c.err == nil && !r.recent(p, now) {
			r.wait(p, &p.ended, body, now.Add(lateRecent), now)
		}
	default:
		r.dropped(dropUnknown, now)
	}
}

// add follows a request of r.placement. number is the number of the packet to all that told of it. content is the
// content of its record.
func (r *receiver) add(p *peer, number uint64, content []byte, now time.Time) {
	isNew, room := p.follow(&r.placement, number, now)
	switch {
	case !room:
		r.dropped(dropTooMany, now)
	case isNew && !p.placements.Add(&r.placement, now.UnixNano()):
		r.wait(p, &p.refused, content, time.Time{}, now)
	}
}

func (r *receiver) heartbeat(p *peer, h heartbeat, now time.Time) {
	first, moved := p.heartbeat == heartbeat{}, p.heartbeat.admin != h.admin
	p.heartbeat, p.beat = h, now
	if moved && r.s.usable(&h) {
		wake(r.s.found)
	}
	if first {
		r.s.lines.log(r.s.parts.Log, slog.LevelInfo, r.s.cfg.lineRouter(), "another router shares its requests", "router", h.name, "admin", h.admin, "version", h.version,
			"routers", r.s.heard(), "group", r.s.cfg.Group, "signed", r.s.cfg.Key != "")
	}
	if h.hello {
		wake(r.s.greet)
	}
}

// echoes looks for the echo of this router's own heartbeat in a peer's list, and learns how long messages take. Only
// differences of times of one clock count, so clocks may differ and jump.
func (r *receiver) echoes(p *peer, c *content, now time.Time) {
	for len(c.data) > 0 {
		e := c.echo()
		if c.err != nil {
			return
		}
		if e.to != r.s.id {
			continue
		}
		trip := r.s.clock(now) - e.clock - e.held
		if trip < 0 || trip > int64(2*mostDelay/time.Microsecond) || e.clock == p.echoed {
			return // it makes no sense, or it was seen before
		}
		p.echoed = e.clock
		p.learnDelay(time.Duration(trip) * time.Microsecond / 2)
		return
	}
}

// spent takes what a tenant has spent at a peer from the tenant's limits here. A peer cannot report more requests under
// way than the tenant may have. It gives back no more tokens than it has taken, so that its report does not free what
// was spent elsewhere.
func (r *receiver) spent(p *peer, t spent, now time.Time) {
	registry := r.s.parts.Tenants
	if registry == nil {
		return
	}
	if of := registry.ByName(t.tenant); of != nil && of.MaxConcurrent > 0 {
		t.active = min(t.active, of.MaxConcurrent)
	}
	last, known := p.tenants[t.tenant]
	if !known {
		if len(p.tenants) >= mostNames || registry.ByName(t.tenant) == nil {
			return
		}
		// What was spent before it was heard of is not charged: it may be of days without a limit.
		last = spent{requests: t.requests, tokens: t.tokens}
	}
	p.tenants[t.tenant] = t
	tokens := max(t.tokens-last.tokens, -p.charged[t.tenant]) // a request that was not sent gives its tokens back
	p.charged[t.tenant] += tokens
	registry.SpentElsewhere(t.tenant, tenant.Spent{Requests: max(t.requests-last.requests, 0), Tokens: tokens,
		Active: t.active - last.active}, now.UnixNano())
}

// recent learns where a request of r.placement went that has ended. It returns false if its worker is not known.
func (r *receiver) recent(p *peer, now time.Time) bool {
	placement := &r.placement
	if _, underWay := p.underWay[placement.ID]; underWay {
		return true
	}
	placement.UncachedTokens, placement.ContextBlocks, placement.MostTokens, placement.PrefillCompleted = 0, 0, 0, true
	if !p.placements.Add(placement, now.UnixNano()) {
		return false
	}
	p.placements.Free(placement.ID, warmpath.Ending{}, now.UnixNano())
	return true
}
