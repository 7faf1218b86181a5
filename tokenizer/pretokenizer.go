package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
)

// preStep is one step from a text to words. A step splits the text, or changes the text. A pre-tokenizer in the file
// becomes one or several steps.
type preStep struct {
	kind     preKind
	match    *matcher // for preSplit: the matches at which the text is split
	behavior behavior
	invert   bool
	replace  string // for preMetaspace: the text that replaces a space
	prepend  prependScheme
}

type preKind uint8

const (
	preSplit       preKind = iota
	prePrefixSpace         // puts a space before a text that does not begin with one
	preMetaspace           // replaces spaces by preStep.replace, and puts preStep.replace before the text as preStep.prepend says
	preByteLevel           // replaces bytes by the printable characters that stand for them
)

type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependFirst                // the prefix is put only at the beginning of the whole text
	prependNever
)

// gpt2Pattern is the pattern at which ByteLevel splits by default (openai/gpt-2, src/encoder.py).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// component has the JSON member that every component of tokenizer.json has.
type component struct {
	Type string `json:"type"`
}

// errUnknown is the error for an unknown component. Without this error, wrong ids would be returned, and nobody would
// notice.
func errUnknown(what, name string) error {
	return fmt.Errorf("unknown %s %q: this model cannot be tokenized here; remove its path, so that its engine is asked for token ids, "+
		"or report the component", what, clip(name))
}

// preTokenizer has the JSON members of a pre_tokenizer of any type.
type preTokenizer struct {
	component
	Pretokenizers    []json.RawMessage `json:"pretokenizers"`
	Pattern          json.RawMessage   `json:"pattern"`
	Behavior         string            `json:"behavior"`
	Invert           bool              `json:"invert"`
	AddPrefixSpace   *bool             `json:"add_prefix_space"`
	UseRegex         *bool             `json:"use_regex"`
	IndividualDigits bool              `json:"individual_digits"`
	Replacement      string            `json:"replacement"`
	PrependScheme    *string           `json:"prepend_scheme"`
	Split            *bool             `json:"split"`
	Delimiter        string            `json:"delimiter"`
	Length           *int              `json:"length"`
}

// readPreTokenizer appends the steps of a pre_tokenizer.
func readPreTokenizer(steps []preStep, raw json.RawMessage) ([]preStep, error) {
	var c preTokenizer
	if isNull(raw) {
		return steps, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("read pre_tokenizer: %w", err)
	}
	b := isolated
	if c.Behavior != "" {
		var ok bool
		if b, ok = behaviors[c.Behavior]; !ok {
			return nil, errUnknown("behavior of "+c.Type, c.Behavior)
		}
	}
	u := unicodeTables()
	space := runSet(u.space, anyValue)
	switch c.Type {
	case "Sequence":
		for _, raw := range c.Pretokenizers {
			var err error
			if steps, err = readPreTokenizer(steps, raw); err != nil {
				return nil, err
			}
			if err := boundSteps(steps); err != nil {
				return nil, err
			}
		}
		return steps, nil
	case "Split":
		if c.Behavior == "" {
			return nil, fmt.Errorf("pre_tokenizer Split has no behavior")
		}
		m, err := readPattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("read pre_tokenizer Split: %w", err)
		}
		return append(steps, preStep{match: m, behavior: b, invert: c.Invert}), nil
	case "ByteLevel":
		return c.byteLevel(steps)
	case "Digits":
		return append(steps, preStep{match: setMatcher(runSet(u.numeric, anyValue), !c.IndividualDigits)}), nil
	case "Punctuation":
		return append(steps, preStep{match: setMatcher(punctuation(), false), behavior: b}), nil
	case "Whitespace":
		return append(steps, preStep{match: wordsOrSigns(space), behavior: removed, invert: true}), nil
	case "WhitespaceSplit":
		return append(steps, preStep{match: setMatcher(space, true), behavior: removed}), nil
	case "BertPreTokenizer":
		return append(steps, preStep{match: setMatcher(space, true), behavior: removed},
			preStep{match: setMatcher(punctuation(), false)}), nil
	case "CharDelimiterSplit":
		m, err := literalMatcher(c.Delimiter)
		if err != nil {
			return nil, fmt.Errorf("read pre_tokenizer CharDelimiterSplit: %w", err)
		}
		return append(steps, preStep{match: m, behavior: removed}), nil
	case "FixedLength":
		return c.fixedLength(steps)
	case "Metaspace":
		return c.metaspace(steps)
	}
	return nil, errUnknown("pre_tokenizer", c.Type)
}

// boundSteps refuses a file with more steps than published tokenizers have. Steps that make a word longer have a
// smaller bound, because their effects multiply.
func boundSteps(steps []preStep) error {
	longer := 0
	for _, s := range steps {
		if s.kind == preByteLevel || s.kind == preMetaspace {
			longer++
		}
	}
	const most = 3
	if len(steps) > maxSteps || longer > most {
		return fmt.Errorf("%d pre_tokenizers, %d of them ByteLevel or Metaspace: at most %d and %d", len(steps),
			longer, maxSteps, most)
	}
	return nil
}

func (c *preTokenizer) byteLevel(steps []preStep) ([]preStep, error) {
	if c.AddPrefixSpace == nil || *c.AddPrefixSpace {
		steps = append(steps, preStep{kind: prePrefixSpace})
	}
	if c.UseRegex == nil || *c.UseRegex {
		m, err := regexMatcher(gpt2Pattern)
		if err != nil {
			return nil, err
		}
		steps = append(steps, preStep{match: m})
	}
	return append(steps, preStep{kind: preByteLevel}), nil
}

func (c *preTokenizer) fixedLength(steps []preStep) ([]preStep, error) {
	length := 5
	if c.Length != nil {
		length = *c.Length
	}
	if length < 1 || length > 200 {
		return nil, fmt.Errorf("pre_tokenizer FixedLength of %d characters: only 1 to 200 are supported", length)
	}
	char := &patternNode{kind: nodeClass, set: charset(nil).negate()}
	return append(steps, preStep{match: nodeMatcher(&patternNode{kind: nodeRepeat, min: 1, max: length,
		sub: []*patternNode{char}})}), nil
}

func (c *preTokenizer) metaspace(steps []preStep) ([]preStep, error) {
	scheme, err := readPrependScheme(c.PrependScheme, c.AddPrefixSpace)
	if err != nil {
		return nil, err
	}
	m, err := literalMatcher(c.Replacement)
	if err != nil {
		return nil, fmt.Errorf("read pre_tokenizer Metaspace: %w", err)
	}
	if len(c.Replacement) > maxPrepended {
		return nil, fmt.Errorf("pre_tokenizer Metaspace with a replacement of %d bytes: at most %d",
			len(c.Replacement), maxPrepended)
	}
	steps = append(steps, preStep{kind: preMetaspace, replace: c.Replacement, prepend: scheme})
	if c.Split == nil || *c.Split {
		steps = append(steps, preStep{match: m, behavior: mergedWithNext})
	}
	return steps, nil
}

// wordsOrSigns returns a matcher that matches \w+|[^\w\s]+ as Rust's regex crate does. space is the set \s.
func wordsOrSigns(space charset) *matcher {
	word := runSet(unicodeTables().regexWord, anyValue)
	other := word.union(space).negate()
	return nodeMatcher(&patternNode{kind: nodeAlternate, sub: []*patternNode{
		{kind: nodeRepeat, min: 1, max: -1, sub: []*patternNode{{kind: nodeClass, set: word}}},
		{kind: nodeRepeat, min: 1, max: -1, sub: []*patternNode{{kind: nodeClass, set: other}}}}})
}

func readPrependScheme(name *string, prefix *bool) (prependScheme, error) {
	scheme := prependAlways
	if name != nil {
		switch *name {
		case "always":
		case "first":
			scheme = prependFirst
		case "never":
			scheme = prependNever
		default:
			return 0, errUnknown("prepend_scheme of Metaspace", *name)
		}
	}
	if prefix != nil && !*prefix {
		if scheme != prependNever && name != nil {
			return 0, fmt.Errorf("pre_tokenizer Metaspace says both add_prefix_space false and prepend_scheme %q",
				*name)
		}
		scheme = prependNever
	}
	return scheme, nil
}

// readPattern reads a pattern of tokenizer.json: {"String": …} or {"Regex": …}.
func readPattern(raw json.RawMessage) (*matcher, error) {
	var p struct {
		String *string
		Regex  *string
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("read pattern: %w", err)
	}
	switch {
	case p.String != nil:
		return literalMatcher(*p.String)
	case p.Regex != nil:
		return regexMatcher(*p.Regex)
	}
	return nil, errUnknown("kind of pattern", string(raw))
}

// punctuation returns the punctuation of BERT's code: ASCII's punctuation, and the categories P* of an old version of
// Unicode.
func punctuation() charset {
	set := runSet(unicodeTables().oldPunctuation, anyValue)
	for c := rune('!'); c <= '~'; c++ {
		if isASCIIPunctuation(c) {
			set = append(set, charRange{c, c})
		}
	}
	return set.normal()
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// words applies the step with number step, and all later steps, to a text. It encodes each resulting word. atStart is
// true if text is the beginning of the whole text.
func (e *encoder) words(step int, text string, atStart bool) error {
	if text == "" {
		return nil
	}
	if step == len(e.t.pre) {
		var err error
		e.dst, err = e.t.model.appendWord(e.dst, text, &e.scratch)
		return err
	}
	p := &e.t.pre[step]
	if p.kind != preSplit {
		return e.words(step+1, e.change(p, step, text, atStart), atStart)
	}
	if p.behavior == isolated && p.match.auto != nil {
		return e.isolate(p.match.auto, step, text, atStart)
	}
	w := p.match.split(text, p.behavior, p.invert)
	if w.matches.err != nil {
		return w.matches.err
	}
	for from, to, ok := w.next(); ok; from, to, ok = w.next() {
		if err := e.words(step+1, text[from:to], atStart && from == 0); err != nil {
			return err
		}
	}
	return nil
}

// isolate does the same as words for a step that most models have: a split by an automaton, with behavior isolated
// (each match, and each text between two matches, is a piece). isolate is faster than the general loop of words.
func (e *encoder) isolate(auto *automaton, step int, text string, atStart bool) error {
	last := step+1 == len(e.t.pre)
	for at := 0; at < len(text); {
		from, to := at, auto.match(text, at)
		if to < 0 {
			if from, to = auto.find(text, at); from < 0 {
				from, to = len(text), len(text)
			}
			if err := e.words(step+1, text[at:from], atStart && at == 0); err != nil {
				return err
			}
		}
		if last && from < to {
			var err error
			if e.dst, err = e.t.model.appendWord(e.dst, text[from:to], &e.scratch); err != nil {
				return err
			}
		} else if err := e.words(step+1, text[from:to], atStart && from == 0); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// change returns the text as the step p changes it. The result is valid until the same step changes another text.
// Before that, all later steps have used the result.
func (e *encoder) change(p *preStep, step int, text string, atStart bool) string {
	for len(e.level) <= step {
		e.level = append(e.level, nil)
	}
	buf := e.level[step][:0]
	switch p.kind {
	case prePrefixSpace:
		if text[0] == ' ' {
			return text
		}
		buf = append(append(buf, ' '), text...)
	case preByteLevel:
		buf = toByteLevel(buf, text)
	case preMetaspace:
		starts := text[0] == ' ' || strings.HasPrefix(text, p.replace)
		if !starts && (p.prepend == prependAlways || p.prepend == prependFirst && atStart) {
			buf = append(buf, p.replace...)
		}
		buf = appendReplaced(buf, text, " ", p.replace)
	}
	e.level[step] = buf
	return view(buf)
}

// appendReplaced appends text to dst, and writes replacement in place of each occurrence of old.
func appendReplaced(dst []byte, text, old, replacement string) []byte {
	for {
		at := strings.Index(text, old)
		if at < 0 {
			return append(dst, text...)
		}
		dst = append(append(dst, text[:at]...), replacement...)
		text = text[at+len(old):]
	}
}
