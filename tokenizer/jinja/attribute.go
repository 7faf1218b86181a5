package jinja

import (
	"strings"
)

// getAttr does the same as environment.getattr of jinja2's immutable sandbox: it looks for an attribute of the object,
// and then for a key. Two kinds of names are undefined: methods that would change the object, and names with a leading
// underscore. Using such an undefined value fails, and the error has the reason.
func (r *run) getAttr(obj *Value, name string) (Value, error) {
	if err := r.step(1); err != nil {
		return None, err
	}
	if v, ok, err := r.attribute(obj, name); ok || err != nil {
		return v, err
	}
	if obj.kind == KindUndefined {
		return None, using(obj)
	}
	if obj.kind == KindDict {
		if v, ok := obj.dict().Get(name); ok {
			return v, nil
		}
	}
	return r.notThere(obj, name), nil
}

// getItem does the same as environment.getitem of jinja2: it looks for a key or an index of the object, and then for an
// attribute.
func (r *run) getItem(obj, index *Value) (Value, error) {
	if err := r.step(1); err != nil {
		return None, err
	}
	switch obj.kind {
	case KindUndefined:
		return None, using(obj)
	case KindDict:
		i, err := obj.dict().findValue(r, index)
		if i >= 0 && err == nil {
			return obj.dict().vals[i], nil
		}
		if _, isLimit := err.(*limitError); isLimit {
			return None, err
		}
	case KindList, kindTuple:
		if items := obj.items(); index.isSmallInt() {
			if i, ok := within(index.num, len(items)); ok {
				return items[i], nil
			}
		}
	case KindString:
		if index.isSmallInt() {
			if err := r.scan(len(obj.str)); err != nil {
				return None, err
			}
			if s, ok := runeAt(obj.str, index.num); ok {
				return Value{kind: KindString, safe: obj.safe, str: s}, nil
			}
		}
	case kindRange:
		if rg := obj.ref.(*pyRange); index.isSmallInt() {
			if i, ok := within(index.num, int(rg.length)); ok {
				return integer(rg.start + int64(i)*rg.step), nil
			}
		}
	}
	if index.kind == KindString {
		if v, ok, err := r.attribute(obj, index.str); ok || err != nil {
			return v, err
		}
		return r.notThere(obj, index.str), nil
	}
	s, err := r.repr(index)
	if err != nil {
		return None, err
	}
	return undefined("'" + obj.typeName() + " object' has no element " + s), nil
}

func within(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

func (r *run) notThere(obj *Value, name string) Value {
	return undefined("'" + obj.typeName() + " object' has no attribute '" + name + "'")
}

// attribute does the same as getattr(obj, name) in the sandbox. For a name that the sandbox forbids, it returns an
// undefined value and true. If obj has no such attribute, the boolean result is false.
func (r *run) attribute(obj *Value, name string) (Value, bool, error) {
	switch obj.kind {
	case kindNamespace:
		v, ok := obj.ref.(*namespace).d.Get(name)
		if ok && strings.HasPrefix(name, "_") {
			return unsafe(obj, name), true, nil
		}
		return v, ok, nil
	case kindLoop:
		if v, ok, err := obj.ref.(*loop).attr(r, name); ok || err != nil {
			return v, ok, err
		}
	case KindUndefined:
		if strings.HasPrefix(name, "__") {
			return Value{}, false, nil
		}
		return None, false, using(obj)
	}
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") && len(name) > 4 && pythonDunder(obj, name) {
		return unsafe(obj, name), true, nil
	}
	if mutates(obj, name) {
		return unsafe(obj, name), true, nil
	}
	if hasMethod(obj, name) {
		return Value{kind: kindMethod, ref: &method{*obj, name}}, true, nil
	}
	if b, ok := obj.ref.(*builtin); ok && b.name == "dict" && (!dictMethods[name] || name == "fromkeys") {
		return dictAttribute(obj, name), true, nil
	}
	if v, ok := valueAttribute(obj, name); ok {
		return v, true, nil
	}
	return Value{}, false, nil
}

// pythonDunder reports whether Python's objects of obj's type have the special attribute name, such as __len__.
// pythonDunder knows only the common special attributes.
func pythonDunder(obj *Value, name string) bool {
	switch name {
	case "__class__", "__doc__", "__init__", "__new__", "__dir__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__",
		"__ge__", "__hash__", "__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__", "__getattribute__",
		"__setattr__", "__delattr__", "__sizeof__", "__subclasshook__", "__init_subclass__":
		return true
	case "__len__", "__contains__", "__iter__", "__getitem__":
		switch obj.kind {
		case KindString, KindList, kindTuple, KindDict, kindRange:
			return true
		}
	case "__dict__", "__module__":
		return obj.kind >= kindNamespace && obj.kind <= kindMacro
	}
	return false
}

func unsafe(obj *Value, name string) Value {
	v := undefined("access to attribute '" + name + "' of '" + obj.typeName() + "' object is unsafe")
	v.ref = securityMark{}
	return v
}

// mutates reports whether the immutable sandbox hides the method, because the method changes its object.
func mutates(obj *Value, name string) bool {
	switch obj.kind {
	case KindDict:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case KindList:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	}
	return false
}

// valueAttribute returns an attribute of a Python object, if the attribute is a value and not a method.
func valueAttribute(obj *Value, name string) (Value, bool) {
	switch obj.kind {
	case KindBool, KindInt, KindBig:
		switch name {
		case "real", "numerator":
			if obj.kind == KindBool {
				return integer(obj.num), true
			}
			return *obj, true
		case "imag":
			return integer(0), true
		case "denominator":
			return integer(1), true
		}
	case KindFloat:
		switch name {
		case "real":
			return *obj, true
		case "imag":
			return Float(0), true
		}
	case kindRange:
		rg := obj.ref.(*pyRange)
		switch name {
		case "start":
			return integer(rg.start), true
		case "stop":
			return integer(rg.stop), true
		case "step":
			return integer(rg.step), true
		}
	case kindTuple:
		if g, ok := obj.groupTuple(); ok {
			switch name {
			case "grouper":
				return g[0], true
			case "list":
				return g[1], true
			}
		}
	case kindMacro:
		return macroAttribute(obj.ref.(*macro).def, name)
	case kindObject:
		if c, ok := obj.ref.(*cycler); ok {
			switch name {
			case "current":
				return c.items[c.pos], true
			case "pos":
				return integer(int64(c.pos)), true
			case "items":
				return newTuple(c.items...), true
			}
		}
	}
	return Value{}, false
}

func macroAttribute(d *macroDef, name string) (Value, bool) {
	switch name {
	case "name":
		if d.name == "" {
			return None, true
		}
		return Text(d.name), true
	case "arguments":
		items := make([]Value, len(d.params))
		for i, p := range d.params {
			items[i] = Text(p.name)
		}
		return List(items), true
	case "catch_kwargs":
		return Bool(d.hasKwargs), true
	case "catch_varargs":
		return Bool(d.hasVars), true
	case "caller":
		return Bool(d.hasCaller || d.explicitCaller), true
	}
	return Value{}, false
}
