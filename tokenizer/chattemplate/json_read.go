package chattemplate

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxJSONDepth bounds nested arrays and objects; Python gives up near a thousand.
const maxJSONDepth = 500

// reader decodes JSON as Python's json module does: integers and floats stay apart, the last of equal keys wins in the
// place of the first, NaN and the infinities are numbers. Texts share the input's memory.
type reader struct {
	src    string
	pos    int
	depth  int
	strict bool // as orjson: no NaN, and integers beyond 64 bits become floats
}

// readJSON decodes one document. Empty input is missing.
func readJSON(src []byte) (value, error) {
	if len(src) == 0 {
		return missing, nil
	}
	return readText(string(src))
}

func readText(src string) (value, error) {
	return (&reader{src: src}).document()
}

// document reads the whole of the input.
func (d *reader) document() (value, error) {
	if !utf8.ValidString(d.src) {
		return none, errors.New("read json: not UTF-8")
	}
	v, err := d.value()
	if err != nil {
		return none, err
	}
	if d.space(); d.pos < len(d.src) {
		return none, d.fail("extra data")
	}
	return v, nil
}

func (d *reader) fail(what string) error { return fmt.Errorf("read json: %s at byte %d", what, d.pos) }

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

func (d *reader) value() (value, error) {
	d.space()
	switch c := d.peek(); c {
	case '{':
		return d.object()
	case '[':
		return d.array()
	case '"':
		s, err := d.text()
		return text(s), err
	case 0:
		return none, d.fail("unexpected end")
	default:
		for _, w := range words {
			if strings.HasPrefix(d.src[d.pos:], w.text) && !(d.strict && w.v.kind == kindFloat) {
				d.pos += len(w.text)
				return w.v, nil
			}
		}
		return d.number()
	}
}

var words = [...]struct {
	text string
	v    value
}{
	{"true", trueValue}, {"false", falseValue}, {"null", none},
	{"NaN", float(math.NaN())}, {"Infinity", float(math.Inf(1))}, {"-Infinity", float(math.Inf(-1))},
}

func (d *reader) open() error {
	if d.depth++; d.depth > maxJSONDepth {
		return d.fail("nested too deep")
	}
	d.pos++
	d.space()
	return nil
}

func (d *reader) object() (value, error) {
	if err := d.open(); err != nil {
		return none, err
	}
	defer func() { d.depth-- }()
	m := &dict{}
	if d.peek() == '}' {
		d.pos++
		return newDict(m), nil
	}
	for {
		if d.space(); d.peek() != '"' {
			return none, d.fail("expected a key")
		}
		key, err := d.text()
		if err != nil {
			return none, err
		}
		if d.space(); d.peek() != ':' {
			return none, d.fail("expected ':'")
		}
		d.pos++
		v, err := d.value()
		if err != nil {
			return none, err
		}
		m.set(key, v)
		d.space()
		switch d.peek() {
		case ',':
			d.pos++
		case '}':
			d.pos++
			return newDict(m), nil
		default:
			return none, d.fail("expected ',' or '}'")
		}
	}
}

func (d *reader) array() (value, error) {
	if err := d.open(); err != nil {
		return none, err
	}
	defer func() { d.depth-- }()
	l := &list{}
	if d.peek() == ']' {
		d.pos++
		return value{kind: kindList, ref: l}, nil
	}
	for {
		v, err := d.value()
		if err != nil {
			return none, err
		}
		l.items = append(l.items, v)
		d.space()
		switch d.peek() {
		case ',':
			d.pos++
		case ']':
			d.pos++
			return value{kind: kindList, ref: l}, nil
		default:
			return none, d.fail("expected ',' or ']'")
		}
	}
}

func (d *reader) number() (value, error) {
	start := d.pos
	if d.peek() == '-' {
		d.pos++
	}
	switch {
	case d.peek() == '0':
		d.pos++
	case d.digits() == 0:
		d.pos = start
		return none, d.fail("expected a value")
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
			return none, d.fail("expected a value")
		}
		return float(f), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return integer(n), nil
	}
	if len(s) > maxDigits {
		return none, d.fail("an integer has too many digits")
	}
	n, _ := new(big.Int).SetString(s, 10)
	if d.strict && !n.IsUint64() {
		f, _ := new(big.Float).SetInt(n).Float64()
		return float(f), nil
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
	for d.pos < len(d.src) {
		switch c := d.src[d.pos]; {
		case c == '"':
			d.pos++
			return d.src[start : d.pos-1], nil
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			return "", d.fail("control character in a string")
		}
		d.pos++
	}
	return "", d.fail("unterminated string")
}

func (d *reader) escaped(start int) (string, error) {
	b := append(make([]byte, 0, 2*(d.pos-start)+32), d.src[start:d.pos]...)
	for d.pos < len(d.src) {
		c := d.src[d.pos]
		d.pos++
		switch {
		case c == '"':
			return string(b), nil
		case c < ' ':
			d.pos--
			return "", d.fail("control character in a string")
		case c != '\\':
			b = append(b, c)
			continue
		}
		e := d.peek()
		d.pos++
		switch e {
		case '"', '\\', '/':
			b = append(b, e)
		case 'b', 'f', 'n', 'r', 't':
			b = append(b, "\b\f\n\r\t"[strings.IndexByte("bfnrt", e)])
		case 'u':
			c, err := d.unicode()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, c)
		default:
			return "", d.fail("invalid escape")
		}
	}
	return "", d.fail("unterminated string")
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
