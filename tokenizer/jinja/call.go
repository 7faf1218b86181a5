package jinja

// callArgs has the evaluated arguments of a call, filter or test. pos may be a part of the run's stack. A function that
// keeps pos after its return must copy pos.
type callArgs struct {
	pos []Value
	kw  []namedValue
}

type namedValue struct {
	name string
	val  Value
}

// macro is the code of a macro, with the frame in which it was defined.
type macro struct {
	def   *macroDef
	frame *frame
}

// evalArgs evaluates arguments onto the run's stack. The caller frees the arguments with release.
func (r *run) evalArgs(n *arguments, f *frame, a *callArgs) (mark int, err error) {
	mark = len(r.stack)
	for _, e := range n.pos {
		v, err := e.eval(r, f)
		if err != nil {
			return mark, err
		}
		r.stack = append(r.stack, v)
	}
	if n.star != nil {
		v, err := n.star.eval(r, f)
		if err != nil {
			return mark, err
		}
		items, err := r.listOf(&v)
		if err != nil {
			return mark, err
		}
		r.stack = append(r.stack, items...)
	}
	a.pos = r.stack[mark:len(r.stack):len(r.stack)]
	for i := range n.kw {
		v, err := n.kw[i].val.eval(r, f)
		if err != nil {
			return mark, err
		}
		a.kw = append(a.kw, namedValue{n.kw[i].name, v})
	}
	if n.starStar != nil {
		v, err := n.starStar.eval(r, f)
		if err != nil {
			return mark, err
		}
		if v.kind != KindDict {
			return mark, failf("argument after ** must be a mapping, not %s", v.typeName())
		}
		d := v.dict()
		for i := range d.keys {
			if d.keys[i].kind != KindString {
				return mark, failf("keywords must be strings")
			}
			if _, twice := a.named(d.keys[i].str); twice {
				return mark, failf("got multiple values for keyword argument '%s'", d.keys[i].str)
			}
			a.kw = append(a.kw, namedValue{d.keys[i].str, d.vals[i]})
		}
	}
	return mark, r.step(1 + len(a.pos) + len(a.kw))
}

func (r *run) release(mark int) { r.stack = r.stack[:mark] }

func (a *callArgs) named(name string) (Value, bool) {
	for i := range a.kw {
		if a.kw[i].name == name {
			return a.kw[i].val, true
		}
	}
	return Value{}, false
}

// bind assigns arguments to named parameters, as Python does. Before the call, into has the default of each parameter.
// A parameter without an argument keeps its default.
func (a *callArgs) bind(fn string, names []string, required int, into []Value) error {
	if len(a.pos) > len(names) {
		return failf("%s() takes at most %d arguments (%d given)", fn, len(names), len(a.pos))
	}
	copy(into, a.pos)
	for i := range a.kw {
		at := -1
		for k, name := range names {
			if name == a.kw[i].name {
				at = k
			}
		}
		if at < 0 {
			return failf("%s() got an unexpected keyword argument '%s'", fn, a.kw[i].name)
		}
		if at < len(a.pos) {
			return failf("%s() got multiple values for argument '%s'", fn, names[at])
		}
		into[at] = a.kw[i].val
	}
	for i := len(a.pos); i < required; i++ {
		if _, given := a.named(names[i]); !given {
			return failf("%s() missing required argument: '%s'", fn, names[i])
		}
	}
	return nil
}

// positional returns an error if there are keyword arguments, or a wrong number of arguments.
func (a *callArgs) positional(fn string, least, most int) error {
	if len(a.kw) > 0 {
		return failf("%s() takes no keyword arguments", fn)
	}
	if len(a.pos) < least || len(a.pos) > most {
		return failf("%s() takes %d to %d arguments (%d given)", fn, least, most, len(a.pos))
	}
	return nil
}

func (n *callExpr) eval(r *run, f *frame) (Value, error) { return n.invoke(r, f, nil) }

// invoke makes the call. In a call block, caller is the block's body, and is passed as the keyword argument "caller".
// Without a call block, caller is nil.
func (n *callExpr) invoke(r *run, f *frame, caller *Value) (Value, error) {
	var fn Value
	var self *method
	var direct method
	if attr, ok := n.fn.(*getAttr); ok {
		// A method that is called directly needs no Value of kind kindMethod.
		obj, err := attr.obj.eval(r, f)
		if err != nil {
			return None, err
		}
		if hasMethod(&obj, attr.name) {
			direct = method{obj, attr.name}
			self = &direct
		} else if fn, err = r.getAttr(&obj, attr.name); err != nil {
			return None, atLine(err, n.line)
		}
	} else {
		var err error
		if fn, err = n.fn.eval(r, f); err != nil {
			return None, err
		}
	}
	var a callArgs
	mark, err := r.evalArgs(&n.args, f, &a)
	if err == nil {
		if caller != nil {
			a.kw = append(a.kw, namedValue{"caller", *caller})
		}
		if self != nil {
			fn, err = r.callMethod(self, &a)
		} else {
			fn, err = r.call(&fn, &a)
		}
	}
	r.release(mark)
	if err != nil {
		return None, atLine(err, n.line)
	}
	return fn, nil
}

func (r *run) call(fn *Value, a *callArgs) (Value, error) {
	switch fn.kind {
	case kindMacro:
		return r.callMacro(fn.ref.(*macro), a)
	case kindMethod:
		return r.callMethod(fn.ref.(*method), a)
	case kindBuiltin:
		return fn.ref.(*builtin).call(r, a)
	case kindLoop:
		return fn.ref.(*loop).call(r, a)
	case kindObject:
		if j, ok := fn.ref.(*joiner); ok {
			return j.call(a)
		}
	case KindUndefined:
		return None, using(fn)
	}
	return None, failf("'%s' object is not callable", fn.typeName())
}

// callMacro binds the arguments as jinja2's Macro does, and renders the macro's body.
func (r *run) callMacro(m *macro, a *callArgs) (Value, error) {
	if err := r.deeper(); err != nil {
		return None, err
	}
	defer func() { r.depth-- }()
	d := m.def
	f := r.enter(d.scope, m.frame)
	used, err := r.bindMacro(d, f, a)
	if err != nil {
		return None, err
	}
	if d.hasKwargs {
		rest := &Dict{}
		for i := range a.kw {
			if !used(a.kw[i].name) {
				rest.Set(a.kw[i].name, a.kw[i].val)
			}
		}
		*r.at(f, d.kwargs) = FromDict(rest)
	}
	if d.hasVars {
		var rest []Value
		if len(a.pos) > len(d.params) {
			rest = append(rest, a.pos[len(d.params):]...)
		}
		*r.at(f, d.varargs) = newTuple(rest...)
	}
	s, err := r.capture(func() error { _, err := r.stmts(d.body, f); return err })
	return Text(s), err
}

// bindMacro gives the parameters of a macro their values. used reports whether a keyword argument is one of the
// parameters.
func (r *run) bindMacro(d *macroDef, f *frame, a *callArgs) (used func(string) bool, err error) {
	used = func(name string) bool {
		for i := min(len(a.pos), len(d.params)); i < len(d.params); i++ {
			if d.params[i].name == name {
				return true
			}
		}
		return d.hasCaller && name == "caller"
	}
	for i := range d.params {
		if i < len(a.pos) {
			*r.at(f, d.params[i].at) = a.pos[i]
		} else if v, ok := a.named(d.params[i].name); ok {
			*r.at(f, d.params[i].at) = v
		}
	}
	if d.hasCaller {
		caller, ok := a.named("caller")
		if !ok || caller.kind == KindNone {
			caller = undefined("no caller defined")
		}
		*r.at(f, d.caller) = caller
	}
	if !d.hasKwargs {
		for i := range a.kw {
			if !used(a.kw[i].name) {
				return nil, failf("macro '%s' takes no keyword argument '%s'", d.name, a.kw[i].name)
			}
		}
	}
	if !d.hasVars && len(a.pos) > len(d.params) {
		return nil, failf("macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	return used, r.macroDefaults(d, f)
}

// macroDefaults evaluates the defaults of the parameters that have no value, in order.
func (r *run) macroDefaults(d *macroDef, f *frame) error {
	for i, p := range d.params {
		at := r.at(f, p.at)
		if at.kind != kindMissing {
			continue
		}
		k := i - (len(d.params) - len(d.defaults))
		if k < 0 {
			*at = undefined("parameter '" + p.name + "' was not provided")
			continue
		}
		v, err := d.defaults[k].eval(r, f)
		if err != nil {
			return err
		}
		*r.at(f, p.at) = v
	}
	return nil
}
