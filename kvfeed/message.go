package kvfeed

import (
	"encoding/binary"
	"errors"
	"math"
)

// endSeq is the sequence number of a replay's end marker, whose payload is empty.
const endSeq = math.MaxUint64

// parseLive reads the frames of a live message: topic, sequence number (8 bytes, big-endian), payload.
func parseLive(parts [][]byte) (seq uint64, payload []byte, err error) {
	if len(parts) != 3 || len(parts[1]) != 8 {
		return 0, nil, errors.New("not topic, sequence number and payload")
	}
	seq = binary.BigEndian.Uint64(parts[1])
	if seq == endSeq {
		return 0, nil, errors.New("an end marker in the live stream")
	}
	return seq, parts[2], nil
}

// parseUnnumbered reads a live message of two frames, topic and payload, from a publisher that sends no sequence
// numbers. ok is false for other messages.
func parseUnnumbered(parts [][]byte) (payload []byte, ok bool) {
	if len(parts) != 2 || len(parts[1]) == 0 {
		return nil, false
	}
	return parts[1], true
}

// parseReplay reads a message of a replay: "", [topic], sequence number, payload. It counts the frames from the end,
// because vLLM sends the topic frame only from version 0.26 on. end reports whether the message is the end marker.
func parseReplay(parts [][]byte) (seq uint64, payload []byte, end bool, err error) {
	n := len(parts)
	if n < 3 || n > 4 || len(parts[0]) != 0 || len(parts[n-2]) != 8 {
		return 0, nil, false, errors.New("not an empty frame, topic, sequence number and payload")
	}
	seq, payload = binary.BigEndian.Uint64(parts[n-2]), parts[n-1]
	if seq != endSeq {
		return seq, payload, false, nil
	}
	if len(payload) != 0 {
		return 0, nil, false, errors.New("an end marker with a payload")
	}
	return 0, nil, true, nil
}
