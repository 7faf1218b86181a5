package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
)

// noToken marks a byte or character without a token in the vocabulary.
const noToken = ^block.Token(0)

// bpe is byte-pair encoding as the reference (the official Rust tokenizer) does it. Goroutines may use it concurrently:
// only its cache changes.
//
// A unit is a part of a word before any merge. A byte-level tokenizer works in byte mode: the units are raw bytes, and
// so are the words and the vocabulary. The file has printable characters in place of bytes; loading replaces them by
// bytes. Other tokenizers do not work in byte mode: their words are text, and the units are characters.
type bpe struct {
	vocab        *vocabulary // vocabulary of the units of words: raw bytes in byte mode
	spelled      *vocabulary // vocabulary in the spelling of the file
	merges       *merges
	cache        *wordCache
	ignoreMerges bool // a word that is in the vocabulary is not merged
	fuseUnknown  bool
	prefix       string     // text that is put before each unit except the first unit of a word
	suffix       string     // text that is put after the last unit of a word
	bytes        *byteTable // table for byte mode; nil if the tokenizer does not work in byte mode
	charID       *charIDs
	fallback     *[256]block.Token // tokens for the bytes of unknown characters; noToken for a byte without a token; nil if there is no fallback
	unknown      block.Token       // token for unknown characters; noToken: unknown characters are dropped
	joins        *joinFilter       // says where words may be cut into parts; nil: words are not cut
}

// charIDs maps characters to ids with two memory accesses.
type charIDs struct {
	page [(utf8.MaxRune + 1) >> 8]uint16
	ids  []block.Token
}

func newCharIDs() *charIDs {
	c := &charIDs{ids: make([]block.Token, 256)}
	for i := range c.ids {
		c.ids[i] = noToken
	}
	return c
}

func (c *charIDs) set(r rune, id block.Token) {
	if c.page[r>>8] == 0 {
		c.page[r>>8] = uint16(len(c.ids) >> 8)
		for range 256 {
			c.ids = append(c.ids, noToken)
		}
	}
	c.ids[int(c.page[r>>8])<<8|int(r&0xff)] = id
}

func (c *charIDs) get(r rune) block.Token {
	return c.ids[int(c.page[r>>8])<<8|int(r&0xff)]
}

// joinFilter tells whether some merge makes a token that has two given characters side by side. It is a Bloom filter
// with one hash, so it may say yes by mistake, but it never says no by mistake. If it says no, no merge joins the two
// characters, and a word may be cut between them. In models without a pre-tokenizer a whole document is one word. With
// the filter, these models are as fast as other models.
type joinFilter struct{ bits []uint64 }

const joinBits = 1 << 21

func (f *joinFilter) at(a, b rune) (word int, bit uint64) {
	h := (uint64(a)<<21 | uint64(b)) * block.Golden >> 43
	return int(h >> 6), 1 << (h & 63)
}

func (f *joinFilter) add(text []byte) {
	last := rune(-1)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		text = text[n:]
		if last >= 0 {
			w, b := f.at(last, r)
			f.bits[w] |= b
		}
		last = r
	}
}

func (f *joinFilter) mayJoin(a, b rune) bool {
	w, bit := f.at(a, b)
	return f.bits[w]&bit != 0
}

// bpeSpec is a BPE model as a file describes it.
type bpeSpec struct {
	tokens       []token
	merges       [][2]string
	unknown      string
	prefix       string
	suffix       string
	fuseUnknown  bool
	byteFallback bool
	ignoreMerges bool
	byteLevel    bool // the last step of the pre-tokenizer is ByteLevel
}

func newBPE(spec *bpeSpec) (*bpe, error) {
	text, err := newVocabulary(spec.tokens)
	if err != nil {
		return nil, err
	}
	m := &bpe{vocab: text, spelled: text, cache: newWordCache(), ignoreMerges: spec.ignoreMerges,
		fuseUnknown: spec.fuseUnknown, prefix: spec.prefix, suffix: spec.suffix, unknown: noToken}
	if err := m.readMerges(spec, text); err != nil {
		return nil, err
	}
	if spec.byteLevel && m.prefix == "" && m.suffix == "" && m.enterByteMode(spec.tokens) {
		return m, nil
	}
	m.charID = newCharIDs()
	for _, t := range spec.tokens {
		if r, n := utf8.DecodeRuneInString(t.text); n > 0 && n == len(t.text) && !(r == utf8.RuneError && n == 1) {
			m.charID.set(r, t.id)
		}
	}
	complete := false
	if spec.byteFallback {
		m.fallback, complete = byteTokens(text)
	}
	if spec.unknown != "" {
		id, ok := text.id(spec.unknown)
		if !ok && !complete {
			return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", clip(spec.unknown))
		}
		if ok {
			m.unknown = id
		}
	}
	m.allowCuts(text, complete)
	return m, nil
}

// byteTokens finds the tokens <0x00> to <0xFF>. complete is true if no character can be unknown: each character has a
// token, or all bytes of the character have tokens.
func byteTokens(v *vocabulary) (ids *[256]block.Token, complete bool) {
	ids, complete = new([256]block.Token), true
	for b := range ids {
		id, ok := v.id(fmt.Sprintf("<0x%02X>", b))
		if ok {
			ids[b] = id
			continue
		}
		ids[b] = noToken
		if b < utf8.RuneSelf {
			_, ok = v.id(string(rune(b)))
		}
		complete = complete && (ok || b == 0xc0 || b == 0xc1 || b > 0xf4)
	}
	return ids, complete
}

func (m *bpe) readMerges(spec *bpeSpec, text *vocabulary) error {
	m.merges = newMerges(len(spec.merges))
	var joined []byte
	for rank, pair := range spec.merges {
		left, ok := text.id(pair[0])
		right, ok2 := text.id(pair[1])
		if !ok || !ok2 || len(pair[1]) < len(m.prefix) {
			return fmt.Errorf("merge %d joins %q and %q, but the vocabulary does not have both", rank,
				clip(pair[0]), clip(pair[1]))
		}
		joined = append(append(joined[:0], pair[0]...), pair[1][len(m.prefix):]...)
		merged, ok := text.id(string(joined))
		if !ok {
			return fmt.Errorf("merge %d makes %q, but the vocabulary does not have it", rank, clip(string(joined)))
		}
		m.merges.add(left, right, uint32(rank), merged)
	}
	return nil
}

// enterByteMode replaces the vocabulary by a vocabulary of raw bytes. It returns false if a byte has no token.
func (m *bpe) enterByteMode(tokens []token) bool {
	raw := make([]token, 0, len(tokens))
	var buf []byte
	for _, t := range tokens {
		if b, ok := fromByteLevel(buf[:0], t.text); ok {
			raw = append(raw, token{string(b), t.id})
		}
	}
	v, err := newVocabulary(raw)
	if err != nil {
		return false
	}
	bytes := &byteTable{}
	for b := range bytes.id {
		id, ok := v.id(string([]byte{byte(b)}))
		if !ok {
			return false
		}
		bytes.id[b] = id
	}
	bytes.fill(m.merges)
	m.vocab, m.bytes = v, bytes
	return true
}

// allowCuts builds the join filter if cutting words cannot change the ids. Three conditions must hold. No unit depends
// on its place in the word. No cut separates unknown characters that would be fused. No merge joins a token whose
// spelling is not its text (such as <0x0A>).
func (m *bpe) allowCuts(text *vocabulary, complete bool) {
	if m.prefix != "" || m.suffix != "" || m.unknown != noToken && !complete {
		return
	}
	special := map[block.Token]bool{m.unknown: true}
	if m.fallback != nil {
		for _, id := range m.fallback {
			special[id] = true
		}
	}
	delete(special, noToken)
	f := &joinFilter{bits: make([]uint64, joinBits/64)}
	for _, s := range m.merges.slots {
		if s.pair == noPair {
			continue
		}
		if special[block.Token(s.pair>>32)] || special[block.Token(s.pair)] {
			return
		}
		f.add(text.text(block.Token(s.merge)))
	}
	m.joins = f
}

// appendWord appends the ids of a word.
func (m *bpe) appendWord(dst []block.Token, word string, s *scratch) ([]block.Token, error) {
	if m.bytes != nil {
		if len(word) == 1 {
			return append(dst, m.bytes.id[word[0]]), nil
		}
		return m.appendCached(dst, word, s), nil
	}
	if m.ignoreMerges {
		if id, ok := m.vocab.id(word); ok {
			return append(dst, id), nil
		}
	}
	if m.joins == nil {
		return m.appendCached(dst, word, s), nil
	}
	if len(word) > maxWord {
		return nil, errWordTooLong
	}
	return m.appendCut(dst, word, s), nil
}

// maxWord bounds the length of a word in bytes, so that positions fit into an int32.
const maxWord = 1 << 30

var errWordTooLong = errors.New("a word exceeds 1 GiB")

// appendCut cuts a word between neighbouring characters that no merge can join, and appends the ids of each part.
func (m *bpe) appendCut(dst []block.Token, word string, s *scratch) []block.Token {
	start := 0
	last := rune('a')
	for at := 0; at < len(word); {
		r, n := decodeRune(word, at)
		if at > start && !(isLower(last) && isLower(r)) && !m.joins.mayJoin(last, r) {
			dst = m.appendCached(dst, word[start:at], s)
			start = at
		}
		last = r
		at += n
	}
	if start < len(word) {
		dst = m.appendCached(dst, word[start:], s)
	}
	return dst
}

// isLower reports whether r is a lower-case ASCII letter. Two such letters can nearly always be joined, so asking the
// filter about them would waste time.
func isLower(r rune) bool { return r >= 'a' && r <= 'z' }

func (m *bpe) appendCached(dst []block.Token, word string, s *scratch) []block.Token {
	if len(word) > maxCachedBytes {
		return m.appendMerged(dst, word, s)
	}
	key := keyOf(word)
	if found, ok := m.cache.get(&key, dst); ok {
		return found
	}
	before := len(dst)
	dst = m.appendMerged(dst, word, s)
	m.cache.put(&key, dst[before:])
	return dst
}

// appendMerged appends the ids of a word without using the cache.
func (m *bpe) appendMerged(dst []block.Token, word string, s *scratch) []block.Token {
	if m.bytes != nil && m.ignoreMerges {
		if id, ok := m.vocab.id(word); ok {
			return append(dst, id)
		}
	}
	if m.bytes != nil {
		return append(dst, m.merges.applyBytes(word, m.bytes, &s.merge)...)
	}
	ids := m.appendUnits(s.merge.ids[:0], word)
	s.merge.ids = ids
	return append(dst, m.merges.apply(ids, &s.merge)...)
}

// appendUnits appends the ids of a word's characters, before any merge. The ids of unknown characters have the same
// order as in the reference.
func (m *bpe) appendUnits(ids []block.Token, word string) []block.Token {
	pending := false
	for at := 0; at < len(word); {
		r, n := decodeRune(word, at)
		unit := word[at : at+n]
		id := noToken
		if m.prefix == "" && m.suffix == "" {
			id = m.charID.get(r)
		} else {
			if at > 0 {
				unit = m.prefix + unit
			}
			if at+n == len(word) {
				unit += m.suffix
			}
			if known, ok := m.vocab.id(unit); ok {
				id = known
			}
		}
		at += n
		if id != noToken {
			if pending {
				ids = append(ids, m.unknown)
				pending = false
			}
			ids = append(ids, id)
			continue
		}
		if m.fallback != nil {
			if with, ok := appendBytes(ids, m.fallback, unit); ok {
				ids = with
				continue
			}
		}
		if m.unknown != noToken {
			if pending && !m.fuseUnknown {
				ids = append(ids, m.unknown)
			}
			pending = true
		}
	}
	if pending {
		ids = append(ids, m.unknown)
	}
	return ids
}

// appendBytes appends the tokens of unit's bytes. If a byte has no token, it appends nothing.
func appendBytes(ids []block.Token, table *[256]block.Token, unit string) ([]block.Token, bool) {
	before := len(ids)
	for i := range len(unit) {
		id := table[unit[i]]
		if id == noToken {
			return ids[:before], false
		}
		ids = append(ids, id)
	}
	return ids, true
}
