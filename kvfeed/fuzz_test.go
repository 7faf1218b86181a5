package kvfeed

import (
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzFrames feeds arbitrary frames to both parsers.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("topic"), make([]byte, 8), []byte("payload"), 3)
	f.Add([]byte{}, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), []byte{}, 3)
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		parts := [][]byte{a, b, c, a, b}
		if n < 0 || n > len(parts) {
			return
		}
		if seq, _, err := parseLive(parts[:n]); err == nil && (seq != binary.BigEndian.Uint64(b) || seq == endSeq) {
			t.Errorf("live message %d", seq)
		}
		if seq, _, end, err := parseReplay(parts[:n]); err == nil && !end && seq == endSeq {
			t.Error("an end marker of a replay is taken for a message")
		}
	})
}

// FuzzStream drives a stream with connections, disconnections, and arbitrary live and replayed messages of two runs of
// an engine. The diary checks that every gap in the messages is reported. This test checks that the bounds on kept
// messages hold. If there is a replay endpoint, the test also checks that the stream then learns the whole history of a
// third run at the same endpoints.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 0, 1, 0}, true, uint8(3))
	f.Add([]byte{0, 0, 1, 9, 2, 3, 1, 1, 4, 0, 3, 0, 0, 0, 1, 2, 2, 2, 5, 0}, true, uint8(3))
	f.Add([]byte{0, 0, 1, 9, 1, 20, 1, 5}, false, uint8(0))
	f.Add([]byte{0, 0, 1, 0, 1, 1, 3, 0, 0, 0, 1, 2, 2, 1, 37, 0, 5, 0, 6, 0}, true, uint8(40)) // a message before its replay
	f.Fuzz(func(t *testing.T, ops []byte, replay bool, third uint8) {
		d := newDiary(t)
		endpoint := ""
		if replay {
			endpoint = "tcp://127.0.0.1:1"
		}
		cfg := quickStream.withDefaults()
		cfg.PendingMessages = 8
		s := newSequence(cfg, endpoint, d)
		var a attempt
		run := "a"
		for ; len(ops) >= 2; ops = ops[2:] {
			seq := uint64(ops[1])
			switch ops[0] % 7 {
			case 0:
				if !s.connected {
					s.connect()
					a = attempt{}
				}
			case 1:
				from := run
				if ops[0]&0x80 != 0 {
					from = "a" // a message of the first run was still under way when the second run began
				}
				if s.connected {
					s.receive(liveMessage("t", seq, payload(from, seq)))
				}
			case 2:
				if replay && s.begin(&a) {
					for i := range uint64(ops[0]>>4) + 1 {
						if s.replayed(&a, liveMessage("", seq+i, payload(run, seq+i))) {
							break
						}
					}
					s.judge(&a, nil)
				}
			case 3:
				if s.connected {
					s.disconnect(errors.New("gone"))
				}
			case 4:
				run = "b"
			case 5:
				if replay && s.begin(&a) {
					s.replayed(&a, append([][]byte{nil}, liveMessage("", endSeq, "")...))
					s.judge(&a, nil)
				}
			case 6:
				if replay && s.connected {
					s.giveUp(s.epoch, errors.New("no answer"))
				}
			}
			if s.pending.len() > 8 || s.pending.bytes < 0 {
				t.Fatalf("%d messages of %d bytes kept", s.pending.len(), s.pending.bytes)
			}
			if first, ok := s.pending.first(); ok && first <= s.next && s.verified {
				t.Fatalf("message %d is kept though %d is due", first, s.next)
			}
			if s.next != d.next {
				t.Fatalf("the stream is at %d, the handler at %d", s.next, d.next)
			}
		}
		if !replay {
			return
		}
		// A third run of the engine begins: no message of the first two runs remains, and no message of the third run is
		// missing.
		if s.connected {
			s.disconnect(errors.New("gone"))
		}
		s.connect()
		complete, n := d.complete, uint64(third)
		replayed(s, "c", n)
		if s.wanted { // catchUp has given up, and is called again
			s.giveUp(s.epoch, errors.New("nothing new"))
			replayed(s, "c", n)
		}
		if d.next != n || d.complete == complete || len(d.payloads) != int(n) {
			t.Fatalf("after the third run's %d messages: the next number is %d, complete again %d times, restarts %q, lost %v", n, d.next, d.complete-complete, d.restarts, d.lost)
		}
		d.expectPayloads("c", 0, n)
	})
}
