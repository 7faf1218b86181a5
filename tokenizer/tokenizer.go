package tokenizer

import (
	"errors"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/warmpath/warmpath/block"
)

// Tokenizer turns text into the token ids that an engine with the same files computes, and back. It is immutable but for bounded caches
// and may be used by any number of goroutines at once; none of them waits for another.
type Tokenizer struct {
	raw, normalized *addedSet // added tokens, matched before and after normalization
	normalizers     []normalizer
	pre             []preStep
	model           model
	vocab           *vocabulary                // of the model, as the file spells it
	added           map[block.Token]addedToken // by id
	addedID         map[string]block.Token     // by content
	before, after   []block.Token              // what the post-processor puts around a text
	decoders        []decoder
	named           map[string]string // bos_token, eos_token, … of tokenizer_config.json
	pool            sync.Pool         // of *encoder
}

// Options say how a text is meant. The zero value is right for the output of a chat template.
type Options struct {
	// AddSpecial puts the model's own tokens around the text (beginning of text, mostly), as engines do for completions.
	AddSpecial bool
	// PlainSpecial takes the spelling of a special token in the text for ordinary text (split_special_tokens of Transformers).
	PlainSpecial bool
}

// model turns words into ids. Its implementations are bpe, unigram, wordPiece and wordLevel.
type model interface {
	// appendWord appends the ids of a word that is not empty. It is called concurrently, each time with another scratch.
	appendWord(dst []block.Token, word string, s *scratch) ([]block.Token, error)
}

// scratch is what one encoding works in; it is pooled.
type scratch struct {
	merge   mergeScratch
	viterbi []pathNode
	text    []byte
}

// encoder is one encoding under way.
type encoder struct {
	scratch
	t     *Tokenizer
	dst   []block.Token
	level [][]byte  // texts changed by pre-tokenizer steps
	norm  [2][]byte // texts changed by normalizers, in turn
}

// keepBytes is the scratch that a pooled encoder may keep: more is left to the garbage collector, so that one huge text does not stay.
const keepBytes = 1 << 20

// Append appends the ids of text to dst. It allocates nothing once its caches are warm and dst has room. Bytes that are not UTF-8 count
// as U+FFFD each. An error means that the text cannot be tokenized (a pattern of the fallback engine ran out of time, or the model has no
// token for unknown characters); dst is then as it was.
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

// AppendBytes is Append for text in a byte slice, which must not change during the call.
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

// text encodes a text; atStart: nothing came before it.
func (e *encoder) text(text string, atStart bool, opts Options) error {
	if e.t.raw.empty() {
		return e.segment(text, atStart, opts)
	}
	scan := addedScan{set: e.t.raw, text: text, plain: opts.PlainSpecial}
	for from, to, token, ok := scan.next(); ok; from, to, token, ok = scan.next() {
		if token != nil {
			e.dst = append(e.dst, token.id)
		} else if err := e.segment(text[from:to], atStart && from == 0, opts); err != nil {
			return err
		}
	}
	return nil
}

// segment takes a text between added tokens through the normalizers.
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
	scan := addedScan{set: e.t.normalized, text: text, plain: opts.PlainSpecial}
	for from, to, token, ok := scan.next(); ok; from, to, token, ok = scan.next() {
		if token != nil {
			e.dst = append(e.dst, token.id)
		} else if err := e.words(0, text[from:to], atStart && from == 0); err != nil {
			return err
		}
	}
	return nil
}

var errOvergrown = errors.New("the tokenizer's normalizers make the text far longer")

// normalize gives the normalized text, valid until the next call; shifted: its first character is not the text's first.
func (e *encoder) normalize(text string) (normal string, shifted bool, err error) {
	turn := 0 // text lies in the other buffer, or is the caller's
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

// ID gives the id of a token by its spelling in the vocabulary, added tokens first.
func (t *Tokenizer) ID(spelling string) (block.Token, bool) {
	if id, ok := t.addedID[spelling]; ok {
		return id, true
	}
	return t.vocab.id(spelling)
}

// Spelling gives a token as the vocabulary spells it, which for byte-level models is not its text.
func (t *Tokenizer) Spelling(id block.Token) (string, bool) {
	if a, ok := t.added[id]; ok {
		return a.content, true
	}
	return t.vocab.lookup(id)
}

// Special tells whether an id is a special token.
func (t *Tokenizer) Special(id block.Token) bool { return t.added[id].special }

// Named gives the text of a token that tokenizer_config.json names, such as "bos_token"; empty when it names none. Chat templates use it.
func (t *Tokenizer) Named(name string) string { return t.named[name] }

// view gives bytes as a string without a copy; the bytes must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
