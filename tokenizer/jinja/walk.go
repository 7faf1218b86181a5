package jinja

// children calls visit for the direct children of a node, in the order of the fields of jinja2's nodes. The content
// format that an engine detects depends on this order.
func children(n any, visit func(any)) {
	switch n := n.(type) {
	case *outputStmt:
		visit(n.val)
	case *ifStmt:
		ifChildren(n, visit)
	case *forStmt:
		visit(n.target)
		visit(n.iter)
		each(n.body, visit)
		each(n.other, visit)
		one(n.test, visit)
	case *setStmt:
		visit(n.target)
		visit(n.val)
	case *setBlock:
		visit(n.target)
		if n.filter != nil {
			visit(n.filter)
		}
		each(n.body, visit)
	case *macroStmt:
		defChildren(n.def, visit)
	case *callBlock:
		visit(n.call)
		defChildren(n.def, visit)
	case *filterBlock:
		each(n.body, visit)
		visit(n.filter)
	case *withStmt:
		each(n.targets, visit)
		each(n.vals, visit)
		each(n.body, visit)
	case *scopeStmt:
		each(n.body, visit)
	default:
		exprChildren(n, visit)
	}
}

func ifChildren(n *ifStmt, visit func(any)) {
	for i := range n.conds {
		visit(n.conds[i])
		each(n.then[i], visit)
	}
	each(n.other, visit)
}

func defChildren(d *macroDef, visit func(any)) {
	each(d.params, visit)
	each(d.defaults, visit)
	each(d.body, visit)
}

func exprChildren(n any, visit func(any)) {
	switch n := n.(type) {
	case *nsRef:
		visit(n.name)
	case *getAttr:
		visit(n.obj)
	case *getItem:
		visit(n.obj)
		visit(n.index)
	case *sliceExpr:
		one(n.start, visit)
		one(n.stop, visit)
		one(n.step, visit)
	case *listExpr:
		each(n.items, visit)
	case *tupleExpr:
		each(n.items, visit)
	case *dictExpr:
		for i := range n.keys {
			visit(n.keys[i])
			visit(n.vals[i])
		}
	case *callExpr:
		visit(n.fn)
		argChildren(&n.args, visit)
	case *filterExpr:
		one(n.obj, visit)
		argChildren(&n.args, visit)
	case *testExpr:
		visit(n.obj)
		argChildren(&n.args, visit)
	case *binaryExpr:
		visit(n.a)
		visit(n.b)
	case *unaryExpr:
		visit(n.a)
	case *notExpr:
		visit(n.a)
	case *andExpr:
		visit(n.a)
		visit(n.b)
	case *orExpr:
		visit(n.a)
		visit(n.b)
	case *concatExpr:
		each(n.parts, visit)
	case *compareExpr:
		visit(n.first)
		for i := range n.ops {
			visit(n.ops[i].with)
		}
	case *condExpr:
		visit(n.cond)
		visit(n.then)
		one(n.other, visit)
	}
}

func argChildren(a *arguments, visit func(any)) {
	each(a.pos, visit)
	for i := range a.kw {
		visit(a.kw[i].val)
	}
	one(a.star, visit)
	one(a.starStar, visit)
}

func each[T any](nodes []T, visit func(any)) {
	for _, n := range nodes {
		visit(n)
	}
}

func one(e expr, visit func(any)) {
	if e != nil {
		visit(e)
	}
}

// walk calls visit for every node below n, for parents before their children. It does not visit n itself.
func walk(n any, visit func(any)) {
	children(n, func(child any) {
		visit(child)
		walk(child, visit)
	})
}

// mentions reports whether the statements read name before they assign to name. Nested macros are included. The same
// statements count as assignments as in jinja2.
func mentions(body []stmt, name string) bool {
	found, stored := false, false
	for _, s := range body {
		if !found && !stored {
			mention(s, name, &found, &stored)
		}
	}
	return found
}

func mention(n any, name string, found, stored *bool) {
	if *found || *stored {
		return
	}
	var targets []expr
	switch n := n.(type) {
	case *nameExpr:
		*found = n.name == name
		return
	case *forStmt:
		targets = []expr{n.target}
	case *setStmt:
		targets = []expr{n.target}
	case *setBlock:
		targets = []expr{n.target}
	case *withStmt:
		targets = n.targets
	case *macroStmt:
		targets = paramTargets(n.def)
	case *callBlock:
		mention(n.call, name, found, stored)
		targets = paramTargets(n.def)
	}
	for _, t := range targets {
		if bindsName(t, name) {
			*stored = true
			return
		}
	}
	children(n, func(child any) { mention(child, name, found, stored) })
}

func paramTargets(d *macroDef) []expr {
	targets := make([]expr, len(d.params))
	for i, p := range d.params {
		targets[i] = p
	}
	return targets
}
