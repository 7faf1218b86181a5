package zmtp

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const greetingSize = 64

// greeting is the greeting that this package sends: the signature, version 3.1, mechanism NULL, and as-server 0 (RFC
// 37).
var greeting = func() (g [greetingSize]byte) {
	// Byte 8 is padding. libzmq sets it to 1, so that a ZMTP 1 peer reads the greeting as a long frame with an empty
	// identity.
	g[0], g[8], g[9] = 0xff, 1, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}()

// ErrNotZMTP means that the peer does not speak ZMTP 3 with the NULL mechanism.
var ErrNotZMTP = errors.New("peer does not speak ZMTP 3 with the NULL mechanism")

// shakeHands exchanges greetings and READY commands over rw. It returns the minor version and the metadata of the peer.
// r must read from rw. shakeHands sets no time limit: the caller must set one.
func shakeHands(rw io.ReadWriter, r *reader, self Type, identity string) (minor byte, m metadata, err error) {
	// The whole greeting is sent at once. Only peers that also speak ZMTP 1 or 2 need a greeting in several steps.
	if _, err := rw.Write(greeting[:]); err != nil {
		return 0, m, fmt.Errorf("send greeting: %w", err)
	}
	if minor, err = readGreeting(rw); err != nil {
		return 0, m, err
	}
	properties := appendProperty(nil, "Socket-Type", self.String())
	if self == DEALER || self == ROUTER {
		properties = appendProperty(properties, "Identity", identity)
	}
	if _, err := rw.Write(appendCommand(nil, "READY", properties)); err != nil {
		return 0, m, fmt.Errorf("send READY: %w", err)
	}
	if m, err = readReady(r); err != nil {
		return 0, m, err
	}
	if !slices.Contains(typeTable[self].peers, m.socketType) {
		reason := fmt.Sprintf("a %v socket cannot talk to a %.16s socket", self, m.socketType)
		// The ERROR command tells the peer the reason. An error of this write does not matter, because the connection
		// ends anyway.
		_, _ = rw.Write(appendCommand(nil, "ERROR", append([]byte{byte(len(reason))}, reason...)))
		return 0, m, errors.New(reason)
	}
	return minor, m, nil
}

// readGreeting checks each part of the greeting when the part arrives. So a peer with another protocol is recognized
// without waiting for 64 bytes.
func readGreeting(src io.Reader) (minor byte, err error) {
	var g [greetingSize]byte
	if _, err := io.ReadFull(src, g[:1]); err != nil {
		return 0, fmt.Errorf("read greeting: %w", err)
	}
	if g[0] != 0xff {
		return 0, fmt.Errorf("%w: it begins with %#02x", ErrNotZMTP, g[0])
	}
	if _, err := io.ReadFull(src, g[1:11]); err != nil {
		return 0, fmt.Errorf("read greeting: %w", err)
	}
	if g[9]&1 == 0 || g[10] < 3 {
		return 0, fmt.Errorf("%w: its version is %d", ErrNotZMTP, g[10])
	}
	if _, err := io.ReadFull(src, g[11:]); err != nil {
		return 0, fmt.Errorf("read greeting: %w", err)
	}
	if mechanism := strings.TrimRight(string(g[12:32]), "\x00"); mechanism != "NULL" {
		return 0, fmt.Errorf("%w: its mechanism is %q", ErrNotZMTP, mechanism)
	}
	return g[11], nil
}

// readReady reads the READY of the peer. READY must be the first frame of the peer.
func readReady(r *reader) (metadata, error) {
	flags, from, to, err := r.frame(0)
	if err != nil {
		return metadata{}, fmt.Errorf("read READY: %w", err)
	}
	if flags&flagCommand == 0 {
		return metadata{}, errors.New("read READY: peer sent a message first")
	}
	body := r.buf[r.head+from : r.head+to]
	r.consume(to)
	name, data, err := splitCommand(body)
	if err != nil {
		return metadata{}, fmt.Errorf("read READY: %w", err)
	}
	switch string(name) {
	case "READY":
		return parseMetadata(data)
	case "ERROR":
		return metadata{}, parseError(data)
	}
	return metadata{}, fmt.Errorf("read READY: peer sent %q first", name)
}
