package jinja

import (
	"fmt"
	"slices"
)

// parser turns tokens into statements. It has the structure of jinja2's recursive descent parser, so that both have the
// same precedence of operators and refuse the same templates.
type parser struct {
	toks  []token
	at    int
	depth int
	loops int // number of loops around the present statement; break and continue need one
}

// maxNesting bounds the nesting of tags and of expressions. So it bounds the depth of every recursion over the tree.
const maxNesting = 200

func parse(source string) ([]stmt, error) {
	toks, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{toks: toks}
	return p.body(nil)
}

func (p *parser) cur() *token { return &p.toks[p.at] }

func (p *parser) next() *token {
	t := p.cur()
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return &syntaxError{p.cur().line, fmt.Sprintf(format, args...)}
}

func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("nested deeper than %d", maxNesting)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

func (p *parser) isOp(op string) bool {
	return p.cur().kind == tokOperator && p.cur().text == op
}

func (p *parser) isName(names ...string) bool {
	return p.cur().kind == tokName && slices.Contains(names, p.cur().text)
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return p.fail("expected %q, got %s", op, describe(p.cur()))
	}
	return nil
}

func (p *parser) expect(kind tokenKind, what string) (*token, error) {
	if p.cur().kind != kind {
		return nil, p.fail("expected %s, got %s", what, describe(p.cur()))
	}
	return p.next(), nil
}

func describe(t *token) string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "text"
	case tokBlockBegin, tokBlockEnd, tokVarBegin, tokVarEnd:
		return [...]string{"begin of statement block", "end of statement block", "begin of print statement",
			"end of print statement"}[t.kind-tokBlockBegin]
	}
	return fmt.Sprintf("%q", t.text)
}

// body parses statements up to one of the end tags. If ends is nil, it parses up to the end of the template. Afterwards
// the current token is the name of the end tag that was found.
func (p *parser) body(ends []string) ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out []stmt
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if ends != nil {
				return nil, p.fail("unexpected end of template: missing %q", ends)
			}
			return out, nil
		case tokData:
			p.at++
			out = append(out, &dataStmt{t.text})
		case tokVarBegin:
			p.at++
			e, err := p.tuple(tupleRules{})
			if err != nil {
				return nil, err
			}
			if _, err := p.expect(tokVarEnd, "end of print statement"); err != nil {
				return nil, err
			}
			out = append(out, &outputStmt{e, t.line})
		case tokBlockBegin:
			p.at++
			if ends != nil && p.isName(ends...) {
				return out, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			out = append(out, s...)
			if _, err := p.expect(tokBlockEnd, "end of statement block"); err != nil {
				return nil, err
			}
		default:
			return nil, p.fail("unexpected %s", describe(t))
		}
	}
}

// blockBody parses the end of a tag and the statements up to an end tag: "%} … {% end". Afterwards the current token is
// the name of the end tag.
func (p *parser) blockBody(ends ...string) ([]stmt, error) {
	p.skipOp(":")
	if _, err := p.expect(tokBlockEnd, "end of statement block"); err != nil {
		return nil, err
	}
	return p.body(ends)
}

// lastBody does the same as blockBody, and also skips the name of the end tag.
func (p *parser) lastBody(end string) ([]stmt, error) {
	body, err := p.blockBody(end)
	if err == nil {
		p.at++
	}
	return body, err
}

// separated parses items with commas between them, until isEnd returns true. If trailing is true, there may be a comma
// after the last item.
func (p *parser) separated(isEnd func() bool, trailing bool, item func() error) error {
	for first := true; !isEnd(); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return err
			}
			if trailing && isEnd() {
				return nil
			}
		}
		if err := item(); err != nil {
			return err
		}
	}
	return nil
}

// enclosed parses items with commas between them, and then the operator end.
func (p *parser) enclosed(end string, trailing bool, item func() error) error {
	if err := p.separated(func() bool { return p.isOp(end) }, trailing, item); err != nil {
		return err
	}
	return p.expectOp(end)
}

func (p *parser) atBlockEnd() bool { return p.cur().kind == tokBlockEnd }

func (p *parser) statement() ([]stmt, error) {
	t := p.cur()
	if t.kind != tokName {
		return nil, p.fail("tag name expected")
	}
	one := func(s stmt, err error) ([]stmt, error) {
		if err != nil {
			return nil, err
		}
		return []stmt{s}, nil
	}
	p.at++
	switch t.text {
	case "if":
		return one(p.parseIf())
	case "for":
		return one(p.parseFor(t.line))
	case "set":
		return one(p.parseSet(t.line))
	case "macro":
		return one(p.parseMacro(t.line))
	case "call":
		return one(p.parseCall(t.line))
	case "filter":
		return one(p.parseFilterBlock())
	case "with":
		return one(p.parseWith())
	case "print":
		return p.parsePrint()
	case "generation":
		body, err := p.lastBody("endgeneration")
		return one(&scopeStmt{body: body}, err)
	case "break", "continue":
		if p.loops == 0 {
			p.at--
			return nil, p.fail("%q outside of a loop", t.text)
		}
		if t.text == "break" {
			return one(breakStmt{}, nil)
		}
		return one(continueStmt{}, nil)
	case "include", "import", "from", "extends", "block", "autoescape":
		p.at--
		return nil, p.fail("%q is not supported: this package renders one template by itself", t.text)
	}
	p.at--
	return nil, p.fail("encountered unknown tag %q", t.text)
}

func (p *parser) parseIf() (stmt, error) {
	n := &ifStmt{}
	for {
		cond, err := p.tuple(tupleRules{noCond: true})
		if err != nil {
			return nil, err
		}
		body, err := p.blockBody("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		n.conds = append(n.conds, cond)
		n.then = append(n.then, body)
		switch p.next().text {
		case "elif":
			continue
		case "else":
			n.other, err = p.lastBody("endif")
		}
		return n, err
	}
}

func (p *parser) parseFor(line int) (stmt, error) {
	n := &forStmt{line: line}
	var err error
	if n.target, err = p.target(tupleRules{end: "in"}); err != nil {
		return nil, err
	}
	if bindsName(n.target, "loop") {
		return nil, p.fail("can't assign to special loop variable in for-loop target")
	}
	if !p.skipName("in") {
		return nil, p.fail("expected %q, got %s", "in", describe(p.cur()))
	}
	if n.iter, err = p.tuple(tupleRules{noCond: true, end: "recursive"}); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if n.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	n.recursive = p.skipName("recursive")
	p.loops++
	n.body, err = p.blockBody("endfor", "else")
	p.loops--
	if err != nil {
		return nil, err
	}
	if p.next().text == "else" {
		n.other, err = p.lastBody("endfor")
	}
	return n, err
}

func (p *parser) parseSet(line int) (stmt, error) {
	target, err := p.target(tupleRules{namespaces: true})
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		val, err := p.tuple(tupleRules{})
		return &setStmt{target, val, line}, err
	}
	n := &setBlock{target: target, line: line}
	if p.isOp("|") {
		e, err := p.filters(nil, false)
		if err != nil {
			return nil, err
		}
		n.filter = e.(*filterExpr)
	}
	n.body, err = p.lastBody("endset")
	return n, err
}

func (p *parser) parseMacro(line int) (stmt, error) {
	name, err := p.expect(tokName, "macro name")
	if err != nil {
		return nil, err
	}
	if reserved(name.text) {
		return nil, p.fail("can't assign to %q", name.text)
	}
	def := &macroDef{name: name.text, line: line}
	if err := p.signature(def); err != nil {
		return nil, err
	}
	def.body, err = p.macroBody("endmacro")
	return &macroStmt{def: def}, err
}

// macroBody parses the body of a macro. A macro is a function, so break and continue in its body cannot leave a loop
// around the macro.
func (p *parser) macroBody(end string) ([]stmt, error) {
	loops := p.loops
	p.loops = 0
	body, err := p.lastBody(end)
	p.loops = loops
	return body, err
}

func (p *parser) signature(def *macroDef) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	return p.enclosed(")", false, func() error {
		name, err := p.expect(tokName, "parameter name")
		if err != nil {
			return err
		}
		if reserved(name.text) {
			return p.fail("can't assign to %q", name.text)
		}
		def.params = append(def.params, &nameExpr{name: name.text, line: name.line})
		if p.skipOp("=") {
			val, err := p.expression()
			if err != nil {
				return err
			}
			def.defaults = append(def.defaults, val)
		} else if len(def.defaults) > 0 {
			return p.fail("non-default argument follows default argument")
		}
		return nil
	})
}

func (p *parser) parseCall(line int) (stmt, error) {
	def := &macroDef{line: line}
	if p.isOp("(") {
		if err := p.signature(def); err != nil {
			return nil, err
		}
	}
	e, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := e.(*callExpr)
	if !ok {
		return nil, p.fail("expected call")
	}
	def.body, err = p.macroBody("endcall")
	return &callBlock{call: call, def: def, line: line}, err
}

func (p *parser) parseFilterBlock() (stmt, error) {
	e, err := p.filters(nil, true)
	if err != nil {
		return nil, err
	}
	n := &filterBlock{filter: e.(*filterExpr)}
	n.body, err = p.lastBody("endfilter")
	return n, err
}

func (p *parser) parseWith() (stmt, error) {
	n := &withStmt{}
	err := p.separated(p.atBlockEnd, false, func() error {
		target, err := p.target(tupleRules{})
		if err != nil {
			return err
		}
		if err := p.expectOp("="); err != nil {
			return err
		}
		val, err := p.expression()
		n.targets = append(n.targets, target)
		n.vals = append(n.vals, val)
		return err
	})
	if err != nil {
		return nil, err
	}
	n.body, err = p.lastBody("endwith")
	return n, err
}

func (p *parser) parsePrint() ([]stmt, error) {
	var out []stmt
	err := p.separated(p.atBlockEnd, false, func() error {
		line := p.cur().line
		e, err := p.expression()
		out = append(out, &outputStmt{e, line})
		return err
	})
	return out, err
}

// reserved reports whether name is a constant, to which no template can assign.
func reserved(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

// target parses the target of an assignment: a name, a tuple of targets, or an attribute of a namespace.
func (p *parser) target(rules tupleRules) (expr, error) {
	rules.simple = true
	e, err := p.tuple(rules)
	if err != nil {
		return nil, err
	}
	if !assignable(e) {
		return nil, p.fail("can't assign to this expression")
	}
	return e, nil
}

func assignable(e expr) bool {
	switch e := e.(type) {
	case *nameExpr, *nsRef:
		return true
	case *tupleExpr:
		for _, item := range e.items {
			if !assignable(item) {
				return false
			}
		}
		return true
	}
	return false
}

func bindsName(e expr, name string) bool {
	switch e := e.(type) {
	case *nameExpr:
		return e.name == name
	case *tupleExpr:
		return slices.ContainsFunc(e.items, func(item expr) bool { return bindsName(item, name) })
	}
	return false
}
