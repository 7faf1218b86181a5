package jinja

import (
	"sort"
	"strconv"
	"strings"
)

// attributePath splits the argument attribute of a filter, such as "a.b.0", into names and indexes. None gives the
// empty path.
func attributePath(v *Value) ([]Value, error) {
	switch v.kind {
	case KindNone:
		return nil, nil
	case KindString:
		var path []Value
		for _, part := range strings.Split(v.str, ".") {
			if n, err := strconv.ParseUint(part, 10, 62); err == nil && isASCII(part) && part[0] != '+' {
				path = append(path, integer(int64(n)))
				continue
			}
			path = append(path, Text(part))
		}
		return path, nil
	}
	return []Value{*v}, nil
}

// follow looks up a path in item. If a value on the way is undefined, byDefault replaces the value, unless byDefault is
// nil.
func (r *run) follow(item Value, path []Value, byDefault *Value) (Value, error) {
	for i := range path {
		var err error
		if item, err = r.getItem(&item, &path[i]); err != nil {
			return None, err
		}
		if byDefault != nil && item.kind == KindUndefined {
			item = *byDefault
		}
	}
	return item, nil
}

// foldCase does the same as jinja2's ignore_case: it changes a text to lower case.
func (r *run) foldCase(v Value) (Value, error) {
	if v.kind != KindString {
		return v, nil
	}
	s := Lower(v.str)
	return Text(s), r.grow(len(s))
}

// keyed returns a function that makes the key of an item. The key depends on a filter's arguments attribute and
// case_sensitive.
func (r *run) keyed(attribute, caseSensitive, byDefault *Value) (func(Value) (Value, error), error) {
	path, err := attributePath(attribute)
	if err != nil {
		return nil, err
	}
	fold := !caseSensitive.truthy()
	return func(item Value) (Value, error) {
		key, err := r.follow(item, path, byDefault)
		if err == nil && fold {
			key, err = r.foldCase(key)
		}
		return key, err
	}, nil
}

// sortBy sorts the positions in order by their keys. The sort is stable. If Python refuses a comparison, sortBy returns
// an error.
func (r *run) sortBy(order []int, key func(int) *Value, reverse bool) error {
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		if failed != nil {
			return false
		}
		if failed = r.step(1); failed != nil {
			return false
		}
		a, b := key(order[i]), key(order[j])
		if reverse {
			a, b = b, a
		}
		c, err := r.order(a, b, 0, "<")
		if err != nil {
			failed = err
		}
		return c == -1
	})
	if len(order) == 1 {
		return nil
	}
	return failed
}

// sorted does the same as Python's sorted(items, key=key). It returns the items and their keys, in the new order.
func (r *run) sorted(items []Value, key func(Value) (Value, error), reverse bool) ([]Value, []Value, error) {
	keys := make([]Value, len(items))
	order := make([]int, len(items))
	for i := range items {
		order[i] = i
		var err error
		if keys[i], err = key(items[i]); err != nil {
			return nil, nil, err
		}
	}
	if err := r.grow(3 * valueBytes * len(items)); err != nil {
		return nil, nil, err
	}
	if err := r.sortBy(order, func(i int) *Value { return &keys[i] }, reverse); err != nil {
		return nil, nil, err
	}
	out, outKeys := make([]Value, len(items)), make([]Value, len(items))
	for i, k := range order {
		out[i], outKeys[i] = items[k], keys[k]
	}
	return out, outKeys, nil
}

func sortFilter(r *run, v *Value, a *callArgs) (Value, error) {
	reverse, sensitive, attribute := falseValue, falseValue, None
	names := []string{"reverse", "case_sensitive", "attribute"}
	if err := bound(a, "sort", names, 0, &reverse, &sensitive, &attribute); err != nil {
		return None, err
	}
	attributes := []Value{attribute}
	if attribute.kind == KindString {
		attributes = nil
		for _, one := range strings.Split(attribute.str, ",") {
			attributes = append(attributes, Text(one))
		}
	}
	var parts []func(Value) (Value, error)
	for i := range attributes {
		key, err := r.keyed(&attributes[i], &sensitive, nil)
		if err != nil {
			return None, err
		}
		parts = append(parts, key)
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	out, _, err := r.sorted(items, func(item Value) (Value, error) {
		keys := make([]Value, len(parts))
		for i, part := range parts {
			var err error
			if keys[i], err = part(item); err != nil {
				return None, err
			}
		}
		return List(keys), nil
	}, reverse.truthy())
	return List(out), err
}

func dictSort(r *run, v *Value, a *callArgs) (Value, error) {
	sensitive, by, reverse := falseValue, Text("key"), falseValue
	if err := bound(a, "dictsort", []string{"case_sensitive", "by", "reverse"}, 0, &sensitive, &by,
		&reverse); err != nil {
		return None, err
	}
	pos := 0
	switch by.str {
	case "key":
	case "value":
		pos = 1
	default:
		return None, failf(`you can only sort by either "key" or "value"`)
	}
	if v.kind == KindUndefined {
		return None, using(v)
	}
	if v.kind != KindDict {
		return None, failf("'%s' object has no attribute 'items'", v.typeName())
	}
	pairs, err := r.listOf(&Value{kind: kindView, ref: &view{v.dict(), viewItems}})
	if err != nil {
		return None, err
	}
	out, _, err := r.sorted(pairs, func(item Value) (Value, error) {
		key := item.items()[pos]
		if sensitive.truthy() {
			return key, nil
		}
		return r.foldCase(key)
	}, reverse.truthy())
	return List(out), err
}

// groupTuple returns the fields of a tuple that the filter groupby made. For other tuples the boolean result is false.
func (v *Value) groupTuple() ([]Value, bool) {
	if len(v.items()) == 2 && v.num == groupMark {
		return v.items(), true
	}
	return nil, false
}

const groupMark = 1

func groupBy(r *run, v *Value, a *callArgs) (Value, error) {
	attribute, byDefault, sensitive := None, None, falseValue
	names := []string{"attribute", "default", "case_sensitive"}
	if err := bound(a, "groupby", names, 1, &attribute, &byDefault, &sensitive); err != nil {
		return None, err
	}
	def := &byDefault
	if byDefault.kind == KindNone {
		def = nil
	}
	key, err := r.keyed(&attribute, &sensitive, def)
	if err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	out, keys, err := r.sorted(items, key, false)
	if err != nil {
		return None, err
	}
	var groups []Value
	for from := 0; from < len(out); {
		to := from + 1
		for to < len(out) {
			same, err := r.equal(&keys[from], &keys[to], 0)
			if err != nil {
				return None, err
			}
			if !same {
				break
			}
			to++
		}
		name := keys[from]
		if !sensitive.truthy() {
			path, _ := attributePath(&attribute)
			if name, err = r.follow(out[from], path, def); err != nil {
				return None, err
			}
		}
		g := newTuple(name, List(out[from:to:to]))
		g.num = groupMark
		groups = append(groups, g)
		from = to
	}
	return List(groups), r.grow(len(groups) * 3 * valueBytes)
}

func uniqueFilter(r *run, v *Value, a *callArgs) (Value, error) {
	sensitive, attribute := falseValue, None
	if err := bound(a, "unique", []string{"case_sensitive", "attribute"}, 0, &sensitive, &attribute); err != nil {
		return None, err
	}
	key, err := r.keyed(&attribute, &sensitive, nil)
	if err != nil {
		return None, err
	}
	seen := &Dict{}
	return lazily(v, func(r *run, item Value) (Value, bool, error) {
		k, err := key(item)
		if err != nil {
			return None, false, err
		}
		if i, err := seen.findValue(r, &k); i >= 0 || err != nil {
			return None, false, err
		}
		return item, true, seen.setValue(r, k, None)
	}), nil
}

// lazily returns an iterator over the results of the function each for the items of v. The iterator calls each only
// when its next value is needed. If each returns false, the item is left out.
func lazily(v *Value, each func(r *run, item Value) (out Value, keep bool, err error)) Value {
	source := *v
	var it iterator
	return lazy(func(r *run) (Value, bool, error) {
		if it == nil {
			var err error
			if it, err = r.iterate(&source); err != nil {
				return None, false, err
			}
		}
		for {
			item, ok, err := it.next(r)
			if err != nil || !ok {
				return item, false, err
			}
			if out, keep, err := each(r, item); keep || err != nil {
				return out, keep, err
			}
		}
	})
}

// extreme makes the filter min if sign is -1, and the filter max if sign is 1.
func extreme(fn string, sign int) filterFunc {
	return func(r *run, v *Value, a *callArgs) (Value, error) {
		sensitive, attribute := falseValue, None
		if err := bound(a, fn, []string{"case_sensitive", "attribute"}, 0, &sensitive, &attribute); err != nil {
			return None, err
		}
		key, err := r.keyed(&attribute, &sensitive, nil)
		if err != nil {
			return None, err
		}
		items, err := r.listOf(v)
		if err != nil {
			return None, err
		}
		if len(items) == 0 {
			return undefined("no aggregated item, sequence was empty"), nil
		}
		best := items[0]
		bestKey, err := key(best)
		if err != nil {
			return None, err
		}
		for i := 1; i < len(items); i++ {
			k, err := key(items[i])
			if err != nil {
				return None, err
			}
			c, err := r.order(&k, &bestKey, 0, "<")
			if err != nil {
				return None, err
			}
			if c == sign {
				best, bestKey = items[i], k
			}
		}
		return best, r.step(len(items))
	}
}

func sumFilter(r *run, v *Value, a *callArgs) (Value, error) {
	attribute, total := None, integer(0)
	if err := bound(a, "sum", []string{"attribute", "start"}, 0, &attribute, &total); err != nil {
		return None, err
	}
	if total.kind == KindString {
		return None, failf("sum() can't sum strings [use ''.join(seq) instead]")
	}
	path, err := attributePath(&attribute)
	if err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	for i := range items {
		item, err := r.follow(items[i], path, nil)
		if err != nil {
			return None, err
		}
		if total, err = r.arithmetic("+", &total, &item); err != nil {
			return None, err
		}
	}
	return total, r.step(len(items))
}

func batchFilter(r *run, v *Value, a *callArgs) (Value, error) {
	count, fill := None, None
	if err := bound(a, "batch", []string{"linecount", "fill_with"}, 1, &count, &fill); err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	if !count.isNumber() {
		return None, failf("batch() takes a number")
	}
	n, _ := count.asFloat()
	var out []Value
	var line []Value
	for i := range items {
		if float64(len(line)) == n {
			out = append(out, List(line))
			line = nil
		}
		line = append(line, items[i])
	}
	if len(line) > 0 {
		if missing := int(min(n, 1<<30)) - len(line); fill.kind != KindNone && missing > 0 {
			if err := r.growTimes(valueBytes, missing); err != nil {
				return None, err
			}
			for range missing {
				line = append(line, fill)
			}
		}
		out = append(out, List(line))
	}
	return iteratorOf(out), r.grow((len(items) + len(out)) * valueBytes)
}

func sliceFilter(r *run, v *Value, a *callArgs) (Value, error) {
	slices, fill := None, None
	if err := bound(a, "slice", []string{"slices", "fill_with"}, 1, &slices, &fill); err != nil {
		return None, err
	}
	items, err := r.listOf(v)
	if err != nil {
		return None, err
	}
	if !slices.isSmallInt() || slices.num == 0 {
		return None, failf("integer division or modulo by zero")
	}
	n := int(max(slices.num, 0))
	if err := r.growTimes(2*valueBytes, n); err != nil {
		return None, err
	}
	if n == 0 {
		return iteratorOf(nil), nil
	}
	per, extra := len(items)/n, len(items)%n
	var out []Value
	at := 0
	for i := range n {
		size := per
		if i < extra {
			size++
		}
		part := append([]Value(nil), items[at:at+size]...)
		at += size
		if fill.kind != KindNone && i >= extra {
			part = append(part, fill)
		}
		out = append(out, List(part))
	}
	return iteratorOf(out), r.grow(len(items) * valueBytes)
}

func mapFilter(r *run, v *Value, a *callArgs) (Value, error) {
	if !v.truthy() {
		return iteratorOf(nil), nil
	}
	change, err := r.mapping(a)
	if err != nil {
		return None, err
	}
	return lazily(v, func(_ *run, item Value) (Value, bool, error) {
		item, err := change(item)
		return item, true, err
	}), nil
}

// mapping returns the function that the filter map applies to each item.
func (r *run) mapping(a *callArgs) (func(Value) (Value, error), error) {
	if attribute, ok := a.named("attribute"); ok && len(a.pos) == 0 {
		var byDefault *Value
		for i := range a.kw {
			switch a.kw[i].name {
			case "attribute":
			case "default":
				if a.kw[i].val.kind != KindNone {
					byDefault = &a.kw[i].val
				}
			default:
				return nil, failf("unexpected keyword argument '%s'", a.kw[i].name)
			}
		}
		path, err := attributePath(&attribute)
		return func(item Value) (Value, error) { return r.follow(item, path, byDefault) }, err
	}
	if len(a.pos) == 0 {
		return nil, failf("map requires a filter argument")
	}
	name := a.pos[0]
	fn := r.filters[name.str]
	if name.kind != KindString || fn == nil {
		return nil, failf("%s", unknownFilter(name.str))
	}
	args := &callArgs{append([]Value(nil), a.pos[1:]...), a.kw}
	return func(item Value) (Value, error) { return fn(r, &item, args) }, r.step(1)
}

// selecting makes the filters select, reject, selectattr and rejectattr.
func selecting(attr, keep bool) filterFunc {
	return func(r *run, v *Value, a *callArgs) (Value, error) {
		if !v.truthy() {
			return iteratorOf(nil), nil
		}
		holds, err := r.predicate(a, attr)
		if err != nil {
			return None, err
		}
		return lazily(v, func(r *run, item Value) (Value, bool, error) {
			if err := r.step(1); err != nil {
				return item, false, err
			}
			is, err := holds(item)
			return item, is == keep, err
		}), nil
	}
}

func (r *run) predicate(a *callArgs, attr bool) (func(Value) (bool, error), error) {
	pos := append([]Value(nil), a.pos...)
	var path []Value
	if attr {
		if len(pos) == 0 {
			return nil, failf("missing parameter for attribute name")
		}
		var err error
		if path, err = attributePath(&pos[0]); err != nil {
			return nil, err
		}
		pos = pos[1:]
	}
	if len(pos) == 0 {
		return func(item Value) (bool, error) {
			item, err := r.follow(item, path, nil)
			return item.truthy(), err
		}, nil
	}
	fn := r.tests[pos[0].str]
	if pos[0].kind != KindString || fn == nil {
		return nil, failf("no test named '%s'", pos[0].str)
	}
	args := &callArgs{pos[1:], a.kw}
	return func(item Value) (bool, error) {
		item, err := r.follow(item, path, nil)
		if err != nil {
			return false, err
		}
		return fn(r, &item, args)
	}, nil
}
