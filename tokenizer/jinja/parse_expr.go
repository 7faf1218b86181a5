package jinja

// tupleRules has the options of jinja2's parse_tuple.
type tupleRules struct {
	simple     bool   // only primary expressions are allowed, as in the target of an assignment
	namespaces bool   // if simple is true: ns.attr is allowed, too
	noCond     bool   // outside of parentheses, "a if b else c" is not allowed
	end        string // name that ends the tuple, in addition to the closing tokens
	parens     bool   // the tuple is in parentheses, so it may be empty
}

// tuple parses an expression, or a tuple if commas follow.
func (p *parser) tuple(rules tupleRules) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		if p.tupleEnd(rules) {
			break
		}
		var e expr
		var err error
		switch {
		case rules.simple:
			e, err = p.primary(rules.namespaces)
		case rules.noCond:
			e, err = p.or()
		default:
			e, err = p.expression()
		}
		if err != nil {
			return nil, err
		}
		items = append(items, e)
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) > 0 {
			return items[0], nil
		}
		if !rules.parens {
			return nil, p.fail("expected an expression, got %s", describe(p.cur()))
		}
	}
	return &tupleExpr{items}, nil
}

func (p *parser) tupleEnd(rules tupleRules) bool {
	k := p.cur().kind
	return k == tokVarEnd || k == tokBlockEnd || p.isOp(")") || rules.end != "" && p.isName(rules.end)
}

// expression parses "a if b else c", and all operators of higher precedence.
func (p *parser) expression() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	line := p.cur().line
	e, err := p.or()
	for links := 0; err == nil && p.skipName("if"); links++ {
		n := &condExpr{then: e, line: line}
		if n.cond, err = p.linked(links, p.or); err != nil {
			return nil, err
		}
		if p.skipName("else") {
			if n.other, err = p.expression(); err != nil {
				return nil, err
			}
		}
		e, line = n, p.cur().line
	}
	return e, err
}

func (p *parser) or() (expr, error) {
	a, err := p.and()
	for n := 0; err == nil && p.skipName("or"); n++ {
		var b expr
		b, err = p.linked(n, p.and)
		a = &orExpr{a, b}
	}
	return a, err
}

func (p *parser) and() (expr, error) {
	a, err := p.not()
	for n := 0; err == nil && p.skipName("and"); n++ {
		var b expr
		b, err = p.linked(n, p.not)
		a = &andExpr{a, b}
	}
	return a, err
}

// maxChain bounds the length of a chain of operators, because the tree of a chain is as deep as the chain is long.
const maxChain = 2000

// linked parses an operand of a chain. n is the number of operators before the operand.
func (p *parser) linked(n int, operand func() (expr, error)) (expr, error) {
	if n > maxChain {
		return nil, p.fail("a chain of more than %d operators", maxChain)
	}
	return operand()
}

func (p *parser) not() (expr, error) {
	if p.skipName("not") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		a, err := p.not()
		return &notExpr{a}, err
	}
	return p.compare()
}

func (p *parser) compare() (expr, error) {
	line := p.cur().line
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	var ops []comparison
	for {
		var op string
		switch t := p.cur(); {
		case t.kind == tokOperator && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" ||
			t.text == ">" || t.text == ">="):
			op = t.text
			p.at++
		case p.skipName("in"):
			op = "in"
		case p.isName("not") && p.toks[p.at+1].kind == tokName && p.toks[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		with, err := p.sum()
		if err != nil {
			return nil, err
		}
		ops = append(ops, comparison{op, with})
	}
	if ops == nil {
		return first, nil
	}
	return &compareExpr{first, ops, line}, nil
}

func (p *parser) sum() (expr, error) {
	return p.binary(p.concat, "+", "-")
}

func (p *parser) concat() (expr, error) {
	line := p.cur().line
	e, err := p.product()
	if err != nil || !p.isOp("~") {
		return e, err
	}
	parts := []expr{e}
	for p.skipOp("~") {
		e, err := p.product()
		if err != nil {
			return nil, err
		}
		parts = append(parts, e)
	}
	return &concatExpr{parts, line}, nil
}

func (p *parser) product() (expr, error) {
	return p.binary(p.power, "*", "/", "//", "%")
}

func (p *parser) power() (expr, error) {
	return p.binary(func() (expr, error) { return p.unary(true) }, "**")
}

// binary parses a left-associative chain of the operators ops.
func (p *parser) binary(operand func() (expr, error), ops ...string) (expr, error) {
	a, err := operand()
	for n := 0; err == nil; n++ {
		op, line := "", p.cur().line
		for _, candidate := range ops {
			if p.skipOp(candidate) {
				op = candidate
				break
			}
		}
		if op == "" {
			break
		}
		var b expr
		b, err = p.linked(n, operand)
		a = &binaryExpr{op, a, b, line}
	}
	return a, err
}

func (p *parser) unary(withFilter bool) (expr, error) {
	line := p.cur().line
	var e expr
	var err error
	if op := p.cur().text; p.isOp("-") || p.isOp("+") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		p.at++
		e, err = p.unary(false)
		e = &unaryExpr{op[0], e, line}
		p.leave()
	} else {
		e, err = p.primary(false)
	}
	if err != nil {
		return nil, err
	}
	if e, err = p.postfix(e); err != nil || !withFilter {
		return e, err
	}
	return p.filterOrTest(e)
}

func (p *parser) primary(namespaces bool) (expr, error) {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.at++
		switch t.text {
		case "true", "True":
			return &constExpr{trueValue}, nil
		case "false", "False":
			return &constExpr{falseValue}, nil
		case "none", "None":
			return &constExpr{None}, nil
		}
		name := &nameExpr{name: t.text, line: t.line}
		if namespaces && p.skipOp(".") {
			attr, err := p.expect(tokName, "attribute name")
			if err != nil {
				return nil, err
			}
			return &nsRef{name, attr.text, t.line}, nil
		}
		return name, nil
	case tokString:
		s := ""
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return &constExpr{Text(s)}, nil
	case tokInteger, tokFloat:
		p.at++
		return &constExpr{t.num}, nil
	case tokOperator:
		switch t.text {
		case "(":
			p.at++
			e, err := p.tuple(tupleRules{parens: true})
			if err != nil {
				return nil, err
			}
			return e, p.expectOp(")")
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return nil, p.fail("unexpected %s", describe(t))
}

func (p *parser) list() (expr, error) {
	p.at++
	n := &listExpr{}
	return n, p.enclosed("]", true, func() error {
		e, err := p.expression()
		n.items = append(n.items, e)
		return err
	})
}

func (p *parser) dict() (expr, error) {
	p.at++
	n := &dictExpr{}
	return n, p.enclosed("}", true, func() error {
		key, err := p.expression()
		if err != nil {
			return err
		}
		if err := p.expectOp(":"); err != nil {
			return err
		}
		val, err := p.expression()
		n.keys = append(n.keys, key)
		n.vals = append(n.vals, val)
		return err
	})
}

// postfix parses a chain of attributes, subscripts and calls after e. The length of the chain has the same bound as
// nesting, because a render recurses over the chain.
func (p *parser) postfix(e expr) (expr, error) {
	for n := 0; ; n++ {
		if n > maxNesting {
			return nil, p.fail("a chain of more than %d attributes and calls", maxNesting)
		}
		var err error
		switch {
		case p.isOp("."), p.isOp("["):
			e, err = p.subscript(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) filterOrTest(e expr) (expr, error) {
	for n := 0; ; n++ {
		if n > maxNesting {
			return nil, p.fail("a chain of more than %d filters", maxNesting)
		}
		var err error
		switch {
		case p.isOp("|"):
			e, err = p.filters(e, false)
		case p.isName("is"):
			e, err = p.test(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(obj expr) (expr, error) {
	t := p.next()
	if t.text == "." {
		attr := p.next()
		switch attr.kind {
		case tokName:
			return &getAttr{obj, attr.text, attr.line}, nil
		case tokInteger:
			return &getItem{obj, &constExpr{attr.num}, attr.line}, nil
		}
		p.at--
		return nil, p.fail("expected name or number")
	}
	var items []expr
	err := p.enclosed("]", false, func() error {
		e, err := p.subscripted()
		items = append(items, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(items) == 1 {
		return &getItem{obj, items[0], t.line}, nil
	}
	return &getItem{obj, &tupleExpr{items}, t.line}, nil
}

// subscripted parses one index or one slice inside brackets.
func (p *parser) subscripted() (expr, error) {
	var parts [3]expr
	n := 0
	slice := false
	for {
		if p.isOp(":") && n < 2 {
			p.at++
			slice = true
			n++
			continue
		}
		if p.isOp("]") || p.isOp(",") || parts[n] != nil {
			break
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		parts[n] = e
		if !p.isOp(":") {
			break
		}
	}
	if !slice {
		if parts[0] == nil {
			return nil, p.fail("unexpected %s", describe(p.cur()))
		}
		return parts[0], nil
	}
	return &sliceExpr{parts[0], parts[1], parts[2]}, nil
}

func (p *parser) call(fn expr) (expr, error) {
	line := p.cur().line
	args, err := p.callArgs()
	if err != nil {
		return nil, err
	}
	return &callExpr{fn, args, line}, nil
}

func (p *parser) callArgs() (arguments, error) {
	var a arguments
	p.at++
	err := p.enclosed(")", true, func() (err error) {
		t := p.cur()
		switch {
		case p.skipOp("*"):
			if a.star != nil || a.starStar != nil {
				return p.fail("invalid syntax for function call expression")
			}
			a.star, err = p.expression()
		case p.skipOp("**"):
			if a.starStar != nil {
				return p.fail("invalid syntax for function call expression")
			}
			a.starStar, err = p.expression()
		case t.kind == tokName && p.toks[p.at+1].kind == tokOperator && p.toks[p.at+1].text == "=":
			if a.starStar != nil {
				return p.fail("invalid syntax for function call expression")
			}
			p.at += 2
			var val expr
			val, err = p.expression()
			a.kw = append(a.kw, keyword{t.text, val})
		default:
			if a.star != nil || a.starStar != nil || a.kw != nil {
				return p.fail("invalid syntax for function call expression")
			}
			var val expr
			val, err = p.expression()
			a.pos = append(a.pos, val)
		}
		return err
	})
	return a, err
}

// filters parses a chain of "|name(args)". If inline is true, there is no bar before the first filter, as in a filter
// block.
func (p *parser) filters(e expr, inline bool) (expr, error) {
	for n := 0; p.isOp("|") || inline; n++ {
		if n > maxNesting {
			return nil, p.fail("a chain of more than %d filters", maxNesting)
		}
		if !inline {
			p.at++
		}
		inline = false
		name, err := p.dotted()
		if err != nil {
			return nil, err
		}
		f := &filterExpr{obj: e, name: name, line: p.cur().line}
		if p.isOp("(") {
			if f.args, err = p.callArgs(); err != nil {
				return nil, err
			}
		}
		e = f
	}
	return e, nil
}

func (p *parser) dotted() (string, error) {
	t, err := p.expect(tokName, "name")
	if err != nil {
		return "", err
	}
	name := t.text
	for p.skipOp(".") {
		if t, err = p.expect(tokName, "name"); err != nil {
			return "", err
		}
		name += "." + t.text
	}
	return name, nil
}

func (p *parser) test(obj expr) (expr, error) {
	line := p.next().line
	negated := p.skipName("not")
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	n := &testExpr{obj: obj, name: name, line: line}
	switch t := p.cur(); {
	case p.isOp("("):
		n.args, err = p.callArgs()
	case p.isName("is"):
		return nil, p.fail("you cannot chain multiple tests with is")
	case p.isName("else", "or", "and"):
	case t.kind == tokName, t.kind == tokString, t.kind == tokInteger, t.kind == tokFloat, p.isOp("["), p.isOp("{"):
		var arg expr
		if arg, err = p.primary(false); err == nil {
			arg, err = p.postfix(arg)
		}
		n.args.pos = []expr{arg}
	}
	if err != nil {
		return nil, err
	}
	if negated {
		return &notExpr{n}, nil
	}
	return n, nil
}
