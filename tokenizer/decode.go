package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
)

// decoder is one step from the spellings of tokens to text. Decoding allocates memory, so it is used for log messages
// and tests, not on the path of requests.
type decoder func(tokens []string) []string

// Decode returns the text of ids. If skipSpecial is true, special tokens are left out. Ids without a token are left
// out, as in the reference (the official Rust tokenizer).
func (t *Tokenizer) Decode(ids []block.Token, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if a, ok := t.added[id]; ok {
			if !skipSpecial || !a.special {
				tokens = append(tokens, t.normalSpelling(a))
			}
		} else if s, ok := t.vocab.lookup(id); ok {
			tokens = append(tokens, s)
		}
	}
	if len(t.decoders) == 0 {
		return strings.Join(tokens, " ")
	}
	for _, d := range t.decoders {
		tokens = d(tokens)
	}
	return strings.Join(tokens, "")
}

// normalSpelling returns the text to which an added token decodes. If the token is matched after normalization, the
// text is the token's normalized content.
func (t *Tokenizer) normalSpelling(a addedToken) string {
	if !a.normalized || len(t.normalizers) == 0 {
		return a.content
	}
	return t.normalForm(a.content)
}

// normalForm returns the normalized text, or "" if the normalization fails.
func (t *Tokenizer) normalForm(text string) string {
	e := &encoder{t: t}
	normal, _, err := e.normalize(text)
	if err != nil {
		return ""
	}
	return strings.Clone(normal)
}

func readDecoder(list []decoder, raw json.RawMessage) ([]decoder, error) {
	if isNull(raw) {
		return list, nil
	}
	var c struct {
		component
		Decoders      []json.RawMessage `json:"decoders"`
		Pattern       json.RawMessage   `json:"pattern"`
		Content       string            `json:"content"`
		Start         int               `json:"start"`
		Stop          int               `json:"stop"`
		Prefix        string            `json:"prefix"`
		Suffix        string            `json:"suffix"`
		Cleanup       bool              `json:"cleanup"`
		Replacement   string            `json:"replacement"`
		PrependScheme *string           `json:"prepend_scheme"`
		AddPrefix     *bool             `json:"add_prefix_space"`
		PadToken      string            `json:"pad_token"`
		Delimiter     string            `json:"word_delimiter_token"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("read decoder: %w", err)
	}
	switch c.Type {
	case "Sequence":
		for _, raw := range c.Decoders {
			var err error
			if list, err = readDecoder(list, raw); err != nil {
				return nil, err
			}
		}
		return list, nil
	case "ByteLevel":
		return append(list, decodeByteLevel), nil
	case "ByteFallback":
		return append(list, decodeByteFallback), nil
	case "Fuse":
		return append(list, func(tokens []string) []string { return []string{strings.Join(tokens, "")} }), nil
	case "Replace":
		m, err := readPattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("read decoder Replace: %w", err)
		}
		r := &replaceAll{m, c.Content}
		return append(list, each(func(_ int, s string) string {
			if out, did := r.append(nil, s); did == changed {
				return string(out)
			}
			return s
		})), nil
	case "Strip":
		return append(list, each(func(_ int, s string) string {
			return stripDecoded(s, c.Content, c.Start, c.Stop)
		})), nil
	case "Metaspace":
		scheme, err := readPrependScheme(c.PrependScheme, c.AddPrefix)
		if err != nil {
			return nil, err
		}
		return append(list, each(func(i int, s string) string {
			with := " "
			if i == 0 && scheme != prependNever {
				with = ""
			}
			return strings.ReplaceAll(s, c.Replacement, with)
		})), nil
	case "WordPiece":
		return append(list, each(func(i int, s string) string { return joinWordPiece(i, s, c.Prefix, c.Cleanup) })), nil
	case "BPEDecoder":
		return append(list, func(tokens []string) []string {
			for i, s := range tokens {
				with := " "
				if i == len(tokens)-1 {
					with = ""
				}
				tokens[i] = strings.ReplaceAll(s, c.Suffix, with)
			}
			return tokens
		}), nil
	}
	return nil, errUnknown("decoder", c.Type)
}

func each(change func(i int, token string) string) decoder {
	return func(tokens []string) []string {
		for i, s := range tokens {
			tokens[i] = change(i, s)
		}
		return tokens
	}
}

func decodeByteLevel(tokens []string) []string {
	var raw []byte
	for _, s := range tokens {
		with, ok := fromByteLevel(raw, s)
		if !ok {
			with = append(raw, s...)
		}
		raw = with
	}
	return []string{lossy(raw)}
}

// lossy returns the bytes as text. It replaces each ill-formed part by one U+FFFD, as Rust's from_utf8_lossy does.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = illFormed(b)
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

// illFormed returns the length of the ill-formed part at the beginning of b. The part is the longest run of bytes that
// could be the beginning of one character, or a single byte (Unicode 16, table 3-7).
func illFormed(b []byte) int {
	need, lo, hi := 0, byte(0x80), byte(0xbf)
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		if c == 0xe0 {
			lo = 0xa0
		}
		if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		if c == 0xf0 {
			lo = 0x90
		}
		if c == 0xf4 {
			hi = 0x8f
		}
	}
	n := 1
	for n <= need && n < len(b) && b[n] >= lo && b[n] <= hi {
		lo, hi = 0x80, 0xbf
		n++
	}
	return n
}

func decodeByteFallback(tokens []string) []string {
	var out []string
	var raw []byte
	flush := func() {
		if utf8.Valid(raw) {
			if len(raw) > 0 {
				out = append(out, string(raw))
			}
		} else {
			for range raw {
				out = append(out, "\ufffd")
			}
		}
		raw = raw[:0]
	}
	for _, s := range tokens {
		if len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' {
			if b, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
				raw = append(raw, byte(b))
				continue
			}
		}
		flush()
		out = append(out, s)
	}
	flush()
	return out
}

// stripDecoded removes the text content from the front of s, at most start times, and from the back of s, at most stop
// times.
func stripDecoded(s, content string, start, stop int) string {
	if content == "" {
		return s
	}
	for ; start > 0 && strings.HasPrefix(s, content); start-- {
		s = s[len(content):]
	}
	for ; stop > 0 && strings.HasSuffix(s, content); stop-- {
		s = s[:len(s)-len(content)]
	}
	return s
}

func joinWordPiece(i int, s, prefix string, cleanup bool) string {
	if i > 0 {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			s = rest
		} else {
			s = " " + s
		}
	}
	if !cleanup {
		return s
	}
	for _, pair := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
		{" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
		s = strings.ReplaceAll(s, pair[0], pair[1])
	}
	return s
}
