package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// Scanner reads one JSON value strictly. It refuses a control character in a string, a byte that is not UTF-8, a number
// that RFC 8259 does not allow, and nesting beyond a limit. It does not check whether the text continues after the
// value. A caller that wants this check calls End.
//
// After the first error the text counts as ended: every later call takes nothing and changes nothing. So a caller needs
// to check Err only once, after its last call. A caller that wants to look ahead copies the Scanner and reads with the
// copy: the original does not move. A Scanner is not safe for concurrent use.
type Scanner struct {
	text     []byte
	pos      int
	depth    int // number of open objects and arrays
	maxDepth int
	err      error
}

// Error says where a text is not valid JSON, and why.
type Error struct {
	Pos     int // offset in the text, in bytes
	Problem string
}

// Error returns the position and the problem.
func (e *Error) Error() string {
	return "not valid JSON at byte " + strconv.Itoa(e.Pos) + ": " + e.Problem
}

// New returns a Scanner of text. Objects and arrays may be nested at most maxDepth deep. Skip and Raw recurse once for
// each level of nesting.
func New(text []byte, maxDepth int) Scanner { return Scanner{text: text, maxDepth: maxDepth} }

// Err returns the first error: an *Error, or the error that the caller gave to Stop.
func (s *Scanner) Err() error { return s.err }

// Stop ends the reading with an error of the caller. An earlier error stays.
func (s *Scanner) Stop(err error) {
	if s.err == nil {
		s.err = err
		s.text = s.text[:s.pos]
	}
}

// Fail ends the reading with an *Error at the present position. An earlier error stays.
func (s *Scanner) Fail(problem string) {
	if s.err == nil {
		s.Stop(&Error{s.pos, problem})
	}
}

// Pos returns the position of the next byte to be read, as an offset in the text.
func (s *Scanner) Pos() int { return s.pos }

// Peek skips white space and returns the next byte without taking it. At the end of the text it returns 0. The byte
// shows which kind of value comes next: '"', '{', '[', a byte for which IsNumber is true, or the first letter of a
// literal.
func (s *Scanner) Peek() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// IsNumber reports whether a number begins with c.
func IsNumber(c byte) bool { return c == '-' || c-'0' <= 9 }

// End reports whether nothing but white space follows.
func (s *Scanner) End() bool {
	s.Peek()
	return s.pos == len(s.text)
}

// Open takes the opening bracket of an object ('{') or an array ('['). more reports whether the object or array has
// elements. If there are none, Open takes the closing bracket, too.
func (s *Scanner) Open(bracket byte) (more bool) {
	if s.Peek() != bracket {
		s.Fail("expected " + strconv.QuoteRune(rune(bracket)))
		return false
	}
	if s.depth == s.maxDepth {
		s.Fail("nested deeper than " + strconv.Itoa(s.maxDepth) + " levels")
		return false
	}
	s.depth++
	s.pos++
	if s.Peek() != bracket+2 { // in ASCII, both closing brackets are two after their opening brackets
		return true
	}
	s.close()
	return false
}

// Next takes the byte after a value inside an object or array: a comma, or the closing bracket end. more is true for a
// comma.
func (s *Scanner) Next(end byte) (more bool) {
	switch s.Peek() {
	case ',':
		s.pos++
		return true
	case end:
		s.close()
	case 0:
		s.Fail("it ends inside a value")
	default:
		s.Fail("expected a comma or " + strconv.QuoteRune(rune(end)))
	}
	return false
}

func (s *Scanner) close() {
	s.pos++
	s.depth--
}

// Key takes a key and the colon after it. The next call then takes the key's value. raw and escaped are the same as
// those of Text.
func (s *Scanner) Key() (raw []byte, escaped bool) {
	if s.Peek() != '"' {
		s.Fail("expected a key in quotes")
		return nil, false
	}
	raw, escaped = s.string()
	if s.Peek() != ':' {
		s.Fail("expected a colon")
		return nil, false
	}
	s.pos++
	s.Peek()
	return raw, escaped
}

// Text takes a string. raw is the part of the text between the quotes. escaped reports whether raw has escapes, which
// Unescape replaces.
func (s *Scanner) Text() (raw []byte, escaped bool) {
	if s.Peek() != '"' {
		s.Fail("expected a string")
		return nil, false
	}
	return s.string()
}

// string takes a string whose opening quote is the next byte. It returns the same as Text.
func (s *Scanner) string() (raw []byte, escaped bool) {
	s.pos++
	start, pos, text := s.pos, s.pos, s.text
	var wide uint64 // the high bit of a byte in wide is set if the string has a byte that is not ASCII
	for {
		for pos+8 <= len(text) {
			v := binary.LittleEndian.Uint64(text[pos:])
			wide |= v
			if m := special(v); m != 0 {
				pos += bits.TrailingZeros64(m) >> 3
				break
			}
			pos += 8
		}
		if pos >= len(text) {
			return s.failAt(pos, "a string without an end")
		}
		c := text[pos]
		switch {
		case c == '"':
			s.pos = pos + 1
			raw = text[start:pos]
			if wide&highs != 0 && !utf8.Valid(raw) {
				return s.failAt(start, "a string that is not UTF-8")
			}
			return raw, escaped
		case c == '\\':
			escaped = true
			if pos+1 < len(text) && shortEscape[text[pos+1]] {
				pos += 2
				continue
			}
			n := escapeLen(text[pos:])
			if n == 0 {
				return s.failAt(pos, "an unknown escape in a string")
			}
			pos += n
		case c < 0x20:
			return s.failAt(pos, "a control character in a string")
		default:
			wide |= uint64(c)
			pos++
		}
	}
}

func (s *Scanner) failAt(pos int, problem string) (raw []byte, escaped bool) {
	s.pos = pos
	s.Fail(problem)
	return nil, false
}

// Number takes a number and returns its text.
func (s *Scanner) Number() []byte {
	s.Peek()
	start := s.pos
	s.take('-')
	if !s.take('0') && s.digits() == 0 {
		s.Fail("a number without digits")
	}
	if s.take('.') && s.digits() == 0 {
		s.Fail("a number without digits behind its point")
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		if s.digits() == 0 {
			s.Fail("a number without digits in its exponent")
		}
	}
	return s.text[start:s.pos]
}

// take takes the next byte if it is c, and reports whether it did.
func (s *Scanner) take(c byte) bool {
	if s.pos < len(s.text) && s.text[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// digits takes all digits that follow, and returns how many there were.
func (s *Scanner) digits() int {
	start := s.pos
	for s.pos < len(s.text) && s.text[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}

// AppendUint32s takes elements of an array of whole numbers and appends them to dst. It takes an element only if the
// element has at most nine digits, no leading zero, and a comma directly after the digits, and only while dst has fewer
// than limit elements. So it stops before the first element of another form, and before the last element of the array.
func (s *Scanner) AppendUint32s(dst []uint32, limit int) []uint32 {
	pos, text := s.pos, s.text
	for len(dst) < limit {
		for pos < len(text) && text[pos] == ' ' {
			pos++
		}
		var v uint32
		start := pos
		for pos < len(text) && text[pos]-'0' <= 9 && pos-start < 9 {
			v = v*10 + uint32(text[pos]-'0')
			pos++
		}
		n := pos - start
		if n == 0 || pos >= len(text) || text[pos] != ',' || n > 1 && text[start] == '0' {
			break
		}
		dst = append(dst, v)
		pos++
		s.pos = pos
	}
	return dst
}

// Word takes a literal such as null if it comes next, and reports whether it did.
func (s *Scanner) Word(word string) bool {
	s.Peek()
	if len(s.text)-s.pos < len(word) || string(s.text[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// Raw takes one value of any kind and returns its text.
func (s *Scanner) Raw() []byte {
	s.Peek()
	start := s.pos
	s.Skip()
	return s.text[start:s.pos]
}

// Skip takes one value of any kind.
func (s *Scanner) Skip() {
	switch c := s.Peek(); {
	case c == '"':
		s.string()
	case c == '{':
		for more := s.Open('{'); more; more = s.Next('}') {
			s.Key()
			s.Skip()
		}
	case c == '[':
		for more := s.Open('['); more; more = s.Next(']') {
			s.Skip()
		}
	case IsNumber(c):
		s.Number()
	case c == 't' && s.Word("true") || c == 'f' && s.Word("false") || c == 'n' && s.Word("null"):
	case s.pos >= len(s.text):
		s.Fail("it ends where a value should be")
	default:
		s.Fail("expected a value")
	}
}
