package kvevent

import (
	"encoding/binary"
	"math"

	"github.com/warmpath/warmpath/block"
)

// cursor reads MessagePack. It is 2 to 3 times as fast as the raw functions of tinylib/msgp, because it reads the
// tokens of an event in one tight loop (compare BenchmarkDecode with BenchmarkMsgp).
//
// To take a value means to read it and to move the cursor behind it. If a method finds a value of a kind that it does
// not take, it returns false and does not move the cursor. If the bytes are not MessagePack or end early, the method
// returns false and sets broken to the reason: the whole payload is then rejected.
type cursor struct {
	p      []byte
	i      int
	broken string
}

// kind is the type of a value.
type kind uint8

const (
	kindBroken kind = iota
	kindNil
	kindBool
	kindInt
	kindFloat
	kindString
	kindBytes
	kindArray
	kindMap
	kindExt
)

// kinds maps the first byte of a value to its kind.
var kinds = func() (t [256]kind) {
	fill := func(from, to int, k kind) {
		for c := from; c <= to; c++ {
			t[c] = k
		}
	}
	fill(0x00, 0x7f, kindInt)
	fill(0x80, 0x8f, kindMap)
	fill(0x90, 0x9f, kindArray)
	fill(0xa0, 0xbf, kindString)
	fill(0xc0, 0xc0, kindNil)
	fill(0xc2, 0xc3, kindBool)
	fill(0xc4, 0xc6, kindBytes)
	fill(0xc7, 0xc9, kindExt)
	fill(0xca, 0xcb, kindFloat)
	fill(0xcc, 0xd3, kindInt)
	fill(0xd4, 0xd8, kindExt)
	fill(0xd9, 0xdb, kindString)
	fill(0xdc, 0xdd, kindArray)
	fill(0xde, 0xdf, kindMap)
	fill(0xe0, 0xff, kindInt)
	return t
}()

const (
	problemEnd     = "the payload ends inside a value"
	problemInvalid = "a byte that begins no MessagePack value"
	problemLength  = "a length beyond the end of the payload"
)

func (c *cursor) fail(problem string) {
	if c.broken == "" {
		c.broken = problem
	}
}

func (c *cursor) left() int { return len(c.p) - c.i }

// kind returns the kind of the next value without taking it.
func (c *cursor) kind() kind {
	if c.i >= len(c.p) {
		c.fail(problemEnd)
		return kindBroken
	}
	k := kinds[c.p[c.i]]
	if k == kindBroken {
		c.fail(problemInvalid)
	}
	return k
}

// null takes a nil.
func (c *cursor) null() bool {
	if c.i < len(c.p) && c.p[c.i] == 0xc0 {
		c.i++
		return true
	}
	return false
}

// uint reads a big-endian number of 1, 2, 4 or 8 bytes that begins at offset at.
func (c *cursor) uint(at, width int) (uint64, bool) {
	if width > len(c.p)-at {
		c.fail(problemEnd)
		return 0, false
	}
	switch p := c.p[at:]; width {
	case 1:
		return uint64(p[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(p)), true
	case 4:
		return uint64(binary.BigEndian.Uint32(p)), true
	default:
		return binary.BigEndian.Uint64(p), true
	}
}

// integer takes an integer and returns it modulo 2^64. negative reports whether the integer is below zero.
func (c *cursor) integer() (v uint64, negative, ok bool) {
	if c.kind() != kindInt {
		return 0, false, false
	}
	b := c.p[c.i]
	switch {
	case b < 0x80:
		c.i++
		return uint64(b), false, true
	case b >= 0xe0:
		c.i++
		return uint64(int64(int8(b))), true, true
	}
	width := 1 << (b & 3) // first bytes cc..cf and d0..d3: 1, 2, 4, 8 bytes
	v, ok = c.uint(c.i+1, width)
	if !ok {
		return 0, false, false
	}
	c.i += 1 + width
	if b >= 0xd0 {
		shift := 64 - 8*width
		v = uint64(int64(v<<shift) >> shift)
		negative = int64(v) < 0
	}
	return v, negative, true
}

// integer64 takes an integer that fits into an int64.
func (c *cursor) integer64() (int64, bool) {
	start := c.i
	v, negative, ok := c.integer()
	if !ok {
		return 0, false
	}
	if !negative && v > math.MaxInt64 {
		c.i = start
		return 0, false
	}
	return int64(v), true
}

// size takes an integer from 0 to limit.
func (c *cursor) size(limit int) (int, bool) {
	start := c.i
	v, negative, ok := c.integer()
	if !ok {
		return 0, false
	}
	if negative || v > uint64(limit) {
		c.i = start
		return 0, false
	}
	return int(v), true
}

// number takes an integer or a float, and returns it as a float. integer reports whether it was an integer.
func (c *cursor) number() (f float64, integer, ok bool) {
	switch c.kind() {
	case kindInt:
		v, negative, ok := c.integer()
		if negative {
			return float64(int64(v)), true, ok
		}
		return float64(v), true, ok
	case kindFloat:
		width := 4 << (c.p[c.i] & 1) // first byte ca: 4 bytes, cb: 8 bytes
		v, ok := c.uint(c.i+1, width)
		if !ok {
			return 0, false, false
		}
		c.i += 1 + width
		if width == 4 {
			return float64(math.Float32frombits(uint32(v))), false, true
		}
		return math.Float64frombits(v), false, true
	}
	return 0, false, false
}

// header takes the head of a string, byte string, array or map, and returns the length in the head. The head has one of
// two forms. Short form: one byte, fix|length; mask selects the length, and mask 0 means that this type has no short
// form. Long form: the byte first, first+1 or first+2, and then the length in firstWidth, 2·firstWidth or 4·firstWidth
// bytes. The returned length never exceeds the number of bytes after the head.
func (c *cursor) header(fix, mask, first byte, firstWidth int) (int, bool) {
	b := c.p[c.i]
	c.i++
	n := uint64(b & mask)
	if mask == 0 || b&^mask != fix {
		width := firstWidth << (b - first)
		v, ok := c.uint(c.i, width)
		if !ok {
			return 0, false
		}
		c.i += width
		n = v
	}
	if n > uint64(c.left()) {
		c.fail(problemLength)
		return 0, false
	}
	return int(n), true
}

// array takes the head of an array.
func (c *cursor) array() (int, bool) {
	if c.kind() != kindArray {
		return 0, false
	}
	return c.header(0x90, 0x0f, 0xdc, 2)
}

// object takes the head of a map, and returns the number of entries. An entry has at least two bytes, so a number that
// is larger than half of the remaining bytes is an error.
func (c *cursor) object() (int, bool) {
	if c.kind() != kindMap {
		return 0, false
	}
	n, ok := c.header(0x80, 0x0f, 0xde, 2)
	if ok && n > c.left()/2 {
		c.fail(problemLength)
		return 0, false
	}
	return n, ok
}

// text takes a string. The result is a part of the payload, not a copy.
func (c *cursor) text() ([]byte, bool) {
	if c.i < len(c.p) { // the usual case: a string of less than 32 bytes, such as the name of a field
		if n := int(c.p[c.i] ^ 0xa0); n < 32 && n < c.left() {
			c.i += n + 1
			return c.p[c.i-n : c.i : c.i], true
		}
	}
	if c.kind() != kindString {
		return nil, false
	}
	return c.body(c.header(0xa0, 0x1f, 0xd9, 1))
}

// bytes takes a byte string. The result is a part of the payload, not a copy.
func (c *cursor) bytes() ([]byte, bool) {
	if c.kind() != kindBytes {
		return nil, false
	}
	return c.body(c.header(0, 0, 0xc4, 1))
}

func (c *cursor) body(n int, ok bool) ([]byte, bool) {
	if !ok {
		return nil, false
	}
	c.i += n
	return c.p[c.i-n : c.i : c.i], true
}

// skip takes one value of any kind, however deeply nested. It does not recurse.
func (c *cursor) skip() bool {
	for pending := 1; pending > 0; pending-- {
		n, ok := 0, true
		switch c.kind() {
		case kindNil, kindBool:
			c.i++
		case kindInt:
			_, _, ok = c.integer()
		case kindFloat:
			_, _, ok = c.number()
		case kindString:
			_, ok = c.text()
		case kindBytes:
			_, ok = c.bytes()
		case kindArray:
			n, ok = c.array()
		case kindMap:
			n, ok = c.object()
			n *= 2
		case kindExt:
			ok = c.ext()
		default:
			return false
		}
		pending += n
		if ok && pending-1 > c.left() {
			c.fail(problemLength)
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// ext takes an extension value: a type byte and a body.
func (c *cursor) ext() bool {
	b := c.p[c.i]
	var n, head int
	if b >= 0xd4 { // the body has 1, 2, 4, 8 or 16 bytes
		n, head = 1<<(b-0xd4), 2
	} else {
		width := 1 << (b - 0xc7)
		v, ok := c.uint(c.i+1, width)
		if !ok || v > uint64(len(c.p)) {
			c.fail(problemLength)
			return false
		}
		n, head = int(v), 2+width
	}
	if head+n > c.left() {
		c.fail(problemLength)
		return false
	}
	c.i += head + n
	return true
}

// hash takes an engine hash and returns it as a Hash. If the engine sent a byte string, digest is the whole string.
func (c *cursor) hash() (h Hash, digest []byte, ok bool) {
	if c.i < len(c.p) && c.p[c.i] == 0xcf && c.left() > 8 { // most engines write this form
		h = binary.BigEndian.Uint64(c.p[c.i+1:])
		c.i += 9
		return h, nil, true
	}
	switch c.kind() {
	case kindInt:
		h, _, ok = c.integer()
		return h, nil, ok
	case kindBytes:
		start := c.i
		if digest, ok = c.bytes(); !ok {
			return 0, nil, false
		}
		if len(digest) == 0 {
			c.i = start
			return 0, nil, false
		}
		return normal(digest), digest, true
	}
	return 0, nil, false
}

// normal returns the last eight bytes of a digest as a big-endian number, as vLLM does (kv_cache_utils.py).
func normal(digest []byte) Hash {
	if len(digest) >= 8 {
		return binary.BigEndian.Uint64(digest[len(digest)-8:])
	}
	var h Hash
	for _, b := range digest {
		h = h<<8 | Hash(b)
	}
	return h
}

// appendTokens takes n token ids and appends them to dst. At the first value that is no token id, it stops and returns
// false. dst must have room for n elements.
func (c *cursor) appendTokens(dst []block.Token, n int) ([]block.Token, bool) {
	p, i := c.p, c.i
	out := dst[len(dst) : len(dst)+n]
	for k := range out {
		if len(p)-i >= 9 {
			// Nearly all ids have 2 or 4 bytes, in an order that the processor cannot predict. So both lengths share one branch.
			if b := p[i]; b-0xcd < 2 {
				wide := int(b & 2) // cd gives 0, ce gives 2
				out[k] = block.Token(binary.BigEndian.Uint64(p[i+1:]) >> (48 - 8*wide))
				i += 3 + wide
				continue
			} else if b < 0x80 {
				out[k] = block.Token(b)
				i++
				continue
			}
		}
		c.i = i
		v, ok := c.token()
		if !ok {
			return dst[:len(dst)+k], false
		}
		out[k] = v
		i = c.i
	}
	c.i = i
	return dst[:len(dst)+n], true
}

// token takes one token id.
func (c *cursor) token() (block.Token, bool) {
	start := c.i
	v, negative, ok := c.integer()
	if !ok {
		return 0, false
	}
	if negative || v > math.MaxUint32 {
		c.i = start
		return 0, false
	}
	return block.Token(v), true
}
