package inprocess

import (
	"errors"
	"time"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// templateEngine says which engine's rules apply: each engine changes messages and tools in its own way before it
// renders a template.
type templateEngine uint8

const (
	engineVLLM   templateEngine = iota // vLLM 0.32: pydantic's field order in tools and tool calls, parts joined by newlines
	engineSGLang                       // SGLang 0.5.23: fields filled with null, parts joined by spaces
)

// errMedia is matched by errors.Is for a request with images, audio or video if the model's processor puts text of its
// own in the prompt. Only the engine can render such a request.
var errMedia = errors.New("the prompt depends on the model's media processor")

// requestConfig has the options of an engine that change prompts. The zero value is vLLM with its defaults.
type requestConfig struct {
	Engine  templateEngine
	Content contentFormat // --chat-template-content-format; formatAuto: as the engine detects it
	// Kwargs is the object of --default-chat-template-kwargs; the request's chat_template_kwargs win.
	Kwargs []byte
	// ExcludeToolsWhenNone is vLLM's --exclude-tools-when-tool-choice-none. SGLang always leaves the tools out then.
	ExcludeToolsWhenNone bool
	// TrustTemplate accepts the request's own chat_template, as vLLM's --trust-request-chat-template does.
	TrustTemplate bool
}

// chatTemplate is a model's chat template and the content format that each engine detects in it. It is immutable: any
// number of goroutines may use it at once.
type chatTemplate struct {
	compiled *jinja.Template
	source   string
	formats  [2]contentFormat // indexed by templateEngine
}

// parseTemplate compiles a chat template's source. Errors match jinja.ErrSyntax and name the line.
func parseTemplate(source string) (*chatTemplate, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	o := t.Outline()
	formats := [...]contentFormat{engineVLLM: vllmFormat(&o), engineSGLang: sglangFormat(source, &o)}
	return &chatTemplate{t, source, formats}, nil
}

// ContentFormat returns the format that the engine detects: formatOpenAI when the template loops over the parts of a
// message's content, else formatString.
func (t *chatTemplate) ContentFormat(e templateEngine) contentFormat {
	if e == engineSGLang {
		return t.formats[engineSGLang]
	}
	return t.formats[engineVLLM]
}

// chatRequest is a chat request as the engine passes it to its template. Render may be called more than once.
type chatRequest struct {
	// Suffix is the assistant's text to continue. SGLang tokenizes it separately, without a beginning-of-sequence
	// token, and appends it to the prompt's tokens. Empty for vLLM, which continues inside the rendered text.
	Suffix string
	// Media are the images, audios and videos, in the order of the messages. The engine expands their placeholders
	// after it has encoded the text.
	Media []chatMedia
	// AddSpecialTokens is the request's add_special_tokens: the engine puts special tokens around the rendered text.
	// Default false.
	AddSpecialTokens bool

	template *chatTemplate
	vars     *jinja.Dict
	kwargs   *jinja.Dict
	field    string
	tools    jinja.Value // SGLang renders with these when the first render fails
	retry    bool
}

// chatMedia is an image, audio or video of a prompt.
type chatMedia struct {
	Kind string // the part's type: image_url, input_audio, video_url, image_embeds, …
	URL  string // the item's address, or a data: URL with its bytes; "": neither
	UUID string // the item's name, given by the client (vLLM); "" is none
}

// renderContext is what a render needs besides the request.
type renderContext struct {
	Tokens map[string]string // the tokenizer's special tokens by name
	Now    time.Time         // for strftime_now
	Limits jinja.Limits
}

// ReadRequest reads the body of a chat completion request for this template. The body must not change while the Request
// is in use: the request shares its texts. A *requestError says that the engine refuses the request too, errMedia that
// only the engine can render it, and jinja.ErrLimit that it has too many values. Any other error says that the body is
// not JSON.
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

// Render appends the request's prompt to dst. On error dst is as it was; the errors are those of jinja.Template.Render.
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
	vars     *jinja.Dict // messages, tools and so on
	kwargs   *jinja.Dict // further variables: a name is looked up here, then in vars, then among the special tokens
	field    string      // the field of the final message that is continued; empty: none
	context  *renderContext
}

// lookup returns a variable as the template reads it.
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

// bodyReader reads a request's body; its methods here serve both engines.
type bodyReader struct {
	d        *jinja.Dict
	config   *requestConfig
	defaults *jinja.Dict // requestConfig.Kwargs
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

// field returns a member of the body; None when it is missing.
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

// objects returns the items of an array of objects. given is false when the member is missing or null.
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

// textOf returns a member that is a text; ok is false when the member is missing or not a text.
func textOf(d *jinja.Dict, name string) (string, bool) {
	v, ok := d.Get(name)
	return v.Text(), ok && v.Kind() == jinja.KindString
}

// put copies a member that exists and is not null.
func put(to, from *jinja.Dict, name string) {
	if v, ok := from.Get(name); ok && v.Kind() != jinja.KindNone {
		to.Set(name, v)
	}
}

// roleIs reports whether a message has the role.
func roleIs(message *jinja.Dict, role string) bool {
	s, _ := textOf(message, "role")
	return s == role
}

// listOfDicts returns the dicts as a list.
func listOfDicts(ds []*jinja.Dict) jinja.Value {
	items := make([]jinja.Value, len(ds))
	for i, d := range ds {
		items[i] = jinja.FromDict(d)
	}
	return jinja.List(items)
}

// toolDocument checks and returns the function of a tool.
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

// namedTool returns the function that tool_choice names, if it names one.
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
