package jinja

import (
	"strings"
)

func (n *constExpr) eval(*run, *frame) (Value, error) { return n.v, nil }

func (n *nameExpr) eval(r *run, f *frame) (Value, error) {
	v := r.at(f, n.at)
	if v.kind == kindMissing {
		return undefined("'" + n.name + "' is undefined"), nil
	}
	return *v, nil
}

func (n *getAttr) eval(r *run, f *frame) (Value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return None, err
	}
	// Most attributes are keys of a message or a tool, so they are looked up first.
	if obj.kind == KindDict && !dictMethods[n.name] {
		if v, ok := obj.dict().Get(n.name); ok && !strings.HasPrefix(n.name, "__") {
			return v, r.step(1)
		}
	}
	v, err := r.getAttr(&obj, n.name)
	return v, atLine(err, n.line)
}

func (n *getItem) eval(r *run, f *frame) (Value, error) {
	obj, err := n.obj.eval(r, f)
	if err != nil {
		return None, err
	}
	if s, ok := n.index.(*sliceExpr); ok {
		v, err := s.apply(r, f, &obj)
		return v, atLine(err, n.line)
	}
	index, err := n.index.eval(r, f)
	if err != nil {
		return None, err
	}
	v, err := r.getItem(&obj, &index)
	return v, atLine(err, n.line)
}

func (r *run) evalAll(exprs []expr, f *frame) ([]Value, error) {
	items := make([]Value, len(exprs))
	for i, e := range exprs {
		var err error
		if items[i], err = e.eval(r, f); err != nil {
			return nil, err
		}
	}
	return items, r.grow((len(items) + 1) * valueBytes)
}

func (n *listExpr) eval(r *run, f *frame) (Value, error) {
	items, err := r.evalAll(n.items, f)
	return List(items), err
}

func (n *tupleExpr) eval(r *run, f *frame) (Value, error) {
	items, err := r.evalAll(n.items, f)
	return newTuple(items...), err
}

func (n *dictExpr) eval(r *run, f *frame) (Value, error) {
	d := &Dict{}
	for i := range n.keys {
		key, err := n.keys[i].eval(r, f)
		if err != nil {
			return None, err
		}
		val, err := n.vals[i].eval(r, f)
		if err != nil {
			return None, err
		}
		if err := d.setValue(r, key, val); err != nil {
			return None, err
		}
	}
	return FromDict(d), r.grow(valueBytes)
}

func (n *notExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.a.eval(r, f)
	return Bool(!v.truthy()), err
}

func (n *andExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.a.eval(r, f)
	if err != nil || !v.truthy() {
		return v, err
	}
	return n.b.eval(r, f)
}

func (n *orExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.a.eval(r, f)
	if err != nil || v.truthy() {
		return v, err
	}
	return n.b.eval(r, f)
}

func (n *condExpr) eval(r *run, f *frame) (Value, error) {
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

func (n *concatExpr) eval(r *run, f *frame) (Value, error) {
	parts := make([]string, len(n.parts))
	size := 0
	for i, e := range n.parts {
		v, err := e.eval(r, f)
		if err != nil {
			return None, err
		}
		if parts[i], err = r.str(&v); err != nil {
			return None, err
		}
		size += len(parts[i])
	}
	if err := r.grow(size); err != nil {
		return None, atLine(err, n.line)
	}
	return Text(strings.Join(parts, "")), nil
}

func (n *compareExpr) eval(r *run, f *frame) (Value, error) {
	a, err := n.first.eval(r, f)
	if err != nil {
		return None, err
	}
	for i := range n.ops {
		b, err := n.ops[i].with.eval(r, f)
		if err != nil {
			return None, err
		}
		holds, err := r.compare(n.ops[i].op, &a, &b)
		if err != nil {
			return None, atLine(err, n.line)
		}
		if !holds {
			return falseValue, nil
		}
		a = b
	}
	return trueValue, nil
}

func (n *unaryExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.a.eval(r, f)
	if err != nil {
		return None, err
	}
	if n.op == '-' {
		v, err = negate(&v)
	} else {
		v, err = positive(&v)
	}
	return v, atLine(err, n.line)
}

func (n *binaryExpr) eval(r *run, f *frame) (Value, error) {
	a, err := n.a.eval(r, f)
	if err != nil {
		return None, err
	}
	b, err := n.b.eval(r, f)
	if err != nil {
		return None, err
	}
	if err := r.step(1); err != nil {
		return None, err
	}
	v, err := r.arithmetic(n.op, &a, &b)
	return v, atLine(err, n.line)
}

func (n *filterExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.obj.eval(r, f)
	if err != nil {
		return None, err
	}
	return n.applyOne(r, f, v)
}

// apply runs a chain of filters on v. The innermost filter of the chain has no operand.
func (n *filterExpr) apply(r *run, f *frame, v Value) (Value, error) {
	if inner, ok := n.obj.(*filterExpr); ok {
		var err error
		if v, err = inner.apply(r, f, v); err != nil {
			return None, err
		}
	}
	return n.applyOne(r, f, v)
}

func (n *filterExpr) applyOne(r *run, f *frame, v Value) (Value, error) {
	if n.fn == nil {
		return None, atLine(failf("%s", unknownFilter(n.name)), n.line)
	}
	var a callArgs
	mark, err := r.evalArgs(&n.args, f, &a)
	if err == nil {
		v, err = n.fn(r, &v, &a)
	}
	r.release(mark)
	return v, atLine(err, n.line)
}

func (n *testExpr) eval(r *run, f *frame) (Value, error) {
	v, err := n.obj.eval(r, f)
	if err != nil {
		return None, err
	}
	if n.fn == nil {
		return None, atLine(failf("no test named '%s'", n.name), n.line)
	}
	var a callArgs
	mark, err := r.evalArgs(&n.args, f, &a)
	holds := false
	if err == nil {
		holds, err = n.fn(r, &v, &a)
	}
	r.release(mark)
	return Bool(holds), atLine(err, n.line)
}
