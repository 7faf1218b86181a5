package jinja

import (
	"sort"
)

// resolver gives every name its slot (the place of the variable during a render), and every filter and test its
// function.
type resolver struct {
	names map[string]int16 // variables of the render that the template uses, with their slots
	order []string
	asked map[string]bool // names that are looked up in the render's variables, as jinja2.meta finds them
	soft  bool            // the resolver is inside an if; as in jinja2, an unknown filter there fails only when a render reaches it
	err   error
}

// maxNames bounds the number of variables of one scope, so that slots stay small.
const maxNames = 10000

// resolve assigns slots to the names of a parsed template, and functions to its filters and tests.
func resolve(body []stmt) (*resolver, *scope, error) {
	r := &resolver{names: map[string]int16{}, asked: map[string]bool{}}
	root := newSymbols(nil)
	root.body(body)
	sc := r.finish(root, body, true)
	r.stmts(body, root)
	return r, sc, r.err
}

func (r *resolver) fail(line int, message string) {
	if r.err == nil {
		r.err = &syntaxError{line, message}
	}
}

// context returns the slot of a variable of the render.
func (r *resolver) context(name string) slot {
	i, ok := r.names[name]
	if !ok {
		if len(r.order) >= maxNames {
			r.fail(1, "too many variables")
			return slot{contextSlot, 0, true}
		}
		i = int16(len(r.order))
		r.names[name] = i
		r.order = append(r.order, name)
	}
	return slot{contextSlot, i, true}
}

// finish assigns the slots of a scope after the analysis of the scope. If own is true, the scope has a frame even if it
// has no variables.
func (r *resolver) finish(s *symbols, body []stmt, own bool) *scope {
	names := make([]string, 0, len(s.refs))
	for name := range s.refs {
		if s.loads[name] == loadContext {
			r.asked[name] = true
			if !s.stores[name] {
				continue // the scope never assigns to the name, so the name is read directly from the render's variables
			}
		}
		names = append(names, name)
	}
	sort.Strings(names)
	if len(names) > maxNames {
		r.fail(1, "too many variables")
		return &scope{}
	}
	s.slots = make(map[string]int16, len(names))
	s.hop = own || len(names) > 0
	out := &scope{framed: s.hop, fresh: capturesFrames(body)}
	for i, name := range names {
		s.slots[name] = int16(i)
		l := load{kind: s.loads[name]}
		switch l.kind {
		case loadContext:
			l.from = r.context(name)
		case loadOuter:
			l.from = s.parent.lookup(name, r)
		}
		out.loads = append(out.loads, l)
	}
	s.out = out
	return out
}

// capturesFrames reports whether body has a macro or a call block, which could keep the frame after the body has ended.
func capturesFrames(body []stmt) bool {
	found := false
	look := func(n any) {
		switch n.(type) {
		case *macroStmt, *callBlock:
			found = true
		}
	}
	for _, s := range body {
		look(s)
		walk(s, look)
	}
	return found
}

func (r *resolver) stmts(body []stmt, s *symbols) {
	for _, n := range body {
		r.stmt(n, s)
	}
}

// inner calls fn, which resolves a body, with soft set to false. Afterwards soft has its former value.
func (r *resolver) inner(fn func()) {
	soft := r.soft
	r.soft = false
	fn()
	r.soft = soft
}

func (r *resolver) stmt(n stmt, s *symbols) {
	switch n := n.(type) {
	case *outputStmt:
		r.expr(n.val, s)
	case *ifStmt:
		soft := r.soft
		r.soft = true
		for i := range n.conds {
			r.expr(n.conds[i], s)
			r.stmts(n.then[i], s)
		}
		r.stmts(n.other, s)
		r.soft = soft
	case *forStmt:
		r.inner(func() { r.forLoop(n, s) })
	case *setStmt:
		r.expr(n.val, s)
		r.expr(n.target, s)
	case *setBlock:
		r.expr(n.target, s)
		r.inner(func() {
			in := newSymbols(s)
			in.body(n.body)
			n.scope = r.finish(in, n.body, false)
			r.stmts(n.body, in)
			if n.filter != nil {
				r.expr(n.filter, in)
			}
		})
	case *macroStmt:
		n.at = s.lookup(n.def.name, r)
		r.inner(func() { r.macro(n.def, s) })
	case *callBlock:
		r.expr(n.call, s)
		r.inner(func() { r.macro(n.def, s) })
	case *filterBlock:
		r.inner(func() {
			in := newSymbols(s)
			in.body(n.body)
			in.read(n.filter)
			n.scope = r.finish(in, n.body, false)
			r.stmts(n.body, in)
			r.expr(n.filter, in)
		})
	case *withStmt:
		for _, v := range n.vals {
			r.expr(v, s)
		}
		r.inner(func() {
			in := newSymbols(s)
			for _, t := range n.targets {
				in.assign(t, in.param)
			}
			in.body(n.body)
			n.scope = r.finish(in, n.body, false)
			for _, t := range n.targets {
				r.expr(t, in)
			}
			r.stmts(n.body, in)
		})
	case *scopeStmt:
		r.inner(func() {
			in := newSymbols(s)
			in.body(n.body)
			n.scope = r.finish(in, n.body, false)
			r.stmts(n.body, in)
		})
	}
}

func (r *resolver) forLoop(n *forStmt, s *symbols) {
	r.expr(n.iter, s)
	walk(n, func(child any) {
		for _, target := range storedTargets(child) {
			if bindsName(target, "loop") {
				r.fail(n.line, "can't assign to special loop variable in for-loop")
			}
		}
	})
	n.usesLoop = n.recursive || mentions(n.body, "loop")
	in := newSymbols(s)
	if n.usesLoop {
		in.param("loop")
	}
	in.assign(n.target, in.param)
	in.body(n.body)
	n.scope = r.finish(in, n.body, true)
	if n.usesLoop {
		n.loopAt = in.lookup("loop", r)
	}
	if n.test != nil {
		test := newSymbols(s)
		test.assign(n.target, test.param)
		test.read(n.test)
		n.testScope = r.finish(test, nil, true)
		n.testTarget = copyTarget(n.target)
		r.expr(n.testTarget, test)
		r.expr(n.test, test)
	}
	r.expr(n.target, in)
	n.targets = flatTargets(n.target)
	r.stmts(n.body, in)
	other := newSymbols(s)
	other.body(n.other)
	n.otherScope = r.finish(other, n.other, false)
	r.stmts(n.other, other)
}

// storedTargets returns the targets to which a statement assigns. As in jinja2, parameters of with and macro do not
// count.
func storedTargets(n any) []expr {
	switch n := n.(type) {
	case *setStmt:
		return []expr{n.target}
	case *setBlock:
		return []expr{n.target}
	}
	return nil
}

// copyTarget copies the target of an assignment, so that it can be resolved in a second scope.
func copyTarget(e expr) expr {
	switch e := e.(type) {
	case *nameExpr:
		return &nameExpr{name: e.name, line: e.line}
	case *tupleExpr:
		c := &tupleExpr{}
		for _, item := range e.items {
			c.items = append(c.items, copyTarget(item))
		}
		return c
	}
	return e
}

// flatTargets returns the slots of a target that is a name or a tuple of names.
func flatTargets(e expr) []slot {
	switch e := e.(type) {
	case *nameExpr:
		return []slot{e.at}
	case *tupleExpr:
		var out []slot
		for _, item := range e.items {
			name, ok := item.(*nameExpr)
			if !ok {
				return nil
			}
			out = append(out, name.at)
		}
		return out
	}
	return nil
}

func (r *resolver) macro(d *macroDef, s *symbols) {
	in := newSymbols(s)
	for _, p := range d.params {
		in.param(p.name)
		d.explicitCaller = d.explicitCaller || p.name == "caller"
	}
	special := func(name string) bool {
		for i, p := range d.params {
			if p.name == name {
				if name == "caller" && i < len(d.params)-len(d.defaults) && mentions(d.body, name) {
					r.fail(d.line, `the special "caller" argument must be omitted or be given a default`)
				}
				return false
			}
		}
		if !mentions(d.body, name) {
			return false
		}
		in.param(name)
		return true
	}
	d.hasCaller, d.hasKwargs, d.hasVars = special("caller"), special("kwargs"), special("varargs")
	for _, e := range d.defaults {
		in.read(e)
	}
	in.body(d.body)
	d.scope = r.finish(in, d.body, true)
	for _, p := range d.params {
		p.at = in.lookup(p.name, r)
	}
	at := func(has bool, name string) slot {
		if has {
			return in.lookup(name, r)
		}
		return slot{}
	}
	d.caller, d.kwargs, d.varargs = at(d.hasCaller, "caller"), at(d.hasKwargs, "kwargs"), at(d.hasVars, "varargs")
	for _, e := range d.defaults {
		r.expr(e, in)
	}
	r.stmts(d.body, in)
}

// expr resolves the names, filters and tests in an expression or a target.
func (r *resolver) expr(n any, s *symbols) {
	switch n := n.(type) {
	case *nameExpr:
		n.at = s.lookup(n.name, r)
		return
	case *condExpr:
		soft := r.soft
		r.soft = true
		exprChildren(n, func(child any) { r.expr(child, s) })
		r.soft = soft
		return
	case *filterExpr:
		n.fn = filters[n.name]
		if n.fn == nil && (!r.soft || leftOut[n.name] != "") {
			r.fail(n.line, unknownFilter(n.name))
		}
	case *testExpr:
		n.fn = tests[n.name]
		if n.fn == nil && !r.soft {
			r.fail(n.line, "no test named '"+n.name+"'")
		}
	}
	exprChildren(n, func(child any) { r.expr(child, s) })
}

// leftOut has the filters of jinja2 that this package refuses, and the reasons.
var leftOut = map[string]string{
	"random": "its result is not determined by its input",
	"pprint": "it prints for people",
	"urlize": "it makes HTML links",
}

func unknownFilter(name string) string {
	if why := leftOut[name]; why != "" {
		return "filter '" + name + "' is not supported: " + why
	}
	return "no filter named '" + name + "'"
}
