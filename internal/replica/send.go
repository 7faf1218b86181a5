package replica

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/warmpath/warmpath/internal/tenant"
)

const (
	// placedDelay is how long a request that was placed waits for others before the peers are told. It is far below the
	// time of an engine's step, and ten requests in it cost as much as one.
	placedDelay = time.Millisecond
	// endedDelay is the same for the end of a prefill and of a request. It is the time of one or two engine steps: a load
	// that is counted so much too long harms less than a packet for each end.
	endedDelay = 25 * time.Millisecond
	// heartbeatInterval is the time between two heartbeats. Five of them may be lost before deadAfter.
	heartbeatInterval = 300 * time.Millisecond
	// spentInterval is the time between two tellings of what tenants have spent. In this time each router may spend what
	// the others have spent already.
	spentInterval = 50 * time.Millisecond
)

// sender sends what the outbox and the receiver order. Its fields belong to the goroutine of Sync.send.
type sender struct {
	s              *Sync
	sign           signer
	packet         []byte
	spare          []byte // memory for the outbox
	number, direct uint64 // of the last packet to all, and of the last packet to one router
	beat           time.Time
	hello          bool // the next heartbeat wants an answer
}

// send sends until ctx ends, and then says goodbye.
func (s *Sync) send(ctx context.Context) {
	w := sender{s: s, sign: newSigner(s.cfg.Key, s.cfg.Group), hello: true}
	tick := time.NewTicker(spentInterval)
	defer tick.Stop()
	flush := time.NewTimer(time.Hour)
	defer flush.Stop()
	var due time.Time // of flush; zero: it is not set
	arm := func(delay time.Duration) {
		if at := time.Now().Add(delay); due.IsZero() || at.Before(due) {
			due = at
			flush.Reset(delay)
		}
	}
	for {
		select {
		case <-ctx.Done():
			w.flush(func(to []byte) []byte { return append(to, recordGoodbye, 0) })
			return
		case <-s.out.urgent:
			arm(placedDelay)
		case <-s.out.ready:
			arm(endedDelay)
		case <-flush.C:
			due = time.Time{}
			w.flush(nil)
		case o := <-s.orders:
			w.obey(o)
		case now := <-tick.C:
			if now.Sub(w.beat) >= heartbeatInterval-spentInterval/2 {
				w.heartbeat(now)
			} else {
				w.tellSpent()
			}
		}
	}
}

// obey sends what the receiver ordered.
func (w *sender) obey(o order) {
	switch o.kind {
	case recordHeartbeat:
		w.hello = w.hello || o.ask.recent
		w.heartbeat(time.Now())
	case recordAsk:
		w.s.counts.asks.Add(1)
		records := appendRecord(nil, recordAsk, o.ask.append)
		w.publish(header{to: o.to}, records)
	case recordState:
		w.s.counts.answers.Add(1)
		w.answer(o)
	}
}

// heartbeat sends a heartbeat, and what is pending.
func (w *sender) heartbeat(now time.Time) {
	w.beat = now
	s := w.s
	underWay, _, _ := s.out.counts()
	h := heartbeat{name: s.parts.Name, version: s.parts.Version, sent: time.Now().UnixMilli(), requests: underWay, hello: w.hello}
	if admin := s.admin.Load(); admin != nil {
		h.admin = *admin
	}
	w.flush(func(to []byte) []byte { return w.appendSpent(appendRecord(to, recordHeartbeat, h.append), false) })
	w.hello = w.hello && !s.link.connected()
}

// tellSpent sends what tenants have spent, if it changed.
func (w *sender) tellSpent() {
	if records := w.appendSpent(nil, false); len(records) > 0 {
		w.flush(func(to []byte) []byte { return append(to, records...) })
	}
}

// appendSpent appends what tenants have spent: all tenants, or those for which it changed since the last call.
func (w *sender) appendSpent(to []byte, all bool) []byte {
	if w.s.parts.Tenants == nil {
		return to
	}
	w.s.parts.Tenants.Spent(all, func(name string, t tenant.Spent) {
		told := spent{name, t.Requests, t.Tokens, t.Active}
		to = appendRecord(to, recordSpent, told.append)
	})
	return to
}

// flush sends what is pending, and the records that extra appends.
func (w *sender) flush(extra func([]byte) []byte) {
	records, digest := w.s.out.take(w.spare)
	if extra != nil {
		records = extra(records)
	}
	w.toAll(records, digest)
	w.keep(records)
}

// keep keeps memory for the outbox, unless it is unusually large.
func (w *sender) keep(records []byte) {
	if w.spare = records[:0]; cap(w.spare) > maxPending {
		w.spare = nil
	}
}

// toAll sends records to all routers. digest is the digest after them.
func (w *sender) toAll(records []byte, digest uint64) {
	for len(records) > 0 {
		n := prefix(records)
		h := header{}
		if n == len(records) {
			h.digest, h.digested = digest, true
		}
		w.publish(h, records[:n])
		records = records[n:]
	}
}

// prefix returns the length of the first records that make a packet.
func prefix(records []byte) int {
	n := 0
	for n < len(records) {
		_, _, rest, err := nextRecord(records[n:])
		if err != nil {
			panic("bug: a record that was written cannot be read")
		}
		next := len(records) - len(rest)
		if n > 0 && next > packetBytes {
			break
		}
		n = next
	}
	return n
}

// publish signs and sends a packet.
func (w *sender) publish(h header, records []byte) {
	s := w.s
	if !s.link.connected() {
		s.drop(dropAlone, 1)
		return
	}
	h.from, h.started = s.id, s.started
	if h.to == 0 {
		w.number++
		h.number = w.number
	} else {
		w.direct++
		h.number = w.direct
	}
	w.packet = w.sign.sign(append(h.begin(w.packet[:0]), records...))
	if err := s.link.publish(h.to, w.packet); err != nil {
		s.counts.failed.Add(1)
		return
	}
	s.counts.sent.Add(1)
	s.counts.sentBytes.Add(uint64(len(w.packet)))
}

// answer sends all requests under way to one router.
func (w *sender) answer(o order) {
	records, digest, all, ended := w.s.out.state(w.spare, o.ask.recent)
	w.toAll(records, digest)
	w.keep(records)
	parts := [][2]int{} // the first and the end of each part, of all
	size := packetBytes + 1
	for i, t := range all {
		if size += len(t.record) + 24; size > packetBytes {
			parts = append(parts, [2]int{i, i})
			size = len(t.record) + 24
		}
		parts[len(parts)-1][1] = i + 1
	}
	if len(parts) == 0 {
		parts = append(parts, [2]int{})
	}
	var out []byte
	for i, part := range parts {
		at := statePart{nonce: o.ask.nonce, number: w.number, part: i, parts: len(parts)}
		out = appendRecord(out[:0], recordState, at.append)
		if i == 0 {
			out = w.appendSpent(out, true)
		}
		for _, t := range all[part[0]:part[1]] {
			out = appendRecord(out, recordAdd, func(to []byte) []byte { return append(to, t.record...) })
			if id, _ := binary.Uvarint(t.record); !t.prefills {
				out = appendID(out, recordPrefilled, id)
			}
		}
		w.publish(header{to: o.to}, out)
	}
	now := time.Now()
	for len(ended) > 0 {
		out = out[:0]
		for len(ended) > 0 && (len(out) == 0 || len(out)+len(ended[0].content) < packetBytes) {
			age := now.Sub(ended[0].ended).Milliseconds()
			out = appendRecord(out, recordRecent, func(to []byte) []byte {
				return append(binary.AppendUvarint(to, uint64(max(age, 0))), ended[0].content...)
			})
			ended = ended[1:]
		}
		w.publish(header{to: o.to}, out)
	}
}
