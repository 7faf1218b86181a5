package publish

import "encoding/binary"

// kept has the payloads of the last messages, for replay.
type kept struct {
	steps int // largest number of messages
	most  int // largest number of bytes, except that the last message is always kept

	first, next uint64   // the messages from first to next-1 are kept
	ring        [][]byte // payload of the message with number seq, at index seq % steps
	bytes       int
}

// add keeps the payload of the next message, and returns the message's number.
func (k *kept) add(payload []byte) (seq uint64) {
	seq = k.next
	k.next++
	if k.next-k.first > uint64(k.steps) {
		k.drop()
	}
	if slot := int(seq % uint64(k.steps)); slot < len(k.ring) {
		k.ring[slot] = payload
	} else {
		k.ring = append(k.ring, payload)
	}
	k.bytes += len(payload)
	for k.bytes > k.most && k.first < seq {
		k.drop()
	}
	return seq
}

// drop drops the oldest message.
func (k *kept) drop() {
	slot := &k.ring[k.first%uint64(k.steps)]
	k.bytes -= len(*slot)
	*slot = nil
	k.first++
}

// replayStep is how many messages of a replay are taken from the buffer at once. It bounds the payloads that a slow
// reader of a replay keeps in memory after they left the buffer.
const replayStep = 64

// from appends at most replayStep payloads to dst: those of the messages from seq on, or from a later message on if
// that is the first one that is kept. It returns the number of the first of them. end is the first message that is not
// wanted.
func (k *kept) from(seq, end uint64, dst [][]byte) (first uint64, payloads [][]byte) {
	first = max(seq, k.first)
	for at := first; at < min(end, k.next) && len(dst) < replayStep; at++ {
		dst = append(dst, k.ring[at%uint64(k.steps)])
	}
	return first, dst
}

// Answer answers a replay request `["", start]`, by sending the kept messages from start on and the end marker with
// send. It ignores other requests, as vLLM does. An error of send means that the reader is gone, and ends the answer.
// Run calls Answer for each request at the replay endpoint; Answer is for callers with a socket of their own.
//
// Answer waits for a slow reader. vLLM does not wait: it loses replies beyond its send limit.
func (p *KVPublisher) Answer(request [][]byte, send func(parts ...[]byte) error) {
	if len(request) != 2 || len(request[0]) != 0 || len(request[1]) > 8 {
		p.mu.Lock()
		p.stats.Malformed++
		p.mu.Unlock()
		return
	}
	var seq uint64 // big-endian, in up to 8 bytes: vLLM does not require all 8
	for _, b := range request[1] {
		seq = seq<<8 | uint64(b)
	}
	p.mu.Lock()
	p.stats.Replays++
	end := p.kept.next
	p.mu.Unlock()
	wanted := func(uint64) bool { return true }
	if p.cfg.Faults.Replay != nil {
		wanted = p.cfg.Faults.Replay()
	}
	var payloads [][]byte
	for {
		p.mu.Lock()
		seq, payloads = p.kept.from(seq, end, payloads[:0])
		p.mu.Unlock()
		if len(payloads) == 0 {
			break
		}
		for _, payload := range payloads {
			if wanted(seq) {
				if send(p.reply(seq, payload)...) != nil {
					return
				}
				p.mu.Lock()
				p.stats.Replayed++
				p.mu.Unlock()
			}
			seq++
		}
	}
	if wanted(EndSeq) {
		_ = send(p.reply(EndSeq, nil)...) // an error means that the reader is gone
	}
}

// reply returns the frames of one message of a replay. The end marker has an empty topic.
func (p *KVPublisher) reply(seq uint64, payload []byte) [][]byte {
	number := binary.BigEndian.AppendUint64(nil, seq)
	switch {
	case p.cfg.ReplayWithoutTopic:
		return [][]byte{nil, number, payload}
	case seq == EndSeq:
		return [][]byte{nil, nil, number, payload}
	}
	return [][]byte{nil, []byte(p.cfg.Topic), number, payload}
}
