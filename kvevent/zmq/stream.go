package zmq

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stream makes one engine's messages gap-free and tells its handler what cannot be had. Messages come in from two
// sides: live from the PUB socket, and replayed (see recovery.go); both are held against one expected sequence number.
//
// The live side alone detects gaps (a number ahead) and restarts (a number behind, with other content than was seen).
// After a reconnect the engine may be another process even if its numbers go on, so nothing counts until a replay of
// the last messages has shown the same content (verified).
type stream struct {
	cfg    Config
	h      Handler
	replay string        // endpoint; empty: none
	kick   chan struct{} // capacity 1; wakes recovery

	stats counters

	mu         sync.Mutex // guards the fields below and serialises the handler
	connected  bool
	epoch      uint64 // connections so far: what belongs to an older one is not listened to
	next       uint64 // the sequence number that is due
	seen       seen
	verified   bool // the stream behind the connection is the one that next and seen speak of
	live       bool // a message came on this connection
	lastLive   uint64
	pending    pending
	overflow   bool      // a live message could not be kept: only a replay has it
	wanted     bool      // this connection's replay is still to be done
	whole      bool      // nothing is missing from 0 to next
	announced  bool      // Complete was called since this last changed
	gaveUp     bool      // history was lost because the replay did not bring it, not because the engine no longer has it
	relearned  uint64    // the connection on which it was asked for once more
	strikes    int       // contradictions between replay and live stream on this connection since they last agreed
	agreed     bool      // replay and live stream had the same message on this connection, and no contradiction since
	behind     bool      // as told to the handler
	recovering time.Time // when the recovery under way began, or found the stream behind
	unnumbered bool      // messages of this connection carry no sequence numbers
	distrust   bool      // the replay contradicts the live stream and is not asked any more on this connection
	progress   uint64
	abort      context.CancelFunc // ends the replay that is under way; nil: none
}

// maxStrikes is the number of contradictions between replay and live stream that prove the replay to be another
// engine's. An engine that restarts behind a forwarder causes one contradiction, and then its replay agrees with its
// live stream; the rest is margin. Only messages count and not time: for an engine that publishes once an hour the
// proof takes as many messages as for a busy one.
const maxStrikes = 4

// counters are Stats that may be read at any time.
type counters struct {
	connected                                     atomic.Bool
	since, next                                   atomic.Int64
	messages, gaps, replays, replayed, duplicates atomic.Uint64
	checks                                        atomic.Uint64
	lost, restarts, malformed, overflows          atomic.Uint64
}

func newStream(cfg Config, replay string, h Handler) *stream {
	s := &stream{cfg: cfg, h: h, replay: replay, kick: make(chan struct{}, 1), whole: true}
	s.pending.maxMessages, s.pending.maxBytes = cfg.PendingMessages, cfg.PendingBytes
	return s
}

func (s *stream) snapshot() Stats {
	c := &s.stats
	st := Stats{
		Connected: c.connected.Load(), Messages: c.messages.Load(), Gaps: c.gaps.Load(), Replays: c.replays.Load(),
		Replayed: c.replayed.Load(), Duplicates: c.duplicates.Load(), Lost: c.lost.Load(), Restarts: c.restarts.Load(),
		Malformed: c.malformed.Load(), Overflows: c.overflows.Load(), Checks: c.checks.Load(),
	}
	if since := c.since.Load(); since != 0 {
		st.Since = time.Unix(0, since)
	}
	if next := c.next.Load(); next > 0 && st.Messages > 0 {
		st.HasSeq, st.LastSeq = true, uint64(next)-1
	}
	return st
}

// canReplay tells whether there is anybody to ask for what is missing.
func (s *stream) canReplay() bool { return s.replay != "" && !s.distrust }

// connect begins a connection.
func (s *stream) connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	if s.live && !s.agreed {
		// The older connection's live messages came from the engine that it led to. What replays brought beside them
		// may be another engine's, which started meanwhile: it does not verify the older stream.
		s.seen.forgetReplayed()
	}
	s.seen.disconnect()
	s.distrust, s.strikes, s.agreed, s.unnumbered = false, 0, false, false
	s.live, s.announced = false, false
	s.verified = s.next == 0 // nothing known, nothing to compare
	s.wanted = s.canReplay()
	s.setConnected(true)
	s.settle()
	s.h.State(true, nil)
	s.wake()
}

// disconnect ends a connection. Without a replay, whatever is published meanwhile is lost.
func (s *stream) disconnect(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopReplay()
	s.pending.forget()
	s.overflow = false
	s.setConnected(false)
	if !s.canReplay() && s.next > 0 {
		s.whole = false
		s.h.Lost(s.next, s.next)
	}
	s.h.State(false, err)
}

// unreachable tells that no connection could be made.
func (s *stream) unreachable(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h.State(false, err)
}

func (s *stream) setConnected(c bool) {
	s.connected = c
	s.stats.connected.Store(c)
	s.stats.since.Store(time.Now().UnixNano())
}

func (s *stream) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *stream) stopReplay() {
	if s.abort != nil {
		s.abort()
	}
}

// receive takes a live message.
func (s *stream) receive(parts [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if payload, ok := parseUnnumbered(parts); ok && !s.live {
		s.count(payload)
		return
	}
	seq, payload, err := parseLive(parts)
	if err != nil || s.unnumbered { // a publisher numbers all of its messages or none
		s.stats.malformed.Add(1)
		return
	}
	forward := !s.live || seq > s.lastLive
	if s.live && seq > s.lastLive+1 {
		s.stats.gaps.Add(1)
	}
	first := !s.live
	s.live, s.lastLive = true, seq
	switch {
	case s.repeats(seq, payload, forward && !first):
		s.stats.duplicates.Add(1)
		return
	case !forward:
		s.pending.forget()
		s.restart(fmt.Sprintf("message %d came where %d was due", seq, s.next))
	case seq < s.next || s.pending.compare(seq, payload) == different:
		// Another message was handed over or kept under this number, before this connection or from a replay.
		s.pending.forget()
		s.contradicted(fmt.Sprintf("message %d came where %d was due", seq, s.next))
	case !s.canReplay() && !s.verified:
		// Reconnected without a replay: Lost was said at the disconnect, and whatever stream this is, it is learned
		// anew.
		s.verify()
	}
	if s.verified && seq == s.next {
		s.deliver(seq, payload, true)
		s.drain()
		s.announce()
		return
	}
	s.hold(seq, payload)
}

// count hands over a live message without a sequence number, under the next number.
// s.mu is held.
func (s *stream) count(payload []byte) {
	if !s.unnumbered {
		s.unnumbered = true
		s.distrust, s.wanted, s.verified = true, false, true // a replay numbers its messages: they cannot be told from these
		s.whole, s.announced, s.overflow = false, false, false
		s.stopReplay()
		s.pending.forget()
		s.h.Lost(s.next, s.next)
		if h, ok := s.h.(Unnumbered); ok {
			h.Unnumbered()
		}
	}
	s.deliver(s.next, payload, true)
}

// repeats tells whether a live message was handed over or kept before. onward says that the live stream has gone
// forward on this connection, which a message that is too old to be remembered then proves to be a late one of the same
// stream.
func (s *stream) repeats(seq uint64, payload []byte, onward bool) bool {
	if seq >= s.next {
		return s.pending.compare(seq, payload) == same
	}
	switch s.seen.compare(seq, payload) {
	case same:
		if !s.seen.live(seq) { // else it is only a duplicate
			s.agree()
		}
		s.verify()
		return true
	case unknown:
		return onward
	}
	return false
}

// verify notes that the stream behind the connection is the one that next and seen speak of. What came before that was
// known is kept, and may be due.
func (s *stream) verify() {
	s.verified = true
	s.drain()
}

// hold keeps a live message that came before its turn and has what is missing replayed. Without a replay it is lost.
func (s *stream) hold(seq uint64, payload []byte) {
	s.announced = false
	if !s.canReplay() {
		s.lose(seq)
		s.deliver(seq, payload, true)
		return
	}
	if _, full := s.pending.put(seq, payload, true); full {
		s.overflow = true
		s.stats.overflows.Add(1)
	}
	s.wake()
}

// deliver hands over the next message. live: it came from the live stream, not from a replay.
func (s *stream) deliver(seq uint64, payload []byte, live bool) {
	s.next = seq + 1
	s.stats.next.Store(int64(s.next))
	s.stats.messages.Add(1)
	s.seen.put(seq, payload, live)
	s.h.Message(seq, payload)
}

// drain hands over what is kept, as far as it follows.
func (s *stream) drain() {
	for s.pending.len() > 0 {
		m, ok := s.pending.take(s.next)
		if !ok {
			return
		}
		s.deliver(s.next, m.payload, m.live)
	}
}

// lose gives up the messages before to, or before the first that is kept.
func (s *stream) lose(to uint64) {
	if first, ok := s.pending.first(); ok {
		to = min(to, first)
	}
	from := s.next
	s.next = to
	s.stats.lost.Add(to - from)
	s.whole, s.announced = false, false
	s.h.Lost(from, to)
	s.drain()
}

// restart begins anew with an engine that began anew. What is kept stays: it came on this connection.
func (s *stream) restart(why string) {
	s.stats.restarts.Add(1)
	s.next = 0
	s.stats.next.Store(0)
	s.seen.forget()
	s.verified, s.whole, s.announced, s.gaveUp = true, true, false, false
	s.unnumbered, s.agreed = false, false
	s.wanted = s.canReplay()
	s.progress++
	s.h.Restarted(why)
	s.stopReplay()
	s.wake()
}

// contradicted begins anew because replay and live stream, or two replays, differ in one message. Within one
// connection the cause is a restart behind a forwarder, or a replay endpoint of another engine. The live stream is
// right: a replay that contradicts it maxStrikes times without agreeing once is not asked again.
func (s *stream) contradicted(why string) {
	if s.verified && s.canReplay() { // unverified: what is contradicted came before this connection
		s.strikes++
	}
	if s.strikes >= maxStrikes {
		s.distrust = true
		s.pending.forget() // some of it may be the other engine's
		why = fmt.Sprintf("%s; the replay at %s contradicts the stream (is it another engine's?) and is not asked again", why, s.replay)
	}
	s.restart(why)
}

// agree notes that replay and live stream had the same message: they are one engine's.
func (s *stream) agree() { s.strikes, s.agreed = 0, true }

// announce reports the history as whole, once after each time that this was in doubt. It waits while replay and live
// stream contradict each other and have not agreed since: the replay may be another engine's.
func (s *stream) announce() {
	if s.whole && (s.strikes == 0 || s.distrust) && s.verified && !s.announced && !s.wanted && !s.overflow && s.pending.len() == 0 &&
		(!s.live || s.next > s.lastLive) {
		s.announced, s.behind = true, false
		s.h.Complete()
	}
}

// settle tells the handler whether the stream is behind, when that changed. s.mu is held. Each change of the stream
// ends with it.
func (s *stream) settle() {
	behind := s.whole && !s.announced
	if !s.whole { // Complete will not be said
		behind = !s.verified || s.wanted || s.overflow || s.pending.len() > 0 || s.live && s.next <= s.lastLive
	}
	if behind == s.behind || !s.connected {
		return
	}
	s.behind = behind
	if behind {
		s.recovering = time.Now()
	}
	if h, ok := s.h.(CatchUp); ok {
		h.Behind(behind)
	}
}

// overdue reports whether the recovery under way takes too long, whatever it brings. s.mu is held.
func (s *stream) overdue() bool { return time.Since(s.recovering) > s.cfg.RecoveryTime }

// linked tells that replay and live stream have met: every live message of this connection is handed over.
func (s *stream) linked() bool {
	return s.live && s.verified && !s.overflow && s.next > s.lastLive && s.pending.len() == 0
}
