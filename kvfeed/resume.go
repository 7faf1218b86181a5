package kvfeed

import (
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// A checkpoint says what another router, or an earlier process, knew of a holder before a message of the holder's
// stream. resume.go decides whether a sequence may continue from it. The engine must confirm the checkpoint: a message
// before the checkpoint's number must come from the engine, on the present connection, with the digest that the
// checkpoint has for it. A number alone proves nothing, because a new process of the engine counts from 0, too.
//
// With a replay endpoint, the sequence asks for the last messages of the checkpoint, as after a reconnect. Without one,
// the sequence keeps the live messages of the connection, until a checkpoint includes one of them. Such a checkpoint
// must come from a router that follows the engine at the same time.

// The reasons why a sequence cannot continue from a checkpoint. After errEarly a later checkpoint may do.
var (
	errWhole = errors.New("the history is whole without it")
	errEarly = errors.New("it has no message of this connection yet")
)

// resumption is a checkpoint from which a sequence may continue.
type resumption struct {
	next    uint64   // the number of the first message that the checkpoint does not include
	digests []uint64 // the digests of the last messages before next, oldest first
	whole   bool     // the checkpoint has the whole history
	// load gives the content of the checkpoint to the handler, in place of all that the handler knows. refused tells
	// the handler that the engine does not confirm the checkpoint: the handler forgets all that it knows. The sequence
	// calls one of them at most, and as it calls the handler: with mu held.
	load    func() error
	refused func(why string)
}

// first returns the number of the first message for which the checkpoint has a digest.
func (r *resumption) first() uint64 { return r.next - uint64(len(r.digests)) }

// compare compares a message with the message that the checkpoint includes under that number.
func (r *resumption) compare(seq uint64, payload []byte) likeness {
	switch {
	case seq < r.first() || seq >= r.next:
		return unknown
	case r.digests[seq-r.first()] != digest(payload):
		return different
	}
	return same
}

// digest returns the digest of a message, as seen keeps it.
func digest(payload []byte) uint64 { return xxh3.Hash(payload) &^ liveBit }

// recent returns the digests of the last messages before next that are remembered without a gap, oldest first.
func (s *seen) recent(next uint64) []uint64 {
	from := next
	for from > 0 && next-from < seenSize && s.entries[(from-1)%seenSize].seq == from {
		from--
	}
	digests := make([]uint64, 0, next-from)
	for seq := from; seq < next; seq++ {
		digests = append(digests, s.entries[seq%seenSize].hash&^liveBit)
	}
	return digests
}

// restore remembers the digests of a checkpoint, as of messages that did not come on this connection.
func (s *seen) restore(r *resumption) {
	for i, d := range r.digests {
		seq := r.first() + uint64(i)
		s.entries[seq%seenSize] = struct{ seq, hash uint64 }{seq + 1, d &^ liveBit}
	}
}

// cut calls take with the number of the next message and the digests of the messages before it. While take runs, no
// message is handed over. If messages are missing, or may be, cut returns an error.
func (s *sequence) cut(take func(next uint64, digests []uint64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.connected:
		return errors.New("its event stream is disconnected")
	case s.unnumbered:
		return errors.New("its messages carry no sequence numbers")
	case s.behind || !s.verified || s.wanted || s.overflow || s.pending.len() > 0 || s.live && s.next <= s.lastLive:
		return errors.New("messages are missing, or its history is being read")
	}
	digests := s.seen.recent(s.next)
	if len(digests) == 0 {
		return errors.New("its engine has sent no message")
	}
	return take(s.next, digests)
}

// resumeFrom lets the sequence continue from a checkpoint, now or as soon as the engine confirms it.
func (s *sequence) resumeFrom(r *resumption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.settle()
	switch {
	case s.unnumbered:
		return errors.New("the engine's messages carry no sequence numbers")
	case s.whole && (s.announced || s.next > 0) || s.resume != nil:
		return errWhole
	case s.canReplay():
		return s.rewind(r)
	case s.replay != "":
		return errors.New("the engine's replay contradicts its stream")
	}
	return s.join(r)
}

// rewind continues from a checkpoint as after a reconnect: the next replay must begin with messages that the checkpoint
// includes. Until then the checkpoint is not used, and the messages after it wait.
func (s *sequence) rewind(r *resumption) error {
	for seq, m := range s.pending.messages {
		if r.compare(seq, m.payload) == different {
			return fmt.Errorf("its message %d is not the one that came", seq)
		}
	}
	for i, d := range r.digests {
		seq := r.first() + uint64(i)
		if e := &s.seen.entries[seq%seenSize]; s.seen.live(seq) && e.hash&^liveBit != d {
			return fmt.Errorf("its message %d is not the one that came", seq)
		}
	}
	for seq := range s.pending.messages {
		if seq < r.next {
			s.pending.take(seq)
		}
	}
	s.resume = r
	s.next = r.next
	s.seen.forget()
	s.seen.restore(r)
	s.verified, s.whole, s.announced, s.gaveUp = false, r.whole, false, false
	s.live, s.agreed, s.unproven = false, false, false // as on a new connection
	s.began, s.probe = r.next, 0
	s.wanted = true
	s.progress++
	s.stopReplay()
	s.wake()
	return nil
}

// resumed gives the checkpoint that the engine has confirmed to the handler. It reports whether the sequence continues
// after the checkpoint. If the handler cannot take the checkpoint, the sequence begins again.
func (s *sequence) resumed() bool {
	r := s.resume
	if r == nil {
		return true
	}
	s.resume = nil
	if err := r.load(); err != nil {
		s.resume = r
		s.restart(err.Error())
		return false
	}
	s.stats.next.Store(int64(s.next))
	return true
}

// refuse drops the checkpoint that waits for the engine, and reports whether there was one.
func (s *sequence) refuse(why string) bool {
	r := s.resume
	if r == nil {
		return false
	}
	s.resume = nil
	r.refused(why)
	return true
}

// join continues from a checkpoint without a replay. The checkpoint must include at least one kept message of this
// connection, and each kept message that it does not include is handed over again.
func (s *sequence) join(r *resumption) error {
	if !s.connected || s.kept.len() == 0 || r.next <= s.keptFrom {
		return errEarly
	}
	equal := 0
	for seq := max(s.keptFrom, r.first()); seq < min(r.next, s.next); seq++ {
		if r.compare(seq, s.kept.messages[seq].payload) == different {
			return fmt.Errorf("its message %d is not the one that came", seq)
		}
		equal++
	}
	if equal == 0 {
		return errEarly
	}
	if err := r.load(); err != nil {
		s.kept.forget()
		return err
	}
	end := s.next
	s.seen.restore(r)
	for seq := s.keptFrom; seq < min(end, r.next); seq++ {
		s.seen.put(seq, s.kept.messages[seq].payload, true)
	}
	s.next, s.whole, s.announced = r.next, r.whole, false
	s.stats.next.Store(int64(s.next))
	for s.next < end {
		s.deliver(s.next, s.kept.messages[s.next].payload, true)
	}
	s.kept.forget()
	s.announce()
	return nil
}

// The bounds of the messages that sequences keep for a checkpoint. A checkpoint is some hundred milliseconds old when
// it comes. A busy engine sends a hundred messages of some kilobytes in this time. If no peer has a checkpoint, a
// sequence keeps messages for good. So all streams share 256 MiB; from 4,096 streams on, each has 64 KiB.
const (
	keptMessages   = 4096
	mostKeptBytes  = 4 << 20
	leastKeptBytes = 64 << 10
	allKeptBytes   = 256 << 20
)

// keptRoom returns how many bytes one of n streams may keep.
func keptRoom(n int) int {
	return min(max(allKeptBytes/max(n, 1), leastKeptBytes), mostKeptBytes)
}

// retain keeps a live message until a checkpoint comes. If there is no more room, it keeps only the new message: a
// later checkpoint may include that one.
func (s *sequence) retain(seq uint64, payload []byte) {
	s.kept.maxBytes = min(s.cfg.PendingBytes, s.room())
	if _, full := s.kept.put(seq, payload, true); full {
		s.kept.forget()
		s.kept.put(seq, payload, true)
	}
	if s.kept.len() == 1 {
		s.keptFrom = seq
		s.lacking()
	}
}
