package replica

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
)

const (
	// mostLine bounds a line of a NATS server. The longest is its INFO, with the addresses of a cluster.
	mostLine = 64 << 10
	// mostMessage bounds a message. It is the largest max_payload that a NATS server can have, and not maxPacket: else
	// everybody who may publish in the group could break the connections of all routers.
	mostMessage = 64 << 20
)

// guardedDialer connects to NATS servers, and checks what they send before the client sees it. See guard.
type guardedDialer struct{ net.Dialer }

// Dial implements nats.CustomDialer.
func (d *guardedDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &guard{Conn: conn}, nil
}

// guard is a connection to a NATS server whose lines are checked before the client sees them. The client allocates the
// size that a message claims, keeps lines of any length, and panics, in a goroutine of its own, at a size that
// overflows. All of that would end the process. With a guard, the connection breaks.
//
// With TLS only the first line is checked: the client begins TLS after it, and the guard sees ciphertext from then on.
// Such a server has shown a certificate that the router trusts. With ws:// nothing is checked.
type guard struct {
	net.Conn
	wrote  bool        // the client has written something
	opaque atomic.Bool // what follows is not the protocol of NATS, but TLS or HTTP
	broken error
	line   []byte // the line that is read
	left   int    // the bytes of the message that are to come
	ending int    // the bytes of the end of the message that are to come
}

// Write sees from the first bytes that the client writes whether it begins TLS or a WebSocket.
func (g *guard) Write(p []byte) (int, error) {
	if !g.wrote && len(p) > 0 {
		g.wrote = true
		if !bytes.HasPrefix(p, []byte("CONNECT ")) {
			g.opaque.Store(true)
		}
	}
	return g.Conn.Write(p)
}

// Read returns nothing of what has an error in it.
func (g *guard) Read(p []byte) (int, error) {
	if g.broken != nil {
		return 0, g.broken
	}
	n, err := g.Conn.Read(p)
	if g.opaque.Load() {
		return n, err
	}
	if bad := g.scan(p[:n]); bad != nil {
		g.broken = fmt.Errorf("the server sent what is no NATS: %w", bad)
		_ = g.Conn.Close() // the client does not close a connection that fails while it begins
		return 0, g.broken
	}
	return n, err
}

var (
	errLongLine = fmt.Errorf("a line of more than %d KiB", mostLine>>10)
	errNoLine   = errors.New("a line or a message without its end")
	errNoSize   = errors.New("a message without a size")
	errTooLarge = fmt.Errorf("a message of more than %d MiB", mostMessage>>20)
)

// scan goes through further bytes.
func (g *guard) scan(p []byte) error {
	for len(p) > 0 {
		switch {
		case g.left > 0:
			n := min(g.left, len(p))
			g.left -= n
			p = p[n:]
		case g.ending > 0:
			if p[0] != "\r\n"[2-g.ending] {
				return errNoLine
			}
			g.ending--
			p = p[1:]
		default:
			n := bytes.IndexByte(p, '\n') + 1
			end := n
			if n == 0 {
				end = len(p)
			}
			if len(g.line)+end > mostLine {
				return errLongLine
			}
			g.line = append(g.line, p[:end]...)
			p = p[end:]
			if n > 0 {
				if err := g.whole(); err != nil {
					return err
				}
				g.line = g.line[:0]
			}
		}
	}
	return nil
}

// whole checks a line that is there with its end.
func (g *guard) whole() error {
	// The client takes a return within a line for its end, or for nothing, as the line comes.
	if bytes.IndexByte(g.line, '\r') != len(g.line)-len("\r\n") {
		return errNoLine
	}
	if first := g.line[0] | 0x20; first != 'm' && first != 'h' { // the client takes small letters, too
		return nil
	}
	line := bytes.TrimRight(g.line, " \t\r\n")
	size := line[bytes.LastIndexAny(line, " \t")+1:]
	n := 0
	for _, c := range size {
		if c < '0' || c > '9' {
			return errNoSize
		}
		if n = n*10 + int(c-'0'); n > mostMessage {
			return errTooLarge
		}
	}
	if len(size) == 0 {
		return errNoSize
	}
	g.left, g.ending = n, len("\r\n")
	return nil
}
