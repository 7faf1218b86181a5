package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// lows has the lowest bit of each byte, highs the highest bit of each byte.
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special finds the first byte of v that is a quote, a backslash or a control character. The bytes of v are in
// little-endian order. special sets the high bit of each such byte. Only the lowest set bit is exact: higher bits may
// be set wrongly.
func special(v uint64) uint64 {
	quote := v ^ '"'*lows
	slash := v ^ '\\'*lows
	return ((quote-lows)&^quote | (slash-lows)&^slash | (v-0x20*lows)&^v) & highs
}

// UnescapedLen returns the number of bytes of b before the first quote, backslash or control character. b begins inside
// a string, so these bytes have neither an escape nor the end of the string.
func UnescapedLen(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return i
}

// shortEscape has the second characters of the escapes that have two characters, such as n for \n.
var shortEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escapeLen returns the length in bytes of the escape at the beginning of b, or 0 if the escape is not valid.
func escapeLen(b []byte) int {
	switch {
	case len(b) < 2:
		return 0
	case shortEscape[b[1]]:
		return 2
	case b[1] == 'u' && hex4(b[2:]) >= 0:
		return 6
	}
	return 0
}

// hex4 reads the first four bytes of b as a hexadecimal number. If these bytes are not hexadecimal digits, it returns
// -1.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
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

// Unescape appends the text of a string to dst, and replaces its escapes. raw is the string as Scanner.Text returns it.
// If an escape in raw is half of a surrogate pair without the other half, U+FFFD takes its place, and ok is false.
func Unescape(dst, raw []byte) (text []byte, ok bool) {
	ok = true
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), ok
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		n := escapeLen(raw)
		switch {
		case n == 0: // Scanner.Text never returns a string with such an escape
			return dst, false
		case n == 2:
			dst = append(dst, unescaped(raw[1]))
		default:
			r := hex4(raw[2:])
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(raw) > 7 && raw[6] == '\\' && raw[7] == 'u' {
					low = hex4(raw[8:])
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					ok = false
				} else {
					n = 12
				}
			}
			dst = utf8.AppendRune(dst, r)
		}
		raw = raw[n:]
	}
}

// unescaped returns the byte that the escape \c stands for.
func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}
