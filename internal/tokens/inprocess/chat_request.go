package inprocess

import (
	"errors"
	"time"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// templateEngine is the engine whose rules are used. Each engine changes messages and tools in its own way before it
// renders a template.
type templateEngine uint8

const (
	engineVLLM   templateEngine = iota // vLLM 0.32: pydantic's field order in tools and tool calls, parts joined by newlines
	engineSGLang                       // SGLang 0.5.23: fields filled with null, parts joined by spaces
)

// errMedia is returned for a request with prompt_embeds. It is also returned for a request with images, audio or video,
// if the content format is formatString: then vLLM adds the model's own text to the prompt. Only the engine can render
// such a request.
var errMedia = errors.New("the prompt depends on the model's media processor")

// requestConfig has the options of an engine that change prompts. The zero value is vLLM with its defaults.
type requestConfig struct {
	Engine  templateEngine
	Content contentFormat // value of --chat-template-content-format; with formatAuto the engine detects the format
	// Kwargs is the object of --default-chat-template-kwargs. The request's chat_template_kwargs take precedence.
	Kwargs []byte
	// ExcludeToolsWhenNone is vLLM's --exclude-tools-when-tool-choice-none. SGLang has no such flag: with tool_choice
	// none, SGLang always leaves the tools out.
	ExcludeToolsWhenNone bool
	// NameFirst puts the name of a called function before its arguments, as vLLM does in requests to /v1/responses. In
	// chats the arguments come first.
	NameFirst bool
	// TrustTemplate accepts the chat_template of a request, as vLLM's --trust-request-chat-template does.
	TrustTemplate bool
}

// chatTemplate is a model's chat template, with the content format that each engine detects in it. It is immutable, so
// goroutines may use it concurrently.
type chatTemplate struct {
	compiled *jinja.Template
	source   string
	formats  [2]contentFormat // content formats by templateEngine
}

// parseTemplate compiles the source of a chat template. An error matches jinja.ErrSyntax, and names the line.
func parseTemplate(source string) (*chatTemplate, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	o := t.Outline()
	formats := [...]contentFormat{engineVLLM: vllmFormat(&o), engineSGLang: sglangFormat(source, &o)}
	return &chatTemplate{t, source, formats}, nil
}

// ContentFormat returns the content format that the engine e detects in the template.
func (t *chatTemplate) ContentFormat(e templateEngine) contentFormat {
	if e == engineSGLang {
		return t.formats[engineSGLang]
	}
	return t.formats[engineVLLM]
}

// chatRequest is a chat request as the engine passes it to its template. Render may be called more than once.
type chatRequest struct {
	// Suffix is the assistant's text that the answer continues. SGLang tokenizes Suffix separately, without a
	// beginning-of-sequence token, and appends the tokens of Suffix to the prompt's tokens. Suffix is empty for vLLM,
	// because vLLM continues inside the rendered text.
	Suffix string
	// Media has the images, audios and videos, in the order of the messages. After the engine has encoded the text, the
	// engine replaces the placeholder of each item by the item's tokens.
	Media []chatMedia
	// AddSpecialTokens is the request's add_special_tokens: if it is true, the engine puts special tokens around the
	// rendered text. Default false.
	AddSpecialTokens bool

	template *chatTemplate
	vars     *jinja.Dict
	kwargs   *jinja.Dict
	field    string
	tools    jinja.Value // if the first render fails, SGLang renders with these tools
	retry    bool
}

// chatMedia is an image, audio or video of a prompt.
type chatMedia struct {
	Kind string // type of the part: image_url, input_audio, video_url, image_embeds, …
	URL  string // address of the item, or a data: URL with its bytes (vLLM only); "" if the part has no URL
	UUID string // name that the client gave to the item (vLLM only); "" is none
}

// renderContext has the values that a render needs in addition to the request.
type renderContext struct {
	Tokens map[string]string // special tokens of the tokenizer, by name
	Now    time.Time         // current time, for strftime_now
	Limits jinja.Limits
}

// ReadRequest reads the body of a chat completion request for this template. The body must not change while the request
// is in use, because the request shares the body's texts. The error is a *requestError if the engine would refuse the
// request. The error is errMedia if only the engine can render the request. The error is jinja.ErrLimit if the request
// has too many values. Any other error says that the body is not JSON, or that the request's own template has a syntax
// error.
func (t *chatTemplate) ReadRequest(body []byte, c requestConfig) (*chatRequest, error) {
	b := &bodyReader{config: &c}
	if err := b.open(body); err != nil {
		return nil, err
	}
	var err error
	if b.defaults, err = objectOf(c.Kwargs); err != nil {
		return nil, err
	}
	if c.Engine == engineSGLang {
		return b.sglang(t)
	}
	return b.vllm(t)
}

func objectOf(raw []byte) (*jinja.Dict, error) {
	if len(raw) == 0 {
		return &jinja.Dict{}, nil
	}
	v, err := new(jinja.Decoder).Decode(raw)
	if err != nil {
		return nil, err
	}
	switch v.Kind() {
	case jinja.KindNone:
		return &jinja.Dict{}, nil
	case jinja.KindDict:
		return v.Dict(), nil
	}
	return nil, refuse("default kwargs are not an object")
}

// Render appends the request's prompt to dst. If there is an error, Render returns dst unchanged. The errors are those
// of jinja.Template.Render, and an error that says why the final message cannot be continued.
func (q *chatRequest) Render(dst []byte, c renderContext) ([]byte, error) {
	j := &renderJob{template: q.template, vars: q.vars, kwargs: q.kwargs, field: q.field, context: &c}
	out, err := j.render(dst)
	if err == nil || !q.retry || errors.Is(err, jinja.ErrLimit) {
		return out, err
	}
	j.vars = q.vars.Clone()
	j.vars.Set("tools", q.tools)
	return j.render(dst)
}

// renderJob is one render of a request.
type renderJob struct {
	template *chatTemplate
	vars     *jinja.Dict // variables of the template, such as messages and tools
	kwargs   *jinja.Dict // further variables: a name is looked up first in kwargs, then in vars, then among the special tokens
	field    string      // the field with the text of the final message, if that message is continued; empty: no message is continued
	context  *renderContext
}

// lookup returns the value of a variable that the template reads.
func (j *renderJob) lookup(name string) jinja.Value {
	if v, ok := j.kwargs.Get(name); ok {
		return v
	}
	v, _ := j.vars.Get(name)
	return v
}

func (j *renderJob) render(dst []byte) ([]byte, error) {
	cut, err := j.openFinal()
	if err != nil {
		return dst, err
	}
	tokens := &jinja.Dict{}
	for name, spelling := range j.context.Tokens {
		if j.template.compiled.Uses(name) {
			tokens.Set(name, jinja.Text(spelling))
		}
	}
	out, err := j.template.compiled.Render(dst, jinja.Options{Now: j.context.Now, Limits: j.context.Limits},
		j.kwargs, j.vars, tokens)
	if err != nil || cut == nil {
		return out, err
	}
	n, err := cut.apply(string(out[len(dst):]))
	if err != nil {
		return dst, err
	}
	return out[:len(dst)+n], nil
}

// bodyReader reads the body of a request. The methods in this file serve both engines.
type bodyReader struct {
	d        *jinja.Dict
	config   *requestConfig
	defaults *jinja.Dict // decoded requestConfig.Kwargs
	media    []chatMedia
	json     jinja.Decoder
}

// open decodes the body.
func (b *bodyReader) open(body []byte) error {
	if len(body) == 0 {
		return refuse("the body is empty")
	}
	doc, err := b.json.Decode(body)
	if err != nil {
		return err
	}
	if doc.Kind() != jinja.KindDict {
		return refuse("the body is not an object")
	}
	b.d = doc.Dict()
	return nil
}

// field returns a member of the body, or None if the body lacks it.
func (b *bodyReader) field(name string) jinja.Value {
	v, ok := b.d.Get(name)
	if !ok {
		return jinja.None
	}
	return v
}

func (b *bodyReader) flag(name string, byDefault bool) (bool, error) {
	v, ok := b.d.Get(name)
	if !ok {
		return byDefault, nil
	}
	if v.Kind() != jinja.KindBool {
		return false, refuse("%s is not a boolean", name)
	}
	return v.Truthy(), nil
}

// objects returns the items of an array of objects. given is false if the body lacks the array, or if its value is
// null.
func (b *bodyReader) objects(name string) (items []*jinja.Dict, given bool, err error) {
	v := b.field(name)
	if v.Kind() == jinja.KindNone {
		return nil, false, nil
	}
	if v.Kind() != jinja.KindList {
		return nil, false, refuse("%s is not an array", name)
	}
	for _, item := range v.Items() {
		if item.Kind() != jinja.KindDict {
			return nil, false, refuse("an item of %s is not an object", name)
		}
		items = append(items, item.Dict())
	}
	return items, true, nil
}

func (b *bodyReader) kwargs() (*jinja.Dict, error) {
	v := b.field("chat_template_kwargs")
	switch v.Kind() {
	case jinja.KindNone:
		return &jinja.Dict{}, nil
	case jinja.KindDict:
		return v.Dict().Clone(), nil
	}
	return nil, refuse("chat_template_kwargs is not an object")
}

// textOf returns a member that is a text. The boolean result is false if d lacks the member, or if the member is not a
// text.
func textOf(d *jinja.Dict, name string) (string, bool) {
	v, ok := d.Get(name)
	return v.Text(), ok && v.Kind() == jinja.KindString
}

// put copies a member from one dict to another, if the member exists and is not null.
func put(to, from *jinja.Dict, name string) {
	if v, ok := from.Get(name); ok && v.Kind() != jinja.KindNone {
		to.Set(name, v)
	}
}

// roleIs reports whether a message has this role.
func roleIs(message *jinja.Dict, role string) bool {
	s, _ := textOf(message, "role")
	return s == role
}

// listOfDicts returns the dicts as a list value.
func listOfDicts(ds []*jinja.Dict) jinja.Value {
	items := make([]jinja.Value, len(ds))
	for i, d := range ds {
		items[i] = jinja.FromDict(d)
	}
	return jinja.List(items)
}

// toolDocument checks a tool, and returns its function.
func toolDocument(tool *jinja.Dict) (*jinja.Dict, error) {
	v, _ := tool.Get("function")
	if v.Kind() != jinja.KindDict {
		return nil, refuse("a tool has no function")
	}
	if _, ok := textOf(v.Dict(), "name"); !ok {
		return nil, refuse("a tool's function has no name")
	}
	return v.Dict(), nil
}

// namedTool returns the name of the function in choice, the value of tool_choice. The boolean result is false if choice
// is not an object, and so names no function.
func namedTool(choice jinja.Value) (string, bool, error) {
	if choice.Kind() != jinja.KindDict {
		return "", false, nil
	}
	fn, _ := choice.Dict().Get("function")
	if fn.Kind() != jinja.KindDict {
		return "", false, refuse("tool_choice has no function")
	}
	name, ok := textOf(fn.Dict(), "name")
	if !ok {
		return "", false, refuse("tool_choice names no function")
	}
	return name, true, nil
}

func hasTool(tools []*jinja.Dict, name string) bool {
	for _, t := range tools {
		if fn, ok := t.Get("function"); ok && fn.Kind() == jinja.KindDict {
			if s, ok := textOf(fn.Dict(), "name"); ok && s == name {
				return true
			}
		}
	}
	return false
}
