package jinja

import (
	"math/bits"
)

// builtin is a global function.
type builtin struct {
	name string
	call func(r *run, a *callArgs) (Value, error)
}

// globals has the functions that every template can call. A variable of the render hides a function with the same name.
// raise_exception and strftime_now are functions of Transformers; the other functions are jinja2's.
var globals = map[string]Value{
	"range":           {kind: kindBuiltin, ref: &builtin{"range", rangeOf}},
	"dict":            {kind: kindBuiltin, ref: &builtin{"dict", dictOf}},
	"namespace":       {kind: kindBuiltin, ref: &builtin{"namespace", namespaceOf}},
	"cycler":          {kind: kindBuiltin, ref: &builtin{"cycler", cyclerOf}},
	"joiner":          {kind: kindBuiltin, ref: &builtin{"joiner", joinerOf}},
	"lipsum":          {kind: kindBuiltin, ref: &builtin{"lipsum", lipsum}},
	"raise_exception": {kind: kindBuiltin, ref: &builtin{"raise_exception", raise}},
	"strftime_now":    {kind: kindBuiltin, ref: &builtin{"strftime_now", strftimeNow}},
}

// transformersGlobals has the globals that jinja2 itself does not have. jinja2.meta counts their names as variables of
// a template.
var transformersGlobals = set("raise_exception", "strftime_now")

// maxRange bounds the length of a range. jinja2's sandbox has the same bound.
const maxRange = 100_000

func rangeOf(r *run, a *callArgs) (Value, error) {
	if err := a.positional("range", 1, 3); err != nil {
		return None, err
	}
	for i := range a.pos {
		if !a.pos[i].isInteger() {
			return None, failf("'%s' object cannot be interpreted as an integer", a.pos[i].typeName())
		}
		if a.pos[i].kind == KindBig || max(a.pos[i].num, -a.pos[i].num) > 1<<61 {
			return None, failf("range too big")
		}
	}
	start, stop, step := int64(0), a.pos[0].num, int64(1)
	if len(a.pos) > 1 {
		start, stop = stop, a.pos[1].num
	}
	if len(a.pos) > 2 {
		if step = a.pos[2].num; step == 0 {
			return None, failf("range() arg 3 must not be zero")
		}
	}
	n := int64(0)
	if step > 0 && stop > start {
		n = (stop-start-1)/step + 1
	} else if step < 0 && stop < start {
		n = (start-stop-1)/-step + 1
	}
	if n > maxRange {
		return None, failf("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	return Value{kind: kindRange, ref: &pyRange{start, stop, step, n}}, r.step(1)
}

func dictOf(r *run, a *callArgs) (Value, error) {
	if len(a.pos) > 1 {
		return None, failf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	d := &Dict{}
	if len(a.pos) == 1 {
		if err := r.fill(d, &a.pos[0]); err != nil {
			return None, err
		}
	}
	for i := range a.kw {
		d.Set(a.kw[i].name, a.kw[i].val)
	}
	return FromDict(d), r.grow(2 * valueBytes * d.Len())
}

// dictAttribute returns an attribute of the class dict. The only attribute is the class method fromkeys. For any other
// name, jinja2 returns the generic alias dict[name], because its getattr then tries a subscript. A call of this alias
// is a call of dict, so obj stands for the alias.
func dictAttribute(obj *Value, name string) Value {
	if name == "fromkeys" {
		return Value{kind: kindBuiltin, ref: &builtin{name, dictFromKeys}}
	}
	return *obj
}

func dictFromKeys(r *run, a *callArgs) (Value, error) {
	if err := a.positional("fromkeys", 1, 2); err != nil {
		return None, err
	}
	val := None
	if len(a.pos) == 2 {
		val = a.pos[1]
	}
	keys, err := r.listOf(&a.pos[0])
	if err != nil {
		return None, err
	}
	d := &Dict{}
	for i := range keys {
		if err := d.setValue(r, keys[i], val); err != nil {
			return None, err
		}
	}
	return FromDict(d), nil
}

// fill does the same as Python's dict(from). from is a mapping, or a sequence of pairs.
func (r *run) fill(d *Dict, from *Value) error {
	if from.kind == KindDict {
		*d = *from.dict().Clone()
		return nil
	}
	pairs, err := r.listOf(from)
	if err != nil {
		return err
	}
	for i := range pairs {
		pair, err := r.unpack(&pairs[i], 2)
		if err != nil {
			return err
		}
		if err := d.setValue(r, pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func namespaceOf(r *run, a *callArgs) (Value, error) {
	v, err := dictOf(r, a)
	if err != nil {
		return None, err
	}
	return Value{kind: kindNamespace, ref: &namespace{v.dict()}}, nil
}

// selfReference is the value of the variable self.
type selfReference struct{}

// cycler is jinja2's cycler: it returns its items one after the other, and then begins again with the first item.
type cycler struct {
	items []Value
	pos   int
}

func cyclerOf(_ *run, a *callArgs) (Value, error) {
	if len(a.pos) == 0 || len(a.kw) > 0 {
		return None, failf("at least one item has to be provided")
	}
	return Value{kind: kindObject, ref: &cycler{items: append([]Value(nil), a.pos...)}}, nil
}

func (c *cycler) call(name string, a *callArgs) (Value, error) {
	if err := a.positional(name, 0, 0); err != nil {
		return None, err
	}
	if name == "reset" {
		c.pos = 0
		return None, nil
	}
	v := c.items[c.pos]
	c.pos = (c.pos + 1) % len(c.items)
	return v, nil
}

// joiner is jinja2's joiner: its first call returns "", and later calls return the separator.
type joiner struct {
	sep  Value
	used bool
}

func joinerOf(_ *run, a *callArgs) (Value, error) {
	sep := Text(", ")
	if err := bound(a, "joiner", []string{"sep"}, 0, &sep); err != nil {
		return None, err
	}
	return Value{kind: kindObject, ref: &joiner{sep: sep}}, nil
}

func (j *joiner) call(a *callArgs) (Value, error) {
	if err := a.positional("joiner", 0, 0); err != nil {
		return None, err
	}
	if !j.used {
		j.used = true
		return emptyText, nil
	}
	return j.sep, nil
}

func lipsum(*run, *callArgs) (Value, error) {
	return None, failf("lipsum is not supported: its text is random")
}

func raise(r *run, a *callArgs) (Value, error) {
	var message [1]Value
	if err := a.bind("raise_exception", []string{"message"}, 1, message[:]); err != nil {
		return None, err
	}
	s, err := r.str(&message[0])
	if err != nil {
		return None, err
	}
	return None, &RaisedError{Message: s}
}

func strftimeNow(r *run, a *callArgs) (Value, error) {
	var format [1]Value
	if err := a.bind("strftime_now", []string{"format"}, 1, format[:]); err != nil {
		return None, err
	}
	if format[0].kind != KindString {
		return None, failf("strftime() argument 1 must be str, not %s", format[0].typeName())
	}
	s, err := strftime(r.now, format[0].str)
	if err != nil {
		return None, err
	}
	return Text(s), r.grow(len(s) + bits.Len(uint(len(s))))
}
