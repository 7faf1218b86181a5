package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"sort"
	"sync"
	"unicode/utf8"
)

// unicodeBin has Unicode's properties as the crates of the reference (the official Rust tokenizer) report them.
// testdata/unicode/gen.sh makes it. Go's tables (Unicode 15.0) cannot be used, because the reference uses other
// versions: it matches patterns with Oniguruma's tables (Unicode 16.0), normalizes with tables of Unicode 9.0, takes
// some categories from tables of Unicode 8.0, and uses newer tables for the rest.
//
//go:embed unicode.bin
var unicodeBin string

// categoryNames has the general categories. The number of a category is its index in this list plus one. Zero means
// that a code point is unassigned (Cn), or a surrogate (Cs), which a text never has.
var categoryNames = []string{"Cc", "Cf", "Co", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No",
	"Pc", "Pd", "Pe", "Pf",
	"Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"}

// scriptNames are the scripts that patterns may name. A pattern with another script is refused.
var scriptNames = []string{"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Thai", "Arabic",
	"Hebrew", "Devanagari"}

// unicodeData has the unpacked content of unicode.bin. It is immutable, and all tokenizers share it.
type unicodeData struct {
	// These are Oniguruma's classes, except regexWord, which is \w of Rust's regex crate.
	category, space, word, digit, regexWord            []runeRun
	oldPunctuation, oldOther, oldNonspacing, combining []runeRun // classes in the code of BERT and StripAccents
	numeric, ccc, grapheme                             []runeRun
	scripts                                            map[string][]runeRun
	lower                                              map[rune][]rune
	canonical, compatible                              map[rune][]rune // full decompositions; those of Hangul are computed
	compose                                            map[[2]rune]rune
}

// runeRun is a run of code points that have the same value. Both ends belong to the run.
type runeRun struct {
	lo, hi rune
	value  uint8
}

var unicodeTables = sync.OnceValue(readUnicode)

func readUnicode() *unicodeData {
	r := unicodeReader{rest: unicodeBin}
	u := &unicodeData{scripts: map[string][]runeRun{}}
	for _, runs := range []*[]runeRun{&u.category, &u.space, &u.word, &u.digit, &u.regexWord, &u.oldPunctuation,
		&u.oldOther,
		&u.oldNonspacing, &u.combining, &u.numeric, &u.ccc, &u.grapheme} {
		*runs = r.runs()
	}
	for _, name := range scriptNames {
		u.scripts[name] = r.runs()
	}
	u.lower, u.canonical, u.compatible = r.mapping(), r.mapping(), r.mapping()
	u.compose = r.pairs()
	if r.rest != "" {
		panic("bug: unicode.bin and unicode.go disagree; run testdata/unicode/gen.sh")
	}
	return u
}

type unicodeReader struct{ rest string }

func (r *unicodeReader) uvarint() int {
	v, n := binary.Uvarint([]byte(r.rest[:min(len(r.rest), binary.MaxVarintLen32)]))
	r.rest = r.rest[n:]
	return int(v)
}

func (r *unicodeReader) byte() byte {
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *unicodeReader) runs() []runeRun {
	runs := make([]runeRun, r.uvarint())
	next := 0
	for i := range runs {
		lo := next + r.uvarint()
		hi := lo + r.uvarint()
		runs[i] = runeRun{rune(lo), rune(hi), r.byte()}
		next = hi + 1
	}
	return runs
}

func (r *unicodeReader) mapping() map[rune][]rune {
	n := r.uvarint()
	m := make(map[rune][]rune, n)
	from := 0
	for range n {
		from += r.uvarint()
		to := make([]rune, r.byte())
		for i := range to {
			to[i] = rune(r.uvarint())
		}
		m[rune(from)] = to
	}
	return m
}

func (r *unicodeReader) pairs() map[[2]rune]rune {
	n := r.uvarint()
	m := make(map[[2]rune]rune, n)
	from := 0
	for range n {
		from += r.uvarint()
		r.byte() // the number of code points that follow, always two: the second code point of the pair, and the composition
		m[[2]rune{rune(from), rune(r.uvarint())}] = rune(r.uvarint())
	}
	return m
}

// lookupRun returns the value of c in sorted runs, or zero if no run has c.
func lookupRun(runs []runeRun, c rune) uint8 {
	i := sort.Search(len(runs), func(i int) bool { return runs[i].hi >= c })
	if i == len(runs) || runs[i].lo > c {
		return 0
	}
	return runs[i].value
}

// runeTable maps every code point to a byte. A lookup takes two memory accesses. Code points are divided into pages of
// 256, and equal pages are stored once.
type runeTable struct {
	page []uint16 // for each code point / 256: index of the page in cell
	cell []uint8
}

// newRuneTable builds the table of runs. A code point outside every run gets zero.
func newRuneTable(runs []runeRun) *runeTable {
	t := &runeTable{page: make([]uint16, (utf8.MaxRune+1)>>8)}
	seen := map[[256]uint8]uint16{}
	next := 0
	for p := range t.page {
		var cells [256]uint8
		lo, hi := rune(p)<<8, rune(p)<<8|0xff
		for next < len(runs) && runs[next].hi < lo {
			next++
		}
		for i := next; i < len(runs) && runs[i].lo <= hi; i++ {
			for c := max(lo, runs[i].lo); c <= min(hi, runs[i].hi); c++ {
				cells[c-lo] = runs[i].value
			}
		}
		at, ok := seen[cells]
		if !ok {
			at = uint16(len(t.cell) >> 8)
			seen[cells] = at
			t.cell = append(t.cell, cells[:]...)
		}
		t.page[p] = at
	}
	return t
}

func (t *runeTable) get(c rune) uint8 {
	return t.cell[int(t.page[c>>8])<<8|int(c&0xff)]
}

// isSpace reports whether c has the property White_Space. The property is the same in all versions of Unicode from 6.3
// on, so all parts of the reference have the same property.
func isSpace(c rune) bool {
	switch {
	case c <= ' ':
		return c == ' ' || c >= '\t' && c <= '\r'
	case c < 0x1680:
		return c == 0x85 || c == 0xa0
	default:
		return c == 0x1680 || c >= 0x2000 && c <= 0x200a || c == 0x2028 || c == 0x2029 || c == 0x202f ||
			c == 0x205f || c == 0x3000
	}
}

// isASCIIPunctuation does the same as Rust's char::is_ascii_punctuation.
func isASCIIPunctuation(c rune) bool {
	return c >= '!' && c <= '/' || c >= ':' && c <= '@' || c >= '[' && c <= '`' || c >= '{' && c <= '~'
}
