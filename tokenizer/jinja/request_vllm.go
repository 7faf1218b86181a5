package jinja

import (
	"errors"
	"strings"
)

// What vLLM 0.32 does to a chat request before its template: entrypoints/openai/chat_completion/protocol.py,
// renderers/chat_utils.py, renderers/hf.py, renderers/params.py.

func (b *bodyReader) vllm(t *ChatTemplate) (*Request, error) {
	t, err := b.vllmTemplate(t)
	if err != nil {
		return nil, err
	}
	q := &Request{template: t, vars: &Dict{}}
	format := b.config.Content
	if format == FormatAuto {
		format = t.ContentFormat(EngineVLLM)
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
	q.vars.Set("documents", None)
	q.Media = b.media
	return q, b.vllmApply(q, kwargs)
}

// vllmTemplate is the template to use: the request's own where that is trusted.
func (b *bodyReader) vllmTemplate(t *ChatTemplate) (*ChatTemplate, error) {
	own := b.field("chat_template")
	if own.Kind() != KindString || own.Text() == "" {
		return t, nil
	}
	if !b.config.TrustTemplate {
		return nil, refuse("chat_template in the request is not trusted")
	}
	return ParseChat(own.Text())
}

// vllmApply sorts the kwargs into the arguments of apply_chat_template and the template's variables; those that the
// template does not use are dropped.
func (b *bodyReader) vllmApply(q *Request, kwargs *Dict) error {
	q.kwargs = &Dict{}
	prompt, open := Bool(false), Bool(false)
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
			if q.template.jinja.Uses(name) {
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
		if open.Kind() == KindString {
			q.field = open.Text()
		}
	}
	q.vars.Set("add_generation_prompt", prompt)
	return nil
}

// vllmKwargs merges the server's defaults, the request's chat_template_kwargs and the request's own fields; later ones
// win unless they are null or "auto".
func (b *bodyReader) vllmKwargs() (*Dict, error) {
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
	if effort.Kind() != KindNone && effort.Kind() != KindString {
		return nil, refuse("reasoning_effort is not a text")
	}
	documents, err := b.vllmDocuments()
	if err != nil {
		return nil, err
	}
	own := &Dict{}
	own.Set("add_generation_prompt", Bool(prompt))
	own.Set("continue_final_message", Bool(open))
	own.Set("documents", documents)
	own.Set("reasoning_effort", effort)
	if _, set := user.Get("enable_thinking"); effort.Kind() != KindNone && !set {
		own.Set("enable_thinking", Bool(effort.Text() != "none"))
	}
	return mergeKwargs(b.defaults.Clone(), mergeKwargs(user, own)), nil
}

// mergeKwargs is vLLM's merge_kwargs.
func mergeKwargs(into, over *Dict) *Dict {
	for name, v := range over.All() {
		if v.Kind() == KindNone || v.Kind() == KindString && v.Text() == "auto" {
			continue
		}
		into.Set(name, v)
	}
	return into
}

func (b *bodyReader) vllmDocuments() (Value, error) {
	docs, given, err := b.objects("documents")
	if err != nil || !given {
		return None, err
	}
	for _, d := range docs {
		for name, v := range d.All() {
			if v.Kind() != KindString {
				return None, refuse("a document's %s is not a text", name)
			}
		}
	}
	return listOfDicts(docs), nil
}

func (b *bodyReader) vllmTools() (Value, error) {
	tools, given, err := b.objects("tools")
	if err != nil {
		return None, err
	}
	if given && len(tools) == 0 {
		return None, refuse("tools must not be an empty array")
	}
	choice := b.field("tool_choice")
	isNone := choice.Kind() == KindString && choice.Text() == "none"
	if choice.Kind() != KindNone && !isNone {
		if !given {
			return None, refuse("tool_choice without tools")
		}
		name, named, err := namedTool(choice)
		if err != nil {
			return None, err
		}
		if named && !hasTool(tools, name) {
			return None, refuse("tool_choice names no tool of the request")
		}
	}
	out := make([]*Dict, len(tools))
	for i, tool := range tools {
		if out[i], err = vllmTool(tool); err != nil {
			return None, err
		}
	}
	if !given || isNone && b.config.ExcludeToolsWhenNone {
		return None, nil
	}
	return listOfDicts(out), nil
}

// vllmTool is model_dump of a ChatCompletionToolsParam: the known fields in the order of their class, description and
// parameters null where missing.
func vllmTool(tool *Dict) (*Dict, error) {
	fn, err := toolDocument(tool)
	if err != nil {
		return nil, err
	}
	f := &Dict{}
	for _, name := range [...]string{"name", "description", "parameters"} {
		v, ok := fn.Get(name)
		if !ok {
			v = None
		}
		f.Set(name, v)
	}
	put(f, fn, "strict")
	if v, ok := tool.Get("defer_loading"); ok && v.Kind() != KindNone {
		f.Set("defer_loading", v)
	}
	put(f, fn, "defer_loading")
	out := &Dict{}
	out.Set("type", Text("function"))
	out.Set("function", FromDict(f))
	put(out, tool, "defer_loading")
	return out, nil
}

func (b *bodyReader) vllmMessages(format ContentFormat) ([]*Dict, error) {
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	out := make([]*Dict, len(messages))
	for i, m := range messages {
		if out[i], err = b.vllmMessage(m, format); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// vllmMessage is _parse_chat_message_content with the reasoning fields joined and the arguments of tool calls parsed.
func (b *bodyReader) vllmMessage(m *Dict, format ContentFormat) (*Dict, error) {
	role, ok := textOf(m, "role")
	if !ok {
		return nil, refuse("a message has no role")
	}
	content, err := b.vllmContent(m, role, format)
	if err != nil {
		return nil, err
	}
	out := &Dict{}
	out.Set("role", Text(role))
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
			out.Set(name, Text(s))
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

func (b *bodyReader) vllmAssistant(out, m *Dict) error {
	calls, ok := m.Get("tool_calls")
	if ok && calls.Kind() != KindNone {
		parsed, err := b.vllmCalls(&calls)
		if err != nil {
			return err
		}
		if len(parsed) > 0 {
			out.Set("tool_calls", List(parsed))
		}
	}
	reasoning, _ := m.Get("reasoning")
	if reasoning.Kind() != KindString {
		reasoning, _ = m.Get("reasoning_content")
	}
	if reasoning.Kind() == KindString {
		out.Set("reasoning", reasoning)
		out.Set("reasoning_content", reasoning)
	}
	return nil
}

// vllmCalls reorders tool calls as pydantic's typed dicts do (id, function{arguments, name}, type, then the rest) and
// parses their arguments; what is no JSON object becomes {}.
func (b *bodyReader) vllmCalls(calls *Value) ([]Value, error) {
	if calls.Kind() != KindList {
		return nil, refuse("tool_calls is not an array")
	}
	var out []Value
	for _, item := range calls.Items() {
		if item.Kind() != KindDict {
			return nil, refuse("a tool call is not an object")
		}
		call := item.Dict()
		fn, _ := call.Get("function")
		_, hasID := textOf(call, "id")
		if kind, _ := textOf(call, "type"); kind != "function" || !hasID || fn.Kind() != KindDict {
			return nil, refuse("a tool call needs an id, type function and a function")
		}
		arguments, ok := textOf(fn.Dict(), "arguments")
		if _, named := textOf(fn.Dict(), "name"); !ok || !named {
			return nil, refuse("a tool call's function needs a name and arguments as text")
		}
		f := ordered(fn.Dict(), "arguments", "name")
		parsed, err := b.json.DecodeText(arguments, Python)
		switch {
		case errors.Is(err, ErrLimit):
			return nil, err
		case err != nil || parsed.Kind() != KindDict:
			parsed = FromDict(&Dict{})
		}
		f.Set("arguments", parsed)
		c := ordered(call, "id", "function", "type")
		c.Set("function", FromDict(f))
		out = append(out, FromDict(c))
	}
	return out, nil
}

// ordered copies a dict with the named keys first.
func ordered(d *Dict, first ...string) *Dict {
	out := &Dict{}
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

// flattenToolResult joins a tool's text parts; a list with anything else stays.
func flattenToolResult(out *Dict) {
	content, _ := out.Get("content")
	if content.Kind() != KindList {
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
	out.Set("content", Text(strings.Join(texts, "\n")))
}

func roleOfPart(part *Value, kind string) bool {
	if part.Kind() != KindDict {
		return false
	}
	s, _ := textOf(part.Dict(), "type")
	return s == kind
}

// developerTools are the tools of a developer message in the order of their typed dicts.
func developerTools(m *Dict) (Value, error) {
	tools, ok := m.Get("tools")
	if !ok || tools.Kind() == KindNone {
		return None, nil
	}
	if tools.Kind() != KindList {
		return None, refuse("a message's tools are not an array")
	}
	var out []Value
	for _, item := range tools.Items() {
		if item.Kind() != KindDict {
			return None, refuse("a tool is not an object")
		}
		fn, err := toolDocument(item.Dict())
		if err != nil {
			return None, err
		}
		t := ordered(item.Dict(), "function", "type")
		t.Set("function", FromDict(ordered(fn, "name", "description", "parameters", "strict")))
		out = append(out, FromDict(t))
	}
	return List(out), nil
}

// developers turns developer messages into system messages, and joins all system messages into one, for templates that
// do not know the role.
func (t *ChatTemplate) developers(messages []*Dict) []*Dict {
	found := false
	for _, m := range messages {
		found = found || roleIs(m, "developer")
	}
	if !found || strings.Contains(t.source, `"developer"`) || strings.Contains(t.source, `'developer'`) {
		return messages
	}
	var texts []string
	var others []*Dict
	scattered := false
	for i, m := range messages {
		if roleIs(m, "developer") {
			m.Set("role", Text("system"))
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
	merged := &Dict{}
	merged.Set("role", Text("system"))
	merged.Set("content", Text(strings.Join(texts, "\n\n")))
	return append([]*Dict{merged}, others...)
}

func systemText(m *Dict) string {
	content, _ := m.Get("content")
	if content.Kind() == KindString {
		return content.Text()
	}
	var parts []string
	for _, part := range content.Items() {
		if part.Kind() == KindDict {
			if s, ok := textOf(part.Dict(), "text"); ok {
				parts = append(parts, s)
			}
		}
	}
	return strings.Join(parts, "\n")
}
