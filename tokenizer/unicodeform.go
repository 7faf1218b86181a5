package tokenizer

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// unicodeForm is one of Unicode's four normalization forms. It uses the reference's tables of Unicode 9.0: marks of
// later versions are neither reordered nor composed. golang.org/x/text cannot be used, because it reorders and composes
// these marks, and inserts joiners into long runs of marks.
type unicodeForm struct{ compose, compat bool }

// formTables has the stable characters of each form. A character is stable if two conditions hold: the character alone
// is normal, and no character before it changes it.
type formTables struct {
	u      *unicodeData
	ccc    *runeTable
	stable [4]*runeTable // stable characters by form
}

var forms = sync.OnceValue(func() *formTables {
	u := unicodeTables()
	t := &formTables{u: u, ccc: newRuneTable(u.ccc)}
	second := map[rune]bool{}
	for pair := range u.compose {
		second[pair[1]] = true
	}
	for i := range t.stable {
		f := &unicodeForm{compose: i&1 != 0, compat: i&2 != 0}
		unstable := runSet(u.ccc, anyValue)
		add := func(c rune) { unstable = append(unstable, charRange{c, c}) }
		for _, m := range []map[rune][]rune{u.canonical, u.compatible} {
			for c := range m {
				if second[f.decompose(t, nil, c)[0]] {
					add(c)
				}
				if normal := f.cluster(t, nil, []rune{c}); string(normal) != string(c) {
					add(c)
				}
			}
		}
		if f.compose {
			for c := range second {
				add(c)
			}
			unstable = append(unstable, charRange{hangulV, hangulV + hangulVCount - 1},
				charRange{hangulT + 1, hangulT + hangulTCount - 1})
		} else {
			unstable = append(unstable, charRange{hangulS, hangulS + hangulSCount - 1})
		}
		t.stable[i] = newRuneTable(runsOf(unstable.normal().negate()))
	}
	return t
})

const (
	hangulS, hangulL, hangulV, hangulT       = 0xac00, 0x1100, 0x1161, 0x11a7
	hangulLCount, hangulVCount, hangulTCount = 19, 21, 28
	hangulNCount                             = hangulVCount * hangulTCount
	hangulSCount                             = hangulLCount * hangulNCount
)

func (f *unicodeForm) tables() (*formTables, *runeTable) {
	t := forms()
	i := 0
	if f.compose {
		i |= 1
	}
	if f.compat {
		i |= 2
	}
	return t, t.stable[i]
}

func (f *unicodeForm) append(dst []byte, text string) ([]byte, change) {
	t, stable := f.tables()
	did, copied := unchanged, 0
	lastStable := 0 // position of the last stable character; a mark after this character may compose with it
	var space [2][64]rune
	runes, normal := space[0][:0], space[1][:0]
	for at := 0; at < len(text); {
		if text[at] < utf8.RuneSelf {
			lastStable = at
			at++
			continue
		}
		c, n := decodeRune(text, at)
		if stable.get(c) != 0 {
			lastStable = at
			at += n
			continue
		}
		end := at + n
		for end < len(text) {
			c, n := decodeRune(text, end)
			if c < utf8.RuneSelf || stable.get(c) != 0 {
				break
			}
			end += n
		}
		start := max(lastStable, copied)
		runes = runes[:0]
		for _, r := range text[start:end] {
			runes = append(runes, r)
		}
		normal = f.cluster(t, normal[:0], runes)
		dst = append(dst, text[copied:start]...)
		before := len(dst)
		for _, r := range normal {
			dst = utf8.AppendRune(dst, r)
		}
		if did == unchanged && view(dst[before:]) != text[start:end] {
			did = changed
		}
		copied, at, lastStable = end, end, end
	}
	if did == unchanged {
		return dst, unchanged
	}
	return append(dst, text[copied:]...), changed
}

// cluster appends the normal form of runes to dst.
func (f *unicodeForm) cluster(t *formTables, dst, runes []rune) []rune {
	from := len(dst)
	for _, c := range runes {
		dst = f.decompose(t, dst, c)
	}
	sortMarks(t, dst[from:])
	if f.compose {
		return dst[:from+len(t.composed(dst[from:]))]
	}
	return dst
}

func (f *unicodeForm) decompose(t *formTables, dst []rune, c rune) []rune {
	if c >= hangulS && c < hangulS+hangulSCount {
		i := c - hangulS
		dst = append(dst, hangulL+i/hangulNCount, hangulV+i%hangulNCount/hangulTCount)
		if i%hangulTCount != 0 {
			dst = append(dst, hangulT+i%hangulTCount)
		}
		return dst
	}
	if f.compat {
		if to, ok := t.u.compatible[c]; ok {
			return append(dst, to...)
		}
	}
	if to, ok := t.u.canonical[c]; ok {
		return append(dst, to...)
	}
	return append(dst, c)
}

// sortMarks puts runs of marks in the canonical order.
func sortMarks(t *formTables, runes []rune) {
	for i := 0; i < len(runes); i++ {
		if t.ccc.get(runes[i]) == 0 {
			continue
		}
		end := i + 1
		for end < len(runes) && t.ccc.get(runes[end]) != 0 {
			end++
		}
		if end-i > 1 {
			slices.SortStableFunc(runes[i:end], func(a, b rune) int { return int(t.ccc.get(a)) - int(t.ccc.get(b)) })
		}
		i = end
	}
}

// composed composes runes in place, and returns the part of runes with the result.
func (t *formTables) composed(runes []rune) []rune {
	starter, last := -1, uint8(0) // last: class of the last mark that was not composed
	out := 0
	for _, c := range runes {
		class := t.ccc.get(c)
		if starter >= 0 && (out == starter+1 || last < class && last != 0) {
			if joined, ok := t.pair(runes[starter], c); ok {
				runes[starter] = joined
				continue
			}
		}
		if class == 0 {
			starter = out
		}
		last = class
		runes[out] = c
		out++
	}
	return runes[:out]
}

func (t *formTables) pair(a, b rune) (rune, bool) {
	switch {
	case a >= hangulL && a < hangulL+hangulLCount && b >= hangulV && b < hangulV+hangulVCount:
		return hangulS + ((a-hangulL)*hangulVCount+(b-hangulV))*hangulTCount, true
	case a >= hangulS && a < hangulS+hangulSCount && (a-hangulS)%hangulTCount == 0 && b > hangulT &&
		b < hangulT+hangulTCount:
		return a + b - hangulT, true
	}
	c, ok := t.u.compose[[2]rune{a, b}]
	return c, ok
}
