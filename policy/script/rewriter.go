package script

import (
	"fmt"
	"math/big"

	"go.starlark.net/syntax"
)

// Starlark counts steps, but one step may take any amount of time and memory: [0] * 10**9 is one step, and so is the
// string that doubles. So the compiler changes the syntax tree before it is resolved. Each operation whose cost depends
// on the size of its operands becomes a call of a function of operators.go, which charges the cost to the meter of the
// call before it runs the operation. The names of these functions are no identifiers, so that no script can reach or
// replace them. What is left of the language costs a constant amount for each step.

// rewriter changes a syntax tree. It keeps the first problem that it finds.
type rewriter struct {
	err error
}

func (r *rewriter) refuse(at syntax.Position, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{File: at.Filename(), Line: int(at.Line), Column: int(at.Col), Problem: fmt.Sprintf(format, args...)}
	}
}

// invoke makes a call of the operation name, at the position of the operator in the source.
func invoke(name string, at syntax.Position, args ...syntax.Expr) syntax.Expr {
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: at, Name: name}, Lparen: at, Args: args, Rparen: at}
}

func (r *rewriter) stmts(list []syntax.Stmt) {
	for i, s := range list {
		list[i] = r.stmt(s)
	}
}

func (r *rewriter) stmt(s syntax.Stmt) syntax.Stmt {
	switch s := s.(type) {
	case *syntax.AssignStmt:
		return r.assign(s)
	case *syntax.DefStmt:
		r.parameters(s.Params)
		r.stmts(s.Body)
	case *syntax.ExprStmt:
		s.X = r.expr(s.X)
	case *syntax.ForStmt:
		r.target(s.Vars)
		s.X = r.expr(s.X)
		r.stmts(s.Body)
	case *syntax.IfStmt:
		s.Cond = r.expr(s.Cond)
		r.stmts(s.True)
		r.stmts(s.False)
	case *syntax.ReturnStmt:
		if s.Result != nil {
			s.Result = r.expr(s.Result)
		}
	case *syntax.LoadStmt:
		r.refuse(s.Load, "load is not available: a script is one file")
	case *syntax.WhileStmt:
		r.refuse(s.While, "while is not available: use for, with range(n)")
	case *syntax.BranchStmt:
	default:
		r.refuse(syntax.Start(s), "this statement is not available")
	}
	return s
}

// assign changes an assignment. An assignment to an element becomes a call, because the memory of the router (state)
// is bounded, and only some calls may change it.
func (r *rewriter) assign(s *syntax.AssignStmt) syntax.Stmt {
	value := r.expr(s.RHS)
	element, isElement := unparen(s.LHS).(*syntax.IndexExpr)
	if s.Op == syntax.EQ {
		if isElement {
			return &syntax.ExprStmt{X: invoke("[]=", s.OpPos, r.expr(element.X), r.expr(element.Y), value)}
		}
		r.target(s.LHS)
		s.RHS = value
		return s
	}
	operation := s.Op.String() // such as +=
	switch to := unparen(s.LHS).(type) {
	case *syntax.IndexExpr:
		kind := &syntax.Literal{Token: syntax.STRING, TokenPos: s.OpPos, Raw: `"` + operation + `"`, Value: operation}
		return &syntax.ExprStmt{X: invoke("[]op=", s.OpPos, r.expr(to.X), r.expr(to.Y), value, kind)}
	case *syntax.Ident:
		old := &syntax.Ident{NamePos: to.NamePos, Name: to.Name}
		return &syntax.AssignStmt{OpPos: s.OpPos, Op: syntax.EQ, LHS: to, RHS: invoke(operation, s.OpPos, old, value)}
	}
	r.refuse(s.OpPos, "only a variable or an element can be changed by %s", operation)
	return s
}

// target checks the variables that a loop or an assignment sets.
func (r *rewriter) target(e syntax.Expr) {
	switch e := unparen(e).(type) {
	case *syntax.Ident:
	case *syntax.TupleExpr:
		for _, inner := range e.List {
			r.target(inner)
		}
	case *syntax.ListExpr:
		for _, inner := range e.List {
			r.target(inner)
		}
	default:
		r.refuse(syntax.Start(e), "only variables can be set here")
	}
}

// parameters changes the default values of a function's parameters.
func (r *rewriter) parameters(list []syntax.Expr) {
	for _, p := range list {
		if p, ok := p.(*syntax.BinaryExpr); ok {
			p.Y = r.expr(p.Y)
		}
	}
}

func (r *rewriter) exprs(list []syntax.Expr) {
	for i, e := range list {
		list[i] = r.expr(e)
	}
}

func (r *rewriter) expr(e syntax.Expr) syntax.Expr {
	switch e := e.(type) {
	case *syntax.BinaryExpr:
		return r.binary(e)
	case *syntax.CallExpr:
		return r.called(e)
	case *syntax.Comprehension:
		for _, c := range e.Clauses {
			switch c := c.(type) {
			case *syntax.ForClause:
				r.target(c.Vars)
				c.X = r.expr(c.X)
			case *syntax.IfClause:
				c.Cond = r.expr(c.Cond)
			}
		}
		e.Body = r.expr(e.Body)
	case *syntax.CondExpr:
		e.Cond, e.True, e.False = r.expr(e.Cond), r.expr(e.True), r.expr(e.False)
	case *syntax.DictEntry:
		e.Key, e.Value = r.expr(e.Key), r.expr(e.Value)
	case *syntax.DictExpr:
		r.exprs(e.List)
	case *syntax.DotExpr:
		e.X = r.expr(e.X)
		if methods[e.Name.Name] != nil {
			r.refuse(e.Name.NamePos, "call the method where you name it: .%s(…)", e.Name.Name)
		} else if !attributes[e.Name.Name] {
			r.refuse(e.Name.NamePos, "nothing has the attribute or method .%s (known: %s)", e.Name.Name, knownAttributes())
		}
	case *syntax.Ident:
		if unavailable(e.Name) {
			r.refuse(e.NamePos, "%s is not available", e.Name)
		}
	case *syntax.IndexExpr:
		e.X, e.Y = r.expr(e.X), r.expr(e.Y)
	case *syntax.LambdaExpr:
		r.parameters(e.Params)
		e.Body = r.expr(e.Body)
	case *syntax.ListExpr:
		r.exprs(e.List)
	case *syntax.Literal:
		if n, big := e.Value.(*big.Int); big && n.BitLen() > maxBits {
			r.refuse(e.TokenPos, "a number has at most %d bits", maxBits)
		}
	case *syntax.ParenExpr:
		e.X = r.expr(e.X)
	case *syntax.SliceExpr:
		e.X = invoke("[:]", e.Lbrack, r.expr(e.X))
		for _, bound := range []*syntax.Expr{&e.Lo, &e.Hi, &e.Step} {
			if *bound != nil {
				*bound = r.expr(*bound)
			}
		}
	case *syntax.TupleExpr:
		r.exprs(e.List)
		return invoke("()", syntax.Start(e), e)
	case *syntax.UnaryExpr:
		if e.X != nil {
			e.X = r.expr(e.X)
		}
	default:
		r.refuse(syntax.Start(e), "this expression is not available")
	}
	return e
}

// binary changes an operator whose cost depends on its operands. An operator with a literal number or text often has a
// constant cost; it is left as it is, because this is faster.
func (r *rewriter) binary(e *syntax.BinaryExpr) syntax.Expr {
	x, y := unparen(e.X), unparen(e.Y)
	e.X, e.Y = r.expr(e.X), r.expr(e.Y)
	switch e.Op {
	case syntax.PLUS, syntax.MINUS:
		if isNumber(x) || isNumber(y) {
			return e // a number, or an error; a whole number grows by one bit at most
		}
	case syntax.STAR:
		if isFloat(x) || isFloat(y) || (isNumber(x) && isNumber(y)) {
			return e // a number of at most twice as many bits as a literal
		}
	case syntax.PERCENT, syntax.LTLT, syntax.PIPE, syntax.IN, syntax.NOT_IN:
	case syntax.EQL, syntax.NEQ, syntax.LT, syntax.LE, syntax.GT, syntax.GE:
		if isScalar(x) || isScalar(y) {
			return e
		}
	default:
		return e
	}
	return invoke(e.Op.String(), e.OpPos, e.X, e.Y)
}

// called changes a call. A call of a method becomes a call of the function that callMethod returns for the method.
func (r *rewriter) called(e *syntax.CallExpr) syntax.Expr {
	named := false
	for i, arg := range e.Args {
		switch arg := arg.(type) {
		case *syntax.UnaryExpr:
			if arg.Op == syntax.STAR || arg.Op == syntax.STARSTAR {
				r.refuse(arg.OpPos, "* and ** are not available in calls: write the arguments one by one")
				return e
			}
		case *syntax.BinaryExpr:
			if arg.Op == syntax.EQ { // NAME=VALUE
				arg.Y = r.expr(arg.Y)
				named = true
				continue
			}
		}
		e.Args[i] = r.expr(arg)
	}
	method, ok := unparen(e.Fn).(*syntax.DotExpr)
	if !ok {
		e.Fn = r.expr(e.Fn)
		return e
	}
	switch name := method.Name.Name; {
	case methods[name] == nil:
		r.refuse(method.Name.NamePos, "there is no method .%s (known: %s)", name, knownMethods())
	case named:
		r.refuse(method.Name.NamePos, "methods take no named arguments")
	default:
		return invoke("."+name, method.Name.NamePos, append([]syntax.Expr{r.expr(method.X)}, e.Args...)...)
	}
	return e
}

func unparen(e syntax.Expr) syntax.Expr {
	for {
		p, ok := e.(*syntax.ParenExpr)
		if !ok {
			return e
		}
		e = p.X
	}
}

func isToken(e syntax.Expr, t syntax.Token) bool {
	l, ok := e.(*syntax.Literal)
	return ok && l.Token == t
}

func isFloat(e syntax.Expr) bool { return isToken(e, syntax.FLOAT) }

// isNumber reports whether e is a bounded number: a literal, or an attribute that is always a number.
func isNumber(e syntax.Expr) bool {
	attribute, ok := e.(*syntax.DotExpr)
	return isFloat(e) || isToken(e, syntax.INT) || (ok && !notNumbers[attribute.Name.Name])
}

// notNumbers has the attributes that are not always numbers. first_token_seconds may be None.
var notNumbers = names([]string{"first_token_seconds", "labels", "last_resort", "lora", "model", "result", "session", "tenant", "tokens_known", "trust", "url"})

// isScalar reports whether a comparison with e has a constant cost, whatever the other operand is.
func isScalar(e syntax.Expr) bool {
	name, ok := e.(*syntax.Ident)
	return isNumber(e) || isToken(e, syntax.STRING) || (ok && name.Name == "None")
}
