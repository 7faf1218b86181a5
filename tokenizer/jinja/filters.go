package jinja

import (
	"strings"
)

// filterFunc is the code behind "v | name(args)".
type filterFunc func(r *run, v *value, a *callArgs) (value, error)

// filters are jinja2's built-in filters with Transformers' tojson. map and select find others through the run.
var filters = map[string]filterFunc{
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
	const lineBytes = 16
	count := lineEnds(v.str) + 2
	if err := firstError(r.growTimes(len(indention.str)+1, count), r.growTimes(lineBytes, count), r.grow(len(v.str))); err != nil {
		return none, err
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
