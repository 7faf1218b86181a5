package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

const (
	// maxCommand bounds the bytes of a command frame. The largest valid commands are READY, which has metadata, and
	// SUBSCRIBE.
	maxCommand = 8 << 10
	// maxIdentity is the largest length of an identity, in bytes (RFC 23).
	maxIdentity = 255
	// maxPingContext is the largest length of the context in a PING, in bytes (RFC 37). The PONG repeats the context.
	maxPingContext = 16
)

// splitCommand splits a command's body into its name and its data.
func splitCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) || body[0] == 0 {
		return nil, nil, errors.New("malformed command")
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], nil
}

// appendCommand appends a whole command frame.
func appendCommand(dst []byte, name string, data []byte) []byte {
	size := 1 + len(name) + len(data)
	if size > 255 {
		dst = append(dst, flagCommand|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(size))
	} else {
		dst = append(dst, flagCommand, byte(size))
	}
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

// appendProperty appends one metadata property of a READY.
func appendProperty(dst []byte, name, value string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// metadata has the properties of a peer's READY that this package uses.
type metadata struct {
	socketType string
	identity   string
}

// parseMetadata reads the properties of a READY. Upper and lower case in the names of properties are the same, and
// unknown properties are ignored (RFC 23).
func parseMetadata(data []byte) (metadata, error) {
	var m metadata
	for len(data) > 0 {
		n := int(data[0])
		if n == 0 || len(data) < 1+n+4 {
			return m, errors.New("malformed metadata")
		}
		name, rest := data[1:1+n], data[1+n+4:]
		size := binary.BigEndian.Uint32(data[1+n:])
		if uint64(size) > uint64(len(rest)) {
			return m, fmt.Errorf("metadata property %q reaches past its command", name)
		}
		value := string(rest[:size])
		data = rest[size:]
		switch {
		case bytes.EqualFold(name, []byte("Socket-Type")):
			m.socketType = value
		case bytes.EqualFold(name, []byte("Identity")):
			m.identity = value
		}
	}
	if len(m.identity) > maxIdentity || (m.identity != "" && m.identity[0] == 0) {
		return m, fmt.Errorf("invalid identity %q", m.identity)
	}
	return m, nil
}

// parsePing reads the data of a PING. If the sender of the PING is then silent for ttl, its connection must be ended.
// ttl 0 means no limit. The PONG must repeat context.
func parsePing(data []byte) (ttl time.Duration, context []byte, err error) {
	if len(data) < 2 || len(data) > 2+maxPingContext {
		return 0, nil, errors.New("malformed PING")
	}
	tenths := time.Duration(binary.BigEndian.Uint16(data))
	return tenths * 100 * time.Millisecond, data[2:], nil
}

// parseError returns an error with the reason that an ERROR command gives.
func parseError(data []byte) error {
	if len(data) == 0 || len(data) < 1+int(data[0]) {
		return errors.New("peer refuses without a reason")
	}
	return fmt.Errorf("peer refuses: %q", data[1:1+int(data[0])])
}
