package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// jsonScanner walks a JSON document without building it: a vocabulary of 30 MB is read in one pass, at memory speed. It is strict where it
// matters (structure, strings, depth) and lets numbers through to strconv.
type jsonScanner struct {
	data []byte
	pos  int
	deep int
	buf  []byte // of the last unescaped string
}

var errJSON = errors.New("invalid JSON")

func (s *jsonScanner) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", errJSON, what, s.pos)
}

// peek skips white space and gives the next byte, zero at the end.
func (s *jsonScanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *jsonScanner) expect(c byte) error {
	if s.peek() != c {
		return s.fail(fmt.Sprintf("want %q", c))
	}
	s.pos++
	return nil
}

// null consumes a null if that is next.
func (s *jsonScanner) null() bool {
	if s.peek() == 'n' && bytes.HasPrefix(s.data[s.pos:], []byte("null")) {
		s.pos += 4
		return true
	}
	return false
}

// object calls member with each key; member must consume the value.
func (s *jsonScanner) object(member func(key string) error) error {
	return s.sequence('{', '}', func() error {
		key, err := s.string()
		if err != nil {
			return err
		}
		name := string(key)
		if err := s.expect(':'); err != nil {
			return err
		}
		return member(name)
	})
}

// array calls element before each element; element must consume it.
func (s *jsonScanner) array(element func() error) error { return s.sequence('[', ']', element) }

func (s *jsonScanner) sequence(open, closing byte, item func() error) error {
	if s.deep++; s.deep > 100 {
		return s.fail("nesting deeper than 100")
	}
	defer func() { s.deep-- }()
	if err := s.expect(open); err != nil {
		return err
	}
	if s.peek() == closing {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case closing:
			s.pos++
			return nil
		default:
			return s.fail(fmt.Sprintf("want ',' or %q", closing))
		}
	}
}

// string reads a string; the bytes are valid until the next call.
func (s *jsonScanner) string() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.pos
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			text := s.data[start:s.pos]
			s.pos++
			if !utf8.Valid(text) {
				return nil, s.fail("string is not UTF-8")
			}
			return text, nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, s.fail("control character in string")
		}
		s.pos++
	}
	return nil, s.fail("string without end")
}

func (s *jsonScanner) escaped(start int) ([]byte, error) {
	buf := append(s.buf[:0], s.data[start:s.pos]...)
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		s.pos++
		switch {
		case c == '"':
			s.buf = buf
			if !utf8.Valid(buf) {
				return nil, s.fail("string is not UTF-8")
			}
			return buf, nil
		case c < ' ':
			return nil, s.fail("control character in string")
		case c != '\\':
			buf = append(buf, c)
			continue
		}
		r, err := s.escape()
		if err != nil {
			return nil, err
		}
		buf = utf8.AppendRune(buf, r)
	}
	return nil, s.fail("string without end")
}

// escape reads what follows a backslash.
func (s *jsonScanner) escape() (rune, error) {
	if s.pos >= len(s.data) {
		return 0, s.fail("string without end")
	}
	c := s.data[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, err := s.hex4()
		if err != nil || r < 0xd800 || r > 0xdfff {
			return r, err
		}
		if r > 0xdbff || !bytes.HasPrefix(s.data[s.pos:], []byte(`\u`)) {
			return 0, s.fail("lone surrogate")
		}
		s.pos += 2
		low, err := s.hex4()
		if err != nil || low < 0xdc00 || low > 0xdfff {
			return 0, s.fail("lone surrogate")
		}
		return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), nil
	}
	return 0, s.fail("unknown escape")
}

func (s *jsonScanner) hex4() (rune, error) {
	if len(s.data)-s.pos < 4 {
		return 0, s.fail(`short \u`)
	}
	v, err := strconv.ParseUint(string(s.data[s.pos:s.pos+4]), 16, 32)
	if err != nil {
		return 0, s.fail(`bad \u`)
	}
	s.pos += 4
	return rune(v), nil
}

// number gives the text of a number.
func (s *jsonScanner) number() (string, error) {
	s.peek()
	start := s.pos
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		if !(c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E') {
			break
		}
		s.pos++
	}
	if start == s.pos {
		return "", s.fail("want a number")
	}
	return string(s.data[start:s.pos]), nil
}

// id reads a token id.
func (s *jsonScanner) id() (uint32, error) {
	s.peek()
	v, start := uint64(0), s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' && v < 1<<32 {
		v = v*10 + uint64(s.data[s.pos]-'0')
		s.pos++
	}
	if start == s.pos || v > 1<<32-1 {
		return 0, s.fail("want a token id")
	}
	return uint32(v), nil
}

// raw consumes any value and gives its bytes.
func (s *jsonScanner) raw() ([]byte, error) {
	s.peek()
	start := s.pos
	if err := s.skip(); err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

func (s *jsonScanner) skip() error {
	switch s.peek() {
	case '{':
		return s.object(func(string) error { return s.skip() })
	case '[':
		return s.array(s.skip)
	case '"':
		_, err := s.string()
		return err
	}
	for _, word := range []string{"null", "true", "false"} {
		if bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
			s.pos += len(word)
			return nil
		}
	}
	_, err := s.number()
	return err
}

// text reads a string that outlives the scanner.
func (s *jsonScanner) text() (string, error) {
	b, err := s.string()
	return string(b), err
}

func (s *jsonScanner) bool() (bool, error) {
	s.peek()
	switch {
	case bytes.HasPrefix(s.data[s.pos:], []byte("true")):
		s.pos += 4
		return true, nil
	case bytes.HasPrefix(s.data[s.pos:], []byte("false")):
		s.pos += 5
		return false, nil
	}
	return false, s.fail("want true or false")
}
