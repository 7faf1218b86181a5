package jinja

import (
	"iter"
	"math/big"
)

// Kind is the Python type of a value. The exported kinds are the kinds of JSON values. Templates make values of further
// kinds.
type Kind uint8

// The kinds of values.
const (
	KindUndefined Kind = iota // the zero value: a name or an attribute that does not exist
	kindMissing               // a variable of a scope before it is assigned; no expression returns it
	KindNone
	KindBool
	KindInt
	KindBig   // an integer that does not fit into 64 bits
	KindFloat // a float, whose bits are in num
	KindString
	KindList
	kindTuple
	KindDict
	kindIterator  // a Python generator or iterator, which is read once and has no length
	kindView      // dict.keys(), dict.values(), dict.items()
	kindRange     // range(…)
	kindNamespace // namespace(…)
	kindLoop      // the loop variable
	kindMacro
	kindMethod  // a bound method such as "x".upper
	kindBuiltin // a global function
	kindObject  // cycler, joiner and self
)

// Value is one Python value. The zero value is undefined. Copies of a Value share its list or dict, as in Python.
// Scalars are in num and str, and ref refers to other values. The kind determines the type of ref.
type Value struct {
	kind Kind
	safe bool // the text is a markupsafe.Markup string
	num  int64
	str  string // text of a string; for an undefined value: message of the error that its use causes
	ref  any
}

// list has the items of a list or a tuple.
type list struct{ items []Value }

// iterator returns each value once. At the end, next returns false.
type iterator interface {
	next(r *run) (Value, bool, error)
}

// viewKind says which part of a dict a view shows.
type viewKind uint8

const (
	viewKeys viewKind = iota
	viewValues
	viewItems
)

type view struct {
	d    *Dict
	part viewKind
}

// pyRange is range(start, stop, step). It has at most maxRange items.
type pyRange struct{ start, stop, step, length int64 }

// method is a bound method: the receiver and the method's name.
type method struct {
	self Value
	name string
}

type namespace struct{ d *Dict }

// None is Python's None, and JSON's null.
var None = Value{kind: KindNone}

var (
	trueValue  = Value{kind: KindBool, num: 1}
	falseValue = Value{kind: KindBool}
	missing    = Value{kind: kindMissing}
	emptyText  = Value{kind: KindString}
)

// Bool returns Python's True or False.
func Bool(b bool) Value {
	if b {
		return trueValue
	}
	return falseValue
}

func integer(n int64) Value { return Value{kind: KindInt, num: n} }

// Text returns a string.
func Text(s string) Value { return Value{kind: KindString, str: s} }

// List returns a list of the items. The list uses the slice items itself, not a copy.
func List(items []Value) Value { return Value{kind: KindList, ref: &list{items}} }

func newTuple(items ...Value) Value { return Value{kind: kindTuple, ref: &list{items}} }

// FromDict returns the dict as a value. The value uses d itself, not a copy.
func FromDict(d *Dict) Value { return Value{kind: KindDict, ref: d} }

// bigInteger returns n as a KindInt if n fits into 64 bits, and as a KindBig if not.
func bigInteger(n *big.Int) Value {
	if n.IsInt64() {
		return integer(n.Int64())
	}
	return Value{kind: KindBig, ref: n}
}

// undefined returns an undefined value. why is the message of the error that a use of the value causes. If the value
// stands for an attribute that the sandbox forbids, its ref is a securityMark.
func undefined(why string) Value { return Value{kind: KindUndefined, str: why} }

type securityMark struct{}

// Kind returns the kind of the value.
func (v Value) Kind() Kind { return v.kind }

// Text returns the text of a string. For a value of another kind it returns "".
func (v Value) Text() string {
	if v.kind != KindString {
		return ""
	}
	return v.str
}

// Int returns an integer of at most 64 bits, or a boolean as 0 or 1. For any other value it returns 0.
func (v Value) Int() int64 {
	if v.kind != KindInt && v.kind != KindBool {
		return 0
	}
	return v.num
}

// Float returns a float. For a value of another kind it returns 0.
func (v Value) Float() float64 {
	if v.kind != KindFloat {
		return 0
	}
	return v.float()
}

// Items returns the items of a list, without copying them. For a value of another kind it returns nil.
func (v Value) Items() []Value {
	if v.kind != KindList {
		return nil
	}
	return v.items()
}

// Dict returns the dict of a value, without copying it. For a value of another kind it returns nil. On a nil *Dict, the
// methods All, Has and Get find nothing.
func (v Value) Dict() *Dict {
	if v.kind != KindDict {
		return nil
	}
	return v.dict()
}

// Truthy does the same as Python's bool(v).
func (v Value) Truthy() bool { return v.truthy() }

// TypeName returns Python's name of the value's type, for messages.
func (v Value) TypeName() string { return v.typeName() }

// Same reports whether the two values are equal scalars, or the same list or dict in memory.
func (v Value) Same(other Value) bool { return identical(&v, &other) }

func (v *Value) items() []Value   { return v.ref.(*list).items }
func (v *Value) dict() *Dict      { return v.ref.(*Dict) }
func (v *Value) isNumber() bool   { return v.kind >= KindBool && v.kind <= KindFloat }
func (v *Value) isInteger() bool  { return v.kind == KindBool || v.kind == KindInt || v.kind == KindBig }
func (v *Value) isSmallInt() bool { return v.kind == KindBool || v.kind == KindInt }
func (v *Value) isSequence() bool { return v.kind == KindList || v.kind == kindTuple }

// bigOf returns an integer value as a big integer. The caller must not change the result.
func (v *Value) bigOf() *big.Int {
	if v.kind == KindBig {
		return v.ref.(*big.Int)
	}
	return big.NewInt(v.num)
}

// truthy does the same as Python's bool(v).
func (v *Value) truthy() bool {
	switch v.kind {
	case KindUndefined, kindMissing, KindNone:
		return false
	case KindBool, KindInt:
		return v.num != 0
	case KindFloat:
		return v.float() != 0
	case KindString:
		return v.str != ""
	case KindList, kindTuple:
		return len(v.items()) > 0
	case KindDict:
		return v.dict().Len() > 0
	case kindView:
		return v.ref.(*view).d.Len() > 0
	case kindRange:
		return v.ref.(*pyRange).length > 0
	}
	return true
}

// typeName returns Python's name of the value's type, for messages.
func (v *Value) typeName() string {
	switch v.kind {
	case KindUndefined, kindMissing:
		return "Undefined"
	case KindNone:
		return "NoneType"
	case KindBool:
		return "bool"
	case KindInt, KindBig:
		return "int"
	case KindFloat:
		return "float"
	case KindString:
		if v.safe {
			return "Markup"
		}
		return "str"
	case KindList:
		return "list"
	case kindTuple:
		return "tuple"
	case KindDict:
		return "dict"
	case kindView:
		return [...]string{"dict_keys", "dict_values", "dict_items"}[v.ref.(*view).part]
	case kindRange:
		return "range"
	case kindNamespace:
		return "Namespace"
	case kindLoop:
		return "LoopContext"
	case kindMacro:
		return "Macro"
	case kindMethod, kindBuiltin:
		return "builtin_function_or_method"
	case kindIterator:
		return "generator"
	}
	return "object"
}

// Dict is a Python dict. It keeps the order in which keys were added. The zero value is an empty dict. Do not change a
// dict while a render uses it. The sandbox allows no template to delete a key, so entries have no gaps. A lookup scans
// a small dict. A larger dict has an index of its string keys.
type Dict struct {
	keys  []Value
	vals  []Value
	index map[string]int32 // positions of string keys; nil if the dict has fewer than indexFrom keys
}

// indexFrom is the number of keys from which an index is faster than a scan. Tool schemas and messages mostly have
// fewer keys.
const indexFrom = 9

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// All iterates over the string keys and their values, in order.
func (d *Dict) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if d == nil {
			return
		}
		for i := range d.keys {
			if d.keys[i].kind == KindString && !yield(d.keys[i].str, d.vals[i]) {
				return
			}
		}
	}
}

// Has reports whether the dict has the string key.
func (d *Dict) Has(key string) bool { return d != nil && d.find(key) >= 0 }

// Get returns the value of a string key.
func (d *Dict) Get(key string) (Value, bool) {
	if d == nil {
		return Value{}, false
	}
	if i := d.find(key); i >= 0 {
		return d.vals[i], true
	}
	return Value{}, false
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.keys {
		if d.keys[i].kind == KindString && d.keys[i].str == key {
			return i
		}
	}
	return -1
}

// Set stores a value under a string key. If the key exists, it keeps its place, as in Python.
func (d *Dict) Set(key string, v Value) {
	if i := d.find(key); i >= 0 {
		d.vals[i] = v
		return
	}
	d.add(Text(key), v)
}

// add appends a new key. The caller knows that the dict does not have the key.
func (d *Dict) add(key, v Value) {
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	if d.index != nil {
		if key.kind == KindString {
			d.index[key.str] = int32(len(d.keys) - 1)
		}
		return
	}
	if len(d.keys) < indexFrom {
		return
	}
	d.index = make(map[string]int32, 2*len(d.keys))
	for i := range d.keys {
		if d.keys[i].kind == KindString {
			d.index[d.keys[i].str] = int32(i)
		}
	}
}

// findValue returns the position of a key of any hashable kind, or -1 if the dict does not have the key.
func (d *Dict) findValue(r *run, key *Value) (int, error) {
	if key.kind == KindString {
		return d.find(key.str), nil
	}
	if err := hashable(key); err != nil {
		return -1, err
	}
	for i := range d.keys {
		if err := r.step(1); err != nil {
			return -1, err
		}
		if d.keys[i].kind == KindString {
			continue
		}
		same, err := r.equal(&d.keys[i], key, 0)
		if err != nil || same {
			return i, err
		}
	}
	return -1, nil
}

// setValue stores a value under a key of any hashable kind.
func (d *Dict) setValue(r *run, key, v Value) error {
	i, err := d.findValue(r, &key)
	if err != nil {
		return err
	}
	if i >= 0 {
		d.vals[i] = v
		return nil
	}
	d.add(key, v)
	return r.grow(valueBytes)
}

// Clone returns a copy of the dict. The values are not copied.
func (d *Dict) Clone() *Dict {
	c := &Dict{keys: make([]Value, 0, len(d.keys)+2), vals: make([]Value, 0, len(d.keys)+2)}
	for i := range d.keys {
		c.add(d.keys[i], d.vals[i])
	}
	return c
}

// Remove removes a string key.
func (d *Dict) Remove(key string) {
	i := d.find(key)
	if i < 0 {
		return
	}
	d.keys = append(d.keys[:i:i], d.keys[i+1:]...)
	d.vals = append(d.vals[:i:i], d.vals[i+1:]...)
	d.index = nil
	if len(d.keys) >= indexFrom {
		d.index = make(map[string]int32, 2*len(d.keys))
		for i := range d.keys {
			d.index[d.keys[i].str] = int32(i)
		}
	}
}

// hashable returns an error if Python does not allow the value as a key.
func hashable(v *Value) error {
	switch v.kind {
	case KindList, KindDict, kindView:
		return failf("unhashable type: '%s'", v.typeName())
	case kindTuple:
		for i := range v.items() {
			if err := hashable(&v.items()[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
