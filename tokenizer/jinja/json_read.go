package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
	memory "unsafe" // a function here has its name
)

// maxJSONDepth bounds nested arrays and objects; Python gives up near a thousand.
const maxJSONDepth = 500

// maxValues bounds the values of a document, and of all documents of a request together: each takes up to 200 bytes of
// memory and as little as two of the document. A chat of 50,000 messages with five fields each has as many.
const maxValues = 1 << 18

// Dialect is the JSON reader that a Decoder is like.
type Dialect uint8

const (
	// Python is Python's json module: NaN and the infinities are numbers, integers have any length.
	Python Dialect = iota
	// Orjson knows no NaN and no infinities, and an integer beyond 64 bits becomes a float.
	Orjson
)

// Decoder reads JSON documents into values. The zero value is ready. The bound of 262,144 values is for all documents that
// one Decoder reads; a document beyond it, or nested deeper than 500 levels, fails with an error that matches ErrLimit.
type Decoder struct{ values int }

// Decode reads one document as Python does. src must not change while the value is in use: its texts share src's memory.
func (d *Decoder) Decode(src []byte) (Value, error) {
	return d.DecodeText(memory.String(memory.SliceData(src), len(src)), Python)
}

// DecodeText is Decode for a document in a string.
func (d *Decoder) DecodeText(src string, as Dialect) (Value, error) {
	r := &reader{src: src, strict: as == Orjson, values: d.values}
	v, err := r.document()
	d.values = r.values
	return v, err
}

// reader decodes JSON as Python's json module does: integers and floats stay apart, the last of equal keys wins in the
// place of the first, NaN and the infinities are numbers. Texts share the input's memory.
type reader struct {
	src    string
	pos    int
	depth  int
	values int  // read so far
	strict bool // as orjson: no NaN, and integers beyond 64 bits become floats
}

// document reads the whole of the input.
func (d *reader) document() (Value, error) {
	if !utf8.ValidString(d.src) {
		return None, errors.New("read json: not UTF-8")
	}
	v, err := d.value()
	if err != nil {
		return None, err
	}
	if d.space(); d.pos < len(d.src) {
		return None, d.fail("extra data")
	}
	return v, nil
}

func (d *reader) fail(what string) error { return fmt.Errorf("read json: %s at byte %d", what, d.pos) }

// beyond is the failure of a document that an engine may well read.
func (d *reader) beyond(what string) error { return fmt.Errorf("%w: %w", ErrLimit, d.fail(what)) }

func (d *reader) space() {
	for d.pos < len(d.src) {
		switch d.src[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

func (d *reader) peek() byte {
	if d.pos < len(d.src) {
		return d.src[d.pos]
	}
	return 0
}

func (d *reader) value() (Value, error) {
	if d.values++; d.values > maxValues {
		return None, d.beyond(fmt.Sprintf("more than %d values", maxValues))
	}
	d.space()
	switch c := d.peek(); c {
	case '{':
		return d.object()
	case '[':
		return d.array()
	case '"':
		s, err := d.text()
		return Text(s), err
	case 0:
		return None, d.fail("unexpected end")
	default:
		for _, w := range words {
			if strings.HasPrefix(d.src[d.pos:], w.text) && !(d.strict && w.v.kind == KindFloat) {
				d.pos += len(w.text)
				return w.v, nil
			}
		}
		return d.number()
	}
}

var words = [...]struct {
	text string
	v    Value
}{
	{"true", trueValue}, {"false", falseValue}, {"null", None},
	{"NaN", Float(math.NaN())}, {"Infinity", Float(math.Inf(1))}, {"-Infinity", Float(math.Inf(-1))},
}

func (d *reader) open() error {
	if d.depth++; d.depth > maxJSONDepth {
		return d.beyond("nested too deep")
	}
	d.pos++
	d.space()
	return nil
}

func (d *reader) object() (Value, error) {
	if err := d.open(); err != nil {
		return None, err
	}
	defer func() { d.depth-- }()
	m := &Dict{}
	if d.peek() == '}' {
		d.pos++
		return FromDict(m), nil
	}
	for {
		if d.space(); d.peek() != '"' {
			return None, d.fail("expected a key")
		}
		key, err := d.text()
		if err != nil {
			return None, err
		}
		if d.space(); d.peek() != ':' {
			return None, d.fail("expected ':'")
		}
		d.pos++
		v, err := d.value()
		if err != nil {
			return None, err
		}
		m.Set(key, v)
		d.space()
		switch d.peek() {
		case ',':
			d.pos++
		case '}':
			d.pos++
			return FromDict(m), nil
		default:
			return None, d.fail("expected ',' or '}'")
		}
	}
}

func (d *reader) array() (Value, error) {
	if err := d.open(); err != nil {
		return None, err
	}
	defer func() { d.depth-- }()
	l := &list{}
	if d.peek() == ']' {
		d.pos++
		return Value{kind: KindList, ref: l}, nil
	}
	for {
		v, err := d.value()
		if err != nil {
			return None, err
		}
		l.items = append(l.items, v)
		d.space()
		switch d.peek() {
		case ',':
			d.pos++
		case ']':
			d.pos++
			return Value{kind: KindList, ref: l}, nil
		default:
			return None, d.fail("expected ',' or ']'")
		}
	}
}

func (d *reader) number() (Value, error) {
	start := d.pos
	if d.peek() == '-' {
		d.pos++
	}
	switch {
	case d.peek() == '0':
		d.pos++
	case d.digits() == 0:
		d.pos = start
		return None, d.fail("expected a value")
	}
	isFloat := false
	if end := d.pos; d.peek() == '.' {
		d.pos++
		if isFloat = d.digits() > 0; !isFloat {
			d.pos = end
		}
	}
	if end := d.pos; d.peek()|0x20 == 'e' {
		d.pos++
		if c := d.peek(); c == '+' || c == '-' {
			d.pos++
		}
		if d.digits() > 0 {
			isFloat = true
		} else {
			d.pos = end
		}
	}
	s := d.src[start:d.pos]
	if isFloat {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return None, d.fail("expected a value")
		}
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return integer(n), nil
	}
	if len(s) > maxDigits {
		return None, d.fail("an integer has too many digits")
	}
	n, _ := new(big.Int).SetString(s, 10)
	if d.strict && !n.IsUint64() {
		f, _ := new(big.Float).SetInt(n).Float64()
		return Float(f), nil
	}
	return bigInteger(n), nil
}

func (d *reader) digits() int {
	from := d.pos
	for isDecimal(d.peek()) {
		d.pos++
	}
	return d.pos - from
}

// text reads a string. Half a surrogate pair is refused: no engine can tokenize it.
func (d *reader) text() (string, error) {
	d.pos++
	start := d.pos
	d.plain()
	switch d.peek() {
	case '"':
		d.pos++
		return d.src[start : d.pos-1], nil
	case '\\':
		return d.escaped(start)
	}
	return "", d.broken()
}

// broken says why a string does not go on.
func (d *reader) broken() error {
	if d.pos >= len(d.src) {
		return d.fail("unterminated string")
	}
	return d.fail("control character in a string")
}

// plain goes on to the next quote, backslash or control character, or the end, eight bytes at a time.
func (d *reader) plain() {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for d.pos+8 <= len(d.src) {
		s := d.src[d.pos : d.pos+8]
		v := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		quote, slash := v^'"'*ones, v^'\\'*ones
		// A byte's top bit is set where the byte is what is looked for, and perhaps above the first such byte.
		if found := ((quote-ones)&^quote | (slash-ones)&^slash | (v-' '*ones)&^v) & tops; found != 0 {
			d.pos += bits.TrailingZeros64(found) / 8
			return
		}
		d.pos += 8
	}
	for d.pos < len(d.src) {
		if c := d.src[d.pos]; c == '"' || c == '\\' || c < ' ' {
			return
		}
		d.pos++
	}
}

// escaped reads on from the first backslash of a string that began at start.
func (d *reader) escaped(start int) (string, error) {
	var b strings.Builder
	b.Grow(d.rest() + d.pos - start)
	b.WriteString(d.src[start:d.pos])
	for d.pos < len(d.src) {
		from := d.pos
		d.plain()
		b.WriteString(d.src[from:d.pos])
		switch d.peek() {
		case '"':
			d.pos++
			return b.String(), nil
		case '\\':
			d.pos++
		default:
			return "", d.broken()
		}
		e := d.peek()
		d.pos++
		switch e {
		case '"', '\\', '/':
			b.WriteByte(e)
		case 'b', 'f', 'n', 'r', 't':
			b.WriteByte("\b\f\n\r\t"[strings.IndexByte("bfnrt", e)])
		case 'u':
			c, err := d.unicode()
			if err != nil {
				return "", err
			}
			b.WriteRune(c)
		default:
			return "", d.fail("invalid escape")
		}
	}
	return "", d.fail("unterminated string")
}

// rest is about how long the string that is being read goes on: to the next quote that no backslash is before.
func (d *reader) rest() int {
	for at := d.pos; ; {
		n := strings.IndexByte(d.src[at:], '"')
		if n < 0 {
			return 0
		}
		if at += n; d.src[at-1] != '\\' {
			return at - d.pos
		}
		at++
	}
}

func (d *reader) unicode() (rune, error) {
	c, ok := d.hex4()
	if !ok {
		return 0, d.fail(`invalid \u escape`)
	}
	if c < 0xd800 || c >= 0xe000 {
		return c, nil
	}
	if c < 0xdc00 && strings.HasPrefix(d.src[d.pos:], `\u`) {
		d.pos += 2
		if low, ok := d.hex4(); ok && low >= 0xdc00 && low < 0xe000 {
			return (c-0xd800)<<10 + (low - 0xdc00) + 0x10000, nil
		}
	}
	return 0, d.fail("half a surrogate pair")
}

func (d *reader) hex4() (rune, bool) {
	if d.pos+4 > len(d.src) {
		return 0, false
	}
	var c rune
	for _, h := range []byte(d.src[d.pos : d.pos+4]) {
		switch {
		case isDecimal(h):
			c = c<<4 | rune(h-'0')
		case h|0x20 >= 'a' && h|0x20 <= 'f':
			c = c<<4 | rune(h|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	d.pos += 4
	return c, true
}
