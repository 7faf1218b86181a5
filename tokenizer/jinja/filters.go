package jinja

import (
	"strings"
)

// filterFunc is the code of the filter in "v | name(args)".
type filterFunc func(r *run, v *Value, a *callArgs) (Value, error)

// filters has jinja2's built-in filters, with the tojson of Transformers. Filters that find other filters by name, such
// as map, use run.filters and not this variable: Go refuses an initialization that depends on itself.
var filters = map[string]filterFunc{
	"abs": absFilter, "attr": attrFilter, "batch": batchFilter, "capitalize": textFilter(capitalize),
	"center": centerFilter, "count": lengthFilter, "d": defaultFilter, "default": defaultFilter,
	"dictsort": dictSort, "e": escapeFilter, "escape": escapeFilter, "filesizeformat": fileSize,
	"first": firstFilter, "float": floatFilter, "forceescape": forceEscape, "format": formatFilter,
	"groupby": groupBy, "indent": indentFilter, "int": intFilter, "items": itemsFilter, "join": joinFilter,
	"last": lastFilter, "length": lengthFilter, "list": listFilter, "lower": textFilter(Lower), "map": mapFilter,
	"max": extreme("max", 1), "min": extreme("min", -1), "reject": selecting(false, false),
	"rejectattr": selecting(true, false), "replace": replaceFilter, "reverse": reverseFilter, "round": roundFilter,
	"safe": safeFilter, "select": selecting(false, true), "selectattr": selecting(true, true), "slice": sliceFilter,
	"sort": sortFilter, "string": stringFilter, "striptags": stripTags, "sum": sumFilter,
	"title": textFilter(wordTitle), "tojson": toJSON, "trim": trimFilter, "truncate": truncateFilter,
	"unique": uniqueFilter, "upper": textFilter(upper), "urlencode": urlEncode, "wordcount": wordCount,
	"xmlattr": xmlAttr,
}

// bound assigns the arguments of a filter to its parameters. into has pointers to the parameters, which have their
// defaults before the call.
func bound(a *callArgs, fn string, names []string, required int, into ...*Value) error {
	vals := make([]Value, len(names))
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

// textFilter makes a filter that applies change to str(v). The filter takes no arguments.
func textFilter(change func(string) string) filterFunc {
	return func(r *run, v *Value, a *callArgs) (Value, error) {
		if err := a.positional("filter", 0, 0); err != nil {
			return None, err
		}
		s, err := r.str(v)
		if err != nil {
			return None, err
		}
		if err := r.scan(len(s)); err != nil {
			return None, err
		}
		out := change(s)
		return Value{kind: KindString, safe: v.safe, str: out}, r.grow(len(out))
	}
}

func attrFilter(r *run, v *Value, a *callArgs) (Value, error) {
	var name Value
	if err := bound(a, "attr", []string{"name"}, 1, &name); err != nil {
		return None, err
	}
	if name.kind != KindString {
		return None, failf("attribute name must be string")
	}
	if got, ok, err := r.attribute(v, name.str); ok || err != nil {
		return got, err
	}
	return r.notThere(v, name.str), nil
}

func lengthFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("len", 0, 0); err != nil {
		return None, err
	}
	n, ok := r.length(v)
	if !ok {
		return None, failf("object of type '%s' has no len()", v.typeName())
	}
	return integer(int64(n)), nil
}

func defaultFilter(_ *run, v *Value, a *callArgs) (Value, error) {
	other, truth := emptyText, falseValue
	if err := bound(a, "default", []string{"default_value", "boolean"}, 0, &other, &truth); err != nil {
		return None, err
	}
	if v.kind == KindUndefined || truth.truthy() && !v.truthy() {
		return other, nil
	}
	return *v, nil
}

func escapeFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("escape", 0, 0); err != nil {
		return None, err
	}
	s, err := r.escape(v)
	return Value{kind: KindString, safe: true, str: s}, err
}

func forceEscape(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("forceescape", 0, 0); err != nil {
		return None, err
	}
	unescaped := *v
	unescaped.safe = false
	return escapeFilter(r, &unescaped, a)
}

func safeFilter(r *run, v *Value, a *callArgs) (Value, error) {
	v2, err := stringFilter(r, v, a)
	v2.safe = true
	return v2, err
}

func stringFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("string", 0, 0); err != nil {
		return None, err
	}
	if v.kind == KindString {
		return *v, nil
	}
	s, err := r.str(v)
	return Text(s), err
}

func listFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("list", 0, 0); err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	return List(append([]Value(nil), items...)), r.grow(len(items) * valueBytes)
}

func firstFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("first", 0, 0); err != nil {
		return None, err
	}
	it, err := r.iterate(v)
	if err != nil {
		return None, err
	}
	item, ok, err := it.next(r)
	if err == nil && !ok {
		item = undefined("no first item, sequence was empty")
	}
	return item, err
}

func lastFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("last", 0, 0); err != nil {
		return None, err
	}
	items, ok, err := r.reversible(v)
	if err != nil {
		return None, err
	}
	if !ok {
		return None, failf("'%s' object is not reversible", v.typeName())
	}
	if len(items) == 0 {
		return undefined("no last item, sequence was empty"), nil
	}
	return items[len(items)-1], nil
}

// reversible returns the items of v. It returns false if Python's reversed() does not accept v.
func (r *run) reversible(v *Value) ([]Value, bool, error) {
	switch v.kind {
	case KindString, KindList, kindTuple, KindDict, kindView, kindRange, KindUndefined:
		items, err := r.listOf(v)
		return items, true, err
	}
	return nil, false, nil
}

func reverseFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("reverse", 0, 0); err != nil {
		return None, err
	}
	if v.kind == KindString {
		runes := []rune(v.str)
		for i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {
			runes[i], runes[j] = runes[j], runes[i]
		}
		return Value{kind: KindString, safe: v.safe, str: string(runes)}, r.grow(5 * len(v.str))
	}
	items, lazily, err := r.reversible(v)
	if err != nil {
		return None, err
	}
	if !lazily {
		if items, err = r.listOf(v); err != nil {
			return None, err
		}
	}
	out := make([]Value, len(items))
	for i := range items {
		out[len(items)-1-i] = items[i]
	}
	if err := r.grow(len(out) * valueBytes); err != nil {
		return None, err
	}
	if !lazily {
		return List(out), nil
	}
	return iteratorOf(out), nil
}

func newItems(vals []Value) iterator { return &items{l: &list{vals}} }

// iteratorOf returns an iterator over the values, as a Value.
func iteratorOf(vals []Value) Value { return Value{kind: kindIterator, ref: newItems(vals)} }

func itemsFilter(_ *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("items", 0, 0); err != nil {
		return None, err
	}
	switch v.kind {
	case KindUndefined:
		return iteratorOf(nil), nil
	case KindDict:
		return Value{kind: kindIterator, ref: &entries{d: v.dict(), part: viewItems}}, nil
	}
	// In Python the filter is a generator, so it fails when its result is used, not before.
	name := v.typeName()
	return lazy(func(*run) (Value, bool, error) {
		return None, false, failf("can only get item pairs from a mapping, not from %s", name)
	}), nil
}

func replaceFilter(r *run, v *Value, a *callArgs) (Value, error) {
	old, with, count := None, None, None
	if err := bound(a, "replace", []string{"old", "new", "count"}, 2, &old, &with, &count); err != nil {
		return None, err
	}
	var s [3]string
	for i, arg := range []*Value{v, &old, &with} {
		var err error
		if s[i], err = r.str(arg); err != nil {
			return None, err
		}
	}
	n := int64(-1)
	if count.kind != KindNone {
		if !count.isSmallInt() {
			return None, failf("'%s' object cannot be interpreted as an integer", count.typeName())
		}
		n = count.num
	}
	return r.replace(s[0], s[1], s[2], n)
}

// replace does the same as Python's str.replace. It charges memory for the result before it builds the result.
func (r *run) replace(s, old, with string, n int64) (Value, error) {
	if err := r.scan(len(s)); err != nil {
		return None, err
	}
	found := strings.Count(s, old)
	if n >= 0 {
		found = int(min(int64(found), n))
	}
	if found == 0 {
		return Text(s), nil
	}
	if err := r.growTimes(len(with), found); err != nil {
		return None, err
	}
	if err := r.grow(len(s)); err != nil {
		return None, err
	}
	return Text(strings.Replace(s, old, with, found)), nil
}

func joinFilter(r *run, v *Value, a *callArgs) (Value, error) {
	sep, attribute := emptyText, None
	if err := bound(a, "join", []string{"d", "attribute"}, 0, &sep, &attribute); err != nil {
		return None, err
	}
	path, err := attributePath(&attribute)
	if err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	glue, err := r.str(&sep)
	if err != nil {
		return None, err
	}
	parts := make([]string, len(items))
	size := 0
	for i := range items {
		item, err := r.follow(items[i], path, nil)
		if err != nil {
			return None, err
		}
		if parts[i], err = r.str(&item); err != nil {
			return None, err
		}
		if size += len(parts[i]) + len(glue); size > r.memory {
			return None, r.grow(size)
		}
	}
	return Text(strings.Join(parts, glue)), r.grow(size)
}

func trimFilter(r *run, v *Value, a *callArgs) (Value, error) {
	chars := None
	if err := bound(a, "trim", []string{"chars"}, 0, &chars); err != nil {
		return None, err
	}
	s, err := r.str(v)
	if err != nil {
		return None, err
	}
	s, err = r.strip(s, &chars, 0)
	return Value{kind: KindString, safe: v.safe, str: s}, err
}

func centerFilter(r *run, v *Value, a *callArgs) (Value, error) {
	width := integer(80)
	if err := bound(a, "center", []string{"width"}, 0, &width); err != nil {
		return None, err
	}
	s, err := r.str(v)
	if err != nil {
		return None, err
	}
	return r.pad("center", s, &callArgs{pos: []Value{width}})
}

func indentFilter(r *run, v *Value, a *callArgs) (Value, error) {
	width, first, blank := integer(4), falseValue, falseValue
	if err := bound(a, "indent", []string{"width", "first", "blank"}, 0, &width, &first, &blank); err != nil {
		return None, err
	}
	indention := width
	if width.kind != KindString {
		space := Text(" ")
		var err error
		if indention, err = r.arithmetic("*", &space, &width); err != nil {
			return None, err
		}
	}
	if v.kind != KindString {
		if v.kind == KindUndefined {
			return None, using(v)
		}
		return None, failf("unsupported operand type(s) for +=: '%s' and 'str'", v.typeName())
	}
	const lineBytes = 16
	count := lineEnds(v.str) + 2
	if err := firstError(r.growTimes(len(indention.str)+1, count), r.growTimes(lineBytes, count),
		r.grow(len(v.str))); err != nil {
		return None, err
	}
	lines := splitLines(v.str+"\n", false)
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
	return Value{kind: KindString, safe: v.safe, str: b.String()}, nil
}

func truncateFilter(r *run, v *Value, a *callArgs) (Value, error) {
	length, kill, end, leeway := integer(255), falseValue, Text("..."), integer(5)
	names := []string{"length", "killwords", "end", "leeway"}
	if err := bound(a, "truncate", names, 0, &length, &kill, &end, &leeway); err != nil {
		return None, err
	}
	if leeway.kind == KindNone {
		leeway = integer(5)
	}
	if !length.isSmallInt() || !leeway.isSmallInt() || end.kind != KindString {
		return None, failf("truncate() takes integers and a text")
	}
	endLen, _ := r.length(&end)
	if length.num < int64(endLen) || leeway.num < 0 {
		return None, failf("expected length >= %d and leeway >= 0", endLen)
	}
	n, ok := r.length(v)
	if !ok {
		return None, failf("object of type '%s' has no len()", v.typeName())
	}
	if int64(n) <= length.num+leeway.num {
		return *v, nil
	}
	if v.kind != KindString {
		return None, failf("truncate() takes a text")
	}
	cut, err := r.sliceText(v, &[3]Value{None, integer(length.num - int64(endLen)), None})
	if err != nil {
		return None, err
	}
	if !kill.truthy() {
		if i := strings.LastIndexByte(cut.str, ' '); i >= 0 {
			cut.str = cut.str[:i]
		}
	}
	cut.str += end.str
	return cut, r.grow(len(cut.str))
}

func formatFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return None, failf("can't handle positional and keyword arguments at the same time")
	}
	s, err := r.str(v)
	if err != nil {
		return None, err
	}
	format := Value{kind: KindString, safe: v.safe, str: s}
	args := newTuple(append([]Value(nil), a.pos...)...)
	if len(a.kw) > 0 {
		args = FromDict(a.kwDict())
	}
	return r.percent(&format, &args)
}

// kwDict returns the keyword arguments as a dict.
func (a *callArgs) kwDict() *Dict {
	d := &Dict{}
	for i := range a.kw {
		d.Set(a.kw[i].name, a.kw[i].val)
	}
	return d
}

// toJSON is the filter tojson of Transformers, which replaces jinja2's filter.
func toJSON(r *run, v *Value, a *callArgs) (Value, error) {
	ascii, indent, separators, sortKeys := falseValue, None, None, falseValue
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	if err := bound(a, "tojson", names, 0, &ascii, &indent, &separators, &sortKeys); err != nil {
		return None, err
	}
	w := &writer{r: r, ascii: ascii.truthy(), sortKeys: sortKeys.truthy(), comma: ", ", colon: ": "}
	switch {
	case indent.kind == KindNone:
	case indent.kind == KindString:
		w.multiline, w.indent = true, indent.str
	case indent.isSmallInt():
		w.multiline, w.indent = true, strings.Repeat(" ", int(max(0, min(indent.num, 1000))))
	default:
		return None, failf("can't multiply sequence by non-int of type '%s'", indent.typeName())
	}
	if w.multiline {
		w.comma = ","
	}
	if separators.kind != KindNone {
		pair, err := r.unpack(&separators, 2)
		if err != nil {
			return None, err
		}
		if pair[0].kind != KindString || pair[1].kind != KindString {
			return None, failf("separators must be texts")
		}
		w.comma, w.colon = pair[0].str, pair[1].str
	}
	if err := w.value(v, 0); err != nil {
		return None, err
	}
	return Text(string(w.out)), r.grow(len(w.out))
}
