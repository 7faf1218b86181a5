package api

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep a body may nest. Tool schemas nest some tens deep; 200 is where vLLM's own JSON parser stops, so that
// nothing is refused here that the engine would take.
const maxDepth = 200

// scanner reads one JSON document strictly (RFC 8259): no trailing data, no control characters in strings, no bytes that
// are not UTF-8. After an error its position is where the document went wrong.
type scanner struct {
	data  []byte
	pos   int
	depth int
}

// fail returns the error of a document that is not JSON.
func (s *scanner) fail(what string) error {
	return Invalid("", "the body is not valid JSON at byte "+strconv.Itoa(s.pos)+": "+what)
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end of the document.
func (s *scanner) peek() byte {
	s.space()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// open enters an object or array, at whose bracket the scanner stands. It reports whether there is something inside.
func (s *scanner) open(end byte) (more bool, err error) {
	if s.depth++; s.depth > maxDepth {
		return false, s.fail("nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	}
	s.pos++
	if s.peek() != end {
		return true, nil
	}
	s.close()
	return false, nil
}

func (s *scanner) close() {
	s.pos++
	s.depth--
}

// next steps over what follows an element: a comma (true) or the end of the container.
func (s *scanner) next(end byte) (more bool, err error) {
	switch s.peek() {
	case ',':
		s.pos++
		return true, nil
	case end:
		s.close()
		return false, nil
	case 0:
		return false, s.fail("it ends inside a value")
	}
	return false, s.fail("expected a comma or " + strconv.QuoteRune(rune(end)))
}

// key reads a key and its colon, and leaves the scanner in front of the value.
func (s *scanner) key() (raw []byte, escaped bool, err error) {
	if s.peek() != '"' {
		return nil, false, s.fail("expected a key in quotes")
	}
	raw, escaped, err = s.stringToken()
	if err != nil {
		return nil, false, err
	}
	if s.peek() != ':' {
		return nil, false, s.fail("expected a colon")
	}
	s.pos++
	s.space()
	return raw, escaped, nil
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks (in the high bit of each byte) the bytes of v that end the plain part of a JSON string: quotes, backslashes
// and control characters. Bytes above the lowest one marked may be marked wrongly.
func special(v uint64) uint64 {
	quote := v ^ '"'*lows
	slash := v ^ '\\'*lows
	return ((quote-lows)&^quote | (slash-lows)&^slash | (v-0x20*lows)&^v) & highs
}

// stringToken reads the string at whose opening quote the scanner stands, and returns what is between the quotes.
func (s *scanner) stringToken() (raw []byte, escaped bool, err error) {
	s.pos++
	start := s.pos
	data := s.data
	pos := start
	var wide uint64 // has a high bit set where a byte is not ASCII
	for {
		for pos+8 <= len(data) {
			v := binary.LittleEndian.Uint64(data[pos:])
			wide |= v
			if m := special(v); m != 0 {
				pos += bits.TrailingZeros64(m) >> 3
				break
			}
			pos += 8
		}
		if pos >= len(data) {
			s.pos = pos
			return nil, false, s.fail("a string without an end")
		}
		c := data[pos]
		switch {
		case c == '"':
			s.pos = pos + 1
			raw = data[start:pos]
			if wide&highs != 0 && !utf8.Valid(raw) {
				s.pos = start
				return nil, false, s.fail("a string that is not UTF-8")
			}
			return raw, escaped, nil
		case c == '\\':
			escaped = true
			if pos+1 < len(data) && shortEscape[data[pos+1]] {
				pos += 2
				continue
			}
			n := escapeLen(data[pos:])
			if n == 0 {
				s.pos = pos
				return nil, false, s.fail("an unknown escape in a string")
			}
			pos += n
		case c < 0x20:
			s.pos = pos
			return nil, false, s.fail("a control character in a string")
		default:
			wide |= uint64(c)
			pos++
		}
	}
}

// shortEscape has the bytes that may stand behind a backslash by themselves.
var shortEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escapeLen returns the length of the escape that b begins with, 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch {
	case shortEscape[b[1]]:
		return 2
	case b[1] == 'u' && len(b) >= 6 && hex4(b[2:6]) >= 0:
		return 6
	}
	return 0
}

// hex4 returns the number that four hex digits give, -1 when they are none.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return -1
		}
	}
	return r
}

// Unescape appends to dst the text of a JSON string, given without its quotes and read without an error before. Half of a
// surrogate pair stands as U+FFFD.
func Unescape(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		end := i
		for end < len(raw) && raw[end] == '\\' {
			if end++; end < len(raw) && raw[end] == 'u' {
				end += 5
			} else {
				end++
			}
		}
		end = min(end, len(raw))
		dst, _ = unescape(dst, raw[i:end])
		raw = raw[end:]
	}
}

// unescape appends the text of a string token. ok is false when it holds half of a surrogate pair, which engines refuse.
func unescape(dst, raw []byte) (text []byte, ok bool) {
	ok = true
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
					low = hex4(raw[i+2:])
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					ok = false
				} else {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		default: // a quote, a backslash or a slash
			dst = append(dst, c)
		}
		i += 2
	}
	return dst, ok
}

// skip steps over one value.
func (s *scanner) skip() error {
	switch c := s.peek(); {
	case c == '"':
		_, _, err := s.stringToken()
		return err
	case c == '{':
		return s.skipObject()
	case c == '[':
		return s.skipArray()
	case c == '-' || c >= '0' && c <= '9':
		_, err := s.numberToken()
		return err
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case s.pos >= len(s.data):
		return s.fail("it ends where a value should be")
	}
	return s.fail("expected a value")
}

func (s *scanner) skipObject() error {
	more, err := s.open('}')
	for more && err == nil {
		if _, _, err = s.key(); err != nil {
			return err
		}
		if err = s.skip(); err != nil {
			return err
		}
		more, err = s.next('}')
	}
	return err
}

func (s *scanner) skipArray() error {
	more, err := s.open(']')
	for more && err == nil {
		if err = s.skip(); err != nil {
			return err
		}
		more, err = s.next(']')
	}
	return err
}

func (s *scanner) literal(word string) error {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.fail("expected a value")
	}
	s.pos += len(word)
	return nil
}

// numberToken reads a number and returns its text.
func (s *scanner) numberToken() ([]byte, error) {
	start := s.pos
	if s.at('-') {
		s.pos++
	}
	if s.at('0') {
		s.pos++
	} else if s.digits() == 0 {
		return nil, s.fail("a number without digits")
	}
	if s.at('.') {
		s.pos++
		if s.digits() == 0 {
			return nil, s.fail("a number without digits behind its point")
		}
	}
	if s.at('e') || s.at('E') {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		if s.digits() == 0 {
			return nil, s.fail("a number without digits in its exponent")
		}
	}
	return s.data[start:s.pos], nil
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// digits steps over digits and returns how many there were.
func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}
