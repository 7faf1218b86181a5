package jinja

import (
	"math"
	"math/big"
	"strings"
)

// maxDepth bounds the recursion into nested values, as Python's recursion limit does.
const maxDepth = 900

func tooDeep() error { return failf("maximum recursion depth exceeded") }

// equal does the same as Python's a == b.
func (r *run) equal(a, b *Value, depth int) (bool, error) {
	if depth > maxDepth {
		return false, tooDeep()
	}
	if a.isNumber() && b.isNumber() {
		return compareNumbers(a, b) == 0, nil
	}
	if a.kind != b.kind {
		return false, nil
	}
	switch a.kind {
	case KindUndefined, kindMissing, KindNone:
		return true, nil
	case KindString:
		if len(a.str) != len(b.str) {
			return false, nil
		}
		return a.str == b.str, r.scan(len(a.str))
	case KindList, kindTuple:
		x, y := a.items(), b.items()
		if len(x) != len(y) {
			return false, nil
		}
		for i := range x {
			if err := r.step(1); err != nil {
				return false, err
			}
			if same, err := r.equal(&x[i], &y[i], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case KindDict:
		return r.equalDicts(a.dict(), b.dict(), depth)
	case kindRange:
		x, y := a.ref.(*pyRange), b.ref.(*pyRange)
		return x.length == y.length && (x.length == 0 || x.start == y.start && (x.length == 1 || x.step == y.step)), nil
	case kindView:
		return r.equalViews(a, b)
	case kindMethod:
		return false, nil
	}
	return a.ref == b.ref, nil
}

func (r *run) equalDicts(x, y *Dict, depth int) (bool, error) {
	if x.Len() != y.Len() {
		return false, nil
	}
	for i := range x.keys {
		if err := r.step(1); err != nil {
			return false, err
		}
		k, err := y.findValue(r, &x.keys[i])
		if err != nil || k < 0 {
			return false, err
		}
		if same, err := r.equal(&x.vals[i], &y.vals[k], depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// equalViews compares two views of dicts. Views of keys are compared as sets, and so are views of items. A view of
// values equals only itself.
func (r *run) equalViews(a, b *Value) (bool, error) {
	x, y := a.ref.(*view), b.ref.(*view)
	if x.part == viewValues || y.part == viewValues || x.part != y.part || x.d.Len() != y.d.Len() {
		return x == y, nil
	}
	if x.part == viewItems {
		return r.equalDicts(x.d, y.d, 0)
	}
	for i := range x.d.keys {
		if at, err := y.d.findValue(r, &x.d.keys[i]); at < 0 || err != nil {
			return false, err
		}
	}
	return true, nil
}

// unordered is the result of a comparison with NaN.
const unordered = 2

// compareNumbers returns -1, 0, 1 or unordered.
func compareNumbers(a, b *Value) int {
	if a.kind == KindFloat || b.kind == KindFloat {
		return compareFloats(a, b)
	}
	if a.kind == KindBig || b.kind == KindBig {
		return a.bigOf().Cmp(b.bigOf())
	}
	switch {
	case a.num < b.num:
		return -1
	case a.num > b.num:
		return 1
	}
	return 0
}

func compareFloats(a, b *Value) int {
	if a.kind != KindFloat {
		if c := compareFloats(b, a); c != unordered {
			return -c
		}
		return unordered
	}
	x := a.float()
	switch {
	case math.IsNaN(x):
		return unordered
	case b.kind == KindFloat:
		y := b.float()
		switch {
		case math.IsNaN(y):
			return unordered
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	case math.IsInf(x, 0):
		return int(math.Copysign(1, x))
	}
	// Python compares a float and an integer exactly: 2**53+1 does not equal the nearest float.
	return new(big.Float).SetFloat64(x).Cmp(new(big.Float).SetInt(b.bigOf()))
}

// compare applies a comparison operator, such as "==" or "not in".
func (r *run) compare(op string, a, b *Value) (bool, error) {
	if err := r.step(1); err != nil {
		return false, err
	}
	switch op {
	case "==", "!=":
		same, err := r.equal(a, b, 0)
		return same == (op == "=="), err
	case "in":
		return r.contains(b, a)
	case "not in":
		has, err := r.contains(b, a)
		return !has, err
	}
	c, err := r.order(a, b, 0, op)
	if err != nil || c == unordered {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// order returns -1, 0, 1 or unordered. If Python refuses to order the two values, order returns an error.
func (r *run) order(a, b *Value, depth int, op string) (int, error) {
	if depth > maxDepth {
		return 0, tooDeep()
	}
	switch {
	case a.kind == KindUndefined:
		return 0, using(a)
	case b.kind == KindUndefined:
		return 0, using(b)
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b), nil
	case a.kind == KindString && b.kind == KindString:
		return strings.Compare(a.str, b.str), r.scan(min(len(a.str), len(b.str)))
	case a.isSequence() && a.kind == b.kind:
		x, y := a.items(), b.items()
		for i := 0; i < len(x) && i < len(y); i++ {
			if err := r.step(1); err != nil {
				return 0, err
			}
			same, err := r.equal(&x[i], &y[i], depth+1)
			if err != nil {
				return 0, err
			}
			if !same {
				return r.order(&x[i], &y[i], depth+1, op)
			}
		}
		n, m := integer(int64(len(x))), integer(int64(len(y)))
		return compareNumbers(&n, &m), nil
	}
	return 0, failf("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
}

// contains does the same as Python's item in seq.
func (r *run) contains(seq, item *Value) (bool, error) {
	switch seq.kind {
	case KindString:
		if item.kind != KindString {
			return false, failf("'in <string>' requires string as left operand, not %s", item.typeName())
		}
		return strings.Contains(seq.str, item.str), r.scan(len(seq.str))
	case KindDict:
		i, err := seq.dict().findValue(r, item)
		return i >= 0, err
	case kindView:
		if v := seq.ref.(*view); v.part == viewKeys {
			i, err := v.d.findValue(r, item)
			return i >= 0, err
		}
	case KindUndefined:
		return false, nil
	}
	it, err := r.iterate(seq)
	if err != nil {
		return false, failf("argument of type '%s' is not iterable", seq.typeName())
	}
	for {
		v, ok, err := it.next(r)
		if err != nil || !ok {
			return false, err
		}
		if err := r.step(1); err != nil {
			return false, err
		}
		if same, err := r.equal(&v, item, 0); same || err != nil {
			return same, err
		}
	}
}

// identical does the same as Python's a is b, except for numbers and texts: equal numbers or texts count as identical.
// In CPython equal constants are identical, but the result for other equal values depends on where they are in memory.
func identical(a, b *Value) bool {
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case KindNone, KindBool, KindInt, KindFloat:
		return a.num == b.num
	case KindString:
		return a.str == b.str
	case KindUndefined, kindMethod, kindBuiltin:
		return false
	}
	return a.ref == b.ref
}
