package proxy

import "errors"

var errChunk = errors.New("a chunk of the answer is malformed")

// These are bounds for the parts of a chunked body that are not data.
const (
	maxChunkSize    = 1 << 56 // a larger size is an attempt to overflow a counter
	maxChunkLine    = 1 << 10 // bytes of a chunk's size with its extensions; engines send no extensions
	maxTrailerBytes = 16 << 10
)

type chunkState uint8

const (
	chunkSize chunkState = iota // the first digit of a size
	chunkDigits
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerLine
	trailerLF
	trailerEndLF
	chunkDone
)

// chunkReader decodes a chunked body (RFC 9112 §7.1). decode gets the body in pieces, which may be split at any byte.
// Extensions and trailers are checked and dropped. The zero value is ready.
type chunkReader struct {
	state chunkState
	left  int64 // bytes that are left of the chunk's data
	line  int   // number of bytes of the size line, or of all trailers
}

// done reports whether the end of the body was decoded.
func (c *chunkReader) done() bool { return c.state == chunkDone }

// decode decodes src into dst, and returns the number of bytes that it wrote to dst and read from src. It stops at the
// body's end; otherwise it reads all of src. dst must have room for len(src) bytes. dst and src may be parts of the
// same array if dst does not begin after src: decode then moves the data within the array.
func (c *chunkReader) decode(dst, src []byte) (out, in int, err error) {
	for in < len(src) && c.state != chunkDone {
		if c.state == chunkData {
			n := int(min(c.left, int64(len(src)-in)))
			copy(dst[out:out+n], src[in:in+n])
			out += n
			in += n
			if c.left -= int64(n); c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		if err := c.step(src[in]); err != nil {
			return out, in, err
		}
		in++
	}
	return out, in, nil
}

// step reads one byte that is not data of a chunk.
func (c *chunkReader) step(b byte) error {
	switch c.state {
	case chunkSize, chunkDigits:
		return c.size(b)
	case chunkExtension:
		if b == '\r' {
			c.state = chunkSizeLF
			return nil
		}
		c.line++
		return check(c.line <= maxChunkLine && isTextByte(b))
	case chunkSizeLF:
		c.line = 0
		c.state = chunkData
		if c.left == 0 {
			c.state = trailerStart
		}
		return check(b == '\n')
	case chunkDataCR:
		c.state = chunkDataLF
		return check(b == '\r')
	case chunkDataLF:
		c.state = chunkSize
		return check(b == '\n')
	case trailerStart, trailerLine:
		return c.trailer(b)
	case trailerLF:
		c.state = trailerStart
		return check(b == '\n')
	default: // the state is trailerEndLF
		c.state = chunkDone
		return check(b == '\n')
	}
}

func (c *chunkReader) size(b byte) error {
	var digit int64
	switch {
	case b >= '0' && b <= '9':
		digit = int64(b - '0')
	case b >= 'a' && b <= 'f':
		digit = int64(b - 'a' + 10)
	case b >= 'A' && b <= 'F':
		digit = int64(b - 'A' + 10)
	case c.state == chunkDigits && b == '\r':
		c.state = chunkSizeLF
		return nil
	case c.state == chunkDigits && b == ';':
		c.state = chunkExtension
		return nil
	default:
		return errChunk
	}
	if c.state == chunkSize {
		c.left, c.line = 0, 0
	}
	c.state = chunkDigits
	c.left = c.left<<4 | digit
	c.line++
	return check(c.left < maxChunkSize && c.line <= maxChunkLine)
}

func (c *chunkReader) trailer(b byte) error {
	c.line++
	switch {
	case b == '\r' && c.state == trailerStart:
		c.state = trailerEndLF
	case b == '\r':
		c.state = trailerLF
	default:
		c.state = trailerLine
		return check(c.line <= maxTrailerBytes && isTextByte(b))
	}
	return nil
}

func isTextByte(b byte) bool { return b >= ' ' && b != 0x7f || b == '\t' }

func check(ok bool) error {
	if !ok {
		return errChunk
	}
	return nil
}
