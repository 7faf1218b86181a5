package kvfeed

import "github.com/zeebo/xxh3"

// seenSize is the number of last messages whose hashes are remembered; each takes 16 bytes. For these messages, the
// hash tells a duplicate from a message with the same number of a restarted stream. A live message may come after a
// replay has already brought the same message. It is then late by the number of messages in flight, mostly some
// hundreds. On a busy machine it may be later than seenSize messages: then sequence.askFrom requests the message once
// more.
const seenSize = 1024

// seen remembers hashes of the last messages. The zero value remembers nothing.
type seen struct {
	// seq is the message's number plus one; 0 means that the entry is empty. The lowest bit of hash is liveBit, not a bit
	// of the message's hash.
	entries [seenSize]struct{ seq, hash uint64 }
}

// liveBit is set in an entry's hash if the message came live on the current connection, not by a replay.
const liveBit = 1

type likeness uint8

const (
	unknown likeness = iota // the message is no longer remembered, or was never seen
	same
	different
)

func (s *seen) put(seq uint64, payload []byte, live bool) {
	e := &s.entries[seq%seenSize]
	e.seq, e.hash = seq+1, xxh3.Hash(payload)&^liveBit
	if live {
		e.hash |= liveBit
	}
}

// live reports whether the message is remembered and came live on the current connection.
func (s *seen) live(seq uint64) bool {
	e := &s.entries[seq%seenSize]
	return e.seq == seq+1 && e.hash&liveBit != 0
}

// forgetReplayed forgets the messages that did not come live on the current connection.
func (s *seen) forgetReplayed() {
	for i := range s.entries {
		if s.entries[i].hash&liveBit == 0 {
			s.entries[i].seq = 0
		}
	}
}

// disconnect marks the remembered messages: none of them came live on the next connection.
func (s *seen) disconnect() {
	for i := range s.entries {
		s.entries[i].hash &^= liveBit
	}
}

// compare compares the message with the message seen under that number. Two runs of an engine never have equal messages
// by chance, because payloads contain a time stamp.
func (s *seen) compare(seq uint64, payload []byte) likeness {
	e := &s.entries[seq%seenSize]
	if e.seq != seq+1 {
		return unknown
	}
	if (e.hash^xxh3.Hash(payload))&^liveBit != 0 {
		return different
	}
	return same
}

func (s *seen) forget() { clear(s.entries[:]) }
