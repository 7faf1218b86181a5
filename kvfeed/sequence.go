package kvfeed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// sequence brings the messages of one engine into order without gaps. If a missing message cannot be had, the sequence
// reports the loss to its handler. Messages come live from the PUB socket, and by replay (see recovery.go). Each
// message's number is compared with the expected sequence number.
//
// A live message with a higher number than expected shows a gap. A lower number with other content than before shows a
// restart. After a reconnect the engine may be another process, even if its numbers continue. So, if the engine has a
// replay endpoint, the stream is not verified at first, and new messages are kept back. If a replay of the last
// messages has the same content as before, the stream is verified.
type sequence struct {
	cfg    StreamConfig
	h      Handler
	replay string        // replay endpoint; empty: the engine has none
	kick   chan struct{} // capacity 1; wakes recovery

	stats sequenceCounters

	mu         sync.Mutex // guards the fields below; also held while the handler is called
	connected  bool
	epoch      uint64 // number of connections so far; attempts of an older epoch, and their messages, are ignored
	next       uint64 // the expected sequence number
	seen       seen
	verified   bool   // next and seen belong to the stream of this connection
	live       bool   // a message came on this connection
	lastLive   uint64 // if live: the sequence number of the last message that came on this connection
	began      uint64 // value of next when the connection began, or 0 after a restart on it: messages with lower numbers came before
	probe      uint64 // if not 0: the next replay must begin at the number probe-1 or earlier
	pending    pending
	overflow   bool               // there was no room in pending for a live message: only a replay can bring this message
	wanted     bool               // this connection needs a replay that has not ended yet
	whole      bool               // no message is missing from 0 to next
	announced  bool               // Complete was called, and nothing was missing or in doubt after that
	gaveUp     bool               // history was lost because the replay failed, although the engine may still have it
	relearned  uint64             // the epoch in which the lost history was requested once more
	strikes    int                // contradictions between replay and live stream since they last agreed
	agreed     bool               // replay and live stream had an equal message, and no contradiction followed
	unproven   bool               // replayed messages were handed over, and no replay had a live message of this connection yet
	behind     bool               // the handler was last told that the stream is behind
	recovering time.Time          // when the present recovery began, or the stream became behind
	unnumbered bool               // messages of this connection carry no sequence numbers
	distrust   bool               // the replay is not used on this connection any more: see contradicted and count
	progress   uint64             // grows whenever a recovery brings something new, or the stream restarts
	abort      context.CancelFunc // ends the present replay; nil: there is none

	// For checkpoints: see resume.go.
	resume   *resumption // waits until the engine confirms it; nil: there is none
	lacking  func()      // called when the stream begins to keep messages for a checkpoint; nil: it keeps none
	room     func() int  // with lacking: most bytes of kept
	kept     pending     // without a replay: the live messages of this connection since the last loss, from keptFrom on
	keptFrom uint64
}

// maxStrikes is the number of contradictions between replay and live stream after which the replay counts as another
// engine's. If an engine behind a forwarder restarts, there is one contradiction, and then the engine's replay agrees
// with its live stream. The rest is margin. The limit counts messages, not time: an engine that publishes once an hour
// needs as many messages for the proof as a busy engine.
const maxStrikes = 4

// sequenceCounters are the counters of StreamStats. They may be read at any time. A message, a restart and a
// connection count after the handler was called for it. So a reader that sees a new count also sees its effect.
type sequenceCounters struct {
	connected                                     atomic.Bool
	since, next                                   atomic.Int64
	messages, gaps, replays, replayed, duplicates atomic.Uint64
	checks                                        atomic.Uint64
	lost, restarts, malformed                     atomic.Uint64
	failure                                       atomic.Pointer[error]
}

func newSequence(cfg StreamConfig, replay string, h Handler) *sequence {
	s := &sequence{cfg: cfg, h: h, replay: replay, kick: make(chan struct{}, 1), whole: true}
	s.pending.maxMessages, s.pending.maxBytes = cfg.PendingMessages, cfg.PendingBytes
	s.kept.maxMessages = min(cfg.PendingMessages, keptMessages)
	return s
}

func (s *sequence) snapshot() StreamStats {
	c := &s.stats
	st := StreamStats{
		Connected: c.connected.Load(), Messages: c.messages.Load(), Gaps: c.gaps.Load(), Replays: c.replays.Load(),
		Replayed: c.replayed.Load(), Duplicates: c.duplicates.Load(), Lost: c.lost.Load(), Restarts: c.restarts.Load(),
		Malformed: c.malformed.Load(), Checks: c.checks.Load(),
	}
	if since := c.since.Load(); since != 0 {
		st.Since = time.Unix(0, since)
	}
	if next := c.next.Load(); next > 0 && st.Messages > 0 {
		st.HasSequence, st.Sequence = true, uint64(next)-1
	}
	if failure := c.failure.Load(); failure != nil {
		st.ReplayError = *failure
	}
	return st
}

// canReplay reports whether replays may be requested: there is a replay endpoint, and it is not distrusted on this
// connection.
func (s *sequence) canReplay() bool { return s.replay != "" && !s.distrust }

// connect begins a connection.
func (s *sequence) connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	if s.live && !s.agreed {
		// On the last connection, no replayed message was equal to a live message. The replays may have come from
		// another engine, which had started meanwhile. So the replayed messages must not verify the stream.
		s.seen.forgetReplayed()
	}
	s.seen.disconnect()
	if s.resume != nil {
		s.seen.restore(s.resume)
	}
	s.distrust, s.strikes, s.agreed, s.unnumbered = false, 0, false, false
	s.live, s.announced = false, false
	s.began, s.probe = s.next, 0
	s.verified = s.next == 0 // without earlier messages there is nothing to compare with
	s.wanted = s.canReplay()
	s.connected = true
	s.settle()
	s.changed(true, nil)
	s.wake()
}

// disconnect ends a connection. Without a replay, the messages until the next connection are lost.
func (s *sequence) disconnect(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopReplay()
	s.pending.forget()
	s.kept.forget()
	s.overflow = false
	s.connected = false
	if !s.canReplay() && s.next > 0 {
		s.whole = false
		s.h.Lost(s.next, s.next)
	}
	s.changed(false, err)
}

// unreachable reports that no connection could be made.
func (s *sequence) unreachable(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h.State(false, err)
}

// changed reports to the handler that the connection was made or lost, and then changes the statistics.
func (s *sequence) changed(connected bool, err error) {
	s.h.State(connected, err)
	s.stats.connected.Store(connected)
	s.stats.since.Store(time.Now().UnixNano())
}

func (s *sequence) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *sequence) stopReplay() {
	if s.abort != nil {
		s.abort()
	}
}

// receive handles a live message, in the parts in which ZMQ delivers it.
func (s *sequence) receive(parts [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	if payload, ok := parseUnnumbered(parts); ok && !s.live {
		s.count(payload)
		return
	}
	seq, payload, err := parseLive(parts)
	if err != nil || s.unnumbered { // a publisher numbers all its messages or none
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
	case s.repeats(seq, payload, forward && (!first || seq >= s.began)):
		s.stats.duplicates.Add(1)
		if first && !s.agreed {
			s.askFrom(seq, payload)
		}
		return
	case !forward:
		s.pending.forget()
		s.restart(fmt.Sprintf("message %d came where %d was due", seq, s.next))
	case seq < s.next || s.pending.compare(seq, payload) == different:
		// The number belongs to an earlier message with other content, or with content that is not remembered. That
		// message came before this connection, or by a replay.
		s.pending.forget()
		s.contradicted(fmt.Sprintf("message %d came where %d was due", seq, s.next))
	case !s.canReplay() && !s.verified:
		// This is a reconnect without a replay. Lost was called at the disconnect, so the handler accepts any stream.
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

// count gives a live message without a sequence number the next number, and hands it over. s.mu is held.
func (s *sequence) count(payload []byte) {
	if !s.unnumbered {
		s.unnumbered = true
		s.distrust, s.wanted, s.verified = true, false, true // the numbers in a replay do not match these counts
		s.whole, s.announced, s.overflow = false, false, false
		s.stopReplay()
		s.pending.forget()
		s.kept.forget()
		s.refuse("the engine's messages carry no sequence numbers")
		s.h.Lost(s.next, s.next)
		s.h.Unnumbered()
	}
	s.deliver(s.next, payload, true)
}

// repeats reports whether a live message was handed over or kept before. onward says that the message's number
// continues the live stream of this connection, or was handed over on this connection. If onward is true and the number
// is too old to be remembered, the message is a late message of the same stream, and counts as a repetition.
func (s *sequence) repeats(seq uint64, payload []byte, onward bool) bool {
	if seq >= s.next {
		return s.pending.compare(seq, payload) == same
	}
	switch s.seen.compare(seq, payload) {
	case same:
		if !s.seen.live(seq) { // the earlier copy came by replay: now replay and live stream agree
			s.agree()
		}
		s.verify()
		return true
	case unknown:
		return onward
	}
	return false
}

// askFrom requests a replay that begins at seq or earlier. seq is the number of the first live message of a connection.
// An earlier replay delivered a message with this number, and seen no longer remembers its content: the live stream
// came late, as on a busy machine. The new replay shows whether the replay and the live stream come from one engine.
func (s *sequence) askFrom(seq uint64, payload []byte) {
	if !s.canReplay() {
		return
	}
	s.seen.put(seq, payload, true)
	s.probe, s.wanted = seq+1, true
	s.wake()
}

// verify records that next and seen belong to the stream of this connection, and hands over kept messages that follow.
func (s *sequence) verify() {
	s.verified = true
	if s.resumed() {
		s.drain()
	}
}

// hold keeps a live message whose predecessors are missing, or that came before the stream is verified, and starts a
// replay. If there is no replay to request, the missing messages are lost.
func (s *sequence) hold(seq uint64, payload []byte) {
	s.announced = false
	if !s.canReplay() {
		s.lose(seq)
		s.deliver(seq, payload, true)
		return
	}
	if _, full := s.pending.put(seq, payload, true); full {
		s.overflow = true
	}
	s.wake()
}

// deliver hands over the next message. live means that it came from the live stream, not from a replay.
func (s *sequence) deliver(seq uint64, payload []byte, live bool) {
	s.next = seq + 1
	s.seen.put(seq, payload, live)
	if !live && !s.agreed {
		s.unproven = true
	}
	if seq == 0 && !s.unnumbered { // the history begins here, so no part of it is missing
		s.whole, s.gaveUp = true, false
	}
	s.h.Message(seq, payload)
	s.stats.next.Store(int64(s.next))
	s.stats.messages.Add(1)
	if live && s.lacking != nil && !s.whole && s.replay == "" && !s.unnumbered {
		s.retain(seq, payload)
	}
}

// drain hands over kept messages as long as the expected message is among them.
func (s *sequence) drain() {
	for s.pending.len() > 0 {
		m, ok := s.pending.take(s.next)
		if !ok {
			return
		}
		s.deliver(s.next, m.payload, m.live)
	}
}

// lose gives up the missing messages before the number end. If a kept message has a lower number than end, lose gives
// up only the messages before the kept message.
func (s *sequence) lose(end uint64) {
	if first, ok := s.pending.first(); ok {
		end = min(end, first)
	}
	from := s.next
	s.next = end
	s.stats.lost.Add(end - from)
	s.whole, s.announced = false, false
	s.kept.forget()
	s.h.Lost(from, end)
	s.drain()
}

// restart follows an engine whose stream began again. Pending messages stay, because they came on this connection. If a
// checkpoint waits for the engine, the engine has not confirmed it: the checkpoint is dropped, and the stream is read
// from its beginning.
func (s *sequence) restart(why string) {
	s.next = 0
	s.seen.forget()
	s.verified, s.whole, s.announced, s.gaveUp = true, true, false, false
	s.unnumbered, s.agreed, s.unproven = false, false, false
	s.began, s.probe = 0, 0
	s.wanted = s.canReplay()
	s.progress++
	s.kept.forget()
	if refused := s.refuse(why); !refused {
		s.h.Restarted(why)
		s.stats.restarts.Add(1)
	}
	s.stats.next.Store(0)
	s.stopReplay()
	s.wake()
}

// contradicted restarts the stream because replay and live stream, or two replays, have different messages under one
// number. Within one connection there are two possible causes: a restart behind a forwarder, or a replay endpoint of
// another engine. The live stream is believed. After maxStrikes contradictions without an agreement, the replay is not
// requested again on this connection.
func (s *sequence) contradicted(why string) {
	if s.verified && s.canReplay() { // if false, the contradicted message came before this connection
		s.strikes++
	}
	if s.strikes >= maxStrikes {
		s.distrust = true
		s.pending.forget() // some of these messages may be another engine's
		why = fmt.Sprintf("%s; the replay at %s contradicts the stream (is it another engine's?) and is not asked again", why, s.replay)
	}
	s.restart(why)
}

// agree records that replay and live stream had the same message: both come from one engine.
func (s *sequence) agree() { s.strikes, s.agreed, s.unproven = 0, true, false }

// announce reports that the history is whole, once after each time when this was in doubt. After a contradiction
// between replay and live stream, announce waits until both agree or the replay is distrusted, since the replay may be
// another engine's.
func (s *sequence) announce() {
	if s.whole && (s.strikes == 0 || s.distrust) && s.verified && !s.announced && !s.wanted && !s.overflow && s.pending.len() == 0 &&
		(!s.live || s.next > s.lastLive) {
		s.announced, s.behind = true, false
		s.h.Complete()
	}
}

// settle tells the handler whether the stream is behind, if that changed. Each function that changes the stream of a
// connection and takes s.mu calls settle before it unlocks s.mu. s.mu is held.
func (s *sequence) settle() {
	behind := s.whole && !s.announced
	if !s.whole { // Complete will not be called, so the missing messages themselves decide
		behind = !s.verified || s.wanted || s.overflow || s.pending.len() > 0 || s.live && s.next <= s.lastLive
	}
	if behind == s.behind || !s.connected {
		return
	}
	s.behind = behind
	if behind {
		s.recovering = time.Now()
	}
	s.h.Behind(behind)
}

// overdue reports whether the present recovery exceeds RecoveryTime. s.mu is held.
func (s *sequence) overdue() bool { return time.Since(s.recovering) > s.cfg.RecoveryTime }

// linked reports whether replay and live stream have met: every live message of this connection was handed over, and
// replayed messages are proven to be the same engine's.
func (s *sequence) linked() bool {
	return s.live && !s.unproven && s.verified && !s.overflow && s.next > s.lastLive && s.pending.len() == 0
}
