package jinja

import (
	"time"
)

// Template is a compiled template. It is immutable, so goroutines may render it concurrently.
type Template struct {
	body      []stmt
	root      *scope
	names     []string // names of the render's variables that the template uses, in the order of their slots
	variables map[string]bool
}

// Options has the options of a render.
type Options struct {
	Now    time.Time // time that strftime_now shows, in its own time zone
	Limits Limits    // limits of the render; for a field that is zero, the field of DefaultLimits is used
}

// Parse compiles a template's source. An error matches ErrSyntax, and names the line.
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

// Render appends the rendered text to dst. A variable is looked up in each of vars, in order, and the first dict that
// has the variable's name counts. A variable hides a global function with the same name.
//
// If there is an error, Render returns dst unchanged. The error is a *RaisedError if the template called
// raise_exception. The error matches ErrLimit if a limit was reached. Any other error is a *RenderError.
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

// lookup returns the value of a variable of the render.
func lookup(name string, vars []*Dict) Value {
	if name == "self" { // jinja2's reference to the template and its blocks; here a template has no blocks
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
