package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is a conversion of the % operator or a format specification.
type spec struct {
	fill      string
	align     byte // '<' '>' '^' '='; 0: the type's own
	sign      byte // '-', '+' or ' '
	alternate bool
	zero      bool
	width     int
	comma     byte // thousands separator, 0: none
	precision int  // -1: none
	verb      byte // 0: the type's own
}

// maxWidth bounds padding and precision; more is charged like other text but nobody needs it.
const maxWidth = 1 << 16

// percent is str % args.
func (r *run) percent(format, args *value) (value, error) {
	var b strings.Builder
	items := []value{*args}
	if args.kind == kindTuple {
		items = args.items()
	}
	used := 0
	next := func() (value, error) {
		if used >= len(items) {
			return none, failf("not enough arguments for format string")
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
			return none, err
		}
		if s, err = sp.percentFlags(s, next); err != nil {
			return none, err
		}
		if sp.verb == '%' {
			b.WriteByte('%')
			continue
		}
		arg := none
		if keyed {
			if args.kind != kindDict {
				return none, failf("format requires a mapping")
			}
			found, ok := args.dict().get(key)
			if !ok {
				return none, failf("KeyError: '%s'", key)
			}
			arg = found
			used = len(items)
		} else if arg, err = next(); err != nil {
			return none, err
		}
		if format.safe && sp.verb == 's' {
			s, err := r.escape(&arg)
			if err != nil {
				return none, err
			}
			arg = text(s)
		}
		out, err := r.percentOne(&sp, &arg)
		if err != nil {
			return none, err
		}
		if err := r.grow(len(out)); err != nil {
			return none, err
		}
		b.WriteString(out)
	}
	if used < len(items) && !subscriptable(args) {
		return none, failf("not all arguments converted during string formatting")
	}
	return value{kind: kindString, safe: format.safe, str: b.String()}, r.grow(len(format.str))
}

// subscriptable reports whether the % operator lets its argument go unused: what can be subscripted and is neither a
// tuple nor a str.
func subscriptable(v *value) bool {
	switch v.kind {
	case kindDict, kindList, kindRange, kindUndefined:
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

// percentFlags reads flags, width, precision and the conversion.
func (sp *spec) percentFlags(s string, next func() (value, error)) (string, error) {
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

func (r *run) percentOne(sp *spec, arg *value) (string, error) {
	switch sp.verb {
	case 's', 'r', 'a':
		s, err := r.str(arg)
		if sp.verb != 's' {
			s, err = r.repr(arg)
		}
		return sp.padText(cutRunes(s, sp.precision)), err
	case 'c':
		if arg.kind == kindString && utf8.RuneCountInString(arg.str) == 1 {
			return sp.padText(arg.str), nil
		}
		if arg.isSmallInt() && arg.num >= 0 && utf8.ValidRune(rune(arg.num)) && arg.num <= utf8.MaxRune {
			return sp.padText(string(rune(arg.num))), nil
		}
		return "", failf("%%c requires int or char")
	case 'd', 'i', 'u', 'x', 'X', 'o':
		n := *arg
		if n.kind == kindFloat && strings.IndexByte("diu", sp.verb) >= 0 {
			n = truncated(n.float(), none)
		}
		if n.kind == kindUndefined {
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
		if arg.kind == kindUndefined {
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

// integer is the digits of an integer under the spec: precision is the least number of digits (% only).
func (sp *spec) integer(v *value) (sign, prefix, digits string) {
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

// float is the digits of a float under the spec.
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

// general is C's %g.
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

// format is str.format of the sandbox.
func (r *run) format(s string, pos []value, kw *dict) (string, error) {
	auto := 0
	out, err := r.formatNested(s, pos, kw, &auto, 2)
	return out, err
}

// formatNested formats with automatic numbering carried in auto; depth bounds fields within specifications.
func (r *run) formatNested(s string, pos []value, kw *dict, auto *int, depth int) (string, error) {
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

func (r *run) formatOne(field string, pos []value, kw *dict, auto *int, depth int) (string, error) {
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
		v = text(s)
	case "r", "a":
		s, err := r.repr(&v)
		if err != nil {
			return "", err
		}
		v = text(s)
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

// formatLookup resolves "0.name[key]".
func (r *run) formatLookup(name string, pos []value, kw *dict, auto *int) (value, error) {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	var v value
	n, err := strconv.Atoi(first)
	switch {
	case first == "" && *auto < 0, err == nil && first != "" && *auto > 0:
		return none, failf("cannot switch between manual field specification and automatic field numbering")
	case first == "":
		n, err = *auto, nil
		*auto++
	case err == nil:
		*auto = -1
	}
	if err == nil {
		if n < 0 || n >= len(pos) {
			return none, failf("replacement index %d out of range for positional args tuple", n)
		}
		v = pos[n]
	} else {
		found, ok := kw.get(first)
		if !ok {
			return none, failf("KeyError: '%s'", first)
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
				return none, err
			}
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			return none, failf("missing ']' in format string")
		}
		part, rest = rest[1:end], rest[end+1:]
		key := text(part)
		if n, err := strconv.ParseUint(part, 10, 62); err == nil {
			key = integer(int64(n))
		}
		if v, err = r.getItem(&v, &key); err != nil {
			return none, err
		}
	}
	return v, nil
}

// formatValue is format(v, spec).
func (r *run) formatValue(v *value, s string) (string, error) {
	if s == "" {
		return r.str(v)
	}
	sp, err := parseSpec(s)
	if err != nil {
		return "", err
	}
	switch v.kind {
	case kindString:
		if sp.verb != 0 && sp.verb != 's' || sp.sign != 0 || sp.comma != 0 || sp.align == '=' || sp.alternate {
			return "", failf("invalid format specifier for str")
		}
		return sp.padText(cutRunes(v.str, sp.precision)), nil
	case kindBool, kindInt, kindBig, kindFloat:
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

func (sp *spec) number(v *value) (string, error) {
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
		if !strings.ContainsAny(digits, ".en") { // like repr: a float shows that it is one
			digits += ".0"
		}
		return sp.padNumber(sign, prefix, sp.grouped(digits)), nil
	case 'b', 'c', 'd', 'o', 's', 'x', 'X':
		return "", failf("unknown format code '%c' for object of type 'float'", sp.verb)
	}
	sign, prefix, digits := sp.float(f)
	return sp.padNumber(sign, prefix, sp.grouped(digits)+tail), nil
}

// grouped puts separators into the integer part.
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
