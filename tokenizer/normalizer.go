package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// normalizer changes a text before it is split. Implementations are immutable, and goroutines may use them
// concurrently.
type normalizer interface {
	// append appends the normalized text to dst. If the text is already normal, append returns the constant unchanged.
	// Then the caller must not use the returned bytes.
	append(dst []byte, text string) ([]byte, change)
}

// These constants bound a tokenizer's file: a hostile file could make a short text grow without end.
const (
	// maxSteps bounds the number of normalizers, and the number of pre-tokenizers. Published tokenizers have at most
	// ten.
	maxSteps = 64
	// maxPrepended bounds the bytes that are put before each part of a text. Published tokenizers prepend one character.
	maxPrepended = 64
)

// maxNormal returns the largest permitted size of the normalized text in bytes, after one normalizer and after all
// normalizers. The factor 32 is large enough: Unicode's longest normal form has 33 bytes for a character of three
// bytes, and published tokenizers replace a space by three bytes.
func maxNormal(text string) int { return 32*len(text) + 4096 }

// change says what a normalizer did to a text.
type change uint8

const (
	unchanged change = iota
	changed
	changedFront // the text's first character was removed, which matters for Metaspace's prepend_scheme "first"
	overgrown    // the result would be longer than maxNormal; nothing was appended
)

// readNormalizer appends to list the normalizers of a component of tokenizer.json.
func readNormalizer(list []normalizer, raw json.RawMessage) ([]normalizer, error) {
	if isNull(raw) {
		return list, nil
	}
	var c struct {
		component
		Normalizers  []json.RawMessage `json:"normalizers"`
		Pattern      json.RawMessage   `json:"pattern"`
		Content      string            `json:"content"`
		Prepend      string            `json:"prepend"`
		StripLeft    bool              `json:"strip_left"`
		StripRight   bool              `json:"strip_right"`
		CleanText    *bool             `json:"clean_text"`
		Chinese      *bool             `json:"handle_chinese_chars"`
		StripAccents *bool             `json:"strip_accents"`
		Lowercase    *bool             `json:"lowercase"`
		Charsmap     string            `json:"precompiled_charsmap"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("read normalizer: %w", err)
	}
	isTrue := func(b *bool) bool { return b == nil || *b }
	switch c.Type {
	case "Sequence":
		for _, raw := range c.Normalizers {
			var err error
			if list, err = readNormalizer(list, raw); err != nil {
				return nil, err
			}
			if len(list) > maxSteps {
				return nil, fmt.Errorf("more than %d normalizers", maxSteps)
			}
		}
		return list, nil
	case "NFC":
		return append(list, &unicodeForm{compose: true}), nil
	case "NFD":
		return append(list, &unicodeForm{}), nil
	case "NFKC":
		return append(list, &unicodeForm{compose: true, compat: true}), nil
	case "NFKD":
		return append(list, &unicodeForm{compat: true}), nil
	case "Lowercase":
		return append(list, newLowercase()), nil
	case "Replace":
		m, err := readPattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("read normalizer Replace: %w", err)
		}
		return append(list, &replaceAll{m, c.Content}), nil
	case "Prepend":
		if len(c.Prepend) > maxPrepended {
			return nil, fmt.Errorf("normalizer Prepend of %d bytes: at most %d", len(c.Prepend), maxPrepended)
		}
		return append(list, prepend(c.Prepend)), nil
	case "Strip":
		return append(list, strip{c.StripLeft, c.StripRight}), nil
	case "StripAccents":
		return append(list, newDropped(runSet(unicodeTables().combining, anyValue))), nil
	case "Nmt":
		return append(list, newDropped(nmtDropped), mapped(nmtSpace)), nil
	case "ByteLevel":
		return append(list, byteLevelText{}), nil
	case "Precompiled":
		blob, err := base64.StdEncoding.DecodeString(c.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("read precompiled_charsmap: %w", err)
		}
		m, err := newCharsmap(blob)
		if err != nil {
			return nil, err
		}
		return append(list, m), nil
	case "BertNormalizer":
		lower := isTrue(c.Lowercase)
		if isTrue(c.CleanText) {
			list = append(list, newDropped(bertDropped()), mapped(bertSpace))
		}
		if isTrue(c.Chinese) {
			list = append(list, spacedChinese{})
		}
		if c.StripAccents == nil && lower || c.StripAccents != nil && *c.StripAccents {
			list = append(list, &unicodeForm{}, newDropped(runSet(unicodeTables().oldNonspacing, anyValue)))
		}
		if lower {
			list = append(list, newLowercase())
		}
		return list, nil
	}
	return nil, errUnknown("normalizer", c.Type)
}

// lowercase is Rust's str::to_lowercase without its rule for the final sigma, because the reference (the official Rust
// tokenizer) maps each character separately.
type lowercase struct {
	table *runeTable // the value is not zero if the character has a lower-case form
	forms map[rune][]rune
}

func newLowercase() *lowercase {
	u := unicodeTables()
	var upper charset
	for c := range u.lower {
		upper = append(upper, charRange{c, c})
	}
	return &lowercase{table: newRuneTable(runsOf(upper.normal())), forms: u.lower}
}

func (l *lowercase) append(dst []byte, text string) ([]byte, change) {
	did := unchanged
	for _, c := range text {
		switch {
		case c < utf8.RuneSelf:
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
				did = changed
			}
			dst = append(dst, byte(c))
		case l.table.get(c) == 0:
			dst = utf8.AppendRune(dst, c)
		default:
			did = changed
			for _, f := range l.forms[c] {
				dst = utf8.AppendRune(dst, f)
			}
		}
	}
	return dst, did
}

// replaceAll replaces every match of a pattern.
type replaceAll struct {
	match *matcher
	with  string
}

func (r *replaceAll) append(dst []byte, text string) ([]byte, change) {
	if r.match.literal != "" {
		n := strings.Count(text, r.match.literal)
		if n == 0 {
			return dst, unchanged
		}
		if len(text)+n*(len(r.with)-len(r.match.literal)) > maxNormal(text) {
			return dst, overgrown
		}
		return appendReplaced(dst, text, r.match.literal, r.with), changed
	}
	w := r.match.in(text)
	began, did, last := len(dst), unchanged, 0
	for from, to := w.next(); from >= 0; from, to = w.next() {
		dst = append(append(dst, text[last:from]...), r.with...)
		last, did = to, changed
		if len(dst)-began > maxNormal(text) {
			return dst[:began], overgrown
		}
	}
	if did == unchanged {
		return dst, unchanged
	}
	return append(dst, text[last:]...), did
}

// prepend puts a prefix before every text that is not empty.
type prepend string

func (p prepend) append(dst []byte, text string) ([]byte, change) {
	if text == "" {
		return dst, unchanged
	}
	return append(append(dst, p...), text...), changed
}

// strip removes white space at the left end, the right end, or both ends of a text.
type strip struct{ left, right bool }

func (s strip) append(dst []byte, text string) ([]byte, change) {
	rest, did := text, unchanged
	if s.left {
		if rest = strings.TrimLeftFunc(rest, isSpace); len(rest) < len(text) {
			did = changedFront
		}
	}
	if s.right {
		if cut := strings.TrimRightFunc(rest, isSpace); len(cut) < len(rest) {
			rest, did = cut, max(did, changed)
		}
	}
	if did == unchanged {
		return dst, did
	}
	return append(dst, rest...), did
}

// dropped removes from a text the characters of a set.
type dropped struct{ table *runeTable }

func newDropped(set charset) dropped { return dropped{newRuneTable(runsOf(set))} }

func runsOf(set charset) []runeRun {
	runs := make([]runeRun, len(set))
	for i, r := range set {
		runs[i] = runeRun{r.lo, r.hi, 1}
	}
	return runs
}

func (d dropped) append(dst []byte, text string) ([]byte, change) {
	did, last := unchanged, 0
	for at, c := range text {
		if d.table.get(c) == 0 {
			continue
		}
		dst = append(dst, text[last:at]...)
		last = at + utf8.RuneLen(c)
		if at == 0 {
			did = changedFront
		}
		did = max(did, changed)
	}
	if did == unchanged {
		return dst, did
	}
	return append(dst, text[last:]...), did
}

// mapped replaces by a space each character for which the function returns true.
type mapped func(rune) bool

func (m mapped) append(dst []byte, text string) ([]byte, change) {
	did, last := unchanged, 0
	for at, c := range text {
		if m(c) {
			dst = append(append(dst, text[last:at]...), ' ')
			last, did = at+utf8.RuneLen(c), changed
		}
	}
	if did == unchanged {
		return dst, did
	}
	return append(dst, text[last:]...), did
}

func bertSpace(c rune) bool { return c != ' ' && isSpace(c) }

// bertDropped returns the characters that BERT's cleaning removes: control, format, private and unassigned characters,
// NUL and U+FFFD, except tabs and line ends.
func bertDropped() charset {
	set := runSet(unicodeTables().oldOther, anyValue).union(charsetOf(0, 0xfffd))
	return set.intersect(charsetOf('\t', '\n', '\r').negate())
}

// nmtDropped and nmtSpace are the characters that sentencepiece's cleaning for translation drops, or replaces by a
// space (tokenizers, normalizers/unicode.rs, do_nmt).
var nmtDropped = charset{{1, 8}, {0xb, 0xb}, {0xe, 0x1f}, {0x7f, 0x7f}, {0x8f, 0x8f}, {0x9f, 0x9f}}

func nmtSpace(c rune) bool {
	switch c {
	case '\t', '\n', '\f', '\r', 0x1680, 0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd:
		return true
	}
	return c >= 0x200b && c <= 0x200f
}

// spacedChinese puts spaces around Chinese characters.
type spacedChinese struct{}

func (spacedChinese) append(dst []byte, text string) ([]byte, change) {
	did := unchanged
	for _, c := range text {
		if isChinese(c) {
			did = changed
			dst = append(utf8.AppendRune(append(dst, ' '), c), ' ')
		} else {
			dst = utf8.AppendRune(dst, c)
		}
	}
	return dst, did
}

// isChinese has the same ranges as the reference. One range of the reference begins at 2B920 by mistake, although
// Unicode's block begins at 2B820. This function has the same mistake, because its result must be equal.
func isChinese(c rune) bool {
	return c >= 0x3400 && (c <= 0x4dbf || c >= 0x4e00 && c <= 0x9fff || c >= 0xf900 && c <= 0xfaff ||
		c >= 0x20000 && c <= 0x2a6df || c >= 0x2a700 && c <= 0x2b73f || c >= 0x2b740 && c <= 0x2b81f ||
		c >= 0x2b920 && c <= 0x2ceaf || c >= 0x2f800 && c <= 0x2fa1f)
}

// byteLevelText is the normalizer ByteLevel: it replaces each byte by a printable character.
type byteLevelText struct{}

func (byteLevelText) append(dst []byte, text string) ([]byte, change) {
	return toByteLevel(dst, text), changed
}
