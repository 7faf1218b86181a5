package jinja

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the lexical class of a token.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInteger
	tokFloat
	tokOperator // an operator; its spelling is in text
)

type token struct {
	kind tokenKind
	line int
	text string // text of data, a name, a decoded string or an operator
	num  Value  // value of an integer or a float
}

// lexer cuts a template into tokens. It follows jinja2's lexer with trim_blocks and lstrip_blocks, with the default
// delimiters, and without line statements.
type lexer struct {
	src          string
	pos          int
	line         int
	lineStarting bool // the next character begins a line: the last match ended with a newline, or there was no match yet
	tokens       []token
}

// maxSource bounds a template's source in bytes. The largest known chat template has about 60 KB.
const maxSource = 1 << 20

func lex(source string) ([]token, error) {
	if len(source) > maxSource {
		return nil, &syntaxError{1, "source is longer than " + strconv.Itoa(maxSource) + " bytes"}
	}
	if !utf8.ValidString(source) {
		return nil, &syntaxError{1, "source is not UTF-8"}
	}
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, lineStarting: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	return append(l.tokens, token{kind: tokEOF, line: l.line}), nil
}

func (l *lexer) fail(message string) error { return &syntaxError{l.line, message} }

// root reads the text up to the next tag, and then the tag.
func (l *lexer) root() error {
	rest := l.src[l.pos:]
	at := nextTag(rest)
	if at < 0 {
		l.data(rest)
		l.pos = len(l.src)
		return nil
	}
	text, kind := rest[:at], rest[at+1]
	after := at + 2
	sign := byte(0)
	if after < len(rest) && (rest[after] == '-' || rest[after] == '+') {
		sign = rest[after]
		after++
	}
	raw := -1
	if kind == '%' {
		raw = rawBegin(rest[after:])
	}
	stripped := l.leftStrip(text, sign, kind)
	l.data(stripped)
	l.line += strings.Count(text[len(stripped):], "\n")
	l.pos += after
	l.lineStarting = false
	switch {
	case raw >= 0:
		l.line += strings.Count(rest[after:after+raw], "\n")
		l.lineStarting = strings.HasSuffix(rest[:after+raw], "\n")
		l.pos += raw
		return l.raw()
	case kind == '#':
		return l.comment()
	case kind == '{':
		l.tokens = append(l.tokens, token{kind: tokVarBegin, line: l.line})
		return l.tag("}}", tokVarEnd)
	}
	l.tokens = append(l.tokens, token{kind: tokBlockBegin, line: l.line})
	return l.tag("%}", tokBlockEnd)
}

// nextTag returns the position of the next opening delimiter, or -1 if there is no opening delimiter.
func nextTag(s string) int {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '{')
		if i < 0 || from+i+1 >= len(s) {
			return -1
		}
		from += i
		switch s[from+1] {
		case '{', '%', '#':
			return from
		}
		from++
	}
}

// leftStrip returns the text before a tag, without the white space that the tag removes. A tag with "-" removes all
// white space before the tag. A block or comment tag without a sign removes the indentation, if the line has nothing
// else before the tag (lstrip_blocks). A tag with "+", and an expression without "-", remove nothing.
func (l *lexer) leftStrip(text string, sign, kind byte) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, IsSpace)
	}
	if sign == '+' || kind == '{' {
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if line == 0 && !l.lineStarting {
		return text
	}
	if line < len(text) && strings.TrimFunc(text[line:], IsSpace) == "" {
		return text[:line]
	}
	return text
}

func (l *lexer) data(s string) {
	if s != "" {
		l.tokens = append(l.tokens, token{kind: tokData, line: l.line, text: s})
		l.line += strings.Count(s, "\n")
	}
}

// rawBegin returns the length of "raw %}" at the beginning of s, the text after an opening delimiter. It returns -1 if
// s begins differently.
func rawBegin(s string) int {
	rest := strings.TrimLeftFunc(s, IsSpace)
	rest, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return -1
	}
	rest = strings.TrimLeftFunc(rest, IsSpace)
	if after, ok := strings.CutPrefix(rest, "-%}"); ok {
		return len(s) - len(strings.TrimLeftFunc(after, IsSpace))
	}
	if after, ok := strings.CutPrefix(rest, "%}"); ok {
		return len(s) - len(after)
	}
	return -1
}

// raw reads the text up to endraw. This text has no tags.
func (l *lexer) raw() error {
	rest := l.src[l.pos:]
	for from := 0; ; {
		i := strings.Index(rest[from:], "{%")
		if i < 0 {
			return l.fail("missing end of raw directive")
		}
		at := from + i
		body := rest[at+2:]
		sign := byte(0)
		if body != "" && (body[0] == '-' || body[0] == '+') {
			sign = body[0]
			body = body[1:]
		}
		body = strings.TrimLeftFunc(body, IsSpace)
		body, ok := strings.CutPrefix(body, "endraw")
		if ok {
			if n := closing(strings.TrimLeftFunc(body, IsSpace), "%}", true); n >= 0 {
				body = strings.TrimLeftFunc(body, IsSpace)[n:]
				text := l.leftStrip(rest[:at], sign, '%')
				l.data(text)
				l.line += strings.Count(rest[len(text):len(rest)-len(body)], "\n")
				l.advance(len(rest) - len(body))
				return nil
			}
		}
		from = at + 2
	}
}

// comment skips a comment.
func (l *lexer) comment() error {
	rest := l.src[l.pos:]
	end := strings.Index(rest, "#}")
	if end < 0 {
		return l.fail("missing end of comment tag")
	}
	if end > 0 && (rest[end-1] == '-' || rest[end-1] == '+') {
		end--
	}
	n := end + closing(rest[end:], "#}", true)
	l.line += strings.Count(rest[:n], "\n")
	l.advance(n)
	return nil
}

// closing returns the length of a closing delimiter and of the white space that it removes. It returns -1 if no closing
// delimiter follows. With "-" before the delimiter, all white space after it is removed. If trim is true (trim_blocks),
// one newline is removed, unless "+" is before the delimiter.
func closing(s, end string, trim bool) int {
	if after, ok := strings.CutPrefix(s, "-"+end); ok {
		return len(s) - len(strings.TrimLeftFunc(after, IsSpace))
	}
	if trim && strings.HasPrefix(s, "+"+end) {
		return len(end) + 1
	}
	if !strings.HasPrefix(s, end) {
		return -1
	}
	if trim && len(s) > len(end) && s[len(end)] == '\n' {
		return len(end) + 1
	}
	return len(end)
}

func (l *lexer) advance(n int) {
	l.lineStarting = n > 0 && l.src[l.pos+n-1] == '\n'
	l.pos += n
}

// tag reads the tokens of a tag up to the first closing delimiter outside of brackets.
func (l *lexer) tag(end string, kind tokenKind) error {
	var open []byte
	for {
		if l.pos >= len(l.src) {
			return nil // the parser finds the end of the template, and reports what is missing
		}
		if len(open) == 0 {
			if n := closing(l.src[l.pos:], end, kind == tokBlockEnd); n >= 0 {
				l.tokens = append(l.tokens, token{kind: kind, line: l.line})
				l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
				l.advance(n)
				return nil
			}
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case IsSpace(r):
			if r == '\n' {
				l.line++
			}
			l.pos += size
		case r >= '0' && r <= '9':
			if err := l.number(); err != nil {
				return err
			}
		case isWord(r):
			if err := l.name(); err != nil {
				return err
			}
		case r == '\'' || r == '"':
			if err := l.quoted(byte(r)); err != nil {
				return err
			}
		default:
			op := operatorAt(l.src[l.pos:])
			if op == "" {
				return l.fail("unexpected char " + strconv.QuoteRune(r))
			}
			switch op {
			case "(", "[", "{":
				open = append(open, op[0]+1+op[0]>>6) // the matching bracket: ')' is '('+1, ']' is '['+2, '}' is '{'+2
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != op[0] {
					return l.fail("unexpected '" + op + "'")
				}
				open = open[:len(open)-1]
			}
			l.tokens = append(l.tokens, token{kind: tokOperator, line: l.line, text: op})
			l.pos += len(op)
		}
	}
}

var operators2 = [...]string{"//", "**", "==", "!=", ">=", "<="}

func operatorAt(s string) string {
	for _, op := range operators2 {
		if strings.HasPrefix(s, op) {
			return s[:2]
		}
	}
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", s[0]) >= 0 {
		return s[:1]
	}
	return ""
}

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) ||
		unicode.In(r, unicode.Nl, unicode.Mn, unicode.Mc, unicode.No)
}

func (l *lexer) name() error {
	end := l.pos
	for end < len(l.src) {
		r, size := utf8.DecodeRuneInString(l.src[end:])
		if !isWord(r) {
			break
		}
		end += size
	}
	name := l.src[l.pos:end]
	if first, _ := utf8.DecodeRuneInString(name); first != '_' && !unicode.IsLetter(first) &&
		!unicode.Is(unicode.Nl, first) {
		return l.fail("invalid character in identifier " + strconv.Quote(name))
	}
	l.tokens = append(l.tokens, token{kind: tokName, line: l.line, text: name})
	l.pos = end
	return nil
}

// number reads a literal of Python's int or float. The literal may have underscores.
func (l *lexer) number() error {
	s := l.src[l.pos:]
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.'
	if n := floatLength(s); n > 0 && !afterDot {
		f, err := strconv.ParseFloat(strings.ReplaceAll(s[:n], "_", ""), 64)
		if err != nil && f == 0 {
			return l.fail("invalid number " + strconv.Quote(s[:n]))
		}
		l.tokens = append(l.tokens, token{kind: tokFloat, line: l.line, text: s[:n], num: Float(f)})
		l.pos += n
		return nil
	}
	n := integerLength(s)
	digits := strings.ReplaceAll(s[:n], "_", "")
	base := 0
	if strings.Trim(digits, "0") == "" {
		base = 10
	}
	if len(digits) > maxDigits {
		return l.fail("integer literal is too long")
	}
	z, ok := new(big.Int).SetString(digits, base)
	if !ok {
		return l.fail("invalid number " + strconv.Quote(digits))
	}
	l.tokens = append(l.tokens, token{kind: tokInteger, line: l.line, text: digits, num: bigInteger(z)})
	l.pos += n
	return nil
}

// digitRun returns the length of the run of digits at the beginning of s. Single underscores between digits belong to
// the run.
func digitRun(s string, digit func(byte) bool) int {
	n := 0
	for n < len(s) {
		switch {
		case digit(s[n]):
			n++
		case s[n] == '_' && n > 0 && n+1 < len(s) && digit(s[n+1]):
			n += 2
		default:
			return n
		}
	}
	return n
}

func isDecimal(c byte) bool { return c >= '0' && c <= '9' }

func floatLength(s string) int {
	n := digitRun(s, isDecimal)
	whole := n
	if n < len(s) && s[n] == '.' {
		if m := digitRun(s[n+1:], isDecimal); m > 0 {
			n += 1 + m
		}
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		m := n + 1
		if m < len(s) && (s[m] == '+' || s[m] == '-') {
			m++
		}
		if k := digitRun(s[m:], isDecimal); k > 0 {
			return m + k
		}
	}
	if n == whole {
		return 0
	}
	return n
}

func integerLength(s string) int {
	if len(s) > 2 && s[0] == '0' {
		var digit func(byte) bool
		switch s[1] {
		case 'x', 'X':
			digit = func(c byte) bool { return isDecimal(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
		case 'o', 'O':
			digit = func(c byte) bool { return c >= '0' && c <= '7' }
		case 'b', 'B':
			digit = func(c byte) bool { return c == '0' || c == '1' }
		}
		if digit != nil {
			rest := s[2:]
			if rest[0] == '_' {
				rest = rest[1:]
			}
			if n := digitRun(rest, digit); n > 0 {
				return len(s) - len(rest) + n
			}
		}
	}
	if s[0] == '0' {
		return digitRun(s, func(c byte) bool { return c == '0' })
	}
	return digitRun(s, isDecimal)
}

// quoted reads a string literal with Python's escapes.
func (l *lexer) quoted(quote byte) error {
	start := l.pos + 1
	end := start
	for end < len(l.src) && l.src[end] != quote {
		if l.src[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(l.src) {
		return l.fail("unexpected char " + strconv.QuoteRune(rune(quote)))
	}
	body := l.src[start:end]
	s, err := unescape(body)
	if err != nil {
		return l.fail(err.Error())
	}
	l.tokens = append(l.tokens, token{kind: tokString, line: l.line, text: s})
	l.line += strings.Count(body, "\n")
	l.pos = end + 1
	return nil
}

// unescape decodes a text as Python's codec unicode-escape does.
func unescape(s string) (string, error) {
	i := strings.IndexByte(s, '\\')
	if i < 0 {
		return s, nil
	}
	var b strings.Builder
	for ; i >= 0; i = strings.IndexByte(s, '\\') {
		b.WriteString(s[:i])
		s = s[i+1:]
		if s == "" {
			return "", failf("a string ends in a backslash")
		}
		c := s[0]
		s = s[1:]
		switch c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\f\n\r\t\v"[strings.IndexByte("abfnrtv", c)])
		case 'x', 'u', 'U':
			width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if len(s) < width {
				return "", failf("truncated \\%c escape", c)
			}
			n, err := strconv.ParseUint(s[:width], 16, 32)
			if err != nil || n > unicode.MaxRune || n >= 0xd800 && n < 0xe000 {
				return "", failf("invalid \\%c escape", c)
			}
			b.WriteRune(rune(n))
			s = s[width:]
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := rune(c - '0')
			for k := 0; k < 2 && s != "" && s[0] >= '0' && s[0] <= '7'; k++ {
				n = n*8 + rune(s[0]-'0')
				s = s[1:]
			}
			b.WriteRune(n)
		case 'N':
			return "", failf(`\N{…} escapes are not supported; write the character itself`)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	b.WriteString(s)
	return b.String(), nil
}
