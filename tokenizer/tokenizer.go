package tokenizer

import (
	"errors"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/warmpath/warmpath/block"
)

// Tokenizer turns text into the token ids that an engine with the same files computes, and ids into text. Goroutines
// may use it concurrently: only its bounded caches change, and these caches have no locks.
type Tokenizer struct {
	raw, normalized *addedSet // added tokens that are matched before normalization, and after it
	normalizers     []normalizer
	pre             []preStep
	model           model
	vocab           *vocabulary                // vocabulary of the model, in the spelling of the file
	added           map[block.Token]addedToken // added tokens by id
	addedID         map[string]block.Token     // ids of added tokens by content
	before, after   []block.Token              // tokens that the post-processor puts around a text
	decoders        []decoder
	named           map[string]string // texts of bos_token, eos_token, … in tokenizer_config.json
	pool            sync.Pool         // encoders that are not in use
}

// Options has the options of an encoding. The zero value is right for the output of a chat template.
type Options struct {
	// AddSpecial puts the model's own tokens around the text, as engines do for completions. For most models this is one
	// token at the beginning of the text.
	AddSpecial bool
	// SpecialAsText encodes the spelling of a special token as ordinary text (split_special_tokens of Transformers).
	SpecialAsText bool
}

// model turns words into ids. Its implementations are bpe, unigram, wordPiece and wordLevel.
type model interface {
	// appendWord appends the ids of a word that is not empty. Concurrent calls must use different scratches.
	appendWord(dst []block.Token, word string, s *scratch) ([]block.Token, error)
}

// scratch is the working memory of one encoding.
type scratch struct {
	merge   mergeScratch
	viterbi []pathNode
	text    []byte
}

// encoder is one encoding in progress.
type encoder struct {
	scratch
	t     *Tokenizer
	dst   []block.Token
	level [][]byte  // for each pre-tokenizer step: buffer for the text that the step has changed
	norm  [2][]byte // texts that normalizers changed; the two buffers are used in turn
}

// keepBytes is how much working memory an encoder in the pool may keep. An encoder that has more after a huge text is
// not put back into the pool.
const keepBytes = 1 << 20

// Append appends the ids of text to dst. It allocates nothing if its caches are warm and dst has room. Each byte that
// is not UTF-8 counts as U+FFFD. An error means that the text cannot be tokenized. For example, a pattern of the
// fallback engine ran out of time, or the model has no token for unknown characters. If there is an error, Append
// returns dst unchanged.
func (t *Tokenizer) Append(dst []block.Token, text string, opts Options) ([]block.Token, error) {
	if !utf8.ValidString(text) {
		text = string([]rune(text))
	}
	out := dst
	if opts.AddSpecial {
		out = append(out, t.before...)
	}
	out, err := t.appendStretch(out, text, true, opts)
	if err != nil {
		return dst, err
	}
	if opts.AddSpecial {
		out = append(out, t.after...)
	}
	return out, nil
}

// AppendBytes does the same as Append for text in a byte slice. The slice must not change during the call.
func (t *Tokenizer) AppendBytes(dst []block.Token, text []byte, opts Options) ([]block.Token, error) {
	return t.Append(dst, view(text), opts)
}

func (t *Tokenizer) encoder(dst []block.Token) *encoder {
	e, _ := t.pool.Get().(*encoder)
	if e == nil {
		e = &encoder{t: t}
	}
	e.dst = dst
	return e
}

func (e *encoder) release() {
	e.dst = nil
	size := cap(e.norm[0]) + cap(e.norm[1]) + 40*cap(e.merge.next) + 32*cap(e.viterbi) + cap(e.scratch.text)
	for _, b := range e.level {
		size += cap(b)
	}
	if size <= keepBytes {
		e.t.pool.Put(e)
	}
}

// text encodes a text. atStart is true if the text is the beginning of the whole text.
func (e *encoder) text(text string, atStart bool, opts Options) error {
	if e.t.raw.empty() {
		return e.segment(text, atStart, opts)
	}
	scan := addedScan{set: e.t.raw, text: text, specialAsText: opts.SpecialAsText}
	for from, to, token, ok := scan.next(); ok; from, to, token, ok = scan.next() {
		if token != nil {
			e.dst = append(e.dst, token.id)
		} else if err := e.segment(text[from:to], atStart && from == 0, opts); err != nil {
			return err
		}
	}
	return nil
}

// segment normalizes and encodes a text between two added tokens.
func (e *encoder) segment(text string, atStart bool, opts Options) error {
	if text == "" {
		return nil
	}
	text, shifted, err := e.normalize(text)
	if err != nil {
		return err
	}
	atStart = atStart && !shifted
	if e.t.normalized.empty() {
		return e.words(0, text, atStart)
	}
	scan := addedScan{set: e.t.normalized, text: text, specialAsText: opts.SpecialAsText}
	for from, to, token, ok := scan.next(); ok; from, to, token, ok = scan.next() {
		if token != nil {
			e.dst = append(e.dst, token.id)
		} else if err := e.words(0, text[from:to], atStart && from == 0); err != nil {
			return err
		}
	}
	return nil
}

var errOvergrown = errors.New("the normalizers make the text more than 32 times as long")

// normalize returns the normalized text, which is valid until the next call. shifted is true if the first character of
// the text was removed.
func (e *encoder) normalize(text string) (normal string, shifted bool, err error) {
	turn := 0 // index of the buffer to write; the text is in the other buffer, or in the caller's memory
	limit := maxNormal(text)
	for _, n := range e.t.normalizers {
		out, change := n.append(e.norm[turn][:0], text)
		shifted = shifted || change == changedFront
		if change == unchanged {
			continue
		}
		e.norm[turn] = out
		if change == overgrown || len(out) > limit {
			return "", false, errOvergrown
		}
		text = view(out)
		turn = 1 - turn
	}
	return text, shifted, nil
}

// ID returns the id of the token with this spelling. An added token takes precedence over a token of the model's
// vocabulary.
func (t *Tokenizer) ID(spelling string) (block.Token, bool) {
	if id, ok := t.addedID[spelling]; ok {
		return id, true
	}
	return t.vocab.id(spelling)
}

// Spelling returns the spelling of a token in the vocabulary. For byte-level models the spelling is not the token's
// text.
func (t *Tokenizer) Spelling(id block.Token) (string, bool) {
	if a, ok := t.added[id]; ok {
		return a.content, true
	}
	return t.vocab.lookup(id)
}

// Special reports whether an id is a special token.
func (t *Tokenizer) Special(id block.Token) bool { return t.added[id].special }

// Named returns the text of a token that tokenizer_config.json names, such as "bos_token". If the file does not name
// the token, Named returns "". Chat templates use these texts.
func (t *Tokenizer) Named(name string) string { return t.named[name] }

// view returns bytes as a string without copying them. The bytes must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
