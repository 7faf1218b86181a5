package chattemplate

import (
	"strings"
)

func (n *constExpr) eval(*run, *frame) (value, error) { return n.v, nil }

func (n *nameExpr) eval(r *run, f *frame) (value, error) {
	v := r.at(f, n.at)
	if v.kind == kindMissing {
		return undefined("'" + n.name + "' is undefined"), nil
	}
	return *v, nil
}

func (n *getAttr) eval(r *run, f *frame) (value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return none, err
	}
	// The common case first: a key of a message or a tool.
	if obj.kind == kindDict && !dictMethods[n.name] {
		if v, ok := obj.dict().get(n.name); ok && !strings.HasPrefix(n.name, "__") {
			return v, r.step(1)
		}
	}
	v, err := r.getAttr(&obj, n.name)
	return v, atLine(err, n.line)
}

func (n *getItem) eval(r *run, f *frame) (value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return none, err
	}
	if s, ok := n.index.(*sliceExpr); ok {
		v, err := s.apply(r, f, &obj)
		return v, atLine(err, n.line)
	}
	index, err := n.index.eval(r, f)
	if err != nil {
		return none, err
	}
	v, err := r.getItem(&obj, &index)
	return v, atLine(err, n.line)
}

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

// eval makes sliceExpr an expr; the parser puts it only inside brackets, getItem applies it.
func (n *sliceExpr) eval(*run, *frame) (value, error) {
	return none, failf("a slice is only an index")
}

// apply is obj[start:stop:step].
func (n *sliceExpr) apply(r *run, f *frame, obj *value) (value, error) {
	var bounds [3]value
	for i, e := range [...]expr{n.start, n.stop, n.step} {
		bounds[i] = none
		if e == nil {
			continue
		}
		v, err := e.eval(r, f)
		if err != nil {
			return none, err
		}
		bounds[i] = v
	}
	if obj.kind == kindUndefined {
		return none, using(obj)
	}
	for i := range bounds {
		if bounds[i].kind != kindNone && !bounds[i].isInteger() {
			return none, failf("slice indices must be integers or None")
		}
	}
	if bounds[2].isInteger() && !bounds[2].truthy() {
		return none, failf("slice step cannot be zero")
	}
	switch obj.kind {
	case kindString:
		return r.sliceText(obj, &bounds)
	case kindList, kindTuple:
		items := obj.items()
		start, count, step := sliceRange(&bounds, len(items))
		out := make([]value, count)
		for i := range out {
			out[i] = items[start+i*step]
		}
		return value{kind: obj.kind, ref: &list{out}}, r.grow(count * valueBytes)
	case kindRange:
		rg := obj.ref.(*pyRange)
		_, count, _ := sliceRange(&bounds, int(rg.length))
		start, stop, step := sliceIndices(&bounds, int(rg.length))
		at := func(i int) int64 { return rg.start + int64(i)*rg.step }
		return value{kind: kindRange, ref: &pyRange{at(start), at(stop), rg.step * int64(step), int64(count)}}, nil
	}
	return none, failf("'%s' object cannot be sliced", obj.typeName())
}

// sliceRange is the first index of a slice of n items, how many it has, and the step.
func sliceRange(bounds *[3]value, n int) (start, count, step int) {
	start, stop, step := sliceIndices(bounds, n)
	switch {
	case step > 0 && stop > start:
		count = (stop-start-1)/step + 1
	case step < 0 && start > stop:
		count = (start-stop-1)/-step + 1
	}
	return start, count, step
}

// sliceIndices is Python's slice.indices.
func sliceIndices(bounds *[3]value, n int) (start, stop, step int) {
	clip := func(v *value, low, high, byDefault int) int {
		if v.kind == kindNone {
			return byDefault
		}
		i := v.num
		if v.kind == kindBig {
			i = int64(v.bigOf().Sign()) << 62
		}
		if i < 0 {
			if i += int64(n); i < int64(low) {
				return low
			}
		}
		return int(min(i, int64(high)))
	}
	step = 1
	if bounds[2].kind != kindNone {
		step = clipStep(&bounds[2])
	}
	if step > 0 {
		return clip(&bounds[0], 0, n, 0), clip(&bounds[1], 0, n, n), step
	}
	return clip(&bounds[0], -1, n-1, n-1), clip(&bounds[1], -1, n-1, -1), step
}

// clipStep keeps a step in the range where arithmetic on indexes cannot overflow; no sequence is longer.
func clipStep(v *value) int {
	const most = 1 << 40
	i := v.num
	if v.kind == kindBig {
		i = int64(v.bigOf().Sign()) * most
	}
	return int(max(-most, min(i, most)))
}

func (r *run) sliceText(obj *value, bounds *[3]value) (value, error) {
	if err := r.scan(len(obj.str)); err != nil {
		return none, err
	}
	out := value{kind: kindString, safe: obj.safe}
	s := obj.str
	if isASCII(s) {
		start, count, step := sliceRange(bounds, len(s))
		if count == 0 {
			return out, nil
		}
		if step == 1 {
			out.str = s[start:][:count]
			return out, nil
		}
		b := make([]byte, count)
		for i := range b {
			b[i] = s[start+i*step]
		}
		out.str = string(b)
		return out, r.grow(count)
	}
	runes := []rune(s)
	start, count, step := sliceRange(bounds, len(runes))
	picked := make([]rune, count)
	for i := range picked {
		picked[i] = runes[start+i*step]
	}
	out.str = string(picked)
	return out, r.grow(4 * len(runes))
}

func (r *run) evalAll(exprs []expr, f *frame) ([]value, error) {
	items := make([]value, len(exprs))
	for i, e := range exprs {
		var err error
		if items[i], err = e.eval(r, f); err != nil {
			return nil, err
		}
	}
	return items, r.grow((len(items) + 1) * valueBytes)
}

func (n *listExpr) eval(r *run, f *frame) (value, error) {
	items, err := r.evalAll(n.items, f)
	return newList(items), err
}

func (n *tupleExpr) eval(r *run, f *frame) (value, error) {
	items, err := r.evalAll(n.items, f)
	return newTuple(items...), err
}

func (n *dictExpr) eval(r *run, f *frame) (value, error) {
	d := &dict{}
	for i := range n.keys {
		key, err := n.keys[i].eval(r, f)
		if err != nil {
			return none, err
		}
		val, err := n.vals[i].eval(r, f)
		if err != nil {
			return none, err
		}
		if err := d.setValue(r, key, val); err != nil {
			return none, err
		}
	}
	return newDict(d), r.grow(valueBytes)
}

func (n *notExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.a.eval(r, f)
	return boolean(!v.truthy()), err
}

func (n *andExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.a.eval(r, f)
	if err != nil || !v.truthy() {
		return v, err
	}
	return n.b.eval(r, f)
}

func (n *orExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.a.eval(r, f)
	if err != nil || v.truthy() {
		return v, err
	}
	return n.b.eval(r, f)
}

func (n *condExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.cond.eval(r, f)
	if err != nil {
		return v, err
	}
	if v.truthy() {
		return n.then.eval(r, f)
	}
	if n.other == nil {
		return undefined("the inline if-expression evaluated to false and no else section was defined"), nil
	}
	return n.other.eval(r, f)
}

func (n *concatExpr) eval(r *run, f *frame) (value, error) {
	parts := make([]string, len(n.parts))
	size := 0
	for i, e := range n.parts {
		v, err := e.eval(r, f)
		if err != nil {
			return none, err
		}
		if parts[i], err = r.str(&v); err != nil {
			return none, err
		}
		size += len(parts[i])
	}
	if err := r.grow(size); err != nil {
		return none, atLine(err, n.line)
	}
	return text(strings.Join(parts, "")), nil
}

func (n *compareExpr) eval(r *run, f *frame) (value, error) {
	a, err := n.first.eval(r, f)
	if err != nil {
		return none, err
	}
	for i := range n.ops {
		b, err := n.ops[i].with.eval(r, f)
		if err != nil {
			return none, err
		}
		holds, err := r.compare(n.ops[i].op, &a, &b)
		if err != nil {
			return none, atLine(err, n.line)
		}
		if !holds {
			return falseValue, nil
		}
		a = b
	}
	return trueValue, nil
}

func (n *unaryExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.a.eval(r, f)
	if err != nil {
		return none, err
	}
	if n.op == '-' {
		v, err = negate(&v)
	} else {
		v, err = positive(&v)
	}
	return v, atLine(err, n.line)
}

func (n *binaryExpr) eval(r *run, f *frame) (value, error) {
	a, err := n.a.eval(r, f)
	if err != nil {
		return none, err
	}
	b, err := n.b.eval(r, f)
	if err != nil {
		return none, err
	}
	if err := r.step(1); err != nil {
		return none, err
	}
	v, err := r.arithmetic(n.op, &a, &b)
	return v, atLine(err, n.line)
}

func (n *filterExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.obj.eval(r, f)
	if err != nil {
		return none, err
	}
	return n.applyOne(r, f, v)
}

// apply runs a chain of filters whose innermost has no operand, over v.
func (n *filterExpr) apply(r *run, f *frame, v value) (value, error) {
	if inner, ok := n.obj.(*filterExpr); ok {
		var err error
		if v, err = inner.apply(r, f, v); err != nil {
			return none, err
		}
	}
	return n.applyOne(r, f, v)
}

func (n *filterExpr) applyOne(r *run, f *frame, v value) (value, error) {
	if n.fn == nil {
		return none, atLine(failf("%s", unknownFilter(n.name)), n.line)
	}
	var a callArgs
	mark, err := r.evalArgs(&n.args, f, &a)
	if err == nil {
		v, err = n.fn(r, &v, &a)
	}
	r.release(mark)
	return v, atLine(err, n.line)
}

func (n *testExpr) eval(r *run, f *frame) (value, error) {
	v, err := n.obj.eval(r, f)
	if err != nil {
		return none, err
	}
	if n.fn == nil {
		return none, atLine(failf("no test named '%s'", n.name), n.line)
	}
	var a callArgs
	mark, err := r.evalArgs(&n.args, f, &a)
	holds := false
	if err == nil {
		holds, err = n.fn(r, &v, &a)
	}
	r.release(mark)
	return boolean(holds), atLine(err, n.line)
}
