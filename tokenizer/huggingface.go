package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// Parse builds a tokenizer from the contents of tokenizer.json and, if not empty, tokenizer_config.json. Truncation and padding in the
// file are left out: engines switch them off.
func Parse(tokenizerJSON, configJSON []byte) (*Tokenizer, error) {
	f, err := readFile(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer.json: %w", err)
	}
	cfg := &config{}
	if len(configJSON) > 0 {
		if cfg, err = readConfig(configJSON); err != nil {
			return nil, fmt.Errorf("read tokenizer_config.json: %w", err)
		}
	}
	t, err := f.build(cfg)
	if err != nil {
		return nil, fmt.Errorf("build tokenizer: %w", err)
	}
	return t, nil
}

// cutMerge cuts "a b"; version: the line is the header that old files carry.
func cutMerge(line string) (pair [2]string, version, ok bool) {
	if strings.HasPrefix(line, "#version") {
		return pair, true, true
	}
	left, right, ok := strings.Cut(line, " ")
	return [2]string{left, right}, false, ok && !strings.Contains(right, " ")
}

// file is tokenizer.json: the parts that are small as they are, the model's lists read in one pass.
type file struct {
	added                                   []addedToken
	normalizer, pre, post, decoder          json.RawMessage
	kind                                    string // of the model
	tokens                                  []token
	scores                                  []float64
	merges                                  [][2]string
	unknown, prefix, suffix                 string
	hasPrefix                               bool
	unknownID                               block.Token
	fuseUnknown, byteFallback, ignoreMerges bool
	maxChars                                int
}

func readFile(data []byte) (*file, error) {
	f := &file{unknownID: noToken, maxChars: 100}
	s := &jsonScanner{data: data}
	err := s.object(func(key string) (err error) {
		switch key {
		case "added_tokens":
			return f.readAdded(s)
		case "normalizer":
			f.normalizer, err = s.raw()
		case "pre_tokenizer":
			f.pre, err = s.raw()
		case "post_processor":
			f.post, err = s.raw()
		case "decoder":
			f.decoder, err = s.raw()
		case "model":
			return f.readModel(s)
		default:
			return s.skip()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.peek() != 0 || s.pos < len(data) {
		return nil, s.fail("data after the document")
	}
	if f.kind == "" {
		f.guessKind()
	}
	return f, nil
}

// guessKind names the model of files older than its "type" by what only that model has, as the reference does.
func (f *file) guessKind() {
	switch {
	case f.merges != nil:
		f.kind = "BPE"
	case f.scores != nil:
		f.kind = "Unigram"
	case f.hasPrefix:
		f.kind = "WordPiece"
	}
}

func (f *file) readAdded(s *jsonScanner) error {
	if s.null() {
		return nil
	}
	return s.array(func() error {
		raw, err := s.raw()
		if err != nil {
			return err
		}
		a, err := readAddedToken(raw)
		if err != nil {
			return fmt.Errorf("read added token %s: %w", clip(string(raw)), err)
		}
		f.added = append(f.added, a)
		return nil
	})
}

func readAddedToken(raw []byte) (addedToken, error) {
	var a struct {
		ID         *block.Token `json:"id"`
		Content    string       `json:"content"`
		SingleWord bool         `json:"single_word"`
		Lstrip     bool         `json:"lstrip"`
		Rstrip     bool         `json:"rstrip"`
		Normalized *bool        `json:"normalized"`
		Special    bool         `json:"special"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return addedToken{}, err
	}
	t := addedToken{id: noToken, content: a.Content, special: a.Special, singleWord: a.SingleWord, lstrip: a.Lstrip, rstrip: a.Rstrip,
		normalized: !a.Special}
	if a.ID != nil {
		t.id = *a.ID
	}
	if a.Normalized != nil {
		t.normalized = *a.Normalized
	}
	return t, nil
}

func (f *file) readModel(s *jsonScanner) error {
	return s.object(func(key string) (err error) {
		if key != "vocab" && key != "merges" && s.null() {
			return nil
		}
		switch key {
		case "type":
			f.kind, err = s.text()
		case "vocab":
			return f.readVocab(s)
		case "merges":
			return f.readMerges(s)
		case "unk_token":
			f.unknown, err = s.text()
		case "continuing_subword_prefix":
			f.prefix, err = s.text()
			f.hasPrefix = true
		case "end_of_word_suffix":
			f.suffix, err = s.text()
		case "unk_id":
			f.unknownID, err = s.id()
		case "fuse_unk":
			f.fuseUnknown, err = s.bool()
		case "byte_fallback":
			f.byteFallback, err = s.bool()
		case "ignore_merges":
			f.ignoreMerges, err = s.bool()
		case "max_input_chars_per_word":
			var n uint32
			n, err = s.id()
			f.maxChars = int(min(n, 1<<30))
		case "dropout":
			var n string
			if n, err = s.number(); err != nil {
				return err
			}
			if p, _ := strconv.ParseFloat(n, 64); p != 0 {
				return fmt.Errorf("the model merges at random (dropout %s): no two encodings need agree; set dropout to null", n)
			}
		default:
			return s.skip()
		}
		return err
	})
}

// readVocab reads {"text": id, …}, or [["text", score], …] of Unigram.
func (f *file) readVocab(s *jsonScanner) error {
	if s.peek() == '{' {
		return s.object(func(text string) error {
			id, err := s.id()
			f.tokens = append(f.tokens, token{text, id})
			return err
		})
	}
	f.scores = []float64{}
	return s.array(func() error {
		at := 0
		err := s.array(func() (err error) {
			if at++; at == 1 {
				var text string
				text, err = s.text()
				f.tokens = append(f.tokens, token{text, block.Token(len(f.tokens))})
				return err
			}
			var n string
			if n, err = s.number(); err != nil {
				return err
			}
			score, err := parseScore(n)
			f.scores = append(f.scores, score)
			return err
		})
		if err == nil && at != 2 {
			return s.fail("want a token and its score")
		}
		return err
	})
}

// parseScore reads a number as serde_json does by default: digits into an integer, then one multiplication or division, which is not always
// the nearest float. Ties between equal sums hang on that last bit, so it is copied, not corrected.
func parseScore(s string) (float64, error) {
	if _, err := strconv.ParseFloat(s, 64); err != nil {
		return 0, fmt.Errorf("score %q: %w", clip(s), err)
	}
	digits, negative := strings.CutPrefix(s, "-")
	var significand uint64
	exponent, point, full := 0, false, false
	i := 0
	for ; i < len(digits) && digits[i] != 'e' && digits[i] != 'E'; i++ {
		if digits[i] == '.' {
			point = true
			continue
		}
		d := uint64(digits[i] - '0')
		if full = full || significand > (math.MaxUint64-d)/10; full {
			if !point {
				exponent++
			}
			continue
		}
		significand = significand*10 + d
		if point {
			exponent--
		}
	}
	if i < len(digits) {
		e, err := strconv.Atoi(digits[i+1:])
		if err != nil {
			return 0, fmt.Errorf("score %q: %w", clip(s), err)
		}
		exponent += e
	}
	f := float64(significand)
	for ; exponent < -308 && f != 0; exponent += 308 {
		f /= 1e308
	}
	power, err := strconv.ParseFloat("1e"+strconv.Itoa(min(max(exponent, -exponent), 308)), 64)
	if err != nil {
		return 0, err
	}
	if exponent < 0 {
		f /= power
	} else {
		f *= power
	}
	if negative {
		f = -f
	}
	return f, nil
}

// readMerges reads ["a b", …] or [["a", "b"], …].
func (f *file) readMerges(s *jsonScanner) error {
	f.merges = [][2]string{}
	return s.array(func() error {
		if s.peek() == '[' {
			var pair [2]string
			n := 0
			err := s.array(func() (err error) {
				if n == 2 {
					return s.fail("a merge has two parts")
				}
				pair[n], err = s.text()
				n++
				return err
			})
			if err == nil && n != 2 {
				return s.fail("a merge has two parts")
			}
			f.merges = append(f.merges, pair)
			return err
		}
		line, err := s.text()
		if err != nil {
			return err
		}
		pair, version, ok := cutMerge(line)
		if !ok {
			return s.fail(fmt.Sprintf("merge %q has not two parts", clip(line)))
		}
		if !version {
			f.merges = append(f.merges, pair)
		}
		return nil
	})
}

func (f *file) build(cfg *config) (*Tokenizer, error) {
	t := &Tokenizer{raw: newAddedSet(), normalized: newAddedSet(), added: map[block.Token]addedToken{}, addedID: map[string]block.Token{},
		named: cfg.named}
	var err error
	if t.normalizers, err = readNormalizer(nil, f.normalizer); err != nil {
		return nil, err
	}
	if t.pre, err = readPreTokenizer(nil, f.pre); err != nil {
		return nil, err
	}
	if t.decoders, err = readDecoder(nil, f.decoder); err != nil {
		return nil, err
	}
	if err = f.buildModel(t); err != nil {
		return nil, err
	}
	if err = t.add(append(f.added, cfg.missing(f.added)...)); err != nil {
		return nil, err
	}
	p, err := readPostProcessor(f.post)
	if err != nil {
		return nil, err
	}
	t.before, t.after = p.before, p.after
	return t, nil
}

func (f *file) buildModel(t *Tokenizer) (err error) {
	if len(f.tokens) == 0 {
		return errors.New("the model has no vocabulary")
	}
	switch f.kind {
	case "BPE":
		last := len(t.pre) - 1
		spec := &bpeSpec{tokens: f.tokens, merges: f.merges, unknown: f.unknown, prefix: f.prefix, suffix: f.suffix,
			fuseUnknown: f.fuseUnknown, byteFallback: f.byteFallback, ignoreMerges: f.ignoreMerges,
			byteLevel: last >= 0 && t.pre[last].kind == preByteLevel}
		m, err := newBPE(spec)
		if err != nil {
			return err
		}
		if m.byteMode {
			t.pre = t.pre[:last]
		}
		t.model, t.vocab = m, m.spelled
	case "Unigram":
		if len(f.scores) != len(f.tokens) {
			return errors.New("a Unigram vocabulary is a list of tokens and scores")
		}
		u, err := newUnigram(f.tokens, f.scores, f.unknownID, f.byteFallback)
		if err != nil {
			return err
		}
		t.model, t.vocab = u, u.vocab
	case "WordPiece":
		if !f.hasPrefix {
			f.prefix = "##"
		}
		if f.unknown == "" {
			f.unknown = "[UNK]"
		}
		t.model, t.vocab, err = newWordPiece(f.tokens, f.prefix, f.unknown, f.maxChars)
	case "WordLevel":
		v, err := newVocabulary(f.tokens)
		if err != nil {
			return err
		}
		w := &wordLevel{vocab: v, unknown: noToken}
		if id, ok := v.id(f.unknown); ok {
			w.unknown = id
		}
		t.model, t.vocab = w, v
	default:
		return errUnknown("model", f.kind)
	}
	return err
}

// add enters added tokens: under their id in the model if they have one there, else under the file's, else under the next free one.
func (t *Tokenizer) add(tokens []addedToken) error {
	next := block.Token(len(t.vocab.known))
	for _, a := range tokens {
		if a.content == "" {
			continue
		}
		if id, ok := t.addedID[a.content]; ok {
			a.id = id
		} else if id, ok := t.vocab.id(a.content); ok {
			a.id = id
		} else if a.id == noToken {
			a.id = next
		}
		if a.id >= maxVocabulary {
			return fmt.Errorf("added token %q has id %d, over the limit of %d", clip(a.content), a.id, maxVocabulary)
		}
		next = max(next, a.id+1)
		if old, ok := t.added[a.id]; ok && old.content != a.content {
			delete(t.addedID, old.content)
		}
		t.added[a.id] = a
		t.addedID[a.content] = a.id
	}
	for _, a := range sortedAdded(t.added) {
		if a.normalized {
			t.normalized.add(a, t.normalForm(a.content))
		} else {
			t.raw.add(a, a.content)
		}
	}
	return nil
}
