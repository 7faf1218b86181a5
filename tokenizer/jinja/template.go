package jinja

import (
	"time"
)

// Template is a compiled chat template. It is immutable: any number of goroutines may render it at once.
type Template struct {
	source    string
	body      []stmt
	root      *scope
	names     []string // the render's variables in use, by slot
	variables map[string]bool
	formats   [2]ContentFormat // by engine
}

// Input is what a template is rendered with: the arguments of Transformers' apply_chat_template. The JSON fields are
// raw documents; an empty one is Python's None.
type Input struct {
	Messages  []byte // array of messages
	Tools     []byte // array of tool schemas
	Documents []byte // array of documents

	AddGenerationPrompt bool
	// ContinueFinalMessage leaves the last message open: everything after its text is cut off, as Transformers does.
	ContinueFinalMessage bool

	Kwargs []byte            // object of further variables; they may hide the above and the tokens
	Tokens map[string]string // the tokenizer's special tokens by name: bos_token, eos_token, …
	Now    time.Time         // what strftime_now sees, in the zone the engine runs in
	Limits Limits            // zero fields: DefaultLimits
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
	t := &Template{source: source, body: body, root: root, names: r.order, variables: map[string]bool{}}
	for name := range r.asked {
		if _, global := globals[name]; name != "self" && !global || transformersGlobals[name] {
			t.variables[name] = true
		}
	}
	t.formats = [...]ContentFormat{EngineVLLM: vllmFormat(body), EngineSGLang: sglangFormat(source, body)}
	return t, nil
}

// Uses reports whether the template reads a variable of that name which it does not define itself. Engines pass on only
// the chat_template_kwargs that a template uses.
func (t *Template) Uses(name string) bool { return t.variables[name] }

// ContentFormat is how the template wants the content of messages, found as the engine finds it: FormatOpenAI when it
// loops over the parts of a message's content, else FormatString.
func (t *Template) ContentFormat(e Engine) ContentFormat {
	if e == EngineSGLang {
		return t.formats[EngineSGLang]
	}
	return t.formats[EngineVLLM]
}

// Render appends the rendered text to dst. On error dst is returned as it was given; the error is a *RaisedError when the
// template itself refused, matches ErrLimit when a limit was reached, and is a *RenderError otherwise.
func (t *Template) Render(dst []byte, in Input) ([]byte, error) {
	vars := &dict{}
	docs := [...]struct {
		name string
		raw  []byte
	}{{"messages", in.Messages}, {"tools", in.Tools}, {"documents", in.Documents}}
	for _, doc := range docs {
		v, err := readJSON(doc.raw)
		if err != nil {
			return dst, err
		}
		if v.kind == kindMissing {
			v = none
		}
		vars.set(doc.name, v)
	}
	vars.set("add_generation_prompt", boolean(in.AddGenerationPrompt))
	kwargs, err := readJSON(in.Kwargs)
	if err != nil {
		return dst, err
	}
	field := ""
	if in.ContinueFinalMessage {
		field = "content"
	}
	return t.render(dst, &job{vars: vars, kwargs: kwargs, tokens: in.Tokens, field: field, now: in.Now, limits: in.Limits})
}

// job is a render with everything decoded.
type job struct {
	vars   *dict // messages, tools …
	kwargs value // further variables, a dict or nothing
	tokens map[string]string
	field  string // of the final message to continue; empty: none
	now    time.Time
	limits Limits
}

// lookup is the value of a render variable: kwargs before tokens before globals, as the keyword arguments of
// apply_chat_template fall.
func (j *job) lookup(name string) value {
	if name == "self" { // jinja2's reference to the template; nothing here has blocks to look up in it
		return value{kind: kindObject, ref: selfReference{}}
	}
	if j.kwargs.kind == kindDict {
		if v, ok := j.kwargs.dict().get(name); ok {
			return v
		}
	}
	if v, ok := j.vars.get(name); ok {
		return v
	}
	if s, ok := j.tokens[name]; ok {
		return text(s)
	}
	if v, ok := globals[name]; ok {
		return v
	}
	return missing
}

func (t *Template) render(dst []byte, j *job) ([]byte, error) {
	if k := j.kwargs.kind; k != kindDict && k != kindMissing && k != kindNone && k != kindUndefined {
		return dst, failf("kwargs are not an object")
	}
	cut, err := t.openFinal(j)
	if err != nil {
		return dst, err
	}
	r := &run{out: dst, start: len(dst), limits: j.limits.orDefault(), now: j.now, vars: make([]value, len(t.names)),
		filters: filters, tests: tests}
	r.steps, r.memory = r.limits.Steps, r.limits.Memory
	for i, name := range t.names {
		r.vars[i] = j.lookup(name)
	}
	if _, err := r.stmts(t.body, r.enter(t.root, nil)); err != nil {
		return dst, err
	}
	if cut == nil {
		return r.out, nil
	}
	n, err := cut.apply(string(r.out[r.start:]))
	if err != nil {
		return dst, err
	}
	return r.out[:r.start+n], nil
}
