package replica

import (
	"context"
	"encoding/binary"
	"slices"
	"time"
)

const (
	// placedGap is the least time between two packets about placed requests. The first request after it is told at once,
	// and the next ones wait until it has passed: a busy router sends 200 packets a second. The laboratory sees no
	// difference between views of 1 and of 10 ms (bench/results/replicas.md).
	placedGap = 5 * time.Millisecond
	// endedDelay is how long the end of a prefill or of a request waits for others before the peers are told. It is the
	// time of one or two engine steps: a load that is counted so much too long harms less than a packet for each end.
	endedDelay = 25 * time.Millisecond
	// heartbeatInterval is the longest time between two heartbeats. Five of them may be lost before deadAfter.
	heartbeatInterval = 2 * lookInterval
	// greetGap is the least time between a heartbeat and the next one that a router that is new or asks for it gets. All
	// such routers get the same one. It is far below firstAnswer.
	greetGap = 50 * time.Millisecond
)

// sender sends what the outbox and the receiver order. Its fields belong to the goroutine of Sync.share.
type sender struct {
	s              *Sync
	connection     connection
	sign           signer
	packet         []byte
	spare          []byte // memory for the outbox
	number, direct uint64 // of the last packet to all, and of the last packet to one router
	flushed, beat  time.Time
	reach          string // the URL of the admin listener
	echoes         []echo
	hello          bool                 // the next heartbeat wants an answer
	answered       map[uint64]time.Time // see mayAnswer
	later          map[uint64]order     // answers that are due
	spending       spending
}

// share sends what is due, and looks for what did not come, until ctx ends. Then it says goodbye.
func (s *Sync) share(ctx context.Context) {
	w := sender{s: s, connection: connection{s: s}, sign: newSigner(s.cfg.Key, s.cfg.Group), hello: true, answered: map[uint64]time.Time{}, later: map[uint64]order{}}
	w.spending.changed = map[string]time.Time{}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	gap := time.NewTimer(time.Hour) // set while requests that were placed wait for placedGap
	defer gap.Stop()
	greet := time.NewTimer(time.Hour) // set while a heartbeat waits for greetGap
	defer greet.Stop()
	w.changed()
	for {
		select {
		case <-ctx.Done():
			w.flush(func(to []byte) []byte { return append(to, recordGoodbye, 0) })
			return
		case <-s.out.urgent:
			if wait := placedGap - time.Since(w.flushed); wait > 0 {
				gap.Reset(wait)
				continue
			}
			w.tell()
		case <-gap.C:
			w.tell()
		case <-s.out.ended.C:
			w.tell()
		case o := <-s.orders:
			w.obey(o)
		case <-s.greet:
			if wait := greetGap - time.Since(w.beat); wait > 0 {
				greet.Reset(wait)
				continue
			}
			w.heartbeat(time.Now())
		case <-greet.C:
			if time.Since(w.beat) >= greetGap { // else one was sent meanwhile
				w.heartbeat(time.Now())
			}
		case <-s.changes:
			w.changed()
		case now := <-tick.C:
			s.look(now)
			w.connection.look(now)
			for _, o := range w.later {
				w.obey(o)
			}
			if now.Sub(w.beat) >= heartbeatInterval-lookInterval/2 {
				w.heartbeat(now)
			} else {
				w.tellSpent()
			}
		}
	}
}

// changed notes that the connection changed.
func (w *sender) changed() {
	if w.connection.changed() {
		w.hello, w.spending.repeated = true, time.Time{}
		wake(w.s.greet)
	}
	w.reach = w.s.reach()
}

// tell sends what is pending. A heartbeat goes along if there was none for a while: it then needs no packet of its own.
func (w *sender) tell() {
	now := time.Now()
	if now.Sub(w.beat) >= lookInterval {
		w.heartbeat(now)
		return
	}
	w.flush(func(to []byte) []byte { return w.appendSpent(to, false) })
}

// obey sends what the receiver ordered.
func (w *sender) obey(o order) {
	switch o.kind {
	case recordAsk:
		w.s.counts.asks.Add(1)
		records := appendRecord(nil, recordAsk, o.ask.append)
		w.publish(header{to: o.to}, records)
	case recordState:
		if !w.mayAnswer(o.to, time.Now()) {
			if len(w.later) < maxPeers {
				w.later[o.to] = o
			}
			return
		}
		delete(w.later, o.to)
		w.s.counts.answers.Add(1)
		w.answer(o)
	}
}

// heartbeat sends a heartbeat, and what is pending.
func (w *sender) heartbeat(now time.Time) {
	w.beat = now
	s := w.s
	underWay, _, _ := s.out.counts()
	h := heartbeat{name: s.parts.Name, version: s.parts.Version, admin: w.reach, machine: s.machine, requests: underWay, hello: w.hello, noIndex: s.parts.NoIndex}
	w.echoes = s.echoes(w.echoes[:0])
	w.flush(func(to []byte) []byte {
		to = appendRecord(to, recordHeartbeat, h.append)
		to = appendRecord(to, recordEcho, func(to []byte) []byte {
			to = binary.AppendUvarint(to, uint64(s.clock(time.Now())))
			for i := range w.echoes {
				to = w.echoes[i].append(to)
			}
			return to
		})
		return w.repeatSpent(w.appendSpent(to, false), now)
	})
	w.hello = w.hello && !s.link.connected()
}

// clock returns the microseconds since this router's start: a clock that never jumps. It is above 0.
func (s *Sync) clock(now time.Time) int64 { return now.Sub(s.began).Microseconds() + 1 }

// echoes appends what is to be echoed to each peer.
func (s *Sync) echoes(to []echo) []echo {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, p := range s.peers {
		if p.clock > 0 {
			to = append(to, echo{to: p.id, clock: p.clock, held: now.Sub(p.clockAt).Microseconds()})
		}
	}
	return to
}

// flush sends what is pending, and the records that extra appends.
func (w *sender) flush(extra func([]byte) []byte) {
	w.flushed = time.Now()
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

// answers bounds the answers to one router: one each answerInterval, and some more at first, because the first may be
// lost. A router that asks more often gets its answer later. The interval is below a second, after which all routers
// have one view again.
const answers, answerInterval = 4, 400 * time.Millisecond

// mayAnswer reports whether a router may be answered now, and counts the answer.
func (w *sender) mayAnswer(to uint64, now time.Time) bool {
	if len(w.answered) >= 2*maxPeers {
		clear(w.answered) // of routers that are gone
	}
	// The entry is the time at which the bucket of answers is full again.
	full := w.answered[to]
	if full.Before(now) {
		full = now
	}
	if full.Sub(now) > (answers-1)*answerInterval {
		return false
	}
	w.answered[to] = full.Add(answerInterval)
	return true
}

// answer sends all requests under way to one router.
func (w *sender) answer(o order) {
	records, digest, all, ended := w.s.out.state(w.spare, o.ask.recent)
	snap, now := w.s.parts.Fleet.Snapshot(), time.Now()
	for i := range all {
		all[i].record = all[i].present(snap)
	}
	for i := range ended {
		ended[i].content = ended[i].present(snap, now)
	}
	ended = slices.DeleteFunc(ended, func(r recent) bool { return r.content == nil })
	w.toAll(records, digest)
	w.keep(records)
	for records := w.appendSpent(nil, true); len(records) > 0; {
		n := prefix(records)
		w.publish(header{to: o.to}, records[:n])
		records = records[n:]
	}
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
		for _, t := range all[part[0]:part[1]] {
			out = appendRecord(out, recordAdd, func(to []byte) []byte { return appendAge(append(to, t.record...), now.Sub(t.placed)) })
			if id, _ := binary.Uvarint(t.record); !t.prefills {
				out = appendID(out, recordPrefilled, id)
			}
		}
		w.publish(header{to: o.to}, out)
	}
	for len(ended) > 0 {
		out = out[:0]
		for len(ended) > 0 && (len(out) == 0 || len(out)+len(ended[0].content) < packetBytes) {
			age := now.Sub(ended[0].ended).Milliseconds()
			out = appendRecord(out, recordRecent, func(to []byte) []byte {
				to = append(binary.AppendUvarint(to, uint64(max(age, 0))), ended[0].content...)
				return appendAge(to, now.Sub(ended[0].placed))
			})
			ended = ended[1:]
		}
		w.publish(header{to: o.to}, out)
	}
}
