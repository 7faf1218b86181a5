package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Frame flags (RFC 23). Bits 3 to 7 are reserved and must be zero.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// maxHeader is the length of a header with a flag byte and a 64-bit length.
const maxHeader = 9

// shrinkAfter is how many messages in a row must fit into a quarter of a grown buffer before a small buffer replaces
// the grown one. With a smaller number, each occasional large message would allocate. With a larger number, the memory
// for a rare large message would be kept for long.
const shrinkAfter = 1024

// limits bounds the size and the number of parts of one message.
type limits struct {
	frame, message, parts int
}

// reader splits a byte stream into messages. A message stays in the read buffer, so the message is not copied. Usually
// reading a message allocates nothing.
type reader struct {
	src    io.Reader
	limits limits
	// onCommand is called for each command frame that next reads. A command frame may stand between the frames of a
	// message: libzmq may send a PING there.
	onCommand func(body []byte) error

	buf  []byte // buf[head:tail] was read from src, and is not yet part of a returned message
	head int
	tail int
	base int // size of the buffer before it grows

	spans []span // frames of the current message
	parts [][]byte
	small int // number of messages in a row that fit into a quarter of the buffer
}

// span is the place of a frame's body, relative to the first byte of the message. So a span stays valid when the
// message moves within the buffer.
type span struct{ from, to int }

func newReader(src io.Reader, size int, l limits) *reader {
	return &reader{src: src, limits: l, buf: make([]byte, size), base: size}
}

// next returns the parts of the next message. The parts are valid until next is called again.
func (r *reader) next() ([][]byte, error) {
	r.spans = r.spans[:0]
	at, total := 0, 0 // at: position of the next frame, relative to head
	for {
		flags, from, to, err := r.frame(at)
		if err != nil {
			return nil, err
		}
		at = to
		if flags&flagCommand != 0 {
			if err := r.onCommand(r.buf[r.head+from : r.head+to]); err != nil {
				return nil, err
			}
			if len(r.spans) == 0 {
				r.consume(at)
				at = 0
			}
			continue
		}
		if total += to - from; total > r.limits.message {
			return nil, fmt.Errorf("message of more than %d bytes", r.limits.message)
		}
		if len(r.spans) == r.limits.parts {
			return nil, fmt.Errorf("message of more than %d parts", r.limits.parts)
		}
		r.spans = append(r.spans, span{from, to})
		if flags&flagMore == 0 {
			break
		}
	}
	r.parts = r.parts[:0]
	for _, s := range r.spans {
		r.parts = append(r.parts, r.buf[r.head+s.from:r.head+s.to:r.head+s.to])
	}
	r.consume(at)
	return r.parts, nil
}

// frame reads the frame that begins at buf[head+at]. It returns the frame's flags and the place of its body, relative
// to head.
func (r *reader) frame(at int) (flags byte, from, to int, err error) {
	// Commands inside a message stay in the buffer until the message ends. A peer that sends too many of them attacks the
	// memory.
	if at > r.limits.message+(r.limits.parts+1)*maxHeader+maxCommand {
		return 0, 0, 0, errors.New("too many commands inside a message")
	}
	if err := r.need(at+2, at == 0); err != nil {
		return 0, 0, 0, err
	}
	flags = r.buf[r.head+at]
	if flags > flagMore|flagLong|flagCommand || flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return 0, 0, 0, fmt.Errorf("frame with invalid flags %#02x", flags)
	}
	size := uint64(r.buf[r.head+at+1])
	from = at + 2
	if flags&flagLong != 0 {
		from = at + maxHeader
		if err := r.need(from, false); err != nil {
			return 0, 0, 0, err
		}
		size = binary.BigEndian.Uint64(r.buf[r.head+at+1:])
	}
	limit := r.limits.frame
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if size > uint64(limit) {
		return 0, 0, 0, fmt.Errorf("frame of %d bytes is over the limit of %d", size, limit)
	}
	to = from + int(size)
	return flags, from, to, r.need(to, false)
}

// need reads until buf[head:] has n bytes. boundary says that the reader is between two messages. If the stream ends
// there, the error is io.EOF; if it ends elsewhere, the error is io.ErrUnexpectedEOF.
func (r *reader) need(n int, boundary bool) error {
	for r.tail-r.head < n {
		if r.tail == len(r.buf) || r.head+n > len(r.buf) {
			r.makeRoom(n)
		}
		got, err := r.src.Read(r.buf[r.tail:])
		r.tail += got
		if got > 0 {
			continue
		}
		if err == io.EOF && !(boundary && r.tail == r.head) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeRoom moves unread bytes to the front of the buffer. If n bytes do not fit and more than half of the buffer is
// full, makeRoom also enlarges the buffer, at most to twice its size. So a peer cannot cause a large allocation by
// announcing a length.
func (r *reader) makeRoom(n int) {
	have := r.tail - r.head
	buf := r.buf
	if have > len(buf)/2 && n > len(buf) {
		buf = make([]byte, min(2*len(buf), n+r.base))
	}
	if r.head > 0 || len(buf) > len(r.buf) {
		copy(buf, r.buf[r.head:r.tail])
	}
	r.buf, r.head, r.tail = buf, 0, have
}

// consume drops n bytes from the front of buf[head:tail]. The dropped bytes stay unchanged until the next read.
func (r *reader) consume(n int) {
	r.head += n
	if n > len(r.buf)/4 || len(r.buf) == r.base {
		r.small = 0
		return
	}
	if r.small++; r.small >= shrinkAfter && r.tail-r.head <= r.base {
		r.small = 0
		shrunk := make([]byte, r.base)
		r.tail = copy(shrunk, r.buf[r.head:r.tail])
		r.head, r.buf = 0, shrunk
	}
}

// messageSize returns the size of the message on the wire, in bytes.
func messageSize(parts [][]byte) int {
	n := 0
	for _, p := range parts {
		n += len(p) + 2
		if len(p) > 255 {
			n += maxHeader - 2
		}
	}
	return n
}

// appendMessage appends the frames of a message.
func appendMessage(dst []byte, parts ...[]byte) []byte {
	for i, p := range parts {
		flags := byte(flagMore)
		if i == len(parts)-1 {
			flags = 0
		}
		dst = appendFrame(dst, flags, p)
	}
	return dst
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}
