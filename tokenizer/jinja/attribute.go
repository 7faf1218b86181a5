package jinja

import (
	"strings"
)

// getAttr is environment.getattr of the immutable sandbox: attributes first, then keys; what could change an object or
// begins with an underscore is undefined with a complaint.
func (r *run) getAttr(obj *value, name string) (value, error) {
	if err := r.step(1); err != nil {
		return none, err
	}
	if v, ok, err := r.attribute(obj, name); ok || err != nil {
		return v, err
	}
	if obj.kind == kindUndefined {
		return none, using(obj)
	}
	if obj.kind == kindDict {
		if v, ok := obj.dict().get(name); ok {
			return v, nil
		}
	}
	return r.notThere(obj, name), nil
}

// getItem is environment.getitem: keys and indexes first, then attributes.
func (r *run) getItem(obj, index *value) (value, error) {
	if err := r.step(1); err != nil {
		return none, err
	}
	switch obj.kind {
	case kindUndefined:
		return none, using(obj)
	case kindDict:
		i, err := obj.dict().findValue(r, index)
		if i >= 0 && err == nil {
			return obj.dict().vals[i], nil
		}
		if _, isLimit := err.(*limitError); isLimit {
			return none, err
		}
	case kindList, kindTuple:
		if items := obj.items(); index.isSmallInt() {
			if i, ok := within(index.num, len(items)); ok {
				return items[i], nil
			}
		}
	case kindString:
		if index.isSmallInt() {
			if err := r.scan(len(obj.str)); err != nil {
				return none, err
			}
			if s, ok := runeAt(obj.str, index.num); ok {
				return value{kind: kindString, safe: obj.safe, str: s}, nil
			}
		}
	case kindRange:
		if rg := obj.ref.(*pyRange); index.isSmallInt() {
			if i, ok := within(index.num, int(rg.length)); ok {
				return integer(rg.start + int64(i)*rg.step), nil
			}
		}
	}
	if index.kind == kindString {
		if v, ok, err := r.attribute(obj, index.str); ok || err != nil {
			return v, err
		}
		return r.notThere(obj, index.str), nil
	}
	s, err := r.repr(index)
	if err != nil {
		return none, err
	}
	return undefined("'" + obj.typeName() + " object' has no element " + s), nil
}

func within(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

func (r *run) notThere(obj *value, name string) value {
	return undefined("'" + obj.typeName() + " object' has no attribute '" + name + "'")
}

// attribute is getattr(obj, name) with the sandbox's verdict.
func (r *run) attribute(obj *value, name string) (value, bool, error) {
	switch obj.kind {
	case kindNamespace:
		v, ok := obj.ref.(*namespace).d.get(name)
		if ok && strings.HasPrefix(name, "_") {
			return unsafe(obj, name), true, nil
		}
		return v, ok, nil
	case kindLoop:
		if v, ok, err := obj.ref.(*loop).attr(r, name); ok || err != nil {
			return v, ok, err
		}
	case kindUndefined:
		if strings.HasPrefix(name, "__") {
			return value{}, false, nil
		}
		return none, false, using(obj)
	}
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") && len(name) > 4 && pythonDunder(obj, name) {
		return unsafe(obj, name), true, nil
	}
	if mutates(obj, name) {
		return unsafe(obj, name), true, nil
	}
	if hasMethod(obj, name) {
		return value{kind: kindMethod, ref: &method{*obj, name}}, true, nil
	}
	if b, ok := obj.ref.(*builtin); ok && b.name == "dict" && (!dictMethods[name] || name == "fromkeys") {
		return dictAttribute(obj, name), true, nil
	}
	if v, ok := plainAttribute(obj, name); ok {
		return v, true, nil
	}
	return value{}, false, nil
}

// pythonDunder reports whether Python's objects of that type have the special attribute; only common ones are known.
func pythonDunder(obj *value, name string) bool {
	switch name {
	case "__class__", "__doc__", "__init__", "__new__", "__dir__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
		"__hash__", "__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__", "__getattribute__", "__setattr__",
		"__delattr__", "__sizeof__", "__subclasshook__", "__init_subclass__":
		return true
	case "__len__", "__contains__", "__iter__", "__getitem__":
		switch obj.kind {
		case kindString, kindList, kindTuple, kindDict, kindRange:
			return true
		}
	case "__dict__", "__module__":
		return obj.kind >= kindNamespace && obj.kind <= kindMacro
	}
	return false
}

func unsafe(obj *value, name string) value {
	v := undefined("access to attribute '" + name + "' of '" + obj.typeName() + "' object is unsafe")
	v.ref = securityMark{}
	return v
}

// mutates reports the methods that the immutable sandbox hides.
func mutates(obj *value, name string) bool {
	switch obj.kind {
	case kindDict:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return true
		}
	case kindList:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return true
		}
	}
	return false
}

// plainAttribute are the attributes of Python's objects that are values.
func plainAttribute(obj *value, name string) (value, bool) {
	switch obj.kind {
	case kindBool, kindInt, kindBig:
		switch name {
		case "real", "numerator":
			if obj.kind == kindBool {
				return integer(obj.num), true
			}
			return *obj, true
		case "imag":
			return integer(0), true
		case "denominator":
			return integer(1), true
		}
	case kindFloat:
		switch name {
		case "real":
			return *obj, true
		case "imag":
			return float(0), true
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
	return value{}, false
}

func macroAttribute(d *macroDef, name string) (value, bool) {
	switch name {
	case "name":
		if d.name == "" {
			return none, true
		}
		return text(d.name), true
	case "arguments":
		items := make([]value, len(d.params))
		for i, p := range d.params {
			items[i] = text(p.name)
		}
		return newList(items), true
	case "catch_kwargs":
		return boolean(d.hasKwargs), true
	case "catch_varargs":
		return boolean(d.hasVars), true
	case "caller":
		return boolean(d.hasCaller || d.explicitCaller), true
	}
	return value{}, false
}
