package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
)

// behavior says what a split does with the matches. The file format has the same names.
type behavior uint8

const (
	isolated behavior = iota // each match is a separate piece
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous // a run of matches without text between them is one piece
)

var behaviors = map[string]behavior{"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous}

// matcher finds the matches of a pattern in one of three ways: with the compiled machine auto, by a search for literal,
// or with the fallback engine slow. A matcher is immutable, and goroutines may use it concurrently.
type matcher struct {
	auto    *automaton
	literal string
	slow    *regexp2.Regexp
}

const (
	// fallbackTime bounds one search of the fallback engine, which backtracks. The compiled machine needs no bound.
	fallbackTime  = 2 * time.Second
	fallbackStack = 1 << 22
	// maxPattern bounds the bytes of a pattern. Published patterns have less than 1 KiB. Each character class of a pattern
	// takes a millisecond to compile, for the compiled machine and for the fallback engine. So the bound also limits the
	// time for compiling a pattern.
	maxPattern = 8 << 10
)

func literalMatcher(text string) (*matcher, error) {
	if text == "" {
		return nil, errors.New("the pattern is empty")
	}
	return &matcher{literal: text}, nil
}

// regexMatcher compiles a pattern of Oniguruma's syntax.
func regexMatcher(pattern string) (*matcher, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("compile pattern %q: %d bytes are over the limit of %d", clip(pattern), len(pattern),
			maxPattern)
	}
	auto, err := compilePattern(pattern)
	if err == nil {
		return &matcher{auto: auto}, nil
	}
	if !errors.Is(err, errPattern) {
		return nil, fmt.Errorf("compile pattern %q: %w", clip(pattern), err)
	}
	translated, slowErr := fallbackPattern(pattern)
	if slowErr != nil {
		return nil, fmt.Errorf("compile pattern %q: %w; fallback: %w", clip(pattern), err, slowErr)
	}
	slow, slowErr := regexp2.Compile(translated, regexp2.OptionMaxBacktrackingStackSize(fallbackStack))
	if slowErr != nil {
		return nil, fmt.Errorf("compile pattern %q: %w; fallback: %w", clip(pattern), err, slowErr)
	}
	slow.MatchTimeout = fallbackTime
	return &matcher{slow: slow}, nil
}

// fallbackPattern translates a pattern for the fallback engine. The fallback engine has .NET's rules for classes and
// anchors, and Go's Unicode tables. So the translation writes every class as a list of characters from the reference's
// tables, and makes "^" and "$" match at the beginning and the end of each line.
func fallbackPattern(src string) (string, error) {
	p := &patternParser{src: src}
	var out strings.Builder
	for p.more() {
		switch c := p.src[p.pos]; {
		case c == '[':
			set, err := p.class()
			if err != nil {
				return "", err
			}
			set.spell(&out)
		case c == '\\' && p.pos+1 < len(p.src) && strings.IndexByte("pPsSdDwWxuh", p.src[p.pos+1]) >= 0:
			n, err := p.atom()
			if err != nil {
				return "", err
			}
			n.set.spell(&out)
		case c == '\\' && p.pos+1 < len(p.src):
			p.pos++
			fmt.Fprintf(&out, `\%c`, p.next())
		case c == '$':
			p.pos++
			out.WriteString(`(?=\n|\z)`)
		case c == '^':
			p.pos++
			out.WriteString(`(?:(?<=\n)|\A)`)
		default:
			out.WriteRune(p.next())
		}
	}
	return out.String(), nil
}

// spell writes a set as a character class in brackets. It uses no class escapes such as \d or \p{L}, because libraries
// of regular expressions give them different meanings.
func (s charset) spell(out *strings.Builder) {
	if len(s) == 0 {
		out.WriteString(`(?!)`)
		return
	}
	char := func(c rune) {
		if c < 0x10000 {
			fmt.Fprintf(out, `\u%04x`, c)
		} else {
			out.WriteRune(c)
		}
	}
	out.WriteByte('[')
	for _, r := range s {
		char(r.lo)
		if r.hi > r.lo {
			out.WriteByte('-')
			char(r.hi)
		}
	}
	out.WriteByte(']')
}

// setMatcher returns a matcher of one character of a set. If run is true, the matcher matches a run of such characters.
func setMatcher(set charset, run bool) *matcher {
	n := &patternNode{kind: nodeClass, set: set}
	if run {
		n = &patternNode{kind: nodeRepeat, min: 1, max: -1, sub: []*patternNode{n}}
	}
	return nodeMatcher(n)
}

func nodeMatcher(n *patternNode) *matcher {
	auto, err := compileNode(n)
	if err != nil {
		panic("bug: built-in pattern: " + err.Error())
	}
	return &matcher{auto: auto}
}

// matches iterates over the matches of one text.
type matches struct {
	m    *matcher
	text string
	pos  int
	all  [][]int // matches that the fallback engine found
	err  error
}

func (m *matcher) in(text string) matches {
	w := matches{m: m, text: text}
	if m.slow != nil {
		if w.all, w.err = m.slow.FindAllStringIndex(text, -1); w.err != nil {
			w.err = fmt.Errorf("match pattern: %w", w.err)
		}
	}
	return w
}

// next returns the next match. After the last match, start is negative.
func (w *matches) next() (start, end int) {
	switch {
	case w.m.auto != nil:
		start, end = w.m.auto.find(w.text, w.pos)
	case w.m.slow != nil:
		if len(w.all) == 0 {
			return -1, -1
		}
		start, end = w.all[0][0], w.all[0][1]
		w.all = w.all[1:]
	default:
		if start = strings.Index(w.text[w.pos:], w.m.literal); start < 0 {
			return -1, -1
		}
		start += w.pos
		end = start + len(w.m.literal)
	}
	if start >= 0 {
		w.pos = end
	}
	return start, end
}

// pieces iterates over the pieces that a split makes of a text, in order. A piece may be empty.
type pieces struct {
	matches  matches
	behavior behavior
	invert   bool
	// The next part of the text is a match, or a text between two matches:
	done                 int // position at which the next part begins
	matchStart, matchEnd int // the next match; matchStart < 0: the next match was not searched yet
	over                 bool
	// The next part may be joined to this piece:
	held             bool
	heldFrom, heldTo int
	heldMatch        bool
}

func (m *matcher) split(text string, b behavior, invert bool) pieces {
	return pieces{matches: m.in(text), behavior: b, invert: invert, matchStart: -1}
}

// part returns the text before the next match. If there is no such text, part returns the match.
func (p *pieces) part() (from, to int, match, ok bool) {
	if p.matchStart < 0 && !p.over {
		if p.matchStart, p.matchEnd = p.matches.next(); p.matchStart < 0 {
			p.over = true
		}
	}
	from = p.done
	switch {
	case p.over:
		to = len(p.matches.text)
		p.done = to
		return from, to, p.invert, from < to
	case from < p.matchStart:
		p.done = p.matchStart
		return from, p.matchStart, p.invert, true
	}
	p.done = p.matchEnd
	from, to = p.matchStart, p.matchEnd
	p.matchStart = -1
	return from, to, !p.invert, true
}

// next returns the next piece.
func (p *pieces) next() (from, to int, ok bool) {
	for {
		a, b, match, ok := p.part()
		if !ok {
			if p.held {
				p.held = false
				return p.heldFrom, p.heldTo, true
			}
			return 0, 0, false
		}
		switch p.behavior {
		case isolated:
			return a, b, true
		case removed:
			if match {
				continue
			}
			return a, b, true
		}
		if p.joins(match) {
			p.heldTo = b
			p.heldMatch = match
			if p.behavior == mergedWithPrevious || p.behavior == contiguous {
				continue
			}
			p.held = false // the match and the text after it are one complete piece
			return p.heldFrom, p.heldTo, true
		}
		held, from, to := p.held, p.heldFrom, p.heldTo
		p.held, p.heldFrom, p.heldTo, p.heldMatch = true, a, b, match
		if held {
			return from, to, true
		}
	}
}

// joins reports whether the next part belongs to the held piece. match is true if the next part is a match.
func (p *pieces) joins(match bool) bool {
	if !p.held {
		return false
	}
	switch p.behavior {
	case mergedWithPrevious:
		return match && !p.heldMatch
	case mergedWithNext:
		return !match && p.heldMatch
	}
	return match == p.heldMatch
}
