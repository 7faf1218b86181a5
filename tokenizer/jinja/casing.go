package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Python's case mappings work on whole strings: one character may become several, and a sigma at the end of a word has
// a special form.

func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	var b strings.Builder
	for _, c := range s {
		if long, ok := upperLong[c]; ok {
			b.WriteString(long)
			continue
		}
		b.WriteRune(unicode.ToUpper(c))
	}
	return b.String()
}

// Lower does the same as Python's str.lower.
func Lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	var b strings.Builder
	for i, c := range s {
		writeLower(&b, s, i, c)
	}
	return b.String()
}

// writeLower writes the lower case of c, the character at s[i]. If the characters around c do not matter, s is empty.
func writeLower(b *strings.Builder, s string, i int, c rune) {
	switch c {
	case 'Σ':
		if s != "" && finalSigma(s, i) {
			b.WriteRune('ς')
			return
		}
	case 'İ':
		b.WriteString("i\u0307")
		return
	}
	b.WriteRune(unicode.ToLower(c))
}

// finalSigma reports whether the capital sigma at s[i] ends a word. It ends a word if the character before it is a
// cased letter, and the character after it is not. Ignorable characters are skipped.
func finalSigma(s string, i int) bool {
	before := false
	for j := i; j > 0; {
		c, n := utf8.DecodeLastRuneInString(s[:j])
		j -= n
		if ignorable(c) {
			continue
		}
		before = cased(c)
		break
	}
	if !before {
		return false
	}
	for _, c := range s[i+len("Σ"):] {
		if ignorable(c) {
			continue
		}
		return !cased(c)
	}
	return true
}

func cased(c rune) bool {
	return unicode.In(c, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Lowercase, unicode.Other_Uppercase)
}

func ignorable(c rune) bool {
	switch c {
	case '\'', '.', ':', '·', '\u2019', '\u2018', '\u2024', '\u2027', '\ufe13', '\ufe52', '\ufe55', '\uff07',
		'\uff0e', '\uff1a', '\u0387', '\u055f', '\u05f4':
		return true
	}
	return unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

func writeTitle(b *strings.Builder, c rune) {
	if long, ok := titleLong[c]; ok {
		b.WriteString(long)
		return
	}
	b.WriteRune(unicode.ToTitle(c))
}

// capitalize does the same as Python's str.capitalize: the first character gets title case, and all other characters
// get lower case.
func capitalize(s string) string {
	var b strings.Builder
	for i, c := range s {
		if i == 0 {
			writeTitle(&b, c)
			continue
		}
		writeLower(&b, s, i, c)
	}
	return b.String()
}

// title does the same as Python's str.title: every run of cased characters is capitalized.
func title(s string) string {
	var b strings.Builder
	inside := false
	for i, c := range s {
		if inside {
			writeLower(&b, s, i, c)
		} else {
			writeTitle(&b, c)
		}
		inside = cased(c)
	}
	return b.String()
}

func swapcase(s string) string {
	var b strings.Builder
	for i, c := range s {
		switch {
		case unicode.IsUpper(c):
			writeLower(&b, s, i, c)
		case unicode.IsLower(c):
			b.WriteString(upper(string(c)))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// wordTitle is jinja2's title filter. A word begins after a space or an opening bracket. The first character of a word
// gets upper case, not title case.
func wordTitle(s string) string {
	var b strings.Builder
	rest := s
	flush := func(word string) {
		if word == "" {
			return
		}
		_, n := utf8.DecodeRuneInString(word)
		b.WriteString(upper(word[:n]))
		b.WriteString(Lower(word[n:]))
	}
	splits := func(c rune) bool { return IsSpace(c) || strings.ContainsRune("-({[<", c) }
	for {
		i := strings.IndexFunc(rest, splits)
		if i < 0 {
			flush(rest)
			return b.String()
		}
		flush(rest[:i])
		rest = rest[i:]
		j := strings.IndexFunc(rest, func(c rune) bool { return !splits(c) })
		if j < 0 {
			j = len(rest)
		}
		flush(rest[:j])
		rest = rest[j:]
	}
}
