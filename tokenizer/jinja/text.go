package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDigits bounds the digits of an integer that is converted from or to text. CPython has the same bound.
const maxDigits = 4300

// str does the same as Python's str(v).
func (r *run) str(v *Value) (string, error) {
	switch v.kind {
	case KindString:
		return v.str, nil
	case KindUndefined, kindMissing:
		return "", nil
	}
	return r.repr(v)
}

// repr does the same as Python's repr(v).
func (r *run) repr(v *Value) (string, error) {
	b, err := r.appendRepr(nil, v, 0)
	if err != nil {
		return "", err
	}
	return string(b), r.grow(len(b))
}

func (r *run) appendRepr(b []byte, v *Value, depth int) ([]byte, error) {
	if depth > maxDepth {
		return b, tooDeep()
	}
	if err := r.step(1); err != nil {
		return b, err
	}
	if len(b) > r.memory {
		return b, &limitError{"the memory limit is reached"}
	}
	switch v.kind {
	case KindUndefined, kindMissing:
		return append(b, "Undefined"...), nil
	case KindNone:
		return append(b, "None"...), nil
	case KindBool:
		if v.num != 0 {
			return append(b, "True"...), nil
		}
		return append(b, "False"...), nil
	case KindInt:
		return strconv.AppendInt(b, v.num, 10), nil
	case KindBig:
		return appendBig(b, v.bigOf())
	case KindFloat:
		return appendFloat(b, v.float(), "inf", "nan"), nil
	case KindString:
		if v.safe {
			b = append(b, "Markup("...)
		}
		b = appendQuoted(b, v.str)
		if v.safe {
			b = append(b, ')')
		}
		return b, nil
	case KindList:
		return r.appendItems(b, "[", "]", v.items(), depth)
	case kindTuple:
		if len(v.items()) == 1 {
			return r.appendItems(b, "(", ",)", v.items(), depth)
		}
		return r.appendItems(b, "(", ")", v.items(), depth)
	case KindDict:
		return r.appendDict(b, v.dict(), depth)
	case kindView:
		return r.appendView(b, v, depth)
	case kindRange:
		rg := v.ref.(*pyRange)
		b = append(b, "range("...)
		b = strconv.AppendInt(b, rg.start, 10)
		b = append(b, ", "...)
		b = strconv.AppendInt(b, rg.stop, 10)
		if rg.step != 1 {
			b = append(b, ", "...)
			b = strconv.AppendInt(b, rg.step, 10)
		}
		return append(b, ')'), nil
	case kindNamespace:
		b = append(b, "<Namespace "...)
		b, err := r.appendDict(b, v.ref.(*namespace).d, depth)
		return append(b, '>'), err
	case kindMacro:
		if name := v.ref.(*macro).def.name; name != "" {
			b = append(b, "<Macro "...)
			return append(appendQuoted(b, name), '>'), nil
		}
		return append(b, "<Macro anonymous>"...), nil
	case kindObject:
		if _, ok := v.ref.(selfReference); ok {
			return append(b, "<TemplateReference None>"...), nil
		}
	case kindLoop:
		l := v.ref.(*loop)
		n, err := l.len(r)
		b = append(b, "<LoopContext "...)
		b = strconv.AppendInt(b, int64(l.index)+1, 10)
		b = append(b, '/')
		return append(strconv.AppendInt(b, int64(n), 10), '>'), err
	}
	// Python would print a memory address here. The address differs between processes, so no text can be equal.
	return b, failf("a %s has no text of its own", v.typeName())
}

func (r *run) appendItems(b []byte, open, end string, items []Value, depth int) ([]byte, error) {
	b = append(b, open...)
	for i := range items {
		if i > 0 {
			b = append(b, ", "...)
		}
		var err error
		if b, err = r.appendRepr(b, &items[i], depth+1); err != nil {
			return b, err
		}
	}
	return append(b, end...), nil
}

func (r *run) appendDict(b []byte, d *Dict, depth int) ([]byte, error) {
	b = append(b, '{')
	for i := range d.keys {
		if i > 0 {
			b = append(b, ", "...)
		}
		var err error
		if b, err = r.appendRepr(b, &d.keys[i], depth+1); err != nil {
			return b, err
		}
		b = append(b, ": "...)
		if b, err = r.appendRepr(b, &d.vals[i], depth+1); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

func (r *run) appendView(b []byte, v *Value, depth int) ([]byte, error) {
	items, err := r.listOf(v)
	if err != nil {
		return b, err
	}
	b = append(append(b, v.typeName()...), '(')
	b, err = r.appendItems(b, "[", "]", items, depth)
	return append(b, ')'), err
}

func appendBig(b []byte, n *big.Int) ([]byte, error) {
	if n.BitLen() > maxDigits*10/3+64 {
		return b, failf("exceeds the limit (%d digits) for integer string conversion", maxDigits)
	}
	return n.Append(b, 10), nil
}

// appendFloat writes a float as Python's repr does: with as few digits as possible. From 1e-4 to 1e16 it writes no
// exponent. Otherwise it writes an exponent of at least two digits.
func appendFloat(b []byte, f float64, inf, nan string) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(b, inf...)
	case math.IsInf(f, -1):
		return append(append(b, '-'), inf...)
	case math.IsNaN(f):
		return append(b, nan...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	from := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	for _, c := range b[from:] {
		if c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

// appendQuoted writes the repr of a str. A text with single quotes but without double quotes gets double quotes. Any
// other text gets single quotes. Characters that are not printable are escaped.
func appendQuoted(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			b = append(b, '\\', byte(c))
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		case c < 0x7f || printable(c):
			b = utf8.AppendRune(b, c)
		case c < 0x100:
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		case c < 0x10000:
			b = append(b, '\\', 'u')
			for shift := 12; shift >= 0; shift -= 4 {
				b = append(b, hexDigits[c>>shift&15])
			}
		default:
			b = append(b, '\\', 'U')
			for shift := 28; shift >= 0; shift -= 4 {
				b = append(b, hexDigits[c>>shift&15])
			}
		}
	}
	return append(b, quote)
}

const hexDigits = "0123456789abcdef"

// printable does the same as Python's str.isprintable, for a character above ASCII: it excludes control, format,
// surrogate, private and unassigned characters, and separators. Go's tables have Unicode 15.0, as Python 3.12 has.
func printable(c rune) bool {
	return unicode.In(c, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S)
}

// IsSpace does the same as Python's str.isspace. \s in Python's regular expressions matches the same characters.
func IsSpace(c rune) bool {
	switch {
	case c >= 0x09 && c <= 0x0d, c >= 0x1c && c <= 0x20, c == 0x85, c == 0xa0, c == 0x1680, c >= 0x2000 && c <= 0x200a,
		c == 0x2028, c == 0x2029, c == 0x202f, c == 0x205f, c == 0x3000:
		return true
	}
	return false
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// runeAt returns the character number i of s, from 0. If i is negative, it counts from the end. If there is no such
// character, the boolean result is false.
func runeAt(s string, i int64) (string, bool) {
	if i < 0 {
		i += int64(utf8.RuneCountInString(s))
		if i < 0 {
			return "", false
		}
	}
	if i >= int64(len(s)) {
		return "", false
	}
	for at, c := range s {
		if i == 0 {
			return s[at : at+utf8.RuneLen(c)], true
		}
		i--
	}
	return "", false
}

func escapeHTML(s string) string { return htmlEscaper.Replace(s) }

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// escape does the same as markupsafe.escape.
func (r *run) escape(v *Value) (string, error) {
	s, err := r.str(v)
	if err != nil || v.safe {
		return s, err
	}
	s = escapeHTML(s)
	return s, r.grow(len(s))
}
