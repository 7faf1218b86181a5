package jinja

import (
	"slices"
	"unicode"
)

// testFunc is the code of the test in "v is name(args)".
type testFunc func(r *run, v *Value, a *callArgs) (bool, error)

// tests are jinja2's built-in tests.
var tests = map[string]testFunc{
	"defined":     testWithoutArguments(func(v *Value) bool { return v.kind != KindUndefined }),
	"undefined":   kinds(KindUndefined),
	"none":        kinds(KindNone),
	"boolean":     kinds(KindBool),
	"true":        testWithoutArguments(func(v *Value) bool { return *v == trueValue }),
	"false":       testWithoutArguments(func(v *Value) bool { return *v == falseValue }),
	"integer":     kinds(KindInt, KindBig),
	"float":       kinds(KindFloat),
	"number":      kinds(KindBool, KindInt, KindBig, KindFloat),
	"string":      kinds(KindString),
	"mapping":     kinds(KindDict),
	"sequence":    kinds(KindUndefined, KindString, KindList, kindTuple, KindDict, kindRange),
	"iterable":    testWithoutArguments(isIterable),
	"callable":    testWithoutArguments(isCallable),
	"escaped":     testWithoutArguments(func(v *Value) bool { return v.safe }),
	"odd":         modulo(2, 1),
	"even":        modulo(2, 0),
	"divisibleby": divisible,
	"lower":       casedAs(unicode.IsLower, unicode.IsUpper),
	"upper":       casedAs(unicode.IsUpper, unicode.IsLower),
	"sameas":      sameAs,
	"in":          isIn,
	"filter":      named(func(r *run, name string) bool { return r.filters[name] != nil || leftOut[name] != "" }),
	"test":        named(func(r *run, name string) bool { return r.tests[name] != nil }),
	"==":          comparing("=="), "eq": comparing("=="), "equalto": comparing("=="),
	"!=": comparing("!="), "ne": comparing("!="),
	">": comparing(">"), "gt": comparing(">"), "greaterthan": comparing(">"),
	"<": comparing("<"), "lt": comparing("<"), "lessthan": comparing("<"),
	">=": comparing(">="), "ge": comparing(">="),
	"<=": comparing("<="), "le": comparing("<="),
}

// kinds makes a test that holds for values of these kinds.
func kinds(ks ...Kind) testFunc {
	return testWithoutArguments(func(v *Value) bool { return slices.Contains(ks, v.kind) })
}

// comparing makes a test that does a comparison.
func comparing(op string) testFunc {
	return func(r *run, v *Value, a *callArgs) (bool, error) {
		if err := a.positional("test", 1, 1); err != nil {
			return false, err
		}
		return r.compare(op, v, &a.pos[0])
	}
}

func testWithoutArguments(holds func(*Value) bool) testFunc {
	return func(_ *run, v *Value, a *callArgs) (bool, error) {
		if err := a.positional("test", 0, 0); err != nil {
			return false, err
		}
		return holds(v), nil
	}
}

func isIterable(v *Value) bool {
	switch v.kind {
	case KindUndefined, KindString, KindList, kindTuple, KindDict, kindView, kindRange, kindIterator, kindLoop:
		return true
	}
	return false
}

func isCallable(v *Value) bool {
	switch v.kind {
	case KindUndefined, kindMacro, kindMethod, kindBuiltin, kindLoop:
		return true
	case kindObject:
		_, ok := v.ref.(*joiner)
		return ok
	}
	return false
}

func modulo(by, want int64) testFunc {
	return func(r *run, v *Value, a *callArgs) (bool, error) {
		if err := a.positional("test", 0, 0); err != nil {
			return false, err
		}
		return remainderIs(r, v, integer(by), integer(want))
	}
}

func divisible(r *run, v *Value, a *callArgs) (bool, error) {
	var num [1]Value
	if err := a.bind("divisibleby", []string{"num"}, 1, num[:]); err != nil {
		return false, err
	}
	return remainderIs(r, v, num[0], integer(0))
}

func remainderIs(r *run, v *Value, by, want Value) (bool, error) {
	rest, err := r.arithmetic("%", v, &by)
	if err != nil {
		return false, err
	}
	return r.equal(&rest, &want, 0)
}

// casedAs makes a test that does the same as str.islower or str.isupper: the text has a letter of the wanted case, and
// no letter of another case.
func casedAs(is, not func(rune) bool) testFunc {
	return func(r *run, v *Value, a *callArgs) (bool, error) {
		if err := a.positional("test", 0, 0); err != nil {
			return false, err
		}
		s, err := r.str(v)
		if err != nil {
			return false, err
		}
		return allCased(s, is, not), r.scan(len(s))
	}
}

func allCased(s string, is, not func(rune) bool) bool {
	found := false
	for _, c := range s {
		if not(c) || unicode.IsTitle(c) {
			return false
		}
		found = found || is(c)
	}
	return found
}

func sameAs(_ *run, v *Value, a *callArgs) (bool, error) {
	var other [1]Value
	if err := a.bind("sameas", []string{"other"}, 1, other[:]); err != nil {
		return false, err
	}
	return identical(v, &other[0]), nil
}

func isIn(r *run, v *Value, a *callArgs) (bool, error) {
	var seq [1]Value
	if err := a.bind("in", []string{"seq"}, 1, seq[:]); err != nil {
		return false, err
	}
	return r.contains(&seq[0], v)
}

func named(known func(*run, string) bool) testFunc {
	return func(r *run, v *Value, a *callArgs) (bool, error) {
		if err := a.positional("test", 0, 0); err != nil {
			return false, err
		}
		if err := hashable(v); err != nil {
			return false, err
		}
		return v.kind == KindString && known(r, v.str), nil
	}
}
