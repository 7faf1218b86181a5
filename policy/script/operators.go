package script

import (
	"errors"
	"fmt"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

const (
	// maxBytes bounds the memory that the operations of one call may ask for, in all. A decision among 200 workers with
	// lists and texts for each needs less than 100 KB. What operations do not ask for is bounded by the steps: a step
	// takes 200 bytes at most.
	maxBytes = 4 << 20
	// maxBits bounds whole numbers. Times in nanoseconds and hashes have 64 bits, and a product of two has 128.
	maxBits = 256
	// maxTuple bounds the values of a tuple, those of tuples in it included, so that a tuple is hashed quickly.
	maxTuple = 64
	// maxDepth bounds how deep values that are compared may lie in each other. Starlark itself has this bound.
	maxDepth = 10
	// bytesPerStep says how many bytes of an operation count as much as a step.
	bytesPerStep = 64
	// A value of a list, a pair of a dict.
	valueBytes, pairBytes = 16, 128
)

// meter counts what one call asks for. It belongs to the thread of the call.
type meter struct {
	bytes    int
	writable bool // the call may change the state
}

const meterKey = "meter"

func meterOf(t *starlark.Thread) *meter { return t.Local(meterKey).(*meter) }

// charge charges n bytes to the call.
func charge(t *starlark.Thread, n int) error {
	m := meterOf(t)
	m.bytes += n
	if n < 0 || n > maxBytes || m.bytes > maxBytes {
		return fmt.Errorf("too much memory: one call may use %d MiB", maxBytes>>20)
	}
	t.Steps += uint64(n / bytesPerStep)
	return nil
}

// size returns the bytes of v itself, without the values that it holds.
func size(v starlark.Value) int {
	switch v := v.(type) {
	case starlark.String:
		return len(v)
	case starlark.Bytes:
		return len(v)
	case *starlark.List:
		return v.Len() * valueBytes
	case starlark.Tuple:
		return len(v) * valueBytes
	case *starlark.Dict:
		return v.Len() * pairBytes
	case starlark.Sequence: // range
		return v.Len() * valueBytes
	}
	return 0
}

// chargeTree charges for a walk through v and all values that it holds, as often as they are there. A list that holds
// itself is an error.
func chargeTree(t *starlark.Thread, v starlark.Value) error { return chargeLevel(t, v, maxDepth) }

func chargeLevel(t *starlark.Thread, v starlark.Value, depth int) error {
	n := size(v)
	if n == 0 {
		return nil
	}
	if depth == 0 {
		return fmt.Errorf("lists and dicts in each other, more than %d deep, cannot be compared", maxDepth)
	}
	if err := charge(t, n); err != nil {
		return err
	}
	switch v := v.(type) {
	case *starlark.List:
		for i := range v.Len() {
			if err := chargeLevel(t, v.Index(i), depth-1); err != nil {
				return err
			}
		}
	case starlark.Tuple:
		for _, x := range v {
			if err := chargeLevel(t, x, depth-1); err != nil {
				return err
			}
		}
	case *starlark.Dict:
		for _, pair := range v.Items() {
			if err := chargeLevel(t, pair[1], depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTuple returns an error if v is a tuple of too many values.
func checkTuple(v starlark.Value) error {
	if n := tupleValues(v); n > maxTuple {
		return fmt.Errorf("a tuple holds at most %d values: use a list", maxTuple)
	}
	return nil
}

func tupleValues(v starlark.Value) int {
	tuple, ok := v.(starlark.Tuple)
	if !ok {
		return 1
	}
	n := 0
	for _, x := range tuple {
		if n += tupleValues(x); n > maxTuple {
			break
		}
	}
	return n
}

type builtin = func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error)

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
