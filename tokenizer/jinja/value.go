package jinja

import (
	"math/big"
)

// kind is what a value is to Python.
type kind uint8

const (
	kindUndefined kind = iota // the zero value: a name or attribute that is not there
	kindMissing               // a variable of a scope that has not been assigned yet; never seen by expressions
	kindNone
	kindBool
	kindInt
	kindBig   // an integer beyond 64 bits
	kindFloat // bits in num
	kindString
	kindList
	kindTuple
	kindDict
	kindIterator  // a Python generator or iterator: consumed once, has no length
	kindView      // dict.keys(), dict.values(), dict.items()
	kindRange     // range(…)
	kindNamespace // namespace(…)
	kindLoop      // the loop variable
	kindMacro
	kindMethod  // a bound method such as "x".upper
	kindBuiltin // a global function
	kindObject  // cycler, joiner and self
)

// value is one Python value. Scalars live in num and str, everything else behind ref, whose concrete type follows from
// the kind, so that no reflection is needed. It is copied freely; lists and dicts are shared as in Python.
type value struct {
	kind kind
	safe bool // a markupsafe.Markup string
	num  int64
	str  string // text of a string; for an undefined value what to complain about
	ref  any
}

// list holds the items of a list or a tuple.
type list struct{ items []value }

// iterator hands out values once. next reports false at the end.
type iterator interface {
	next(r *run) (value, bool, error)
}

// viewKind says which part of a dict a view shows.
type viewKind uint8

const (
	viewKeys viewKind = iota
	viewValues
	viewItems
)

type view struct {
	d    *dict
	part viewKind
}

// pyRange is range(start, stop, step), at most maxRange long.
type pyRange struct{ start, stop, step, length int64 }

// method is a bound method: the receiver and the method's name.
type method struct {
	self value
	name string
}

type namespace struct{ d *dict }

var (
	none       = value{kind: kindNone}
	trueValue  = value{kind: kindBool, num: 1}
	falseValue = value{kind: kindBool}
	missing    = value{kind: kindMissing}
	emptyText  = value{kind: kindString}
)

func boolean(b bool) value {
	if b {
		return trueValue
	}
	return falseValue
}

func integer(n int64) value { return value{kind: kindInt, num: n} }

func text(s string) value { return value{kind: kindString, str: s} }

func newList(items []value) value { return value{kind: kindList, ref: &list{items}} }

func newTuple(items ...value) value { return value{kind: kindTuple, ref: &list{items}} }

func newDict(d *dict) value { return value{kind: kindDict, ref: d} }

// bigInteger is n in its smallest form.
func bigInteger(n *big.Int) value {
	if n.IsInt64() {
		return integer(n.Int64())
	}
	return value{kind: kindBig, ref: n}
}

// undefined is a value that is not there; why is the complaint when it is used. In ref it carries a securityMark when
// the sandbox forbids the attribute instead of not finding it.
func undefined(why string) value { return value{kind: kindUndefined, str: why} }

type securityMark struct{}

func (v *value) items() []value   { return v.ref.(*list).items }
func (v *value) dict() *dict      { return v.ref.(*dict) }
func (v *value) isNumber() bool   { return v.kind >= kindBool && v.kind <= kindFloat }
func (v *value) isInteger() bool  { return v.kind == kindBool || v.kind == kindInt || v.kind == kindBig }
func (v *value) isSmallInt() bool { return v.kind == kindBool || v.kind == kindInt }
func (v *value) isSequence() bool { return v.kind == kindList || v.kind == kindTuple }

// bigOf is an integer value as a big integer; the result must not be changed.
func (v *value) bigOf() *big.Int {
	if v.kind == kindBig {
		return v.ref.(*big.Int)
	}
	return big.NewInt(v.num)
}

// truthy is Python's bool(v).
func (v *value) truthy() bool {
	switch v.kind {
	case kindUndefined, kindMissing, kindNone:
		return false
	case kindBool, kindInt:
		return v.num != 0
	case kindFloat:
		return v.float() != 0
	case kindString:
		return v.str != ""
	case kindList, kindTuple:
		return len(v.items()) > 0
	case kindDict:
		return v.dict().len() > 0
	case kindView:
		return v.ref.(*view).d.len() > 0
	case kindRange:
		return v.ref.(*pyRange).length > 0
	}
	return true
}

// typeName is Python's name of the value's type, for messages.
func (v *value) typeName() string {
	switch v.kind {
	case kindUndefined, kindMissing:
		return "Undefined"
	case kindNone:
		return "NoneType"
	case kindBool:
		return "bool"
	case kindInt, kindBig:
		return "int"
	case kindFloat:
		return "float"
	case kindString:
		if v.safe {
			return "Markup"
		}
		return "str"
	case kindList:
		return "list"
	case kindTuple:
		return "tuple"
	case kindDict:
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

// dict is an insertion-ordered map. Entries are dense: the sandbox lets no template delete a key. Lookups scan while the
// map is small and use an index of its string keys afterwards.
type dict struct {
	keys  []value
	vals  []value
	index map[string]int32 // string keys only; nil while small
}

// indexFrom is the size from which an index beats a scan; tool schemas and messages mostly have fewer keys.
const indexFrom = 9

func (d *dict) len() int { return len(d.keys) }

// get finds a string key.
func (d *dict) get(key string) (value, bool) {
	if i := d.find(key); i >= 0 {
		return d.vals[i], true
	}
	return value{}, false
}

func (d *dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.keys {
		if d.keys[i].kind == kindString && d.keys[i].str == key {
			return i
		}
	}
	return -1
}

// set stores under a string key; a known key keeps its place, as in Python.
func (d *dict) set(key string, v value) {
	if i := d.find(key); i >= 0 {
		d.vals[i] = v
		return
	}
	d.add(text(key), v)
}

// add appends a key that is known to be new.
func (d *dict) add(key, v value) {
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	if d.index != nil {
		if key.kind == kindString {
			d.index[key.str] = int32(len(d.keys) - 1)
		}
		return
	}
	if len(d.keys) < indexFrom {
		return
	}
	d.index = make(map[string]int32, 2*len(d.keys))
	for i := range d.keys {
		if d.keys[i].kind == kindString {
			d.index[d.keys[i].str] = int32(i)
		}
	}
}

// findValue finds any hashable key.
func (d *dict) findValue(r *run, key *value) (int, error) {
	if key.kind == kindString {
		return d.find(key.str), nil
	}
	if err := hashable(key); err != nil {
		return -1, err
	}
	for i := range d.keys {
		if err := r.step(1); err != nil {
			return -1, err
		}
		if d.keys[i].kind == kindString {
			continue
		}
		same, err := r.equal(&d.keys[i], key, 0)
		if err != nil || same {
			return i, err
		}
	}
	return -1, nil
}

// setValue stores under any hashable key.
func (d *dict) setValue(r *run, key, v value) error {
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

func (d *dict) clone() *dict {
	c := &dict{keys: make([]value, 0, len(d.keys)+2), vals: make([]value, 0, len(d.keys)+2)}
	for i := range d.keys {
		c.add(d.keys[i], d.vals[i])
	}
	return c
}

// remove takes a string key out; only for dicts that no template has seen yet.
func (d *dict) remove(key string) {
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

// hashable refuses what Python refuses as a key.
func hashable(v *value) error {
	switch v.kind {
	case kindList, kindDict, kindView:
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
