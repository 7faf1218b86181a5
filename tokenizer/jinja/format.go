package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// format does the same as Python's str.format in jinja2's sandbox.
func (r *run) format(s string, pos []Value, kw *Dict) (string, error) {
	auto := 0
	out, err := r.formatNested(s, pos, kw, &auto, 2)
	return out, err
}

// formatNested does the work of format. auto is the state of the automatic numbering of fields. depth is how many more
// levels of fields within specifications are allowed.
func (r *run) formatNested(s string, pos []Value, kw *Dict, auto *int, depth int) (string, error) {
	if depth == 0 {
		return "", failf("max string recursion exceeded")
	}
	var b strings.Builder
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		if i+1 < len(s) && s[i+1] == s[i] {
			b.WriteByte(s[i])
			s = s[i+2:]
			continue
		}
		if s[i] == '}' {
			return "", failf("single '}' encountered in format string")
		}
		field, rest, err := formatField(s[i+1:])
		if err != nil {
			return "", err
		}
		s = rest
		out, err := r.formatOne(field, pos, kw, auto, depth)
		if err != nil {
			return "", err
		}
		if err := r.grow(len(out)); err != nil {
			return "", err
		}
		b.WriteString(out)
	}
	return b.String(), r.grow(len(s))
}

func formatField(s string) (field, rest string, err error) {
	depth, bracket := 1, false
	for i := range len(s) {
		switch s[i] {
		case '[':
			bracket = true
		case ']':
			bracket = false
		case '{':
			if !bracket {
				depth++
			}
		case '}':
			if bracket {
				continue
			}
			if depth--; depth == 0 {
				return s[:i], s[i+1:], nil
			}
		}
	}
	return "", "", failf("expected '}' before end of string")
}

func (r *run) formatOne(field string, pos []Value, kw *Dict, auto *int, depth int) (string, error) {
	name, conversion, sp := field, "", ""
	inBracket := false
	for i := range len(field) {
		c := field[i]
		if c == '[' {
			inBracket = true
		} else if c == ']' {
			inBracket = false
		}
		if inBracket || c != '!' && c != ':' {
			continue
		}
		name = field[:i]
		if c == ':' {
			sp = field[i+1:]
			break
		}
		rest := field[i+1:]
		if rest == "" || len(rest) > 1 && rest[1] != ':' {
			return "", failf("expected ':' after conversion specifier")
		}
		conversion = rest[:1]
		if len(rest) > 1 {
			sp = rest[2:]
		}
		break
	}
	v, err := r.formatLookup(name, pos, kw, auto)
	if err != nil {
		return "", err
	}
	switch conversion {
	case "":
	case "s":
		s, err := r.str(&v)
		if err != nil {
			return "", err
		}
		v = Text(s)
	case "r", "a":
		s, err := r.repr(&v)
		if err != nil {
			return "", err
		}
		v = Text(s)
	default:
		return "", failf("unknown conversion specifier %s", conversion)
	}
	if strings.ContainsAny(sp, "{}") {
		if sp, err = r.formatNested(sp, pos, kw, auto, depth-1); err != nil {
			return "", err
		}
	}
	return r.formatValue(&v, sp)
}

// formatLookup returns the value of a field name such as "0.name[key]".
func (r *run) formatLookup(name string, pos []Value, kw *Dict, auto *int) (Value, error) {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	var v Value
	n, err := strconv.Atoi(first)
	switch {
	case first == "" && *auto < 0, err == nil && first != "" && *auto > 0:
		return None, failf("cannot switch between manual field specification and automatic field numbering")
	case first == "":
		n, err = *auto, nil
		*auto++
	case err == nil:
		*auto = -1
	}
	if err == nil {
		if n < 0 || n >= len(pos) {
			return None, failf("replacement index %d out of range for positional args tuple", n)
		}
		v = pos[n]
	} else {
		found, ok := kw.Get(first)
		if !ok {
			return None, failf("KeyError: '%s'", first)
		}
		v = found
	}
	for rest != "" {
		var part string
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			part, rest = rest[1:1+end], rest[1+end:]
			if v, err = r.getAttr(&v, part); err != nil {
				return None, err
			}
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			return None, failf("missing ']' in format string")
		}
		part, rest = rest[1:end], rest[end+1:]
		key := Text(part)
		if n, err := strconv.ParseUint(part, 10, 62); err == nil {
			key = integer(int64(n))
		}
		if v, err = r.getItem(&v, &key); err != nil {
			return None, err
		}
	}
	return v, nil
}

// formatValue does the same as Python's format(v, spec).
func (r *run) formatValue(v *Value, s string) (string, error) {
	if s == "" {
		return r.str(v)
	}
	sp, err := parseSpec(s)
	if err != nil {
		return "", err
	}
	switch v.kind {
	case KindString:
		if sp.verb != 0 && sp.verb != 's' || sp.sign != 0 || sp.comma != 0 || sp.align == '=' || sp.alternate {
			return "", failf("invalid format specifier for str")
		}
		return sp.padText(cutRunes(v.str, sp.precision)), nil
	case KindBool, KindInt, KindBig, KindFloat:
		return sp.number(v)
	}
	return "", failf("unsupported format string passed to %s.__format__", v.typeName())
}

func parseSpec(s string) (*spec, error) {
	sp := &spec{fill: " ", precision: -1}
	isAlign := func(c byte) bool { return strings.IndexByte("<>^=", c) >= 0 }
	if _, n := utf8.DecodeRuneInString(s); len(s) > n && isAlign(s[n]) {
		sp.fill, sp.align, s = s[:n], s[n], s[n+1:]
	} else if isAlign(s[0]) {
		sp.align, s = s[0], s[1:]
	}
	take := func(chars string) byte {
		if s != "" && strings.IndexByte(chars, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	sp.sign = take("+- ")
	sp.alternate = take("#") != 0
	if take("0") != 0 && sp.align == 0 {
		sp.fill, sp.align = "0", '='
	}
	number := func() (int, bool) {
		n, any := 0, false
		for ; s != "" && isDecimal(s[0]); s = s[1:] {
			any = true
			n = min(n*10+int(s[0]-'0'), maxWidth+1)
		}
		return n, any
	}
	sp.width, _ = number()
	sp.comma = take(",_")
	if take(".") != 0 {
		n, any := number()
		if !any {
			return nil, failf("format specifier missing precision")
		}
		sp.precision = n
	}
	sp.verb = take("bcdeEfFgGnosxX%")
	if s != "" || sp.width > maxWidth || sp.precision > maxWidth {
		return nil, failf("invalid format specifier")
	}
	return sp, nil
}

func (sp *spec) number(v *Value) (string, error) {
	if sp.align == 0 {
		sp.align = '>'
	}
	floating := strings.IndexByte("eEfFgGn%", sp.verb) >= 0 && sp.verb != 0
	if v.isInteger() && (!floating || sp.verb == 'n') {
		switch {
		case sp.precision >= 0:
			return "", failf("precision not allowed in integer format specifier")
		case sp.verb == 's':
			return "", failf("unknown format code 's' for object of type 'int'")
		case sp.verb == 'c':
			if !v.isSmallInt() || v.num < 0 || v.num > utf8.MaxRune {
				return "", failf("%%c arg not in range")
			}
			return sp.padText(string(rune(v.num))), nil
		}
		sign, prefix, digits := sp.integer(v)
		return sp.padNumber(sign, prefix, sp.grouped(digits)), nil
	}
	f, ok := v.asFloat()
	if !ok {
		return "", failf("int too large to convert to float")
	}
	tail := ""
	switch sp.verb {
	case '%':
		f *= 100
		sp.verb, tail = 'f', "%"
	case 0:
		if sp.precision < 0 {
			b := appendFloat(nil, math.Abs(f), "inf", "nan")
			return sp.padNumber(sp.signOf(math.Signbit(f) && !math.IsNaN(f)), "", sp.grouped(string(b))), nil
		}
		sign, prefix, digits := sp.float(f)
		if !strings.ContainsAny(digits, ".en") { // a float has a decimal point, as in repr
			digits += ".0"
		}
		return sp.padNumber(sign, prefix, sp.grouped(digits)), nil
	case 'b', 'c', 'd', 'o', 's', 'x', 'X':
		return "", failf("unknown format code '%c' for object of type 'float'", sp.verb)
	}
	sign, prefix, digits := sp.float(f)
	return sp.padNumber(sign, prefix, sp.grouped(digits)+tail), nil
}

// grouped puts thousands separators into the integer part.
func (sp *spec) grouped(digits string) string {
	if sp.comma == 0 {
		return digits
	}
	end := strings.IndexFunc(digits, func(c rune) bool { return c < '0' || c > '9' })
	if end < 0 {
		end = len(digits)
	}
	var b strings.Builder
	for i := range end {
		if i > 0 && (end-i)%3 == 0 {
			b.WriteByte(sp.comma)
		}
		b.WriteByte(digits[i])
	}
	return b.String() + digits[end:]
}
