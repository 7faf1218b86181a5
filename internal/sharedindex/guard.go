package sharedindex

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
)

// What the server may send. The largest answers of a shared index are the slots of all holders and the records of a
// long prompt: some ten MB.
const (
	mostBytes    = 64 << 20 // in the strings of one reply
	mostElements = 1 << 20  // in the arrays of one reply, at all depths
	mostDepth    = 8        // of arrays within arrays; 4 is usual
	mostLine     = 64 << 10 // of an error, and of each other line of text
	mostDigits   = 20       // of a length
)

// pushed is the only push of a server that a reader asks for: that keys changed. There are no subscriptions. The client
// panics at a push that confirms one.
const pushed = "invalidate"

// guard is a connection to the server whose answers are checked before the client sees them. The client allocates what
// a length says, and follows arrays to any depth. It panics, in a goroutine of its own, at a reply to no command, as a
// proxy sends it that closes idle connections. All of that would end the process. With a guard, the connection breaks.
//
// A reply to no command that comes while a command is under way is taken for the answer to it, as by any client. The
// answer that is left then breaks the connection.
type guard struct {
	net.Conn
	open     atomic.Int64 // the commands that were written and have no reply
	commands frames
	replies  frames
	broken   error // of the replies
}

// guarded returns a connection with a guard.
func guarded(conn net.Conn) net.Conn { return &guard{Conn: conn} }

// Write counts commands before the server can answer them. A command counts from its first byte on, since a server may
// refuse one that it has not read to its end.
func (g *guard) Write(p []byte) (int, error) {
	begun, err := g.commands.scan(p)
	if err != nil {
		return 0, fmt.Errorf("write a command: %w", err)
	}
	g.open.Add(int64(begun))
	return g.Conn.Write(p)
}

// Read returns nothing of what has an error in it.
func (g *guard) Read(p []byte) (int, error) {
	if g.broken != nil {
		return 0, g.broken
	}
	n, err := g.Conn.Read(p)
	begun, bad := g.replies.scan(p[:n])
	if bad == nil && g.open.Add(-int64(begun)) < 0 {
		bad = errNobodyAsked
	}
	if bad != nil {
		g.broken = fmt.Errorf("the server sent what is no answer: %w", bad)
		return 0, g.broken
	}
	return n, err
}

var (
	errNobodyAsked  = errors.New("a reply to no command")
	errTooLong      = fmt.Errorf("more than %d MiB in one reply", mostBytes>>20)
	errTooMany      = fmt.Errorf("more than %d elements in one reply", mostElements)
	errTooDeep      = fmt.Errorf("arrays within arrays, more than %d deep", mostDepth)
	errLongLine     = fmt.Errorf("a line of more than %d KiB", mostLine>>10)
	errNoLength     = errors.New("a length that is no number")
	errNoEnd        = errors.New("a line without an end")
	errUnknownFrame = errors.New("unknown message type")
	errUnknownPush  = errors.New("a push that is not known")
)

// frames follows the frames of RESP2 and RESP3 through a stream of bytes. It reads their heads, skips their strings,
// and copies nothing. It refuses attributes, and strings and arrays of unknown length: the client would read them, but
// no server sends them.
type frames struct {
	step     byte           // what comes next
	kind     byte           // the type of the frame whose line is read
	negative bool           // the length has a sign
	ended    bool           // the last byte of the line was a carriage return
	naming   bool           // the next frame, or the string that is read, is the name of a push
	depth    int            // of the arrays that are not at their end
	line     int            // the bytes of the line
	number   int            // the length in the line
	left     int            // the bytes of the string that are to come, with its end
	bytes    int            // in the strings of the reply
	elements int            // in the arrays of the reply
	missing  [mostDepth]int // the elements of each array that are to come
}

// The values of frames.step.
const (
	atType   byte = iota
	inText        // a line of text
	inLength      // a line with a length
	inString
)

// scan goes through further bytes. It returns how many frames began in them that are neither in an array nor a push.
func (f *frames) scan(p []byte) (begun int, err error) {
	for i := 0; i < len(p); {
		switch f.step {
		case atType:
			if f.depth == 0 && p[i] != '>' {
				begun++
			}
			err = f.begin(p[i])
			i++
		case inText:
			var n int
			n, err = f.text(p[i:])
			i += n
		case inLength:
			err = f.length(p[i])
			i++
		case inString:
			n := min(f.left, len(p)-i)
			if f.naming && !f.named(p[i:i+n]) {
				return begun, errUnknownPush
			}
			i += n
			if f.left -= n; f.left == 0 {
				f.end()
			}
		}
		if err != nil {
			return begun, err
		}
	}
	return begun, nil
}

// begin takes the type of a frame.
func (f *frames) begin(kind byte) error {
	f.kind, f.line, f.number, f.negative, f.ended = kind, 0, 0, false, false
	if f.depth == 0 {
		f.bytes, f.elements = 0, 0
	}
	switch kind {
	case '+', '-', ':', ',', '(', '_', '#':
		f.step = inText
	case '$', '!', '=', '*', '~', '%':
		f.step = inLength
	case '>':
		f.step = inLength
		if f.depth > 0 {
			return errUnknownPush // Redis before 7.0 had pushes within arrays
		}
	default:
		return fmt.Errorf("%w: %d", errUnknownFrame, kind) // an alert of TLS begins with 21
	}
	if f.naming && kind != '$' {
		return errUnknownPush
	}
	return nil
}

// text takes what p has of a line of text, and returns how much that is.
func (f *frames) text(p []byte) (int, error) {
	n := bytes.IndexByte(p, '\n')
	if n < 0 {
		n = len(p)
		f.line += n
		f.ended = p[n-1] == '\r'
		if f.line > mostLine+len("\r") {
			return n, errLongLine
		}
		return n, nil
	}
	if n > 0 {
		f.ended = p[n-1] == '\r'
	}
	f.line += n - 1 // without the carriage return
	switch {
	case !f.ended:
		return n, errNoEnd
	case f.line > mostLine:
		return n, errLongLine
	case f.kind == '_' && f.line != 0, f.kind == '#' && f.line != 1:
		return n, errNoEnd // the client skips these without a look for the end
	}
	f.end()
	return n + 1, nil
}

// length takes a byte of a line with a length.
func (f *frames) length(b byte) error {
	switch {
	case f.ended:
		if b != '\n' || f.line == 0 {
			return errNoLength
		}
		return f.sized()
	case b == '\r':
		f.ended = true
	case b == '-' && f.line == 0 && !f.negative:
		f.negative = true
	case b >= '0' && b <= '9':
		f.line++
		f.number = min(f.number*10+int(b-'0'), mostBytes+1) // more is too long for all
		if f.line > mostDigits {
			return errNoLength
		}
	default:
		return errNoLength
	}
	return nil
}

// sized begins the string or the array whose length is known.
func (f *frames) sized() error {
	n := f.number
	if f.negative {
		if n != 1 || f.kind != '$' && f.kind != '*' || f.naming {
			return errNoLength
		}
		f.end() // RESP2 has no other null
		return nil
	}
	switch f.kind {
	case '$', '!', '=':
		if f.bytes += n; f.bytes > mostBytes {
			return errTooLong
		}
		if f.naming && n != len(pushed) {
			return errUnknownPush
		}
		f.step, f.left = inString, n+len("\r\n")
		return nil
	case '%':
		n *= 2
	case '>':
		if n != 2 {
			return errUnknownPush
		}
		f.naming = true
	}
	if f.elements += n; f.elements > mostElements {
		return errTooMany
	}
	if n == 0 {
		f.end()
		return nil
	}
	if f.depth == mostDepth {
		return errTooDeep
	}
	f.missing[f.depth] = n
	f.depth++
	f.step = atType
	return nil
}

// named reports whether a part of the name of a push is as expected.
func (f *frames) named(part []byte) bool {
	rest := (pushed + "\r\n")[len(pushed)+len("\r\n")-f.left:]
	return string(part) == rest[:len(part)]
}

// end ends a frame, and the arrays whose last element it is.
func (f *frames) end() {
	f.step, f.naming = atType, false
	for f.depth > 0 {
		if f.missing[f.depth-1]--; f.missing[f.depth-1] > 0 {
			return
		}
		f.depth--
	}
}
