package kvevent

import "math"

// Step says how a message's number follows the messages before it.
type Step uint8

// The steps of a sequence.
const (
	InOrder   Step = iota // the next message: apply it
	Duplicate             // already applied: a replay overlaps the live stream; drop it
	Gap                   // messages from Expected up to this one are missing: replay, or Jump and forget
	// the live stream went back: the engine restarted; forget the holder, Reset, pass the message again
	Behind
)

var stepNames = [...]string{"in order", "duplicate", "gap", "behind"}

// String returns the step in words.
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return "unknown"
}

// Sequence follows the message numbers of one holder. Engines count from 0 at every start. They have no heartbeat and
// no state dump (vllm#40363). So a first message above 0 is a gap, and a live number that goes back is a restart. The
// zero value expects message 0. For one goroutine.
//
// A publisher never sends a number twice on a connection, so a live number at or below the last live number is a
// restart. A number above it that a replay has already brought is a duplicate.
type Sequence struct {
	next  uint64 // the number that continues the stream
	floor uint64 // the lowest number that the live stream may still send on this connection
}

// Next takes the number of a live message. Gap and Behind do not change the sequence.
func (s *Sequence) Next(seq uint64) Step {
	switch {
	case seq == math.MaxUint64: // the replay's end marker; no engine counts so far
		return Gap
	case seq < s.floor:
		return Behind
	case seq > s.next:
		return Gap
	}
	s.floor = seq + 1
	return s.advance(seq)
}

// Replayed takes the number of a replayed message. A replay may begin below Expected, and never means a restart.
func (s *Sequence) Replayed(seq uint64) Step {
	if seq > s.next {
		return Gap
	}
	return s.advance(seq)
}

func (s *Sequence) advance(seq uint64) Step {
	if seq < s.next {
		return Duplicate
	}
	s.next = seq + 1
	return InOrder
}

// Expected returns the number that continues the stream: a replay begins there.
func (s *Sequence) Expected() uint64 { return s.next }

// Jump gives up the messages before to: they are lost, and to becomes the expected number. It never goes back.
func (s *Sequence) Jump(to uint64) {
	s.next = max(s.next, to)
}

// Reconnected records that the live stream has a new connection. Its messages are published from now on, so a number
// below Expected is a restart. A restarted engine that has already counted past Expected goes unnoticed here: to find
// it, compare a replayed message with the one that came before.
func (s *Sequence) Reconnected() { s.floor = s.next }

// Reset makes the sequence expect message 0 of a restarted engine.
func (s *Sequence) Reset() { *s = Sequence{} }
