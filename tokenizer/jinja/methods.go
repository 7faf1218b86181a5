package jinja

// This file has the methods of Python's types that the immutable sandbox allows.

var dictMethods = set("copy", "fromkeys", "get", "items", "keys", "values", "clear", "pop", "popitem", "setdefault",
	"update")

var stringMethods = set("capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find",
	"format", "format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier",
	"islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip",
	"maketrans", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition",
	"rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper",
	"zfill")

var markupMethods = set("unescape", "striptags", "escape")

var listMethods = set("copy", "count", "index")

var tupleMethods = set("count", "index")

var intMethods = set("bit_length", "bit_count", "conjugate", "is_integer", "as_integer_ratio", "to_bytes", "from_bytes")

var floatMethods = set("is_integer", "conjugate", "hex", "as_integer_ratio", "fromhex")

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// hasMethod reports whether obj.name is a method that the sandbox allows.
func hasMethod(obj *Value, name string) bool {
	switch obj.kind {
	case KindString:
		return stringMethods[name] || obj.safe && markupMethods[name]
	case KindDict:
		return dictMethods[name] && !mutates(obj, name)
	case KindList:
		return listMethods[name]
	case kindTuple, kindRange:
		return tupleMethods[name]
	case KindBool, KindInt, KindBig:
		return intMethods[name]
	case KindFloat:
		return floatMethods[name]
	case kindObject:
		_, ok := obj.ref.(*cycler)
		return ok && (name == "next" || name == "reset")
	}
	return false
}

func (r *run) callMethod(m *method, a *callArgs) (Value, error) {
	switch m.self.kind {
	case KindString:
		return r.stringMethod(&m.self, m.name, a)
	case KindDict:
		return r.dictMethod(&m.self, m.name, a)
	case KindList, kindTuple, kindRange:
		return r.sequenceMethod(&m.self, m.name, a)
	case kindLoop:
		return m.self.ref.(*loop).method(r, m.name, a)
	case kindObject:
		return m.self.ref.(*cycler).call(m.name, a)
	case KindFloat:
		if m.name == "is_integer" {
			f := m.self.float()
			return Bool(f == float64(int64(f))), a.positional(m.name, 0, 0)
		}
	case KindBool, KindInt, KindBig:
		if m.name == "bit_length" {
			return integer(int64(m.self.bigOf().BitLen())), a.positional(m.name, 0, 0)
		}
	}
	return None, failf("method %s of %s is not supported", m.name, m.self.typeName())
}

func (r *run) dictMethod(self *Value, name string, a *callArgs) (Value, error) {
	d := self.dict()
	switch name {
	case "get":
		if err := a.positional(name, 1, 2); err != nil {
			return None, err
		}
		i, err := d.findValue(r, &a.pos[0])
		if err != nil {
			return None, err
		}
		if i >= 0 {
			return d.vals[i], nil
		}
		if len(a.pos) == 2 {
			return a.pos[1], nil
		}
		return None, nil
	case "keys":
		return Value{kind: kindView, ref: &view{d, viewKeys}}, a.positional(name, 0, 0)
	case "values":
		return Value{kind: kindView, ref: &view{d, viewValues}}, a.positional(name, 0, 0)
	case "items":
		return Value{kind: kindView, ref: &view{d, viewItems}}, a.positional(name, 0, 0)
	case "fromkeys":
		return dictFromKeys(r, a)
	case "copy":
		return FromDict(d.Clone()), firstError(a.positional(name, 0, 0), r.grow(2*valueBytes*d.Len()))
	}
	return None, failf("method dict.%s is not supported", name)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) sequenceMethod(self *Value, name string, a *callArgs) (Value, error) {
	if err := a.positional(name, min(1, len(name)-len("copy")), 3); err != nil {
		return None, err
	}
	items, err := r.listOf(self)
	if err != nil {
		return None, err
	}
	if name == "copy" {
		return List(append([]Value(nil), items...)), firstError(a.positional(name, 0, 0), r.grow(valueBytes*len(items)))
	}
	from, to := 0, len(items)
	if name == "count" {
		err = a.positional(name, 1, 1)
	} else if len(a.pos) > 1 {
		from, to, err = bounds(a.pos[1:], len(items))
	}
	if err != nil {
		return None, err
	}
	n := int64(0)
	for i := from; i < to; i++ {
		if err := r.step(1); err != nil {
			return None, err
		}
		same, err := r.equal(&items[i], &a.pos[0], 0)
		if err != nil {
			return None, err
		}
		if same && name == "index" {
			return integer(int64(i)), nil
		}
		n += Bool(same).num
	}
	if name == "index" {
		return None, failf("value is not in %s", self.typeName())
	}
	return integer(n), nil
}

// bounds clips the optional arguments start and end to a length, as Python's methods do.
func bounds(args []Value, n int) (from, to int, err error) {
	var pair [3]Value
	pair[0], pair[1], pair[2] = None, None, None
	for i := range args {
		if args[i].kind != KindNone && !args[i].isInteger() {
			return 0, 0, failf("slice indices must be integers or None")
		}
		pair[i] = args[i]
	}
	start, count, _ := sliceRange(&pair, n)
	return start, start + count, nil
}
