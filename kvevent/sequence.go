package kvevent

import "math"

// Step says how a message stands to the ones before it.
type Step uint8

// The steps of a sequence.
const (
	InOrder   Step = iota // the next message: apply it
	Duplicate             // already applied, by a replay that overlaps the live stream: drop it
	Gap                   // messages from Expected up to this one are missing: replay, or Jump and forget
	Behind                // the live stream went back: the engine began anew; forget the holder, Reset, offer it again
)

var stepNames = [...]string{"in order", "duplicate", "gap", "behind"}

// String returns the step in words.
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return "unknown"
}

// Sequence follows the message numbers of one holder. Engines count from 0 at every start, have no heartbeat and no
// state dump (vllm#40363), so: a first message above 0 is a gap, and a live number that goes back is a restart. The
// zero value expects message 0. It is a plain value for one goroutine.
//
// A publisher never sends a number twice on a connection, therefore a live number at or below the last live one is a
// restart. Between the two, numbers that a replay has already brought are duplicates.
type Sequence struct {
	next  uint64 // the number that continues the stream
	floor uint64 // the lowest number that the live stream may still carry on this connection
}

// Next takes a message of the live stream. Only InOrder and Duplicate messages are taken in; after Gap or Behind
// Expected is what it was.
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

// Replayed takes a message of a replay, which may begin below what is already known and never means a restart.
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

// Expected returns the number that continues the stream: where a replay has to begin.
func (s *Sequence) Expected() uint64 { return s.next }

// Jump gives up on the messages before to: they are lost, the history is incomplete, and to comes next. It never
// goes back.
func (s *Sequence) Jump(to uint64) {
	s.next = max(s.next, to)
}

// Reconnected says that the live stream comes over a new connection. What it carries was published after now, so a
// number below Expected is a restart from here on. An engine that restarted and has already counted past Expected is
// not seen here: compare a replayed message with what it was.
func (s *Sequence) Reconnected() { s.floor = s.next }

// Reset expects message 0 of an engine that began anew.
func (s *Sequence) Reset() { *s = Sequence{} }
