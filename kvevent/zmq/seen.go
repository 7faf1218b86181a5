package zmq

import "github.com/zeebo/xxh3"

// seenSize is how many messages back a duplicate can be told from a restarted stream. A live message lags behind its replay
// by what is in flight, some hundreds at most; 16 bytes each.
const seenSize = 1024

// seen remembers hashes of the last messages. The zero value remembers nothing.
type seen struct {
	entries [seenSize]struct{ seq, hash uint64 } // seq is one more than the message's, so that zero means none
}

type likeness uint8

const (
	unknown likeness = iota // too long ago, or never seen
	same
	different
)

func (s *seen) put(seq uint64, payload []byte) {
	e := &s.entries[seq%seenSize]
	e.seq, e.hash = seq+1, xxh3.Hash(payload)
}

// compare tells whether the message is the one seen under that number. Payloads hold a time stamp, so two engine runs never
// agree by chance.
func (s *seen) compare(seq uint64, payload []byte) likeness {
	e := &s.entries[seq%seenSize]
	if e.seq != seq+1 {
		return unknown
	}
	if e.hash != xxh3.Hash(payload) {
		return different
	}
	return same
}

func (s *seen) forget() { clear(s.entries[:]) }
