package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is a conversion of Python's operator % for texts, or a format specification of str.format.
type spec struct {
	fill      string
	align     byte // '<', '>', '^' or '='; 0: the default for the value's type
	sign      byte // '-', '+' or ' '
	alternate bool
	zero      bool
	width     int
	comma     byte // thousands separator; 0: no separator
	precision int  // -1: no precision is given
	verb      byte // type of the conversion; 0: the default for the value's type
}

// maxWidth bounds the padding and the precision. No template needs more.
const maxWidth = 1 << 16

// percent does the same as Python's format % args.
func (r *run) percent(format, args *Value) (Value, error) {
	var b strings.Builder
	items := []Value{*args}
	if args.kind == kindTuple {
		items = args.items()
	}
	used := 0
	next := func() (Value, error) {
		if used >= len(items) {
			return None, failf("not enough arguments for format string")
		}
		used++
		return items[used-1], nil
	}
	s := format.str
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		var sp spec
		var key string
		var keyed bool
		var err error
		if key, keyed, s, err = percentKey(s); err != nil {
			return None, err
		}
		if s, err = sp.percentFlags(s, next); err != nil {
			return None, err
		}
		if sp.verb == '%' {
			b.WriteByte('%')
			continue
		}
		arg := None
		if keyed {
			if args.kind != KindDict {
				return None, failf("format requires a mapping")
			}
			found, ok := args.dict().Get(key)
			if !ok {
				return None, failf("KeyError: '%s'", key)
			}
			arg = found
			used = len(items)
		} else if arg, err = next(); err != nil {
			return None, err
		}
		if format.safe && sp.verb == 's' {
			s, err := r.escape(&arg)
			if err != nil {
				return None, err
			}
			arg = Text(s)
		}
		out, err := r.percentOne(&sp, &arg)
		if err != nil {
			return None, err
		}
		if err := r.grow(len(out)); err != nil {
			return None, err
		}
		b.WriteString(out)
	}
	if used < len(items) && !subscriptable(args) {
		return None, failf("not all arguments converted during string formatting")
	}
	return Value{kind: KindString, safe: format.safe, str: b.String()}, r.grow(len(format.str))
}

// subscriptable reports whether the operator % accepts v as an argument that the format does not use. Python accepts a
// value that can be subscripted and is neither a tuple nor a str.
func subscriptable(v *Value) bool {
	switch v.kind {
	case KindDict, KindList, kindRange, KindUndefined:
		return true
	}
	return false
}

func percentKey(s string) (key string, keyed bool, rest string, err error) {
	if !strings.HasPrefix(s, "(") {
		return "", false, s, nil
	}
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return s[1:i], true, s[i+1:], nil
			}
		}
	}
	return "", false, s, failf("incomplete format key")
}

// percentFlags reads the flags, the width, the precision and the conversion at the beginning of s.
func (sp *spec) percentFlags(s string, next func() (Value, error)) (string, error) {
	sp.fill, sp.align, sp.precision = " ", '>', -1
	for ; s != "" && strings.IndexByte("-+ #0", s[0]) >= 0; s = s[1:] {
		switch s[0] {
		case '-':
			sp.align = '<'
		case '+':
			sp.sign = '+'
		case ' ':
			if sp.sign == 0 {
				sp.sign = ' '
			}
		case '#':
			sp.alternate = true
		case '0':
			sp.zero = true
		}
	}
	number := func() (int, error) {
		if strings.HasPrefix(s, "*") {
			s = s[1:]
			v, err := next()
			if err == nil && !v.isSmallInt() {
				err = failf("* wants int")
			}
			if err == nil && max(v.num, -v.num) > maxWidth {
				err = failf("width too big")
			}
			return int(v.num), err
		}
		n := 0
		for ; s != "" && isDecimal(s[0]); s = s[1:] {
			if n = n*10 + int(s[0]-'0'); n > maxWidth {
				return 0, failf("width too big")
			}
		}
		return n, nil
	}
	var err error
	if sp.width, err = number(); err != nil {
		return s, err
	}
	if sp.width < 0 {
		sp.align, sp.width = '<', -sp.width
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		if sp.precision, err = number(); err != nil {
			return s, err
		}
		sp.precision = max(sp.precision, 0)
	}
	for s != "" && strings.IndexByte("hlL", s[0]) >= 0 {
		s = s[1:]
	}
	if s == "" {
		return s, failf("incomplete format")
	}
	sp.verb = s[0]
	return s[1:], nil
}

func (r *run) percentOne(sp *spec, arg *Value) (string, error) {
	switch sp.verb {
	case 's', 'r', 'a':
		s, err := r.str(arg)
		if sp.verb != 's' {
			s, err = r.repr(arg)
		}
		return sp.padText(cutRunes(s, sp.precision)), err
	case 'c':
		if arg.kind == KindString && utf8.RuneCountInString(arg.str) == 1 {
			return sp.padText(arg.str), nil
		}
		if arg.isSmallInt() && arg.num >= 0 && utf8.ValidRune(rune(arg.num)) && arg.num <= utf8.MaxRune {
			return sp.padText(string(rune(arg.num))), nil
		}
		return "", failf("%%c requires int or char")
	case 'd', 'i', 'u', 'x', 'X', 'o':
		n := *arg
		if n.kind == KindFloat && strings.IndexByte("diu", sp.verb) >= 0 {
			n = truncated(n.float(), None)
		}
		if n.kind == KindUndefined {
			return "", using(arg)
		}
		if !n.isInteger() {
			return "", failf("%%%c format: a number is required, not %s", sp.verb, arg.typeName())
		}
		if strings.IndexByte("diu", sp.verb) >= 0 {
			sp.verb = 'd'
		}
		return sp.percentNumber(sp.integer(&n))
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if arg.kind == KindUndefined {
			return "", using(arg)
		}
		f, ok := arg.asFloat()
		if !arg.isNumber() || !ok {
			return "", failf("must be real number, not %s", arg.typeName())
		}
		return sp.percentNumber(sp.float(f))
	}
	return "", failf("unsupported format character '%c'", sp.verb)
}

func (sp *spec) percentNumber(sign, prefix, digits string) (string, error) {
	if sp.zero && sp.align != '<' {
		sp.fill, sp.align = "0", '='
	}
	return sp.padNumber(sign, prefix, digits), nil
}

func cutRunes(s string, n int) string {
	if n < 0 || n >= len(s) {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func (sp *spec) signOf(negative bool) string {
	switch {
	case negative:
		return "-"
	case sp.sign == '+' || sp.sign == ' ':
		return string(sp.sign)
	}
	return ""
}

// integer returns the digits of an integer as the spec says. The field precision is the least number of digits; only
// the operator % uses this.
func (sp *spec) integer(v *Value) (sign, prefix, digits string) {
	z := v.bigOf()
	sign = sp.signOf(z.Sign() < 0)
	z = new(big.Int).Abs(z)
	base := map[byte]int{'x': 16, 'X': 16, 'o': 8, 'b': 2}[sp.verb]
	if base == 0 {
		base = 10
	} else if sp.alternate {
		prefix = "0" + string(sp.verb)
	}
	digits = z.Text(base)
	if sp.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if n := sp.precision - len(digits); n > 0 {
		digits = strings.Repeat("0", n) + digits
	}
	return sign, prefix, digits
}

// float returns the digits of a float as the spec says.
func (sp *spec) float(f float64) (sign, prefix, digits string) {
	sign = sp.signOf(math.Signbit(f) && !math.IsNaN(f))
	f = math.Abs(f)
	verb := sp.verb
	switch {
	case math.IsInf(f, 0):
		digits = "inf"
	case math.IsNaN(f):
		digits = "nan"
	default:
		digits = sp.finite(f, verb)
	}
	if strings.IndexByte("EFG", verb) >= 0 {
		digits = strings.ToUpper(digits)
	}
	return sign, "", digits
}

func (sp *spec) finite(f float64, verb byte) string {
	precision := sp.precision
	if precision < 0 {
		precision = 6
	}
	switch verb | 0x20 {
	case 'e':
		return strconv.FormatFloat(f, 'e', precision, 64)
	case 'f':
		return strconv.FormatFloat(f, 'f', precision, 64)
	}
	return general(f, max(precision, 1), sp.alternate)
}

// general does the same as the conversion %g of C.
func general(f float64, precision int, keepZeros bool) string {
	e := strconv.FormatFloat(f, 'e', precision-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	s, tail := e[:strings.IndexByte(e, 'e')], e[strings.IndexByte(e, 'e'):]
	if exp >= -4 && exp < precision {
		s, tail = strconv.FormatFloat(f, 'f', precision-1-exp, 64), ""
	}
	if !keepZeros && strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + tail
}

func (sp *spec) padText(s string) string {
	n := sp.width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	switch sp.align {
	case '>':
		return strings.Repeat(sp.fill, n) + s
	case '^':
		return strings.Repeat(sp.fill, n/2) + s + strings.Repeat(sp.fill, n-n/2)
	}
	return s + strings.Repeat(sp.fill, n)
}

func (sp *spec) padNumber(sign, prefix, digits string) string {
	n := sp.width - len(sign) - len(prefix) - utf8.RuneCountInString(digits)
	if sp.align == '=' && n > 0 {
		return sign + prefix + strings.Repeat(sp.fill, n) + digits
	}
	return sp.padText(sign + prefix + digits)
}
