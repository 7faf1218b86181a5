package tokenizer

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"unicode/utf8"
)

// charsmap is sentencepiece's precompiled normalizer: a double-array trie from pieces of text to their replacements. A
// grapheme is a sequence of characters that a reader sees as one character. As in the reference (crate
// spm_precompiled), each grapheme is looked up in turn. If an entry is a prefix of a short grapheme, the replacement of
// the shortest such entry replaces the whole grapheme.
type charsmap struct {
	trie    []uint32
	replace string // replacements; each ends with a zero byte
}

func newCharsmap(blob []byte) (*charsmap, error) {
	if len(blob) < 4 {
		return nil, errors.New("precompiled_charsmap is too short")
	}
	size := int(binary.LittleEndian.Uint32(blob))
	if size < 4 || size > len(blob)-4 {
		return nil, errors.New("precompiled_charsmap has a wrong length")
	}
	m := &charsmap{trie: make([]uint32, size/4), replace: string(blob[4+size/4*4:])}
	if !utf8.ValidString(m.replace) {
		return nil, errors.New("precompiled_charsmap replaces by text that is not UTF-8")
	}
	for i := range m.trie {
		m.trie[i] = binary.LittleEndian.Uint32(blob[4+4*i:])
	}
	return m, nil
}

// lookup returns the replacement of the shortest entry that is a prefix of piece.
func (m *charsmap) lookup(piece string) (string, bool) {
	at := offset(m.trie[0])
	for i := range len(piece) {
		c := uint32(piece[i])
		if c == 0 {
			return "", false
		}
		if at ^= c; at >= uint32(len(m.trie)) {
			return "", false
		}
		unit := m.trie[at]
		if unit&(1<<31|0xff) != c {
			return "", false
		}
		if at ^= offset(unit); at >= uint32(len(m.trie)) {
			return "", false
		}
		if unit>>8&1 != 0 {
			value := m.trie[at] & (1<<31 - 1)
			if value > uint32(len(m.replace)) {
				return "", false
			}
			text, _, _ := strings.Cut(m.replace[value:], "\x00")
			return text, true
		}
	}
	return "", false
}

func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

func (m *charsmap) append(dst []byte, text string) ([]byte, change) {
	did := unchanged
	for len(text) > 0 {
		n := graphemeLength(text)
		grapheme := text[:n]
		text = text[n:]
		if n == 1 && grapheme[0] > ' ' && grapheme[0] < 0x7f {
			if _, ok := m.lookup(grapheme); !ok {
				dst = append(dst, grapheme[0])
				continue
			}
		}
		if n < 6 {
			if with, ok := m.lookup(grapheme); ok {
				dst = append(dst, with...)
				did = changed
				continue
			}
		}
		for len(grapheme) > 0 {
			_, n := decodeRune(grapheme, 0)
			if with, ok := m.lookup(grapheme[:n]); ok {
				dst = append(dst, with...)
				did = changed
			} else {
				dst = append(dst, grapheme[:n]...)
			}
			grapheme = grapheme[n:]
		}
	}
	return dst, did
}

// These are the grapheme classes of unicode.bin, in the order of gen.go.
const (
	gcAny = iota
	gcCR
	gcControl
	gcExtend
	gcPictographic
	gcConsonant
	gcL
	gcLF
	gcLV
	gcLVT
	gcPrepend
	gcRegional
	gcSpacing
	gcT
	gcV
	gcZWJ
)

var graphemeTable = sync.OnceValue(func() *runeTable { return newRuneTable(unicodeTables().grapheme) })

// graphemeLength returns the length in bytes of a text's first extended grapheme cluster (UAX #29, Unicode 17, as in
// the reference).
func graphemeLength(text string) int {
	table := graphemeTable()
	c, at := decodeRune(text, 0)
	before := table.get(c)
	regional := before == gcRegional // an odd number of regional indicators ends here
	emoji := before == gcPictographic
	conjunct, linked := before == gcConsonant, false
	for at < len(text) {
		if text[at] < utf8.RuneSelf && text[at] >= ' ' && before != gcPrepend && text[at] != 0x7f {
			return at
		}
		c, n := decodeRune(text, at)
		class := table.get(c)
		joined := joinsGrapheme(before, class)
		switch {
		case before == gcZWJ && class == gcPictographic:
			joined = emoji
		case before == gcRegional && class == gcRegional:
			joined = regional
		case class == gcConsonant && conjunct && linked:
			joined = true
		}
		if !joined {
			return at
		}
		regional = class == gcRegional && !(before == gcRegional && regional)
		emoji = class == gcPictographic || emoji && (class == gcExtend || class == gcZWJ)
		switch {
		case class == gcConsonant:
			conjunct, linked = true, false
		case isConjunctLinker(c):
			linked = conjunct
		case class != gcExtend && class != gcZWJ:
			conjunct, linked = false, false
		}
		before = class
		at += n
	}
	return at
}

// joinsGrapheme reports whether two neighbouring characters of these classes stay in one grapheme. It covers the rules
// that need only two characters (UAX #29, GB3 to GB9b).
func joinsGrapheme(before, after uint8) bool {
	switch {
	case before == gcCR && after == gcLF:
		return true
	case before == gcControl || before == gcCR || before == gcLF || after == gcControl || after == gcCR ||
		after == gcLF:
		return false
	case before == gcL && (after == gcL || after == gcV || after == gcLV || after == gcLVT),
		(before == gcLV || before == gcV) && (after == gcV || after == gcT),
		(before == gcLVT || before == gcT) && after == gcT:
		return true
	}
	return after == gcExtend || after == gcZWJ || after == gcSpacing || before == gcPrepend
}

// isConjunctLinker reports whether c has InCB=Linker: it is a virama that joins consonants into one cluster.
func isConjunctLinker(c rune) bool {
	switch c {
	case 0x94d, 0x9cd, 0xacd, 0xb4d, 0xc4d, 0xd4d, 0x1039, 0x17d2, 0x1a60, 0x1b44, 0x1bab, 0xa9c0, 0xaaf6, 0x10a3f,
		0x11133, 0x113d0, 0x1193e, 0x11a47, 0x11a99, 0x11f42:
		return true
	}
	return false
}
