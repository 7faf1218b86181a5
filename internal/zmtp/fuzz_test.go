package zmtp

import (
	"bytes"
	"io"
	"testing"
)

func FuzzReader(f *testing.F) {
	f.Add(appendMessage(nil, []byte("topic"), make([]byte, 8), make([]byte, 300)))
	f.Add(appendCommand(appendFrame(nil, flagMore, nil), "PING", []byte{0, 0}))
	f.Add([]byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, wire []byte) {
		l := limits{4 << 10, 8 << 10, 4}
		r := newReader(bytes.NewReader(wire), 64, l)
		r.onCommand = func(body []byte) error {
			if name, data, err := splitCommand(body); err == nil && string(name) == "PING" {
				_, _, _ = parsePing(data)
			}
			return nil
		}
		for {
			parts, err := r.next()
			if err != nil {
				break
			}
			total := 0
			for _, p := range parts {
				total += len(p)
			}
			if len(parts) == 0 || len(parts) > l.parts || total > l.message {
				t.Fatalf("a message of %d parts and %d bytes is over the limits", len(parts), total)
			}
			// If the parts are encoded and read again, they must be the same.
			again := newReader(bytes.NewReader(appendMessage(nil, parts...)), 64, l)
			back, err := again.next()
			if err != nil || len(back) != len(parts) {
				t.Fatalf("a message does not survive re-encoding: %v", err)
			}
			for i := range back {
				if !bytes.Equal(back[i], parts[i]) {
					t.Fatalf("part %d changed", i)
				}
			}
		}
		if len(r.buf) > 4*(len(wire)+64) {
			t.Fatalf("a buffer of %d bytes for %d received", len(r.buf), len(wire))
		}
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add(peerBytes(1, "PUB"))
	f.Add(peerBytes(0, "XPUB"))
	f.Add(appendCommand(greeting[:], "ERROR", []byte("\x04nope")))
	f.Fuzz(func(t *testing.T, wire []byte) {
		rw := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(wire), io.Discard}
		r := newReader(rw, 64, limits{4 << 10, 8 << 10, 4})
		minor, m, err := shakeHands(rw, r, SUB, "")
		if err != nil {
			return
		}
		if len(wire) < greetingSize || wire[0] != 0xff || wire[11] != minor || (m.socketType != "PUB" && m.socketType != "XPUB") {
			t.Fatalf("accepted minor %d, type %q", minor, m.socketType)
		}
	})
}
