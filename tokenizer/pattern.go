package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// errPattern says that compilePattern cannot compile a pattern. The fallback engine, the library regexp2, may be able
// to match the pattern.
var errPattern = errors.New("not in the compiled dialect")

// errFold says that a case-insensitive part has a letter, or two letters, for which another case has a different number
// of letters, such as "ß" and "ss". Neither the compiled machine nor the fallback engine matches such letters as the
// reference does.
var errFold = errors.New("case-insensitive part with letters that fold to several characters")

type nodeKind uint8

const (
	nodeEmpty nodeKind = iota
	nodeClass
	nodeConcat
	nodeAlternate
	nodeRepeat
	nodeLook // lookahead of one character, or of the end of the text
)

// patternNode is a node of a parsed pattern. Patterns have no captures.
type patternNode struct {
	kind       nodeKind
	set        charset // for nodeClass: the characters that match; for nodeLook: the characters that satisfy the lookahead
	atEnd      bool    // for nodeLook: the end of the text satisfies the lookahead
	sub        []*patternNode
	min, max   int // for nodeRepeat: bounds of the repetition; max < 0: no upper bound
	lazy       bool
	possessive bool
}

// patternParser reads the part of Oniguruma's syntax that published tokenizers use.
type patternParser struct {
	src  string
	pos  int
	fold bool
	deep int
}

func parsePattern(src string) (*patternNode, error) {
	if !utf8.ValidString(src) {
		return nil, fmt.Errorf("%w: invalid UTF-8", errPattern)
	}
	p := &patternParser{src: src}
	n, err := p.alternation()
	if err != nil {
		return nil, err
	}
	if p.pos < len(p.src) {
		return nil, p.unknown("unmatched )")
	}
	return n, nil
}

func (p *patternParser) unknown(what string) error {
	return fmt.Errorf("%w: %s at byte %d", errPattern, what, p.pos)
}

func (p *patternParser) more() bool { return p.pos < len(p.src) }

func (p *patternParser) accept(s string) bool {
	if strings.HasPrefix(p.src[p.pos:], s) {
		p.pos += len(s)
		return true
	}
	return false
}

func (p *patternParser) next() rune {
	c, n := utf8.DecodeRuneInString(p.src[p.pos:])
	p.pos += n
	return c
}

func (p *patternParser) alternation() (*patternNode, error) {
	if p.deep++; p.deep > 50 {
		return nil, p.unknown("nesting deeper than 50")
	}
	defer func() { p.deep-- }()
	alt := &patternNode{kind: nodeAlternate}
	for {
		n, err := p.concat()
		if err != nil {
			return nil, err
		}
		alt.sub = append(alt.sub, n)
		if !p.accept("|") {
			break
		}
	}
	if len(alt.sub) == 1 {
		return alt.sub[0], nil
	}
	return alt, nil
}

func (p *patternParser) concat() (*patternNode, error) {
	cat := &patternNode{kind: nodeConcat}
	for p.more() && p.src[p.pos] != '|' && p.src[p.pos] != ')' {
		n, err := p.atom()
		if err != nil {
			return nil, err
		}
		for p.more() {
			m, ok, err := p.quantified(n)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			n = m
		}
		cat.sub = append(cat.sub, n)
		if p.fold && len(cat.sub) > 1 && foldsTogether(cat.sub[len(cat.sub)-2], n) {
			return nil, errFold
		}
	}
	return cat, nil
}

// foldsTogether reports whether the characters of two neighbours could together fold to one character, such as "ss" to
// "ß". It knows the pairs of ASCII letters that have status F in Unicode's CaseFolding.txt.
func foldsTogether(a, b *patternNode) bool {
	x, ok := a.single()
	y, ok2 := b.single()
	if !ok || !ok2 {
		return false
	}
	for _, pair := range []string{"ss", "ff", "fi", "fl", "st"} {
		if x.contains(rune(pair[0])) && y.contains(rune(pair[1])) && !x.contains(' ') && !y.contains(' ') {
			return true
		}
	}
	return false
}

// quantified returns n inside a node for the quantifier at the cursor. If there is no quantifier, the second result is
// false.
func (p *patternParser) quantified(n *patternNode) (*patternNode, bool, error) {
	rep := &patternNode{kind: nodeRepeat, sub: []*patternNode{n}, max: -1}
	interval := false
	switch {
	case p.accept("*"):
	case p.accept("+"):
		rep.min = 1
	case p.accept("?"):
		rep.max = 1
	case p.src[p.pos] == '{':
		end := strings.IndexByte(p.src[p.pos:], '}')
		if end < 0 {
			return nil, false, p.unknown("{")
		}
		if err := rep.bounds(p.src[p.pos+1 : p.pos+end]); err != nil {
			return nil, false, p.unknown(err.Error())
		}
		p.pos += end + 1
		interval = true
	default:
		return nil, false, nil
	}
	if n.kind == nodeLook || n.kind == nodeRepeat {
		return nil, false, p.unknown("quantifier on a quantifier or an assertion")
	}
	switch {
	case p.accept("?"):
		rep.lazy = true
		if interval && rep.min == rep.max {
			return nil, false, p.unknown("{n}? is not lazy in every engine")
		}
	case p.more() && p.src[p.pos] == '+':
		if interval {
			return nil, false, p.unknown("{n,m}+ means different things in different engines")
		}
		p.pos++
		rep.possessive = true
	}
	return rep, true, nil
}

// bounds reads the bounds of a repetition: "n", "n," or "n,m".
func (n *patternNode) bounds(s string) error {
	lo, hi, ranged := strings.Cut(s, ",")
	var err error
	if n.min, err = strconv.Atoi(lo); err != nil || n.min < 0 {
		return errors.New("quantifier without a lower bound")
	}
	switch {
	case !ranged:
		n.max = n.min
	case hi == "":
		n.max = -1
	default:
		if n.max, err = strconv.Atoi(hi); err != nil || n.max < n.min {
			return errors.New("quantifier with a wrong upper bound")
		}
	}
	if n.min > 200 || n.max > 200 {
		return errors.New("quantifier over 200")
	}
	return nil
}

func (p *patternParser) atom() (*patternNode, error) {
	switch c := p.src[p.pos]; c {
	case '(':
		return p.group()
	case '[':
		set, err := p.class()
		if err != nil {
			return nil, err
		}
		return &patternNode{kind: nodeClass, set: set}, nil
	case '.':
		p.pos++
		return &patternNode{kind: nodeClass, set: charsetOf('\n').negate()}, nil
	case '$':
		// In Oniguruma "$" also matches before every line feed.
		p.pos++
		return &patternNode{kind: nodeLook, set: charsetOf('\n'), atEnd: true}, nil
	case '\\':
		if p.accept(`\z`) {
			return &patternNode{kind: nodeLook, atEnd: true}, nil
		}
		word := strings.HasPrefix(p.src[p.pos:], `\w`)
		nonWord := strings.HasPrefix(p.src[p.pos:], `\W`)
		set, err := p.escape()
		if err != nil {
			return nil, err
		}
		// Outside of brackets, Oniguruma uses a table of ISO 8859-1 for \w on characters below 256. latinWords has the
		// characters that only this table has.
		if word {
			set = set.union(latinWords)
		}
		if nonWord {
			set = set.intersect(latinWords.negate())
		}
		return p.classNode(set), nil
	case '*', '+', '?', '{', '^', ')':
		return nil, p.unknown(fmt.Sprintf("%q", c))
	}
	r := p.next()
	if p.fold && r >= utf8.RuneSelf && unicode.IsLetter(r) {
		return nil, errFold
	}
	return p.classNode(charsetOf(r)), nil
}

var latinWords = charset{{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}

func (p *patternParser) classNode(set charset) *patternNode {
	if p.fold {
		set = set.foldCase()
	}
	return &patternNode{kind: nodeClass, set: set}
}

// group reads "(…)", "(?:…)", "(?i:…)", "(?=.)" and "(?!.)".
func (p *patternParser) group() (*patternNode, error) {
	outer := p.fold
	defer func() { p.fold = outer }()
	ahead, negative := false, false
	switch {
	case p.accept("(?:"):
	case p.accept("(?i:"):
		p.fold = true
	case p.accept("(?="):
		ahead = true
	case p.accept("(?!"):
		ahead, negative = true, true
	case strings.HasPrefix(p.src[p.pos:], "(?") || strings.HasPrefix(p.src[p.pos:], "(*"):
		return nil, p.unknown("group")
	default:
		p.pos++
	}
	n, err := p.alternation()
	if err != nil {
		return nil, err
	}
	if !p.accept(")") {
		return nil, p.unknown("missing )")
	}
	if !ahead {
		return n, nil
	}
	set, ok := n.single()
	if !ok {
		return nil, p.unknown("lookahead longer than one character")
	}
	if negative {
		return &patternNode{kind: nodeLook, set: set.negate(), atEnd: true}, nil
	}
	return &patternNode{kind: nodeLook, set: set}, nil
}

// single returns the set of a node that always matches exactly one character.
func (n *patternNode) single() (charset, bool) {
	switch {
	case n.kind == nodeClass:
		return n.set, true
	case n.kind == nodeConcat && len(n.sub) == 1:
		return n.sub[0].single()
	case n.kind == nodeAlternate:
		var all charset
		for _, s := range n.sub {
			set, ok := s.single()
			if !ok {
				return nil, false
			}
			all = all.union(set)
		}
		return all, true
	}
	return nil, false
}
