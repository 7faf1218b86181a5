package kvfeed

import "bytes"

// pending keeps messages that came before a missing message was received, up to a bound.
type pending struct {
	messages    map[uint64]waiting
	bytes       int
	maxMessages int
	maxBytes    int
}

// waiting is one kept message.
type waiting struct {
	payload []byte
	live    bool // the message came from the live stream; false: from a replay
}

// put keeps a copy of the message. fresh reports that the message was not kept before. full reports that the message is
// not kept, because of the bound.
func (p *pending) put(seq uint64, payload []byte, live bool) (fresh, full bool) {
	if _, ok := p.messages[seq]; ok {
		return false, false
	}
	if len(p.messages) >= p.maxMessages || p.bytes+len(payload) > p.maxBytes {
		return false, true
	}
	if p.messages == nil {
		p.messages = make(map[uint64]waiting)
	}
	p.messages[seq] = waiting{bytes.Clone(payload), live}
	p.bytes += len(payload)
	return true, false
}

// take removes the message with this number and returns it.
func (p *pending) take(seq uint64) (m waiting, ok bool) {
	m, ok = p.messages[seq]
	if ok {
		delete(p.messages, seq)
		p.bytes -= len(m.payload)
	}
	if len(p.messages) == 0 {
		p.messages = nil // a map never gives memory back, so a new map is made when needed
	}
	return m, ok
}

// first returns the lowest sequence number that is kept.
func (p *pending) first() (seq uint64, ok bool) {
	for s := range p.messages {
		if !ok || s < seq {
			seq, ok = s, true
		}
	}
	return seq, ok
}

// compare compares a message with the kept message of the same number.
func (p *pending) compare(seq uint64, payload []byte) likeness {
	m, ok := p.messages[seq]
	switch {
	case !ok:
		return unknown
	case bytes.Equal(m.payload, payload):
		return same
	}
	return different
}

func (p *pending) len() int { return len(p.messages) }

func (p *pending) forget() { p.messages, p.bytes = nil, 0 }
