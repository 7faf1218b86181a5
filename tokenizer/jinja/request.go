package jinja

import (
	"errors"
	"time"
)

// Engine says whose request handling is reproduced: engines change messages and tools before they render a template,
// each in its own way.
type Engine uint8

const (
	EngineVLLM   Engine = iota // vLLM 0.32: pydantic's field order in tools and tool calls, parts joined by newlines
	EngineSGLang               // SGLang 0.5.23: fields filled with null, parts joined by spaces
)

// ErrMedia is matched by errors.Is for a request with images, audio or video where the text between the messages
// depends on the model's processor. Let the engine render such a request.
var ErrMedia = errors.New("the prompt depends on the model's media processor")

// RequestConfig is how an engine was started, as far as it changes prompts. The zero value is vLLM with its defaults.
type RequestConfig struct {
	Engine  Engine
	Content ContentFormat // --chat-template-content-format; FormatAuto: as the engine detects it
	// Kwargs is the object given as --default-chat-template-kwargs; the request's chat_template_kwargs win.
	Kwargs []byte
	// ExcludeToolsWhenNone is vLLM's --exclude-tools-when-tool-choice-none. SGLang always leaves the tools out then.
	ExcludeToolsWhenNone bool
	// TrustTemplate accepts the request's own chat_template, as vLLM's --trust-request-chat-template does.
	TrustTemplate bool
}

// Request is a chat request as the engine hands it to its template. Render may be called more than once.
type Request struct {
	// Suffix is text that SGLang encodes apart and appends to the prompt's tokens (without a beginning-of-sequence token):
	// the assistant's text to continue. Empty with vLLM, which continues inside the rendered text.
	Suffix string
	// Media are the images, audios and videos, in the order of the messages. The text is the engine's, but its tokens are
	// expanded afterwards.
	Media []Media
	// AddSpecialTokens is the request's add_special_tokens: the engine adds them around the rendered text. Default false.
	AddSpecialTokens bool

	template *Template
	vars     *dict
	kwargs   *dict
	field    string
	tools    value // what to try instead when rendering fails (SGLang)
	retry    bool
}

// Media is an item of a prompt that is no text.
type Media struct {
	Kind string // the part's type: image_url, input_audio, video_url, image_embeds, …
	URL  string // where it is, or a data: URL that holds it; "" when the part says it in another way
	UUID string // the name that the client gave it (vLLM); "" is none
}

// RenderContext is what a request's rendering needs besides the request.
type RenderContext struct {
	Tokens map[string]string // the tokenizer's special tokens by name
	Now    time.Time         // for strftime_now
	Limits Limits
}

// ReadRequest reads the body of a chat completion request for this template. The body must not change while the Request is
// in use: its texts are the body's. A *RequestError means that the engine would
// refuse the request too, ErrMedia that its prompt cannot be known here, ErrLimit that it has too many values; any other error
// that the body is not JSON.
func (t *Template) ReadRequest(body []byte, c RequestConfig) (*Request, error) {
	b := &bodyReader{config: &c}
	if err := b.open(body); err != nil {
		return nil, err
	}
	var err error
	if b.defaults, err = objectOf(c.Kwargs); err != nil {
		return nil, err
	}
	if c.Engine == EngineSGLang {
		return b.sglang(t)
	}
	return b.vllm(t)
}

func objectOf(raw []byte) (*dict, error) {
	v, err := readJSON(raw)
	if err != nil {
		return nil, err
	}
	switch v.kind {
	case kindMissing, kindNone:
		return &dict{}, nil
	case kindDict:
		return v.dict(), nil
	}
	return nil, refuse("default kwargs are not an object")
}

// Render appends the request's prompt to dst. Errors are as Template.Render's.
func (q *Request) Render(dst []byte, c RenderContext) ([]byte, error) {
	j := &job{vars: q.vars.clone(), kwargs: newDict(q.kwargs), tokens: c.Tokens, field: q.field, now: c.Now, limits: c.Limits}
	out, err := q.template.render(dst, j)
	if err == nil || !q.retry || errors.Is(err, ErrLimit) {
		return out, err
	}
	j.vars = q.vars.clone()
	j.vars.set("tools", q.tools)
	return q.template.render(dst, j)
}

// bodyReader reads the fields that both engines have.
type bodyReader struct {
	d        *dict
	config   *RequestConfig
	defaults *dict // of the kwargs
	media    []Media
	values   int // of all documents read for the request so far
}

// open reads the body itself.
func (b *bodyReader) open(body []byte) error {
	doc, err := b.read(borrowed(body), false)
	if err != nil {
		return err
	}
	if doc.kind != kindDict {
		return refuse("the body is not an object")
	}
	b.d = doc.dict()
	return nil
}

// read decodes a document of the request: the body, or one that is a text in it. strict is [reader]'s.
func (b *bodyReader) read(src string, strict bool) (value, error) {
	d := &reader{src: src, strict: strict, values: b.values}
	v, err := d.document()
	b.values = d.values
	return v, err
}

// field is a member of the body; none when it is missing.
func (b *bodyReader) field(name string) value {
	v, ok := b.d.get(name)
	if !ok {
		return none
	}
	return v
}

func (b *bodyReader) flag(name string, byDefault bool) (bool, error) {
	v, ok := b.d.get(name)
	if !ok {
		return byDefault, nil
	}
	if v.kind != kindBool {
		return false, refuse("%s is not a boolean", name)
	}
	return v.truthy(), nil
}

// objects is an array of objects, or nothing.
func (b *bodyReader) objects(name string) (items []*dict, given bool, err error) {
	v := b.field(name)
	if v.kind == kindNone {
		return nil, false, nil
	}
	if v.kind != kindList {
		return nil, false, refuse("%s is not an array", name)
	}
	for _, item := range v.items() {
		if item.kind != kindDict {
			return nil, false, refuse("%s holds something else than objects", name)
		}
		items = append(items, item.dict())
	}
	return items, true, nil
}

func (b *bodyReader) kwargs() (*dict, error) {
	v := b.field("chat_template_kwargs")
	switch v.kind {
	case kindNone:
		return &dict{}, nil
	case kindDict:
		return v.dict().clone(), nil
	}
	return nil, refuse("chat_template_kwargs is not an object")
}

// textOf is a member that must be a text.
func textOf(d *dict, name string) (string, bool) {
	v, ok := d.get(name)
	return v.str, ok && v.kind == kindString
}

// put copies a member that is there and not null.
func put(to, from *dict, name string) {
	if v, ok := from.get(name); ok && v.kind != kindNone {
		to.set(name, v)
	}
}

// roleIs reports whether a message has the role.
func roleIs(message *dict, role string) bool {
	s, _ := textOf(message, "role")
	return s == role
}

// listOfDicts makes a list value.
func listOfDicts(ds []*dict) value {
	items := make([]value, len(ds))
	for i, d := range ds {
		items[i] = newDict(d)
	}
	return newList(items)
}

// toolDocument is the function of a tool, checked.
func toolDocument(tool *dict) (*dict, error) {
	v, _ := tool.get("function")
	if v.kind != kindDict {
		return nil, refuse("a tool has no function")
	}
	if _, ok := textOf(v.dict(), "name"); !ok {
		return nil, refuse("a tool's function has no name")
	}
	return v.dict(), nil
}

// namedTool is the function that tool_choice names, if it names one.
func namedTool(choice value) (string, bool, error) {
	if choice.kind != kindDict {
		return "", false, nil
	}
	fn, _ := choice.dict().get("function")
	if fn.kind != kindDict {
		return "", false, refuse("tool_choice has no function")
	}
	name, ok := textOf(fn.dict(), "name")
	if !ok {
		return "", false, refuse("tool_choice names no function")
	}
	return name, true, nil
}

func hasTool(tools []*dict, name string) bool {
	for _, t := range tools {
		if fn, ok := t.get("function"); ok && fn.kind == kindDict {
			if s, ok := textOf(fn.dict(), "name"); ok && s == name {
				return true
			}
		}
	}
	return false
}
