package jinja

import "strings"

func (r *run) stmts(body []stmt, f *frame) (flow, error) {
	for _, s := range body {
		if r.steps--; r.steps < 0 {
			return flowNext, errSteps
		}
		if fl, err := s.exec(r, f); fl != flowNext || err != nil {
			return fl, err
		}
	}
	return flowNext, nil
}

func (n *dataStmt) exec(r *run, _ *frame) (flow, error) { return flowNext, r.emit(n.text) }

func (n *outputStmt) exec(r *run, f *frame) (flow, error) {
	if sum, ok := n.val.(*binaryExpr); ok && sum.op == "+" {
		return flowNext, atLine(r.printSum(sum, f), n.line)
	}
	v, err := n.val.eval(r, f)
	if err == nil {
		err = r.print(&v)
	}
	if err != nil {
		return flowNext, atLine(err, n.line)
	}
	return flowNext, nil
}

// maxSum is the length of the longest chain of + that is printed without building the chain's value.
const maxSum = 16

// printSum prints a chain of +. Many templates write a whole turn as such a chain. If the operands are texts, they are
// printed one after the other, so that a long content is not copied for each +.
func (r *run) printSum(n *binaryExpr, f *frame) error {
	var chain [maxSum]*binaryExpr // operators of the chain, from the last to the first
	depth := 0
	first := expr(n)
	for sum, ok := first.(*binaryExpr); ok && sum.op == "+" && depth < maxSum; sum, ok = first.(*binaryExpr) {
		chain[depth] = sum
		depth++
		first = sum.a
	}
	so, err := first.eval(r, f)
	if err != nil {
		return err
	}
	var texts [maxSum + 1]string
	count := 0
	if so.kind == KindString && !so.safe {
		texts[0], count = so.str, 1
	}
	for i := depth - 1; i >= 0; i-- {
		next, err := chain[i].b.eval(r, f)
		if err != nil {
			return err
		}
		if err := r.step(1); err != nil {
			return err
		}
		if count > 0 && next.kind == KindString && !next.safe {
			texts[count] = next.str
			count++
			continue
		}
		if count > 0 { // an operand is not a text, so the value of the chain is built
			if err := r.grow(sumLength(texts[:count])); err != nil {
				return err
			}
			so, count = Text(strings.Join(texts[:count], "")), 0
		}
		if so, err = r.arithmetic("+", &so, &next); err != nil {
			return atLine(err, chain[i].line)
		}
	}
	if count == 0 {
		return r.print(&so)
	}
	for _, s := range texts[:count] {
		if err := r.emit(s); err != nil {
			return err
		}
	}
	return nil
}

func sumLength(texts []string) (n int) {
	for _, s := range texts {
		n += len(s)
	}
	return n
}

// print writes str(v) to the output.
func (r *run) print(v *Value) error {
	switch v.kind {
	case KindString:
		return r.emit(v.str)
	case KindUndefined:
		return nil
	}
	s, err := r.str(v)
	if err != nil {
		return err
	}
	return r.emit(s)
}

func (n *ifStmt) exec(r *run, f *frame) (flow, error) {
	for i, cond := range n.conds {
		v, err := cond.eval(r, f)
		if err != nil {
			return flowNext, err
		}
		if v.truthy() {
			return r.stmts(n.then[i], f)
		}
	}
	return r.stmts(n.other, f)
}

func (n *setStmt) exec(r *run, f *frame) (flow, error) {
	v, err := n.val.eval(r, f)
	if err == nil {
		err = r.assign(n.target, v, f)
	}
	return flowNext, atLine(err, n.line)
}

// assign assigns v to a target: a name, an attribute of a namespace, or a tuple of targets.
func (r *run) assign(target expr, v Value, f *frame) error {
	switch t := target.(type) {
	case *nameExpr:
		*r.at(f, t.at) = v
		return nil
	case *nsRef:
		ns, err := t.name.eval(r, f)
		if err != nil {
			return err
		}
		if ns.kind != kindNamespace {
			return failf("cannot assign attribute on non-namespace object")
		}
		ns.ref.(*namespace).d.Set(t.attr, v)
		return r.grow(valueBytes)
	case *tupleExpr:
		items, err := r.unpack(&v, len(t.items))
		if err != nil {
			return err
		}
		for i, item := range t.items {
			if err := r.assign(item, items[i], f); err != nil {
				return err
			}
		}
	}
	return nil
}

// unpack does the same as Python's a, b = v.
func (r *run) unpack(v *Value, want int) ([]Value, error) {
	if v.isSequence() && len(v.items()) == want {
		return v.items(), nil
	}
	it, err := r.iterate(v)
	if err != nil {
		return nil, failf("cannot unpack non-iterable %s object", v.typeName())
	}
	items := make([]Value, 0, want)
	for {
		item, ok, err := it.next(r)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if items = append(items, item); len(items) > want {
			return nil, failf("too many values to unpack (expected %d)", want)
		}
	}
	if len(items) < want {
		return nil, failf("not enough values to unpack (expected %d, got %d)", want, len(items))
	}
	return items, nil
}

func (n *setBlock) exec(r *run, f *frame) (flow, error) {
	in := r.enter(n.scope, f)
	s, err := r.capture(func() error { _, err := r.stmts(n.body, in); return err })
	if err != nil {
		return flowNext, err
	}
	v := Text(s)
	if n.filter != nil {
		if v, err = n.filter.apply(r, in, v); err != nil {
			return flowNext, err
		}
	}
	return flowNext, atLine(r.assign(n.target, v, f), n.line)
}

func (n *filterBlock) exec(r *run, f *frame) (flow, error) {
	in := r.enter(n.scope, f)
	s, err := r.capture(func() error { _, err := r.stmts(n.body, in); return err })
	if err != nil {
		return flowNext, err
	}
	v, err := n.filter.apply(r, in, Text(s))
	if err != nil {
		return flowNext, err
	}
	return flowNext, r.print(&v)
}

func (n *withStmt) exec(r *run, f *frame) (flow, error) {
	in := r.enter(n.scope, f)
	for i, target := range n.targets {
		v, err := n.vals[i].eval(r, f)
		if err != nil {
			return flowNext, err
		}
		if err := r.assign(target, v, in); err != nil {
			return flowNext, err
		}
	}
	return r.stmts(n.body, in)
}

func (n *scopeStmt) exec(r *run, f *frame) (flow, error) {
	return r.stmts(n.body, r.enter(n.scope, f))
}

func (breakStmt) exec(*run, *frame) (flow, error)    { return flowBreak, nil }
func (continueStmt) exec(*run, *frame) (flow, error) { return flowContinue, nil }

func (n *macroStmt) exec(r *run, f *frame) (flow, error) {
	*r.at(f, n.at) = Value{kind: kindMacro, ref: &macro{n.def, f}}
	return flowNext, nil
}

func (n *callBlock) exec(r *run, f *frame) (flow, error) {
	caller := Value{kind: kindMacro, ref: &macro{n.def, f}}
	v, err := n.call.invoke(r, f, &caller)
	if err == nil {
		err = r.print(&v)
	}
	return flowNext, atLine(err, n.line)
}

func (n *forStmt) exec(r *run, f *frame) (flow, error) {
	seq, err := n.iter.eval(r, f)
	if err != nil {
		return flowNext, err
	}
	fl, err := n.loop(r, f, &seq, 0)
	return fl, atLine(err, n.line)
}

// loop runs the body once for each item of seq. depth is the nesting level of a recursive loop, from 0.
func (n *forStmt) loop(r *run, f *frame, seq *Value, depth int) (flow, error) {
	lp, err := n.open(r, f, seq)
	if err != nil {
		return flowNext, err
	}
	lp.depth0, lp.frame = depth, f
	var in *frame
	ran := false
	for {
		item, ok, err := lp.advance(r)
		if err != nil {
			return flowNext, err
		}
		if !ok {
			break
		}
		ran = true
		if r.steps--; r.steps < 0 {
			return flowNext, errSteps
		}
		if in == nil || n.scope.fresh {
			in = r.enter(n.scope, f)
		} else {
			r.reset(n.scope, in)
		}
		if n.usesLoop {
			*r.at(in, n.loopAt) = Value{kind: kindLoop, ref: lp}
		}
		if len(n.targets) == 1 {
			*r.at(in, n.targets[0]) = item
		} else if err := r.assign(n.target, item, in); err != nil {
			return flowNext, err
		}
		fl, err := r.stmts(n.body, in)
		if err != nil {
			return flowNext, err
		}
		if fl == flowBreak {
			break
		}
	}
	if ran || n.other == nil {
		return flowNext, nil
	}
	return r.stmts(n.other, r.enter(n.otherScope, f))
}

// open starts the iteration over seq. If the loop has a condition, items for which the condition is false are left out.
func (n *forStmt) open(r *run, f *frame, seq *Value) (*loop, error) {
	lp := &loop{stmt: n, index: -1, length: -1}
	if n.test != nil {
		it, err := r.iterate(seq)
		if err != nil {
			return nil, err
		}
		lp.it = &loopFilter{n, it, f}
		return lp, nil
	}
	lp.seq = *seq
	if seq.isSequence() {
		lp.list = seq.ref.(*list)
		return lp, nil
	}
	it, err := r.iterate(seq)
	lp.it = it
	return lp, err
}

// loopFilter is the iterator of a loop with a condition ("for … in … if test").
type loopFilter struct {
	stmt *forStmt
	it   iterator
	f    *frame
}

func (l *loopFilter) next(r *run) (Value, bool, error) {
	for {
		item, ok, err := l.it.next(r)
		if err != nil || !ok {
			return item, ok, err
		}
		if err := r.step(1); err != nil {
			return item, false, err
		}
		in := r.enter(l.stmt.testScope, l.f)
		if err := r.assign(l.stmt.testTarget, item, in); err != nil {
			return item, false, err
		}
		keep, err := l.stmt.test.eval(r, in)
		if err != nil || keep.truthy() {
			return item, true, err
		}
	}
}
