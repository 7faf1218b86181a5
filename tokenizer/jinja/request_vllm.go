package jinja

import (
	"errors"
	"strings"
)

// What vLLM 0.32 does to a chat request before its template: entrypoints/openai/chat_completion/protocol.py,
// renderers/chat_utils.py, renderers/hf.py, renderers/params.py.

func (b *bodyReader) vllm(t *Template) (*Request, error) {
	t, err := b.vllmTemplate(t)
	if err != nil {
		return nil, err
	}
	q := &Request{template: t, vars: &dict{}}
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
	q.vars.set("messages", listOfDicts(conversation))
	q.vars.set("tools", tools)
	q.vars.set("documents", none)
	q.Media = b.media
	return q, b.vllmApply(q, kwargs)
}

// vllmTemplate is the template to use: the request's own where that is trusted.
func (b *bodyReader) vllmTemplate(t *Template) (*Template, error) {
	own := b.field("chat_template")
	if own.kind != kindString || own.str == "" {
		return t, nil
	}
	if !b.config.TrustTemplate {
		return nil, refuse("chat_template in the request is not trusted")
	}
	return Parse(own.str)
}

// vllmApply sorts the kwargs into the arguments of apply_chat_template and the template's variables; those that the
// template does not use are dropped.
func (b *bodyReader) vllmApply(q *Request, kwargs *dict) error {
	q.kwargs = &dict{}
	prompt, open := falseValue, falseValue
	for i := range kwargs.keys {
		name, v := kwargs.keys[i].str, kwargs.vals[i]
		switch name {
		case "chat_template", "tokenize", "return_dict", "padding", "truncation", "max_length", "return_tensors",
			"return_assistant_tokens_mask", "tokenizer_kwargs", "self":
		case "add_generation_prompt":
			prompt = v
		case "continue_final_message":
			open = v
		case "tools", "documents":
			q.vars.set(name, v)
		case "conversation":
			return refuse("got multiple values for argument 'conversation'")
		default:
			if q.template.Uses(name) {
				if name == "messages" {
					return refuse("got multiple values for keyword argument 'messages'")
				}
				q.kwargs.set(name, v)
			}
		}
	}
	if open.truthy() && prompt.truthy() {
		return refuse("continue_final_message and add_generation_prompt are not compatible")
	}
	if open.truthy() {
		q.field = "content"
		if open.kind == kindString {
			q.field = open.str
		}
	}
	q.vars.set("add_generation_prompt", prompt)
	return nil
}

// vllmKwargs merges the server's defaults, the request's chat_template_kwargs and the request's own fields; later ones
// win unless they are null or "auto".
func (b *bodyReader) vllmKwargs() (*dict, error) {
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
	if given, ok := b.d.get("add_generation_prompt"); ok && open && given.truthy() {
		return nil, refuse("cannot set both continue_final_message and add_generation_prompt")
	}
	effort := b.field("reasoning_effort")
	switch effort.str {
	case "", "none", "minimal", "low", "medium", "high", "xhigh", "max":
	default:
		return nil, refuse("unknown reasoning_effort %q", effort.str)
	}
	if effort.kind != kindNone && effort.kind != kindString {
		return nil, refuse("reasoning_effort is not a text")
	}
	documents, err := b.vllmDocuments()
	if err != nil {
		return nil, err
	}
	own := &dict{}
	own.set("add_generation_prompt", boolean(prompt))
	own.set("continue_final_message", boolean(open))
	own.set("documents", documents)
	own.set("reasoning_effort", effort)
	if _, set := user.get("enable_thinking"); effort.kind != kindNone && !set {
		own.set("enable_thinking", boolean(effort.str != "none"))
	}
	return mergeKwargs(b.defaults.clone(), mergeKwargs(user, own)), nil
}

// mergeKwargs is vLLM's merge_kwargs.
func mergeKwargs(into, over *dict) *dict {
	for i := range over.keys {
		v := over.vals[i]
		if v.kind == kindNone || v.kind == kindString && v.str == "auto" {
			continue
		}
		into.set(over.keys[i].str, v)
	}
	return into
}

func (b *bodyReader) vllmDocuments() (value, error) {
	docs, given, err := b.objects("documents")
	if err != nil || !given {
		return none, err
	}
	for _, d := range docs {
		for i := range d.vals {
			if d.vals[i].kind != kindString {
				return none, refuse("a document's %s is not a text", d.keys[i].str)
			}
		}
	}
	return listOfDicts(docs), nil
}

func (b *bodyReader) vllmTools() (value, error) {
	tools, given, err := b.objects("tools")
	if err != nil {
		return none, err
	}
	if given && len(tools) == 0 {
		return none, refuse("tools must not be an empty array")
	}
	choice := b.field("tool_choice")
	isNone := choice.kind == kindString && choice.str == "none"
	if choice.kind != kindNone && !isNone {
		if !given {
			return none, refuse("tool_choice without tools")
		}
		if name, named, err := namedTool(choice); err != nil || named && !hasTool(tools, name) {
			return none, firstError(err, refuse("tool_choice names no tool of the request"))
		}
	}
	out := make([]*dict, len(tools))
	for i, tool := range tools {
		if out[i], err = vllmTool(tool); err != nil {
			return none, err
		}
	}
	if !given || isNone && b.config.ExcludeToolsWhenNone {
		return none, nil
	}
	return listOfDicts(out), nil
}

// vllmTool is model_dump of a ChatCompletionToolsParam: the known fields in the order of their class, description and
// parameters null where missing.
func vllmTool(tool *dict) (*dict, error) {
	fn, err := toolDocument(tool)
	if err != nil {
		return nil, err
	}
	f := &dict{}
	for _, name := range [...]string{"name", "description", "parameters"} {
		v, ok := fn.get(name)
		if !ok {
			v = none
		}
		f.set(name, v)
	}
	put(f, fn, "strict")
	if v, ok := tool.get("defer_loading"); ok && v.kind != kindNone {
		f.set("defer_loading", v)
	}
	put(f, fn, "defer_loading")
	out := &dict{}
	out.set("type", text("function"))
	out.set("function", newDict(f))
	put(out, tool, "defer_loading")
	return out, nil
}

func (b *bodyReader) vllmMessages(format ContentFormat) ([]*dict, error) {
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	out := make([]*dict, len(messages))
	for i, m := range messages {
		if out[i], err = b.vllmMessage(m, format); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// vllmMessage is _parse_chat_message_content with the reasoning fields joined and the arguments of tool calls parsed.
func (b *bodyReader) vllmMessage(m *dict, format ContentFormat) (*dict, error) {
	role, ok := textOf(m, "role")
	if !ok {
		return nil, refuse("a message has no role")
	}
	content, err := b.vllmContent(m, role, format)
	if err != nil {
		return nil, err
	}
	out := &dict{}
	out.set("role", text(role))
	out.set("content", content)
	switch role {
	case "assistant":
		if err := b.vllmAssistant(out, m); err != nil {
			return nil, err
		}
	case "tool":
		if v, ok := m.get("tool_call_id"); ok {
			out.set("tool_call_id", v)
		}
		flattenToolResult(out)
	}
	for _, name := range [...]string{"name", "task"} {
		if s, ok := textOf(m, name); ok {
			out.set(name, text(s))
		}
	}
	if role == "developer" {
		tools, err := developerTools(m)
		if err != nil {
			return nil, err
		}
		out.set("tools", tools)
	}
	return out, nil
}

func (b *bodyReader) vllmAssistant(out, m *dict) error {
	calls, ok := m.get("tool_calls")
	if ok && calls.kind != kindNone {
		parsed, err := b.vllmCalls(&calls)
		if err != nil {
			return err
		}
		if len(parsed) > 0 {
			out.set("tool_calls", newList(parsed))
		}
	}
	reasoning, _ := m.get("reasoning")
	if reasoning.kind != kindString {
		reasoning, _ = m.get("reasoning_content")
	}
	if reasoning.kind == kindString {
		out.set("reasoning", reasoning)
		out.set("reasoning_content", reasoning)
	}
	return nil
}

// vllmCalls reorders tool calls as pydantic's typed dicts do (id, function{arguments, name}, type, then the rest) and
// parses their arguments; what is no JSON object becomes {}.
func (b *bodyReader) vllmCalls(calls *value) ([]value, error) {
	if calls.kind != kindList {
		return nil, refuse("tool_calls is not an array")
	}
	var out []value
	for _, item := range calls.items() {
		if item.kind != kindDict {
			return nil, refuse("a tool call is not an object")
		}
		call := item.dict()
		fn, _ := call.get("function")
		_, hasID := textOf(call, "id")
		if kind, _ := textOf(call, "type"); kind != "function" || !hasID || fn.kind != kindDict {
			return nil, refuse("a tool call needs an id, type function and a function")
		}
		arguments, ok := textOf(fn.dict(), "arguments")
		if _, named := textOf(fn.dict(), "name"); !ok || !named {
			return nil, refuse("a tool call's function needs a name and arguments as text")
		}
		f := ordered(fn.dict(), "arguments", "name")
		parsed, err := b.read(arguments, false)
		switch {
		case errors.Is(err, ErrLimit):
			return nil, err
		case err != nil || parsed.kind != kindDict:
			parsed = newDict(&dict{})
		}
		f.set("arguments", parsed)
		c := ordered(call, "id", "function", "type")
		c.set("function", newDict(f))
		out = append(out, newDict(c))
	}
	return out, nil
}

// ordered copies a dict with the named keys first.
func ordered(d *dict, first ...string) *dict {
	out := &dict{}
	for _, name := range first {
		if v, ok := d.get(name); ok {
			out.set(name, v)
		}
	}
	for i := range d.keys {
		out.set(d.keys[i].str, d.vals[i])
	}
	return out
}

// flattenToolResult joins a tool's text parts; a list with anything else stays.
func flattenToolResult(out *dict) {
	content, _ := out.get("content")
	if content.kind != kindList {
		return
	}
	var texts []string
	for _, part := range content.items() {
		if !roleOfPart(&part, "text") {
			return
		}
		s, _ := textOf(part.dict(), "text")
		texts = append(texts, s)
	}
	out.set("content", text(strings.Join(texts, "\n")))
}

func roleOfPart(part *value, kind string) bool {
	if part.kind != kindDict {
		return false
	}
	s, _ := textOf(part.dict(), "type")
	return s == kind
}

// developerTools are the tools of a developer message in the order of their typed dicts.
func developerTools(m *dict) (value, error) {
	tools, ok := m.get("tools")
	if !ok || tools.kind == kindNone {
		return none, nil
	}
	if tools.kind != kindList {
		return none, refuse("a message's tools are not an array")
	}
	var out []value
	for _, item := range tools.items() {
		if item.kind != kindDict {
			return none, refuse("a tool is not an object")
		}
		fn, err := toolDocument(item.dict())
		if err != nil {
			return none, err
		}
		t := ordered(item.dict(), "function", "type")
		t.set("function", newDict(ordered(fn, "name", "description", "parameters", "strict")))
		out = append(out, newDict(t))
	}
	return newList(out), nil
}

// developers turns developer messages into system messages, and joins all system messages into one, for templates that
// do not know the role.
func (t *Template) developers(messages []*dict) []*dict {
	found := false
	for _, m := range messages {
		found = found || roleIs(m, "developer")
	}
	if !found || strings.Contains(t.source, `"developer"`) || strings.Contains(t.source, `'developer'`) {
		return messages
	}
	var texts []string
	var others []*dict
	scattered := false
	for i, m := range messages {
		if roleIs(m, "developer") {
			m.set("role", text("system"))
			m.remove("tools")
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
	merged := &dict{}
	merged.set("role", text("system"))
	merged.set("content", text(strings.Join(texts, "\n\n")))
	return append([]*dict{merged}, others...)
}

func systemText(m *dict) string {
	content, _ := m.get("content")
	if content.kind == kindString {
		return content.str
	}
	var parts []string
	for _, part := range content.items() {
		if part.kind == kindDict {
			if s, ok := textOf(part.dict(), "text"); ok {
				parts = append(parts, s)
			}
		}
	}
	return strings.Join(parts, "\n")
}
