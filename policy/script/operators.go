package script

import (
	"errors"
	"fmt"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// operators has the functions that take the place of operators.
func operators() map[string]builtin {
	all := map[string]builtin{"[:]": chargeSlice, "()": makeTuple, "[]=": setElement, "[]op=": changeElement}
	for _, op := range []syntax.Token{syntax.PLUS, syntax.MINUS, syntax.STAR, syntax.PERCENT, syntax.LTLT, syntax.PIPE} {
		all[op.String()] = func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return operate(t, op, args[0], args[1])
		}
	}
	for op := range augmented {
		all[op] = func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return augment(t, op, args[0], args[1])
		}
	}
	for _, op := range []syntax.Token{syntax.EQL, syntax.NEQ, syntax.LT, syntax.LE, syntax.GT, syntax.GE} {
		all[op.String()] = func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			if err := errors.Join(chargeTree(t, args[0]), chargeTree(t, args[1])); err != nil {
				return nil, err
			}
			yes, err := starlark.Compare(op, args[0], args[1])
			return starlark.Bool(yes), err
		}
	}
	for _, op := range []syntax.Token{syntax.IN, syntax.NOT_IN} {
		all[op.String()] = func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			if err := chargeSearch(t, args[1]); err != nil {
				return nil, err
			}
			found, err := starlark.Binary(syntax.IN, args[0], args[1])
			if err != nil {
				return nil, err
			}
			return starlark.Bool(bool(found.Truth()) == (op == syntax.IN)), nil
		}
	}
	return all
}

// chargeSearch charges for a search in a value.
func chargeSearch(t *starlark.Thread, in starlark.Value) error {
	if _, ok := in.(*starlark.Dict); ok {
		return nil
	}
	if _, ok := in.(*state); ok {
		return nil
	}
	return chargeTree(t, in)
}

// operate runs a binary operator after it has charged for the result.
func operate(t *starlark.Thread, op syntax.Token, x, y starlark.Value) (starlark.Value, error) {
	_, xFloat := x.(starlark.Float)
	_, yFloat := y.(starlark.Float)
	if xFloat || yFloat {
		return starlark.Binary(op, x, y)
	}
	a, xInt := x.(starlark.Int)
	b, yInt := y.(starlark.Int)
	switch {
	case xInt && yInt:
		return operateInts(op, a, b)
	case op == syntax.STAR && yInt:
		if err := chargeRepeat(t, x, b); err != nil {
			return nil, err
		}
	case op == syntax.STAR && xInt:
		if err := chargeRepeat(t, y, a); err != nil {
			return nil, err
		}
	case op == syntax.PERCENT:
		if err := chargeFormat(t, x, y); err != nil {
			return nil, err
		}
	default:
		if err := charge(t, size(x)+size(y)); err != nil {
			return nil, err
		}
	}
	v, err := starlark.Binary(op, x, y)
	if err == nil {
		err = checkTuple(v)
	}
	return v, err
}

func operateInts(op syntax.Token, a, b starlark.Int) (starlark.Value, error) {
	bits := func(n starlark.Int) int {
		if _, small := n.Int64(); small {
			return 64
		}
		return n.BigInt().BitLen()
	}
	if op == syntax.LTLT {
		if by, ok := b.Int64(); !ok || by > maxBits {
			return nil, fmt.Errorf("a number has at most %d bits", maxBits)
		}
	}
	v, err := starlark.Binary(op, a, b) // the operands are bounded, and so the result has at most twice as many bits
	if n, ok := v.(starlark.Int); ok && bits(n) > maxBits {
		return nil, fmt.Errorf("a number has at most %d bits", maxBits)
	}
	return v, err
}

// chargeRepeat charges for v repeated n times.
func chargeRepeat(t *starlark.Thread, v starlark.Value, n starlark.Int) error {
	times, ok := n.Int64()
	if !ok || times > maxBytes {
		return charge(t, maxBytes+1)
	}
	bytes := size(v)
	if times > 0 && bytes > maxBytes/int(times) {
		return charge(t, maxBytes+1)
	}
	return charge(t, bytes*int(max(times, 0)))
}

// chargeFormat charges for FORMAT % VALUES. A value must be a number, a text, True, False or None: a list could hold
// itself many times, and its text would be without end.
func chargeFormat(t *starlark.Thread, format, values starlark.Value) error {
	n := size(format)
	list, ok := values.(starlark.Tuple)
	if !ok {
		list = starlark.Tuple{values}
	}
	for _, v := range list {
		if !isPlain(v) {
			return fmt.Errorf("%% takes numbers and texts, and got %s", v.Type())
		}
		n += size(v)*4 + maxBits // %r may write four bytes for one
	}
	return charge(t, n)
}

// isPlain reports whether v is a value of constant cost: a number, a text, True, False or None.
func isPlain(v starlark.Value) bool {
	switch v.(type) {
	case starlark.NoneType, starlark.Bool, starlark.Int, starlark.Float, starlark.String:
		return true
	}
	return false
}

// augmented has the operators that may stand before =.
var augmented = map[string]syntax.Token{
	"+=": syntax.PLUS, "-=": syntax.MINUS, "*=": syntax.STAR, "/=": syntax.SLASH, "//=": syntax.SLASHSLASH, "%=": syntax.PERCENT,
	"&=": syntax.AMP, "|=": syntax.PIPE, "^=": syntax.CIRCUMFLEX, "<<=": syntax.LTLT, ">>=": syntax.GTGT,
}

// augment returns the new value of x in: x op= y. As everywhere in Starlark, += changes a list in place.
func augment(t *starlark.Thread, op string, x, y starlark.Value) (starlark.Value, error) {
	list, ok := x.(*starlark.List)
	if op != "+=" || !ok {
		return operate(t, augmented[op], x, y)
	}
	more, ok := y.(starlark.Indexable)
	if !ok {
		return nil, fmt.Errorf("a list cannot grow by a value of type %s", y.Type())
	}
	n := more.Len()
	if err := charge(t, n*valueBytes); err != nil {
		return nil, err
	}
	for i := range n {
		if err := list.Append(more.Index(i)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// chargeSlice charges for the copy that a slice makes, and returns the value to slice.
func chargeSlice(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	return args[0], charge(t, size(args[0]))
}

func makeTuple(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	return args[0], checkTuple(args[0])
}

func setElement(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	return starlark.None, set(t, args[0], args[1], args[2])
}

// changeElement is x[key] op= value. Its arguments are x, key, value and op.
func changeElement(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	var old starlark.Value
	switch x := args[0].(type) {
	case starlark.Mapping:
		v, found, err := x.Get(args[1])
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("there is no key %s", brief(args[1]))
		}
		old = v
	case *starlark.List:
		i, err := indexOf(x, args[1])
		if err != nil {
			return nil, err
		}
		old = x.Index(i)
	default:
		return nil, fmt.Errorf("elements of a %s cannot be set", x.Type())
	}
	v, err := augment(t, string(args[3].(starlark.String)), old, args[2])
	if err != nil {
		return nil, err
	}
	return starlark.None, set(t, args[0], args[1], v)
}

// set runs x[key] = v.
func set(t *starlark.Thread, x, key, v starlark.Value) error {
	switch x := x.(type) {
	case *state:
		return x.set(t, key, v)
	case *starlark.Dict:
		return x.SetKey(key, v)
	case *starlark.List:
		i, err := indexOf(x, key)
		if err != nil {
			return err
		}
		return x.SetIndex(i, v)
	}
	return fmt.Errorf("elements of a %s cannot be set", x.Type())
}

func indexOf(list *starlark.List, key starlark.Value) (int, error) {
	i, err := starlark.AsInt32(key)
	if err != nil {
		return 0, fmt.Errorf("a list has no element %s", brief(key))
	}
	if i < 0 {
		i += list.Len()
	}
	if i < 0 || i >= list.Len() {
		return 0, fmt.Errorf("there is no element %d in a list of %d", i, list.Len())
	}
	return i, nil
}

// brief returns a short text for a value in an error.
func brief(v starlark.Value) string {
	if isPlain(v) {
		return shorten(v.String(), 60)
	}
	return "of type " + v.Type()
}
