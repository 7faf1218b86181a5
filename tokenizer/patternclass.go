package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// class reads a bracket expression. As in Oniguruma, the expression may contain nested brackets and &&.
func (p *patternParser) class() (charset, error) {
	if p.deep++; p.deep > 50 {
		return nil, p.unknown("nesting deeper than 50")
	}
	defer func() { p.deep-- }()
	p.pos++ // [
	negated := p.accept("^")
	var set, whole charset
	intersecting := false
	for first := true; ; first = false {
		if !p.more() {
			return nil, p.unknown("missing ]")
		}
		if p.src[p.pos] == ']' && !first {
			p.pos++
			break
		}
		if p.accept("&&") {
			if intersecting {
				set = whole.intersect(set)
			}
			whole, set, intersecting = set, nil, true
			continue
		}
		item, err := p.classItem()
		if err != nil {
			return nil, err
		}
		set = set.union(item)
	}
	if intersecting {
		set = whole.intersect(set)
	}
	if p.fold {
		set = set.foldCase()
	}
	if negated {
		set = set.negate()
	}
	return set, nil
}

// classItem reads one member of a bracket expression: a nested expression, an escape, a character or a range.
func (p *patternParser) classItem() (charset, error) {
	if strings.HasPrefix(p.src[p.pos:], "[:") {
		return nil, p.unknown("POSIX bracket")
	}
	if p.src[p.pos] == '[' {
		return p.class()
	}
	lo, err := p.classChar()
	if err != nil {
		return nil, err
	}
	one := len(lo) == 1 && lo[0].lo == lo[0].hi
	rest := p.src[p.pos:]
	if !one || len(rest) < 2 || rest[0] != '-' || rest[1] == ']' || rest[1] == '[' {
		return lo, nil
	}
	p.pos++
	hi, err := p.classChar()
	if err != nil {
		return nil, err
	}
	if len(hi) != 1 || hi[0].lo != hi[0].hi || hi[0].lo < lo[0].lo {
		return nil, p.unknown("range")
	}
	return charset{{lo[0].lo, hi[0].lo}}, nil
}

func (p *patternParser) classChar() (charset, error) {
	if p.src[p.pos] == '\\' {
		return p.escape()
	}
	return charsetOf(p.next()), nil
}

// escape reads "\…" as a set of characters.
func (p *patternParser) escape() (charset, error) {
	if p.pos++; !p.more() {
		return nil, p.unknown(`\`)
	}
	c := p.next()
	switch c {
	case 'n':
		return charsetOf('\n'), nil
	case 'r':
		return charsetOf('\r'), nil
	case 't':
		return charsetOf('\t'), nil
	case 'f':
		return charsetOf('\f'), nil
	case 'v':
		return charsetOf('\v'), nil
	case 'p', 'P':
		return p.property(c == 'P')
	case 'x', 'u':
		return p.hexEscape(c)
	}
	if c < utf8.RuneSelf {
		if set, ok := escapeClass(byte(c)); ok {
			return set, nil
		}
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return nil, p.unknown(`\` + string(c))
		}
	}
	return charsetOf(c), nil
}

func (p *patternParser) property(negated bool) (charset, error) {
	var name string
	if p.accept("{") {
		end := strings.IndexByte(p.src[p.pos:], '}')
		if end < 0 {
			return nil, p.unknown(`\p`)
		}
		name = p.src[p.pos : p.pos+end]
		p.pos += end + 1
	} else if p.more() {
		name = string(p.next())
	}
	if strings.HasPrefix(name, "^") {
		negated, name = !negated, name[1:]
	}
	set, ok := property(name)
	if !ok {
		return nil, p.unknown(`\p{` + name + `}`)
	}
	if negated {
		set = set.negate()
	}
	return set, nil
}

// hexEscape reads \xHH, \x{H…} and \uHHHH.
func (p *patternParser) hexEscape(kind rune) (charset, error) {
	var digits string
	if kind == 'x' && p.accept("{") {
		end := strings.IndexByte(p.src[p.pos:], '}')
		if end < 0 {
			return nil, p.unknown(`\x`)
		}
		digits = p.src[p.pos : p.pos+end]
		p.pos += end + 1
	} else {
		n := 2
		if kind == 'u' {
			n = 4
		}
		if len(p.src)-p.pos < n {
			return nil, p.unknown(`\` + string(kind))
		}
		digits = p.src[p.pos : p.pos+n]
		p.pos += n
	}
	v, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || v > utf8.MaxRune {
		return nil, p.unknown(`\` + string(kind))
	}
	return charsetOf(rune(v)), nil
}
