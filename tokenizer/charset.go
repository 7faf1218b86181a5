package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// charset is a set of code points, as a sorted list of ranges. Both ends belong to a range. Ranges neither overlap nor
// touch.
type charset []charRange

type charRange struct{ lo, hi rune }

func charsetOf(cs ...rune) charset {
	s := make(charset, 0, len(cs))
	for _, c := range cs {
		s = append(s, charRange{c, c})
	}
	return s.normal()
}

// normal sorts and merges ranges. It may reuse the memory of s.
func (s charset) normal() charset {
	slices.SortFunc(s, func(a, b charRange) int { return int(a.lo - b.lo) })
	out := s[:0]
	for _, r := range s {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

func (s charset) union(o charset) charset { return append(slices.Clone(s), o...).normal() }

func (s charset) negate() charset {
	var out charset
	next := rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, charRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, charRange{next, utf8.MaxRune})
	}
	return out
}

func (s charset) intersect(o charset) charset { return s.negate().union(o.negate()).negate() }

func (s charset) contains(c rune) bool {
	i, found := slices.BinarySearchFunc(s, c, func(r charRange, c rune) int { return int(r.lo - c) })
	return found || i > 0 && s[i-1].hi >= c
}

// foldCase adds the simple case variants of every member, as (?i) does. For example, the set of "s" gets U+017F, the
// long s.
func (s charset) foldCase() charset {
	out := slices.Clone(s)
	for _, r := range s {
		if r.hi-r.lo > 0x400 {
			continue // such a large range comes from a property or a negation, and Oniguruma does not fold these either
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				out = append(out, charRange{f, f})
			}
		}
	}
	return out.normal()
}

// runSet returns the code points of all runs for whose value keep returns true.
func runSet(runs []runeRun, keep func(value uint8) bool) charset {
	var s charset
	for _, r := range runs {
		if keep(r.value) {
			s = append(s, charRange{r.lo, r.hi})
		}
	}
	return s.normal()
}

func anyValue(uint8) bool { return true }

// property returns the set for \p{name}. name is a general category, the first letter of a general category, a known
// script, or Any.
func property(name string) (charset, bool) {
	u := unicodeTables()
	name = strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(name, "Script="), "sc="), " ", "")
	for script, runs := range u.scripts {
		if strings.EqualFold(script, name) {
			return runSet(runs, anyValue), true
		}
	}
	if name == "Any" {
		return charset{{0, utf8.MaxRune}}, true
	}
	if long, ok := longCategories[name]; ok {
		name = long
	}
	if name == "Cn" {
		return runSet(u.category, anyValue).negate(), true
	}
	known := false
	s := runSet(u.category, func(v uint8) bool {
		c := categoryNames[v-1]
		hit := c == name || len(name) == 1 && c[:1] == name
		known = known || hit
		return hit
	})
	return s, known
}

// longCategories maps long names of general categories to their short names. It has the long names that patterns use.
var longCategories = map[string]string{"Letter": "L", "Mark": "M", "Number": "N", "Punctuation": "P", "Symbol": "S",
	"Separator": "Z", "Other": "C", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
	"Modifier_Letter": "Lm", "Other_Letter": "Lo", "Decimal_Number": "Nd", "Nonspacing_Mark": "Mn"}

// escapeClass returns the set that \s, \d, \w and their negations mean in Oniguruma inside brackets.
func escapeClass(c byte) (charset, bool) {
	u := unicodeTables()
	var runs []runeRun
	switch c {
	case 's', 'S':
		runs = u.space
	case 'd', 'D':
		runs = u.digit
	case 'w', 'W':
		runs = u.word
	default:
		return nil, false
	}
	s := runSet(runs, anyValue)
	if c|0x20 == 'w' {
		s = s.intersect(latinWords.negate())
	}
	if c < 'a' {
		s = s.negate()
	}
	return s, true
}
