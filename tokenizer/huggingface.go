package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Parse builds a tokenizer from the contents of tokenizer.json. configJSON, the contents of tokenizer_config.json, may
// be empty. Parse ignores truncation and padding, which engines switch off.
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

// file has the content of tokenizer.json: the small parts as JSON, and the model's lists decoded.
type file struct {
	added                                   []addedToken
	normalizer, pre, post, decoder          json.RawMessage
	kind                                    string // kind of the model
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
	s := &scanner{Scanner: jsonscan.New(data, maxNesting)}
	for more := s.Open('{'); more; more = s.Next('}') {
		switch s.key() {
		case "added_tokens":
			f.readAdded(s)
		case "normalizer":
			f.normalizer = s.Raw()
		case "pre_tokenizer":
			f.pre = s.Raw()
		case "post_processor":
			f.post = s.Raw()
		case "decoder":
			f.decoder = s.Raw()
		case "model":
			f.readModel(s)
		default:
			s.Skip()
		}
	}
	if !s.End() {
		s.Fail("more follows the document")
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if f.kind == "" {
		f.guessKind()
	}
	return f, nil
}

// guessKind sets the kind of a model without the member "type", as in older files. A member that only one kind has
// shows the kind. The reference does the same.
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

func (f *file) readAdded(s *scanner) {
	if s.Word("null") {
		return
	}
	for more := s.Open('['); more; more = s.Next(']') {
		raw := s.Raw()
		if s.Err() != nil {
			return
		}
		a, err := readAddedToken(raw)
		if err != nil {
			s.Stop(fmt.Errorf("read added token %s: %w", clip(string(raw)), err))
		}
		f.added = append(f.added, a)
	}
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
	t := addedToken{id: noToken, content: a.Content, special: a.Special, singleWord: a.SingleWord, lstrip: a.Lstrip,
		rstrip: a.Rstrip, normalized: !a.Special}
	if a.ID != nil {
		t.id = *a.ID
	}
	if a.Normalized != nil {
		t.normalized = *a.Normalized
	}
	return t, nil
}

func (f *file) build(cfg *config) (*Tokenizer, error) {
	t := &Tokenizer{raw: newAddedSet(), normalized: newAddedSet(), added: map[block.Token]addedToken{},
		addedID: map[string]block.Token{}, named: cfg.named}
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
	if len(p.before)+len(p.after) > maxAround {
		return nil, fmt.Errorf("the post-processor puts %d tokens around a text: at most %d",
			len(p.before)+len(p.after), maxAround)
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
		if m.bytes != nil {
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

const (
	// maxAround bounds the number of tokens that are put around each text. Published tokenizers put at most three tokens
	// there.
	maxAround = 64
	// maxAdded bounds the bytes of one added token, because a search may compare a token at each place of a text. The
	// longest published added tokens are runs of some hundred spaces. maxAddedBytes bounds the bytes of all added tokens
	// together. The largest published set of added tokens has 200 KB.
	maxAdded, maxAddedBytes = 1024, 4 << 20
)

// add adds tokens to t. If the model's vocabulary has a token, the token keeps its id there. Otherwise the token gets
// the id in the file, or the next free id if the file has no id for it.
func (t *Tokenizer) add(tokens []addedToken) error {
	next, bytes := block.Token(len(t.vocab.known)), 0
	for _, a := range tokens {
		if a.content == "" {
			continue
		}
		if bytes += len(a.content); len(a.content) > maxAdded || bytes > maxAddedBytes {
			return fmt.Errorf("added token %q: one has at most %d bytes, and all have at most %d", clip(a.content),
				maxAdded, maxAddedBytes)
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
