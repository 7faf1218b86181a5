package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// filterFunc is the code behind "v | name(args)".
type filterFunc func(r *run, v *value, a *callArgs) (value, error)

// filters are jinja2's built-in filters with Transformers' tojson; init breaks the cycle through map and select, which
// call filters and tests by name.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs": absFilter, "attr": attrFilter, "batch": batchFilter, "capitalize": textFilter(capitalize),
		"center": centerFilter, "count": lengthFilter, "d": defaultFilter, "default": defaultFilter,
		"dictsort": dictSort, "e": escapeFilter, "escape": escapeFilter, "filesizeformat": fileSize,
		"first": firstFilter, "float": floatFilter, "forceescape": forceEscape, "format": formatFilter,
		"groupby": groupBy, "indent": indentFilter, "int": intFilter, "items": itemsFilter, "join": joinFilter,
		"last": lastFilter, "length": lengthFilter, "list": listFilter, "lower": textFilter(lower), "map": mapFilter,
		"max": extreme("max", 1), "min": extreme("min", -1), "reject": selecting(false, false),
		"rejectattr": selecting(true, false), "replace": replaceFilter, "reverse": reverseFilter, "round": roundFilter,
		"safe": safeFilter, "select": selecting(false, true), "selectattr": selecting(true, true), "slice": sliceFilter,
		"sort": sortFilter, "string": stringFilter, "striptags": stripTags, "sum": sumFilter, "title": textFilter(wordTitle),
		"tojson": toJSON, "trim": trimFilter, "truncate": truncateFilter, "unique": uniqueFilter, "upper": textFilter(upper),
		"urlencode": urlEncode, "wordcount": wordCount, "xmlattr": xmlAttr,
	}
}

// bound evaluates a filter's arguments into their parameters.
func bound(a *callArgs, fn string, names []string, required int, into ...*value) error {
	vals := make([]value, len(names))
	for i, p := range into {
		vals[i] = *p
	}
	if err := a.bind(fn, names, required, vals); err != nil {
		return err
	}
	for i, p := range into {
		*p = vals[i]
	}
	return nil
}

// textFilter is a filter that maps str(v) and takes no arguments.
func textFilter(change func(string) string) filterFunc {
	return func(r *run, v *value, a *callArgs) (value, error) {
		if err := a.positional("filter", 0, 0); err != nil {
			return none, err
		}
		s, err := r.str(v)
		if err != nil {
			return none, err
		}
		if err := r.scan(len(s)); err != nil {
			return none, err
		}
		out := change(s)
		return value{kind: kindString, safe: v.safe, str: out}, r.grow(len(out))
	}
}

func absFilter(_ *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("abs", 0, 0); err != nil {
		return none, err
	}
	switch v.kind {
	case kindFloat:
		return float(math.Abs(v.float())), nil
	case kindBool, kindInt, kindBig:
		if v.bigOf().Sign() < 0 {
			return negate(v)
		}
		return positive(v)
	case kindUndefined:
		return none, using(v)
	}
	return none, failf("bad operand type for abs(): '%s'", v.typeName())
}

func attrFilter(r *run, v *value, a *callArgs) (value, error) {
	var name value
	if err := bound(a, "attr", []string{"name"}, 1, &name); err != nil {
		return none, err
	}
	if name.kind != kindString {
		return none, failf("attribute name must be string")
	}
	if got, ok, err := r.attribute(v, name.str); ok || err != nil {
		return got, err
	}
	return r.notThere(v, name.str), nil
}

func lengthFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("len", 0, 0); err != nil {
		return none, err
	}
	n, ok := r.length(v)
	if !ok {
		return none, failf("object of type '%s' has no len()", v.typeName())
	}
	return integer(int64(n)), nil
}

func defaultFilter(_ *run, v *value, a *callArgs) (value, error) {
	other, truth := emptyText, falseValue
	if err := bound(a, "default", []string{"default_value", "boolean"}, 0, &other, &truth); err != nil {
		return none, err
	}
	if v.kind == kindUndefined || truth.truthy() && !v.truthy() {
		return other, nil
	}
	return *v, nil
}

func escapeFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("escape", 0, 0); err != nil {
		return none, err
	}
	s, err := r.escape(v)
	return value{kind: kindString, safe: true, str: s}, err
}

func forceEscape(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("forceescape", 0, 0); err != nil {
		return none, err
	}
	plain := *v
	plain.safe = false
	return escapeFilter(r, &plain, a)
}

func safeFilter(r *run, v *value, a *callArgs) (value, error) {
	v2, err := stringFilter(r, v, a)
	v2.safe = true
	return v2, err
}

func stringFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("string", 0, 0); err != nil {
		return none, err
	}
	if v.kind == kindString {
		return *v, nil
	}
	s, err := r.str(v)
	return text(s), err
}

func listFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("list", 0, 0); err != nil {
		return none, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return none, err
	}
	return newList(append([]value(nil), items...)), r.grow(len(items) * valueBytes)
}

func firstFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("first", 0, 0); err != nil {
		return none, err
	}
	it, err := r.iterate(v)
	if err != nil {
		return none, err
	}
	item, ok, err := it.next(r)
	if err == nil && !ok {
		item = undefined("no first item, sequence was empty")
	}
	return item, err
}

func lastFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("last", 0, 0); err != nil {
		return none, err
	}
	items, ok, err := r.reversible(v)
	if err != nil {
		return none, err
	}
	if !ok {
		return none, failf("'%s' object is not reversible", v.typeName())
	}
	if len(items) == 0 {
		return undefined("no last item, sequence was empty"), nil
	}
	return items[len(items)-1], nil
}

// reversible is the items of what Python's reversed() takes.
func (r *run) reversible(v *value) ([]value, bool, error) {
	switch v.kind {
	case kindString, kindList, kindTuple, kindDict, kindView, kindRange, kindUndefined:
		items, err := r.listOf(v)
		return items, true, err
	}
	return nil, false, nil
}

func reverseFilter(r *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("reverse", 0, 0); err != nil {
		return none, err
	}
	if v.kind == kindString {
		runes := []rune(v.str)
		for i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {
			runes[i], runes[j] = runes[j], runes[i]
		}
		return value{kind: kindString, safe: v.safe, str: string(runes)}, r.grow(5 * len(v.str))
	}
	items, lazily, err := r.reversible(v)
	if err != nil {
		return none, err
	}
	if !lazily {
		if items, err = r.listOf(v); err != nil {
			return none, err
		}
	}
	out := make([]value, len(items))
	for i := range items {
		out[len(items)-1-i] = items[i]
	}
	if err := r.grow(len(out) * valueBytes); err != nil {
		return none, err
	}
	if !lazily {
		return newList(out), nil
	}
	return value{kind: kindIterator, ref: newItems(out)}, nil
}

func newItems(vals []value) iterator { return &items{l: &list{vals}} }

func itemsFilter(_ *run, v *value, a *callArgs) (value, error) {
	if err := a.positional("items", 0, 0); err != nil {
		return none, err
	}
	switch v.kind {
	case kindUndefined:
		return value{kind: kindIterator, ref: newItems(nil)}, nil
	case kindDict:
		return value{kind: kindIterator, ref: &entries{d: v.dict(), part: viewItems}}, nil
	}
	// The filter is a generator in Python: it complains when it is used.
	name := v.typeName()
	return lazy(func(*run) (value, bool, error) {
		return none, false, failf("can only get item pairs from a mapping, not from %s", name)
	}), nil
}

func replaceFilter(r *run, v *value, a *callArgs) (value, error) {
	old, with, count := none, none, none
	if err := bound(a, "replace", []string{"old", "new", "count"}, 2, &old, &with, &count); err != nil {
		return none, err
	}
	var s [3]string
	for i, arg := range []*value{v, &old, &with} {
		var err error
		if s[i], err = r.str(arg); err != nil {
			return none, err
		}
	}
	n := int64(-1)
	if count.kind != kindNone {
		if !count.isSmallInt() {
			return none, failf("'%s' object cannot be interpreted as an integer", count.typeName())
		}
		n = count.num
	}
	return r.replace(s[0], s[1], s[2], n)
}

// replace is str.replace, charged before it builds.
func (r *run) replace(s, old, with string, n int64) (value, error) {
	if err := r.scan(len(s)); err != nil {
		return none, err
	}
	found := strings.Count(s, old)
	if n >= 0 {
		found = int(min(int64(found), n))
	}
	if found == 0 {
		return text(s), nil
	}
	if err := r.growTimes(len(with), found); err != nil {
		return none, err
	}
	if err := r.grow(len(s)); err != nil {
		return none, err
	}
	return text(strings.Replace(s, old, with, found)), nil
}

func joinFilter(r *run, v *value, a *callArgs) (value, error) {
	sep, attribute := emptyText, none
	if err := bound(a, "join", []string{"d", "attribute"}, 0, &sep, &attribute); err != nil {
		return none, err
	}
	path, err := attributePath(&attribute)
	if err != nil {
		return none, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return none, err
	}
	glue, err := r.str(&sep)
	if err != nil {
		return none, err
	}
	parts := make([]string, len(items))
	size := 0
	for i := range items {
		item, err := r.follow(items[i], path, nil)
		if err != nil {
			return none, err
		}
		if parts[i], err = r.str(&item); err != nil {
			return none, err
		}
		if size += len(parts[i]) + len(glue); size > r.memory {
			return none, r.grow(size)
		}
	}
	return text(strings.Join(parts, glue)), r.grow(size)
}

func trimFilter(r *run, v *value, a *callArgs) (value, error) {
	chars := none
	if err := bound(a, "trim", []string{"chars"}, 0, &chars); err != nil {
		return none, err
	}
	s, err := r.str(v)
	if err != nil {
		return none, err
	}
	s, err = r.strip(s, &chars, 0)
	return value{kind: kindString, safe: v.safe, str: s}, err
}

func centerFilter(r *run, v *value, a *callArgs) (value, error) {
	width := integer(80)
	if err := bound(a, "center", []string{"width"}, 0, &width); err != nil {
		return none, err
	}
	s, err := r.str(v)
	if err != nil {
		return none, err
	}
	return r.pad("center", s, &callArgs{pos: []value{width}})
}

func indentFilter(r *run, v *value, a *callArgs) (value, error) {
	width, first, blank := integer(4), falseValue, falseValue
	if err := bound(a, "indent", []string{"width", "first", "blank"}, 0, &width, &first, &blank); err != nil {
		return none, err
	}
	indention := width
	if width.kind != kindString {
		space := text(" ")
		var err error
		if indention, err = r.arithmetic("*", &space, &width); err != nil {
			return none, err
		}
	}
	if v.kind != kindString {
		if v.kind == kindUndefined {
			return none, using(v)
		}
		return none, failf("unsupported operand type(s) for +=: '%s' and 'str'", v.typeName())
	}
	lines := splitLines(v.str+"\n", false)
	if err := r.growTimes(len(indention.str)+1, len(lines)+1); err != nil {
		return none, err
	}
	if err := r.grow(len(v.str)); err != nil {
		return none, err
	}
	var b strings.Builder
	if first.truthy() {
		b.WriteString(indention.str)
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if line != "" || blank.truthy() {
				b.WriteString(indention.str)
			}
		}
		b.WriteString(line)
	}
	return value{kind: kindString, safe: v.safe, str: b.String()}, nil
}

func truncateFilter(r *run, v *value, a *callArgs) (value, error) {
	length, kill, end, leeway := integer(255), falseValue, text("..."), integer(5)
	names := []string{"length", "killwords", "end", "leeway"}
	if err := bound(a, "truncate", names, 0, &length, &kill, &end, &leeway); err != nil {
		return none, err
	}
	if leeway.kind == kindNone {
		leeway = integer(5)
	}
	if !length.isSmallInt() || !leeway.isSmallInt() || end.kind != kindString {
		return none, failf("truncate() takes integers and a text")
	}
	endLen, _ := r.length(&end)
	if length.num < int64(endLen) || leeway.num < 0 {
		return none, failf("expected length >= %d and leeway >= 0", endLen)
	}
	n, ok := r.length(v)
	if !ok {
		return none, failf("object of type '%s' has no len()", v.typeName())
	}
	if int64(n) <= length.num+leeway.num {
		return *v, nil
	}
	if v.kind != kindString {
		return none, failf("truncate() takes a text")
	}
	cut, err := r.sliceText(v, &[3]value{none, integer(length.num - int64(endLen)), none})
	if err != nil {
		return none, err
	}
	if !kill.truthy() {
		if i := strings.LastIndexByte(cut.str, ' '); i >= 0 {
			cut.str = cut.str[:i]
		}
	}
	cut.str += end.str
	return cut, r.grow(len(cut.str))
}

func intFilter(r *run, v *value, a *callArgs) (value, error) {
	fallback, base := integer(0), integer(10)
	if err := bound(a, "int", []string{"default", "base"}, 0, &fallback, &base); err != nil {
		return none, err
	}
	switch v.kind {
	case kindUndefined:
		return none, using(v)
	case kindBool, kindInt, kindBig:
		return positive(v)
	case kindFloat:
		return truncated(v.float(), fallback), nil
	case kindString:
		if !base.isSmallInt() {
			return none, failf("'%s' object cannot be interpreted as an integer", base.typeName())
		}
		if err := r.scan(len(v.str)); err != nil {
			return none, err
		}
		if n, ok := parseInteger(v.str, int(base.num)); ok {
			return n, nil
		}
		if f, ok := parseFloat(v.str); ok {
			return truncated(f, fallback), nil
		}
	}
	return fallback, nil
}

// truncated is int(f), or fallback for what has no integer.
func truncated(f float64, fallback value) value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fallback
	}
	z, _ := big.NewFloat(f).Int(nil)
	return bigInteger(z)
}

// parseInteger is int(s, base).
func parseInteger(s string, base int) (value, bool) {
	s = strings.TrimFunc(s, isSpace)
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || digits == "" || digits[0] == '_' || strings.HasSuffix(digits, "_") ||
		strings.Contains(digits, "__") || len(digits) > maxDigits {
		return value{}, false
	}
	digits = strings.ReplaceAll(asciiDigits(digits), "_", "")
	lower := strings.ToLower(digits)
	for prefix, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
		if strings.HasPrefix(lower, prefix) && (base == b || base == 0) {
			digits, base = digits[2:], b
			break
		}
	}
	if base == 0 {
		if base = 10; len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0") != "" {
			return value{}, false
		}
	}
	if base < 2 || base > 36 || digits == "" || strings.ContainsAny(digits, "+-_") {
		return value{}, false
	}
	z, ok := new(big.Int).SetString(digits, base)
	if !ok {
		return value{}, false
	}
	if s[0] == '-' {
		z.Neg(z)
	}
	return bigInteger(z), true
}

// parseFloat is float(s).
func parseFloat(s string) (float64, bool) {
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	body := strings.ToLower(strings.TrimLeft(s, "+-"))
	switch body {
	case "inf", "infinity", "nan":
	default:
		if body == "" || strings.ContainsAny(body, "xpin") || body[0] == '_' {
			return 0, false
		}
		if strings.Contains(s, "_") {
			for i := range len(s) {
				if s[i] == '_' && (i == 0 || i+1 == len(s) || !isDecimal(s[i-1]) || !isDecimal(s[i+1])) {
					return 0, false
				}
			}
			s = strings.ReplaceAll(s, "_", "")
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

func floatFilter(r *run, v *value, a *callArgs) (value, error) {
	fallback := float(0)
	if err := bound(a, "float", []string{"default"}, 0, &fallback); err != nil {
		return none, err
	}
	switch v.kind {
	case kindUndefined:
		return none, using(v)
	case kindBool, kindInt, kindBig, kindFloat:
		f, ok := v.asFloat()
		if !ok {
			return none, failf("int too large to convert to float")
		}
		return float(f), nil
	case kindString:
		if err := r.scan(len(v.str)); err != nil {
			return none, err
		}
		if f, ok := parseFloat(v.str); ok {
			return float(f), nil
		}
	}
	return fallback, nil
}

func roundFilter(r *run, v *value, a *callArgs) (value, error) {
	precision, method := integer(0), text("common")
	if err := bound(a, "round", []string{"precision", "method"}, 0, &precision, &method); err != nil {
		return none, err
	}
	if v.kind == kindUndefined {
		return none, using(v)
	}
	if method.str != "common" && method.str != "ceil" && method.str != "floor" {
		return none, failf("method must be common, ceil or floor")
	}
	if !v.isNumber() || !precision.isSmallInt() || max(precision.num, -precision.num) > 400 {
		return none, failf("type %s doesn't define __round__ method", v.typeName())
	}
	if method.str == "common" {
		if v.isInteger() {
			return roundInteger(v, precision.num)
		}
		return float(roundHalfEven(v.float(), int(precision.num))), nil
	}
	ten := integer(10)
	scale, err := numberOp("**", &ten, &precision)
	if err != nil {
		return none, err
	}
	scaled, err := numberOp("*", v, &scale)
	if err != nil {
		return none, err
	}
	f, ok := scaled.asFloat()
	if !ok || math.IsInf(f, 0) || math.IsNaN(f) {
		return none, failf("cannot convert float to integer")
	}
	if method.str == "ceil" {
		f = math.Ceil(f)
	} else {
		f = math.Floor(f)
	}
	whole := truncated(f, none)
	if scaled.isInteger() {
		whole = scaled
	}
	return numberOp("/", &whole, &scale)
}

// roundHalfEven is Python's round(f, n): correctly rounded in decimal.
func roundHalfEven(f float64, n int) float64 {
	if math.IsInf(f, 0) || math.IsNaN(f) || n > 323 {
		return f
	}
	if n < 0 {
		scale := math.Pow(10, float64(-n))
		return math.RoundToEven(f/scale) * scale
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
	return out
}

func roundInteger(v *value, n int64) (value, error) {
	if n >= 0 {
		return positive(v)
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(-n), nil)
	q, m := new(big.Int).DivMod(v.bigOf(), scale, new(big.Int))
	switch twice := new(big.Int).Lsh(m, 1); twice.Cmp(scale) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		q.Add(q, big.NewInt(int64(q.Bit(0))))
	}
	return checked(q.Mul(q, scale))
}

func fileSize(r *run, v *value, a *callArgs) (value, error) {
	binary := falseValue
	if err := bound(a, "filesizeformat", []string{"binary"}, 0, &binary); err != nil {
		return none, err
	}
	n, ok := 0.0, false
	if v.isNumber() {
		n, ok = v.asFloat()
	} else if v.kind == kindString {
		n, ok = parseFloat(v.str)
	}
	if !ok {
		return none, failf("could not convert to float")
	}
	base, suffix := 1000.0, "B"
	if binary.truthy() {
		base, suffix = 1024, "iB"
	}
	switch {
	case n == 1:
		return text("1 Byte"), nil
	case n < base:
		whole := truncated(n, none)
		s, err := r.str(&whole)
		return text(s + " Bytes"), err
	}
	prefixes := "kMGTPEZY"
	if binary.truthy() {
		prefixes = "KMGTPEZY"
	}
	unit := base * base
	i := 0
	for ; i < len(prefixes)-1 && n >= unit; i++ {
		unit *= base
	}
	return text(strconv.FormatFloat(base*n/unit, 'f', 1, 64) + " " + prefixes[i:i+1] + suffix), nil
}

func formatFilter(r *run, v *value, a *callArgs) (value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return none, failf("can't handle positional and keyword arguments at the same time")
	}
	s, err := r.str(v)
	if err != nil {
		return none, err
	}
	format := value{kind: kindString, safe: v.safe, str: s}
	args := newTuple(append([]value(nil), a.pos...)...)
	if len(a.kw) > 0 {
		args = newDict(a.kwDict())
	}
	return r.percent(&format, &args)
}

// kwDict is the keyword arguments as a dict.
func (a *callArgs) kwDict() *dict {
	d := &dict{}
	for i := range a.kw {
		d.set(a.kw[i].name, a.kw[i].val)
	}
	return d
}

// toJSON is the filter that Transformers puts in the place of jinja2's.
func toJSON(r *run, v *value, a *callArgs) (value, error) {
	ascii, indent, separators, sortKeys := falseValue, none, none, falseValue
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	if err := bound(a, "tojson", names, 0, &ascii, &indent, &separators, &sortKeys); err != nil {
		return none, err
	}
	w := &writer{r: r, ascii: ascii.truthy(), sortKeys: sortKeys.truthy(), comma: ", ", colon: ": "}
	switch {
	case indent.kind == kindNone:
	case indent.kind == kindString:
		w.multiline, w.indent = true, indent.str
	case indent.isSmallInt():
		w.multiline, w.indent = true, strings.Repeat(" ", int(max(0, min(indent.num, 1000))))
	default:
		return none, failf("can't multiply sequence by non-int of type '%s'", indent.typeName())
	}
	if w.multiline {
		w.comma = ","
	}
	if separators.kind != kindNone {
		pair, err := r.unpack(&separators, 2)
		if err != nil {
			return none, err
		}
		if pair[0].kind != kindString || pair[1].kind != kindString {
			return none, failf("separators must be texts")
		}
		w.comma, w.colon = pair[0].str, pair[1].str
	}
	if err := w.value(v, 0); err != nil {
		return none, err
	}
	return text(string(w.out)), r.grow(len(w.out))
}
