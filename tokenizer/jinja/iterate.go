package jinja

import (
	"unicode/utf8"
)

// length does the same as Python's len(v). If len fails in Python, the boolean result is false.
func (r *run) length(v *Value) (int, bool) {
	switch v.kind {
	case KindUndefined:
		return 0, true
	case KindString:
		return utf8.RuneCountInString(v.str), r.scan(len(v.str)) == nil
	case KindList, kindTuple:
		return len(v.items()), true
	case KindDict:
		return v.dict().Len(), true
	case kindView:
		return v.ref.(*view).d.Len(), true
	case kindRange:
		return int(v.ref.(*pyRange).length), true
	case kindLoop:
		n, err := v.ref.(*loop).len(r)
		return n, err == nil
	}
	return 0, false
}

// iterate does the same as Python's iter(v).
func (r *run) iterate(v *Value) (iterator, error) {
	switch v.kind {
	case KindUndefined:
		return &items{}, nil
	case KindList, kindTuple:
		return &items{l: v.ref.(*list)}, nil
	case KindString:
		return &characters{v.str, v.safe}, nil
	case KindDict:
		return &entries{d: v.dict()}, nil
	case kindView:
		w := v.ref.(*view)
		return &entries{d: w.d, part: w.part}, nil
	case kindRange:
		rg := v.ref.(*pyRange)
		return &counter{rg.start, rg.step, rg.length}, nil
	case kindIterator:
		return v.ref.(iterator), nil
	}
	return nil, failf("'%s' object is not iterable", v.typeName())
}

// items iterates over a list.
type items struct {
	l  *list
	at int
}

func (it *items) next(*run) (Value, bool, error) {
	if it.l == nil || it.at >= len(it.l.items) {
		return Value{}, false, nil
	}
	it.at++
	return it.l.items[it.at-1], true, nil
}

// characters iterates over a str.
type characters struct {
	rest string
	safe bool
}

func (it *characters) next(*run) (Value, bool, error) {
	if it.rest == "" {
		return Value{}, false, nil
	}
	_, n := utf8.DecodeRuneInString(it.rest)
	c := it.rest[:n]
	it.rest = it.rest[n:]
	return Text(c), true, nil
}

// entries iterates over a dict's keys, values or items.
type entries struct {
	d    *Dict
	part viewKind
	at   int
}

func (it *entries) next(*run) (Value, bool, error) {
	i := it.at
	if i >= it.d.Len() {
		return Value{}, false, nil
	}
	it.at++
	switch it.part {
	case viewKeys:
		return it.d.keys[i], true, nil
	case viewValues:
		return it.d.vals[i], true, nil
	}
	return newTuple(it.d.keys[i], it.d.vals[i]), true, nil
}

// counter iterates over a range.
type counter struct{ at, step, left int64 }

func (it *counter) next(*run) (Value, bool, error) {
	if it.left <= 0 {
		return Value{}, false, nil
	}
	v := integer(it.at)
	it.at += it.step
	it.left--
	return v, true, nil
}

// generator makes an iterator from a function. It is used for filters that are generators in Python.
type generator func(r *run) (Value, bool, error)

func (g generator) next(r *run) (Value, bool, error) { return g(r) }

func lazy(g generator) Value { return Value{kind: kindIterator, ref: g} }

// listOf does the same as Python's list(v). The caller must not change the result, because it may be v's own list.
func (r *run) listOf(v *Value) ([]Value, error) {
	if v.isSequence() {
		return v.items(), nil
	}
	it, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var out []Value
	for {
		item, ok, err := it.next(r)
		if err != nil || !ok {
			return out, err
		}
		if err := r.grow(valueBytes); err != nil {
			return nil, err
		}
		if err := r.step(1); err != nil {
			return nil, err
		}
		out = append(out, item)
	}
}
