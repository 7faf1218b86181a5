package jinja

import (
	"time"
)

// Template is a compiled template. It is immutable: any number of goroutines may render it at once.
type Template struct {
	body      []stmt
	root      *scope
	names     []string // the render's variables in use, by slot
	variables map[string]bool
}

// Options of a render.
type Options struct {
	Now    time.Time // the time of strftime_now, in the zone of its text
	Limits Limits    // zero fields: DefaultLimits
}

// Parse compiles a template's source. Errors match ErrSyntax and name the line.
func Parse(source string) (*Template, error) {
	body, err := parse(source)
	if err != nil {
		return nil, err
	}
	r, root, err := resolve(body)
	if err != nil {
		return nil, err
	}
	t := &Template{body: body, root: root, names: r.order, variables: map[string]bool{}}
	for name := range r.asked {
		if _, global := globals[name]; name != "self" && !global || transformersGlobals[name] {
			t.variables[name] = true
		}
	}
	return t, nil
}

// Uses reports whether the template reads a variable of that name and does not define it, as jinja2.meta does. The
// names that Transformers adds to jinja2's globals count as variables.
func (t *Template) Uses(name string) bool { return t.variables[name] }

// Render appends the rendered text to dst. The variables are looked up in vars, in order: the first dict that has a
// name wins, and a variable hides a global function of its name. On error dst is returned as it was given; the error is
// a *RaisedError when the template called raise_exception, matches ErrLimit when a limit was reached, and is a
// *RenderError otherwise.
func (t *Template) Render(dst []byte, o Options, vars ...*Dict) ([]byte, error) {
	r := &run{out: dst, start: len(dst), limits: o.Limits.orDefault(), now: o.Now, vars: make([]Value, len(t.names)),
		filters: filters, tests: tests}
	r.steps, r.memory = r.limits.Steps, r.limits.Memory
	for i, name := range t.names {
		r.vars[i] = lookup(name, vars)
	}
	if _, err := r.stmts(t.body, r.enter(t.root, nil)); err != nil {
		return dst, err
	}
	return r.out, nil
}

// lookup returns the value of a render variable.
func lookup(name string, vars []*Dict) Value {
	if name == "self" { // jinja2's reference to the template, which has no blocks here
		return Value{kind: kindObject, ref: selfReference{}}
	}
	for _, d := range vars {
		if v, ok := d.Get(name); ok {
			return v
		}
	}
	if v, ok := globals[name]; ok {
		return v
	}
	return missing
}
