package jinja

import (
	"strings"
	"unicode"
)

var stringChanges = map[string]func(string) string{
	"upper": upper, "lower": Lower, "title": title,
	"capitalize": capitalize, "swapcase": swapcase, "casefold": casefold,
}

// casefold does the same as Python's str.casefold. If the upper case of a character has several characters, the result
// has the lower case of these characters. A final sigma becomes an ordinary sigma.
func casefold(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch long, ok := upperLong[c]; {
		case ok:
			for _, c := range long {
				b.WriteRune(unicode.ToLower(c))
			}
		case c == 'ς':
			b.WriteRune('σ')
		default:
			writeLower(&b, "", 0, c)
		}
	}
	return b.String()
}

var stringTests = map[string]func(string) bool{
	"isdigit":   all(func(c rune) bool { return unicode.IsDigit(c) || superscript(c) }),
	"isdecimal": all(unicode.IsDigit),
	"isnumeric": all(unicode.IsNumber),
	"isalpha":   all(unicode.IsLetter),
	"isalnum":   all(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
	"isspace":   all(IsSpace),
	"isascii":   isASCII,
	"isprintable": func(s string) bool {
		return s == "" || all(func(c rune) bool { return c == ' ' || c != 0x7f && printable(c) })(s)
	},
	"islower":      func(s string) bool { return allCased(s, unicode.IsLower, unicode.IsUpper) },
	"isupper":      func(s string) bool { return allCased(s, unicode.IsUpper, unicode.IsLower) },
	"istitle":      isTitle,
	"isidentifier": isIdentifier,
}

// superscript reports whether c is a digit for Python's str.isdigit, but not for str.isdecimal: a superscript, a
// subscript or a circled digit.
func superscript(c rune) bool {
	return c == '²' || c == '³' || c == '¹' || c == 0x2070 || c >= 0x2074 && c <= 0x2079 ||
		c >= 0x2080 && c <= 0x2089 || c >= 0x2460 && c <= 0x2468 || c >= 0x2474 && c <= 0x247c ||
		c >= 0x2488 && c <= 0x2490
}

func all(holds func(rune) bool) func(string) bool {
	return func(s string) bool {
		for _, c := range s {
			if !holds(c) {
				return false
			}
		}
		return s != ""
	}
}

func isTitle(s string) bool {
	found, inside := false, false
	for _, c := range s {
		switch {
		case unicode.IsUpper(c) || unicode.IsTitle(c):
			if inside {
				return false
			}
			found, inside = true, true
		case unicode.IsLower(c):
			if !inside {
				return false
			}
			found = true
		default:
			inside = false
		}
	}
	return found
}

func isIdentifier(s string) bool {
	for i, c := range s {
		if c != '_' && !unicode.IsLetter(c) && (i == 0 || !isWord(c)) {
			return false
		}
	}
	return s != ""
}
