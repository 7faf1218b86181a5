package inprocess

import (
	"errors"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// vLLM 0.32 changes a chat request before it renders the template. This file makes the same changes as vLLM's
// entrypoints/openai/chat_completion/protocol.py, renderers/chat_utils.py, renderers/hf.py and renderers/params.py.

func (b *bodyReader) vllm(t *chatTemplate) (*chatRequest, error) {
	t, err := b.vllmTemplate(t)
	if err != nil {
		return nil, err
	}
	q := &chatRequest{template: t, vars: &jinja.Dict{}}
	format := b.config.Content
	if format == formatAuto {
		format = t.ContentFormat(engineVLLM)
	}
	tools, err := b.vllmTools()
	if err != nil {
		return nil, err
	}
	conversation, err := b.vllmMessages(format)
	if err != nil {
		return nil, err
	}
	conversation = t.developers(conversation)
	kwargs, err := b.vllmKwargs()
	if err != nil {
		return nil, err
	}
	if q.AddSpecialTokens, err = b.flag("add_special_tokens", false); err != nil {
		return nil, err
	}
	q.vars.Set("messages", listOfDicts(conversation))
	q.vars.Set("tools", tools)
	q.vars.Set("documents", jinja.None)
	q.Media = b.media
	return q, b.vllmApply(q, kwargs)
}

// vllmTemplate returns the request's template, or t if the request has none. It refuses a request with a template
// unless TrustTemplate is set.
func (b *bodyReader) vllmTemplate(t *chatTemplate) (*chatTemplate, error) {
	own := b.field("chat_template")
	if own.Kind() != jinja.KindString || own.Text() == "" {
		return t, nil
	}
	if !b.config.TrustTemplate {
		return nil, refuse("chat_template in the request is not trusted")
	}
	return parseTemplate(own.Text())
}

// vllmApply divides kwargs into arguments of Transformers' apply_chat_template and variables of the template. It drops
// variables that the template does not use.
func (b *bodyReader) vllmApply(q *chatRequest, kwargs *jinja.Dict) error {
	q.kwargs = &jinja.Dict{}
	prompt, open := jinja.Bool(false), jinja.Bool(false)
	for name, v := range kwargs.All() {
		switch name {
		case "chat_template", "tokenize", "return_dict", "padding", "truncation", "max_length", "return_tensors",
			"return_assistant_tokens_mask", "tokenizer_kwargs", "self":
		case "add_generation_prompt":
			prompt = v
		case "continue_final_message":
			open = v
		case "tools", "documents":
			q.vars.Set(name, v)
		case "conversation":
			return refuse("got multiple values for argument 'conversation'")
		default:
			if q.template.compiled.Uses(name) {
				if name == "messages" {
					return refuse("got multiple values for keyword argument 'messages'")
				}
				q.kwargs.Set(name, v)
			}
		}
	}
	if open.Truthy() && prompt.Truthy() {
		return refuse("continue_final_message and add_generation_prompt are not compatible")
	}
	if open.Truthy() {
		q.field = "content"
		if open.Kind() == jinja.KindString {
			q.field = open.Text()
		}
	}
	q.vars.Set("add_generation_prompt", prompt)
	return nil
}

// vllmKwargs merges three groups of values: the server's defaults, the request's chat_template_kwargs, and the
// request's own fields. The value of a later group takes precedence unless it is null or "auto".
func (b *bodyReader) vllmKwargs() (*jinja.Dict, error) {
	user, err := b.kwargs()
	if err != nil {
		return nil, err
	}
	prompt, err := b.flag("add_generation_prompt", true)
	if err != nil {
		return nil, err
	}
	open, err := b.flag("continue_final_message", false)
	if err != nil {
		return nil, err
	}
	if given, ok := b.d.Get("add_generation_prompt"); ok && open && given.Truthy() {
		return nil, refuse("cannot set both continue_final_message and add_generation_prompt")
	}
	effort := b.field("reasoning_effort")
	switch effort.Text() {
	case "", "none", "minimal", "low", "medium", "high", "xhigh", "max":
	default:
		return nil, refuse("unknown reasoning_effort %q", effort.Text())
	}
	if effort.Kind() != jinja.KindNone && effort.Kind() != jinja.KindString {
		return nil, refuse("reasoning_effort is not a text")
	}
	documents, err := b.vllmDocuments()
	if err != nil {
		return nil, err
	}
	own := &jinja.Dict{}
	own.Set("add_generation_prompt", jinja.Bool(prompt))
	own.Set("continue_final_message", jinja.Bool(open))
	own.Set("documents", documents)
	own.Set("reasoning_effort", effort)
	if _, set := user.Get("enable_thinking"); effort.Kind() != jinja.KindNone && !set {
		own.Set("enable_thinking", jinja.Bool(effort.Text() != "none"))
	}
	return mergeKwargs(b.defaults.Clone(), mergeKwargs(user, own)), nil
}

// mergeKwargs copies the values of over into the dict into, apart from null and "auto", as vLLM's merge_kwargs does.
func mergeKwargs(into, over *jinja.Dict) *jinja.Dict {
	for name, v := range over.All() {
		if v.Kind() == jinja.KindNone || v.Kind() == jinja.KindString && v.Text() == "auto" {
			continue
		}
		into.Set(name, v)
	}
	return into
}

func (b *bodyReader) vllmDocuments() (jinja.Value, error) {
	docs, given, err := b.objects("documents")
	if err != nil || !given {
		return jinja.None, err
	}
	for _, d := range docs {
		for name, v := range d.All() {
			if v.Kind() != jinja.KindString {
				return jinja.None, refuse("a document's %s is not a text", name)
			}
		}
	}
	return listOfDicts(docs), nil
}

func (b *bodyReader) vllmTools() (jinja.Value, error) {
	tools, given, err := b.objects("tools")
	if err != nil {
		return jinja.None, err
	}
	if given && len(tools) == 0 {
		return jinja.None, refuse("tools must not be an empty array")
	}
	choice := b.field("tool_choice")
	isNone := choice.Kind() == jinja.KindString && choice.Text() == "none"
	if choice.Kind() != jinja.KindNone && !isNone {
		if !given {
			return jinja.None, refuse("tool_choice without tools")
		}
		name, named, err := namedTool(choice)
		if err != nil {
			return jinja.None, err
		}
		if named && !hasTool(tools, name) {
			return jinja.None, refuse("tool_choice names no tool of the request")
		}
	}
	out := make([]*jinja.Dict, len(tools))
	for i, tool := range tools {
		if out[i], err = vllmTool(tool); err != nil {
			return jinja.None, err
		}
	}
	if !given || isNone && b.config.ExcludeToolsWhenNone {
		return jinja.None, nil
	}
	return listOfDicts(out), nil
}

// vllmTool returns the same as pydantic's model_dump of a ChatCompletionToolsParam: the known fields, in the order of
// the pydantic class. If description or parameters are missing, they are null.
func vllmTool(tool *jinja.Dict) (*jinja.Dict, error) {
	fn, err := toolDocument(tool)
	if err != nil {
		return nil, err
	}
	f := &jinja.Dict{}
	for _, name := range [...]string{"name", "description", "parameters"} {
		v, ok := fn.Get(name)
		if !ok {
			v = jinja.None
		}
		f.Set(name, v)
	}
	put(f, fn, "strict")
	if v, ok := tool.Get("defer_loading"); ok && v.Kind() != jinja.KindNone {
		f.Set("defer_loading", v)
	}
	put(f, fn, "defer_loading")
	out := &jinja.Dict{}
	out.Set("type", jinja.Text("function"))
	out.Set("function", jinja.FromDict(f))
	put(out, tool, "defer_loading")
	return out, nil
}

func (b *bodyReader) vllmMessages(format contentFormat) ([]*jinja.Dict, error) {
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	out := make([]*jinja.Dict, len(messages))
	for i, m := range messages {
		if out[i], err = b.vllmMessage(m, format); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// vllmMessage does the same as vLLM's _parse_chat_message_content. It writes an assistant's reasoning to both reasoning
// and reasoning_content, and parses the arguments of tool calls.
func (b *bodyReader) vllmMessage(m *jinja.Dict, format contentFormat) (*jinja.Dict, error) {
	role, ok := textOf(m, "role")
	if !ok {
		return nil, refuse("a message has no role")
	}
	content, err := b.vllmContent(m, role, format)
	if err != nil {
		return nil, err
	}
	out := &jinja.Dict{}
	out.Set("role", jinja.Text(role))
	out.Set("content", content)
	switch role {
	case "assistant":
		if err := b.vllmAssistant(out, m); err != nil {
			return nil, err
		}
	case "tool":
		if v, ok := m.Get("tool_call_id"); ok {
			out.Set("tool_call_id", v)
		}
		flattenToolResult(out)
	}
	for _, name := range [...]string{"name", "task"} {
		if s, ok := textOf(m, name); ok {
			out.Set(name, jinja.Text(s))
		}
	}
	if role == "developer" {
		tools, err := developerTools(m)
		if err != nil {
			return nil, err
		}
		out.Set("tools", tools)
	}
	return out, nil
}

func (b *bodyReader) vllmAssistant(out, m *jinja.Dict) error {
	calls, ok := m.Get("tool_calls")
	if ok && calls.Kind() != jinja.KindNone {
		parsed, err := b.vllmCalls(&calls)
		if err != nil {
			return err
		}
		if len(parsed) > 0 {
			out.Set("tool_calls", jinja.List(parsed))
		}
	}
	reasoning, _ := m.Get("reasoning")
	if reasoning.Kind() != jinja.KindString {
		reasoning, _ = m.Get("reasoning_content")
	}
	if reasoning.Kind() == jinja.KindString {
		out.Set("reasoning", reasoning)
		out.Set("reasoning_content", reasoning)
	}
	return nil
}

// vllmCalls orders the members of tool calls as pydantic's typed dicts do: id, function{arguments, name}, type, then
// all other members. It also parses the calls' arguments. Arguments that are not a JSON object become {}.
func (b *bodyReader) vllmCalls(calls *jinja.Value) ([]jinja.Value, error) {
	if calls.Kind() != jinja.KindList {
		return nil, refuse("tool_calls is not an array")
	}
	var out []jinja.Value
	for _, item := range calls.Items() {
		if item.Kind() != jinja.KindDict {
			return nil, refuse("a tool call is not an object")
		}
		call := item.Dict()
		fn, _ := call.Get("function")
		_, hasID := textOf(call, "id")
		if kind, _ := textOf(call, "type"); kind != "function" || !hasID || fn.Kind() != jinja.KindDict {
			return nil, refuse("a tool call needs an id, type function and a function")
		}
		arguments, ok := textOf(fn.Dict(), "arguments")
		if _, named := textOf(fn.Dict(), "name"); !ok || !named {
			return nil, refuse("a tool call's function needs a name and arguments as text")
		}
		first, second := "arguments", "name"
		if b.config.NameFirst {
			first, second = second, first
		}
		f := ordered(fn.Dict(), first, second)
		parsed, err := b.json.DecodeText(arguments, jinja.Python)
		switch {
		case errors.Is(err, jinja.ErrLimit):
			return nil, err
		case err != nil || parsed.Kind() != jinja.KindDict:
			parsed = jinja.FromDict(&jinja.Dict{})
		}
		f.Set("arguments", parsed)
		c := ordered(call, "id", "function", "type")
		c.Set("function", jinja.FromDict(f))
		out = append(out, jinja.FromDict(c))
	}
	return out, nil
}

// ordered returns a copy of d in which the keys of the list first come before all other keys.
func ordered(d *jinja.Dict, first ...string) *jinja.Dict {
	out := &jinja.Dict{}
	for _, name := range first {
		if v, ok := d.Get(name); ok {
			out.Set(name, v)
		}
	}
	for name, v := range d.All() {
		out.Set(name, v)
	}
	return out
}

// flattenToolResult joins the parts of a tool's content into one text, if all parts are texts.
func flattenToolResult(out *jinja.Dict) {
	content, _ := out.Get("content")
	if content.Kind() != jinja.KindList {
		return
	}
	var texts []string
	for _, part := range content.Items() {
		if !roleOfPart(&part, "text") {
			return
		}
		s, _ := textOf(part.Dict(), "text")
		texts = append(texts, s)
	}
	out.Set("content", jinja.Text(strings.Join(texts, "\n")))
}

func roleOfPart(part *jinja.Value, kind string) bool {
	if part.Kind() != jinja.KindDict {
		return false
	}
	s, _ := textOf(part.Dict(), "type")
	return s == kind
}

// developerTools returns the tools of a developer message. The members of each tool are in the order of vLLM's typed
// dicts.
func developerTools(m *jinja.Dict) (jinja.Value, error) {
	tools, ok := m.Get("tools")
	if !ok || tools.Kind() == jinja.KindNone {
		return jinja.None, nil
	}
	if tools.Kind() != jinja.KindList {
		return jinja.None, refuse("a message's tools are not an array")
	}
	var out []jinja.Value
	for _, item := range tools.Items() {
		if item.Kind() != jinja.KindDict {
			return jinja.None, refuse("a tool is not an object")
		}
		fn, err := toolDocument(item.Dict())
		if err != nil {
			return jinja.None, err
		}
		t := ordered(item.Dict(), "function", "type")
		t.Set("function", jinja.FromDict(ordered(fn, "name", "description", "parameters", "strict")))
		out = append(out, jinja.FromDict(t))
	}
	return jinja.List(out), nil
}

// developers turns developer messages into system messages, if the template does not mention the role developer. Then
// it joins all system messages into one at the beginning, unless the first message is the only system message.
func (t *chatTemplate) developers(messages []*jinja.Dict) []*jinja.Dict {
	found := false
	for _, m := range messages {
		found = found || roleIs(m, "developer")
	}
	if !found || strings.Contains(t.source, `"developer"`) || strings.Contains(t.source, `'developer'`) {
		return messages
	}
	var texts []string
	var others []*jinja.Dict
	scattered := false
	for i, m := range messages {
		if roleIs(m, "developer") {
			m.Set("role", jinja.Text("system"))
			m.Remove("tools")
		}
		if !roleIs(m, "system") {
			others = append(others, m)
			continue
		}
		scattered = scattered || i > 0 || len(texts) > 0
		if s := systemText(m); s != "" {
			texts = append(texts, s)
		}
	}
	if !scattered {
		return messages
	}
	merged := &jinja.Dict{}
	merged.Set("role", jinja.Text("system"))
	merged.Set("content", jinja.Text(strings.Join(texts, "\n\n")))
	return append([]*jinja.Dict{merged}, others...)
}

func systemText(m *jinja.Dict) string {
	content, _ := m.Get("content")
	if content.Kind() == jinja.KindString {
		return content.Text()
	}
	var parts []string
	for _, part := range content.Items() {
		if part.Kind() == jinja.KindDict {
			if s, ok := textOf(part.Dict(), "text"); ok {
				parts = append(parts, s)
			}
		}
	}
	return strings.Join(parts, "\n")
}
