package jinja

// Outline lists a template's loops, assignments, calls and macros, in the order of the source. From the Outline,
// engines conclude whether a template expects a message's content as a text or as a list of parts.
type Outline struct {
	Loops  []*Loop // all loops, including loops in macros
	Sets   []Set   // set statements, without set blocks
	Calls  []Call
	Macros []Macro
}

// Loop is a for statement.
type Loop struct{ Target, Over Expr }

// Set is an assignment of a value to a target.
type Set struct{ Target, Value Expr }

// Call is a call of a function or a macro. Arguments that are passed by * and ** are left out.
type Call struct {
	Function   Expr
	Positional []Expr
	Named      []NamedArgument
}

// NamedArgument is a keyword argument.
type NamedArgument struct {
	Name  string
	Value Expr
}

// Macro has a macro's name, its parameters, and the loops in its body. Outline.Loops has the same pointers.
type Macro struct {
	Name       string
	Parameters []string
	Loops      []*Loop
}

// Expr is an expression of a template.
type Expr struct{ e expr }

// Name returns the name of the variable, if the expression is only a variable. Otherwise it returns "".
func (e Expr) Name() string {
	if n, ok := e.e.(*nameExpr); ok {
		return n.name
	}
	return ""
}

// Reads reports whether the expression is the variable. If key is not empty, it reports whether the expression is the
// member key of the variable. Filters, tests and slices of the variable or the member count, too.
func (e Expr) Reads(variable, key string) bool { return reads(e.e, variable, key) }

func reads(e expr, name, key string) bool {
	switch n := e.(type) {
	case *filterExpr:
		return n.obj != nil && reads(n.obj, name, key)
	case *testExpr:
		return reads(n.obj, name, key)
	case *nameExpr:
		return key == "" && n.name == name
	case *getItem:
		if _, ok := n.index.(*sliceExpr); ok {
			return reads(n.obj, name, key)
		}
		c, ok := n.index.(*constExpr)
		return ok && key != "" && c.v.kind == KindString && c.v.str == key && Expr{n.obj}.Name() == name
	case *getAttr:
		return key != "" && n.name == key && Expr{n.obj}.Name() == name
	}
	return false
}

// Outline returns a new outline of the template.
func (t *Template) Outline() Outline {
	var o Outline
	loops := map[*forStmt]*Loop{}
	for _, n := range nodes[*forStmt](t.body) {
		loops[n] = &Loop{Target: Expr{n.target}, Over: Expr{n.iter}}
		o.Loops = append(o.Loops, loops[n])
	}
	for _, n := range nodes[*setStmt](t.body) {
		o.Sets = append(o.Sets, Set{Target: Expr{n.target}, Value: Expr{n.val}})
	}
	for _, n := range nodes[*callExpr](t.body) {
		c := Call{Function: Expr{n.fn}}
		for _, arg := range n.args.pos {
			c.Positional = append(c.Positional, Expr{arg})
		}
		for _, kw := range n.args.kw {
			c.Named = append(c.Named, NamedArgument{kw.name, Expr{kw.val}})
		}
		o.Calls = append(o.Calls, c)
	}
	for _, n := range nodes[*macroStmt](t.body) {
		m := Macro{Name: n.def.name}
		for _, p := range n.def.params {
			m.Parameters = append(m.Parameters, p.name)
		}
		for _, loop := range nodes[*forStmt](n.def.body) {
			m.Loops = append(m.Loops, loops[loop])
		}
		o.Macros = append(o.Macros, m)
	}
	return o
}

// nodes returns all nodes of one type in a template's statements.
func nodes[T any](body []stmt) []T {
	var out []T
	for _, s := range body {
		if n, ok := any(s).(T); ok {
			out = append(out, n)
		}
		walk(s, func(n any) {
			if n, ok := n.(T); ok {
				out = append(out, n)
			}
		})
	}
	return out
}
