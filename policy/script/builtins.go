package script

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.starlark.net/starlark"
)

const (
	maxRange  = 100_000 // the length of a range: as many steps as a call has by default
	maxNumber = 80      // the length of a text that int and float read
)

// builtin is a function in the form in which the interpreter calls it.
type builtin = func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error)

// builtins has the functions that a script may call. A name of Starlark's universe that is not here is unavailable.
var builtins = map[string]builtin{
	"abs": native(nil), "bool": native(nil), "len": native(nil), "type": native(nil),
	"all": native(chargeArguments), "any": native(chargeArguments), "list": native(chargeArguments), "reversed": native(chargeArguments),
	"max": native(chargeArguments), "min": native(chargeArguments), "sorted": native(chargeArguments), "hash": native(chargeArguments),
	"dict": native(chargePairs), "tuple": native(chargeArguments), "zip": native(chargePairs), "enumerate": native(chargePairs),
	"float": native(checkNumber), "int": native(checkNumber), "str": native(checkPlain), "range": native(nil), "fail": fail,
}

// native returns the function of the same name in Starlark. prepare checks the arguments and charges for them.
func native(prepare func(*starlark.Thread, starlark.Tuple) error) builtin {
	return func(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, named []starlark.Tuple) (starlark.Value, error) {
		if prepare != nil {
			if err := prepare(t, args); err != nil {
				return nil, err
			}
		}
		v, err := starlark.Universe[b.Name()].(*starlark.Builtin).CallInternal(t, args, named)
		if err != nil {
			return nil, err
		}
		return v, checkResult(v)
	}
}

// checkResult checks the tuples of a result, and the length of a range.
func checkResult(v starlark.Value) error {
	switch v := v.(type) {
	case starlark.Tuple:
		return checkTuple(v)
	case *starlark.List:
		for i := range v.Len() {
			if err := checkTuple(v.Index(i)); err != nil {
				return err
			}
		}
	case starlark.Sequence:
		if v.Type() == "range" && v.Len() > maxRange {
			return fmt.Errorf("a range has at most %d numbers", maxRange)
		}
	}
	return nil
}

func chargeArguments(t *starlark.Thread, args starlark.Tuple) error {
	for _, v := range args {
		if err := chargeTree(t, v); err != nil {
			return err
		}
	}
	return nil
}

func chargePairs(t *starlark.Thread, args starlark.Tuple) error {
	for _, v := range args {
		if err := errors.Join(chargeTree(t, v), charge(t, size(v)/valueBytes*pairBytes)); err != nil {
			return err
		}
	}
	return nil
}

func checkNumber(_ *starlark.Thread, args starlark.Tuple) error {
	if text, ok := first(args).(starlark.String); ok && len(text) > maxNumber {
		return fmt.Errorf("a text of %d characters is no number", len(text))
	}
	return nil
}

func checkPlain(t *starlark.Thread, args starlark.Tuple) error {
	if v := first(args); v != nil && !isPlain(v) {
		return fmt.Errorf("str takes a number or a text, and got %s", v.Type())
	}
	return charge(t, maxBits)
}

func first(args starlark.Tuple) starlark.Value {
	if len(args) == 0 {
		return nil
	}
	return args[0]
}

// fail ends the call with an error that the script words itself.
func fail(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, named []starlark.Tuple) (starlark.Value, error) {
	var text string
	if err := starlark.UnpackPositionalArgs(b.Name(), args, named, 1, &text); err != nil {
		return nil, err
	}
	return nil, errors.New(shorten(text, maxReason))
}

// methods has what each method of a list, a dict, a text and the state charges before it runs. A method that is not
// here is unavailable.
var methods = map[string]func(t *starlark.Thread, receiver starlark.Value, args starlark.Tuple) error{
	"append": constant, "clear": constant, "get": constant, "setdefault": constant,
	"insert": chargeReceiver, "pop": chargeReceiver, "remove": chargeReceiver, "index": chargeReceiver,
	"items": chargeReceiver, "keys": chargeReceiver, "values": chargeReceiver,
	"count": chargeReceiver, "endswith": chargeReceiver, "find": chargeReceiver, "isdigit": chargeReceiver, "removeprefix": chargeReceiver,
	"removesuffix": chargeReceiver, "startswith": chargeReceiver, "strip": chargeReceiver, "lstrip": chargeReceiver, "rstrip": chargeReceiver,
	"lower": chargeCopies, "upper": chargeCopies, "split": chargeCopies, "join": chargeJoin,
}

func knownMethods() string { return strings.Join(slices.Sorted(maps.Keys(methods)), ", ") }

func constant(*starlark.Thread, starlark.Value, starlark.Tuple) error { return nil }

func chargeReceiver(t *starlark.Thread, receiver starlark.Value, args starlark.Tuple) error {
	if d, ok := receiver.(*starlark.Dict); ok {
		return charge(t, size(d)/2)
	}
	return errors.Join(chargeTree(t, receiver), chargeArguments(t, args))
}

// chargeCopies charges for a method of a text whose result is larger than the text: split makes a value of each letter.
func chargeCopies(t *starlark.Thread, receiver starlark.Value, args starlark.Tuple) error {
	return errors.Join(charge(t, size(receiver)*valueBytes), chargeArguments(t, args))
}

func chargeJoin(t *starlark.Thread, receiver starlark.Value, args starlark.Tuple) error {
	list, ok := first(args).(starlark.Sequence)
	if !ok {
		return nil // the method itself names the problem
	}
	if n := list.Len(); n > 0 && size(receiver) > maxBytes/n {
		return charge(t, maxBytes+1)
	}
	return errors.Join(charge(t, size(receiver)*list.Len()), chargeTree(t, list))
}

// callMethod runs args[0].name(args[1:]).
func callMethod(name string) builtin {
	prepare := methods[name]
	return func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
		receiver, args := args[0], args[1:]
		switch r := receiver.(type) {
		case *state:
			return r.call(t, name, args)
		case *labels:
			if name != "get" {
				return nil, fmt.Errorf("labels have no method .%s (known: get)", name)
			}
			v, _, err := get(r, args)
			return v, err
		}
		if err := prepare(t, receiver, args); err != nil {
			return nil, err
		}
		var method starlark.Value
		if has, ok := receiver.(starlark.HasAttrs); ok {
			method, _ = has.Attr(name)
		}
		native, ok := method.(*starlark.Builtin)
		if !ok {
			return nil, fmt.Errorf("a %s has no method .%s", receiver.Type(), name)
		}
		v, err := native.CallInternal(t, args, nil)
		if err == nil && name == "items" {
			err = checkResult(v)
		}
		return v, err
	}
}

// predeclared returns the names that a script may use, with the state of one policy.
func predeclared(s *state) starlark.StringDict {
	all := starlark.StringDict{"state": s, "choice": starlark.NewBuiltin("choice", newChoice)}
	for name, f := range operators() {
		all[name] = starlark.NewBuiltin(name, f)
	}
	for name, f := range builtins {
		all[name] = starlark.NewBuiltin(name, f)
	}
	for name := range methods {
		all["."+name] = starlark.NewBuiltin("."+name, callMethod(name))
	}
	return all
}

// unavailable reports whether a name is of Starlark's universe, but not for scripts of this package.
func unavailable(name string) bool {
	if _, universal := starlark.Universe[name].(*starlark.Builtin); !universal {
		return false
	}
	return builtins[name] == nil
}

// shorten returns text, cut to at most n bytes.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
