package jinja

import (
	"errors"
	"math"
	"slices"
	"strings"
)

// What SGLang 0.5.23 does to a chat request before its template: srt/entrypoints/openai/protocol.py, serving_chat.py,
// srt/parser/jinja_template_utils.py, srt/function_call/utils.py. Models with an encoder of their own instead of a
// template (DeepSeek-V3.2, Kimi-K3 …) are not covered.

func (b *bodyReader) sglang(t *Template) (*Request, error) {
	q := &Request{template: t, vars: &dict{}}
	format := b.config.Content
	if format == FormatAuto {
		format = t.ContentFormat(EngineSGLang)
	}
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	open, err := b.flag("continue_final_message", false)
	if err != nil {
		return nil, err
	}
	conversation := make([]*dict, len(messages))
	hasTools := false
	for i, m := range messages {
		out, err := b.sglangMessage(m)
		if err != nil {
			return nil, err
		}
		if tools, ok := out.get("tools"); ok && tools.truthy() {
			role, _ := textOf(out, "role")
			hasTools = hasTools || role == "root" || role == "system" || role == "developer"
		}
		if conversation[i], err = b.sglangContent(out, format); err != nil {
			return nil, err
		}
	}
	tools, err := b.sglangTools(hasTools)
	if err != nil {
		return nil, err
	}
	conversation, q.Suffix = lastAssistant(conversation, open)
	if q.kwargs, err = b.sglangKwargs(); err != nil {
		return nil, err
	}
	if err := b.sglangTemplate(q); err != nil {
		return nil, err
	}
	q.Media = b.media
	q.vars.set("messages", listOfDicts(conversation))
	q.vars.set("tools", tools)
	q.vars.set("documents", none)
	q.vars.set("add_generation_prompt", trueValue)
	q.retry, q.tools = true, bareTools(tools)
	return q, nil
}

// sglangTemplate takes the template of the request's chat_template_kwargs where that is trusted. The content keeps the
// format of the model's own template.
func (b *bodyReader) sglangTemplate(q *Request) error {
	own, _ := q.kwargs.get("chat_template")
	q.kwargs.remove("chat_template")
	if own.kind != kindString {
		return nil
	}
	if !b.config.TrustTemplate {
		return refuse("chat_template in the request is not trusted")
	}
	var err error
	q.template, err = Parse(own.str)
	return err
}

// lastAssistant takes a final assistant message away: its text continues the prompt, or it becomes the user's.
func lastAssistant(messages []*dict, open bool) ([]*dict, string) {
	last := messages[len(messages)-1]
	content, _ := last.get("content")
	if !roleIs(last, "assistant") || content.kind != kindString {
		return messages, ""
	}
	messages = messages[:len(messages)-1]
	if open {
		return messages, content.str
	}
	user := &dict{}
	user.set("role", text("user"))
	user.set("content", content)
	return append(messages, user), ""
}

// bareTools are the tools without OpenAI's wrapper, which SGLang tries when a template fails.
func bareTools(tools value) value {
	if tools.kind != kindList {
		return none
	}
	var out []value
	for _, t := range tools.items() {
		if fn, ok := t.dict().get("function"); ok {
			t = fn
		}
		out = append(out, t)
	}
	return newList(out)
}

// genericRoles are the roles that SGLang accepts besides user; their case does not matter.
var genericRoles = set("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")

// sglangMessage is model_dump of a message without its nulls: the known fields in the order of their class.
func (b *bodyReader) sglangMessage(m *dict) (*dict, error) {
	role, _ := textOf(m, "role")
	out := &dict{}
	if role == "user" {
		content, _ := m.get("content")
		if content.kind != kindString && content.kind != kindList {
			return nil, refuse("a user message has no content")
		}
		out.set("role", text(role))
		out.set("content", content)
		return out, nil
	}
	role = strings.ToLower(role)
	if !genericRoles[role] {
		return nil, refuse("unknown role %q", role)
	}
	out.set("role", text(role))
	content, _ := m.get("content")
	switch content.kind {
	case kindString, kindList:
	case kindUndefined, kindNone:
		content = emptyText
	default:
		return nil, refuse("the content of a %s message is a %s", role, content.typeName())
	}
	out.set("content", content)
	for _, name := range [...]string{"tool_call_id", "name", "phase", "reasoning_content"} {
		if v, ok := m.get(name); ok && v.kind != kindNone {
			if v.kind != kindString {
				return nil, refuse("%s is not a text", name)
			}
			out.set(name, v)
		}
	}
	if calls, ok := m.get("tool_calls"); ok && calls.kind != kindNone {
		parsed, err := b.sglangCalls(&calls, role == "assistant")
		if err != nil {
			return nil, err
		}
		out.set("tool_calls", parsed)
	}
	if tools, ok := m.get("tools"); ok && tools.kind != kindNone {
		dumped, err := sglangToolList(&tools)
		if err != nil {
			return nil, err
		}
		out.set("tools", dumped)
	}
	put(out, m, "prefix")
	return out, nil
}

// sglangCalls fills tool calls with nulls and parses their arguments, which must then be JSON objects.
func (b *bodyReader) sglangCalls(calls *value, parse bool) (value, error) {
	if calls.kind != kindList {
		return none, refuse("tool_calls is not an array")
	}
	out := []value{}
	for _, item := range calls.items() {
		if item.kind != kindDict {
			return none, refuse("a tool call is not an object")
		}
		fn, _ := item.dict().get("function")
		if fn.kind != kindDict {
			return none, refuse("a tool call has no function")
		}
		f := &dict{}
		f.set("name", orNull(fn.dict(), "name"))
		arguments := orNull(fn.dict(), "arguments")
		if parse && arguments.kind == kindString {
			parsed, err := b.read(arguments.str, true)
			switch {
			case errors.Is(err, ErrLimit):
				return none, err
			case err != nil || parsed.kind != kindDict:
				return none, refuse("a tool call's arguments are not a JSON object")
			}
			arguments = parsed
		}
		f.set("arguments", arguments)
		c := &dict{}
		c.set("id", orNull(item.dict(), "id"))
		c.set("index", orNull(item.dict(), "index"))
		c.set("type", text("function"))
		c.set("function", newDict(f))
		out = append(out, newDict(c))
	}
	return newList(out), nil
}

func orNull(d *dict, name string) value {
	if v, ok := d.get(name); ok {
		return v
	}
	return none
}

// sglangContent puts a message's content into the template's format.
func (b *bodyReader) sglangContent(m *dict, format ContentFormat) (*dict, error) {
	content, _ := m.get("content")
	if content.kind != kindList {
		return m, nil
	}
	var parts []value
	var texts []string
	for _, item := range content.items() {
		part, err := b.sglangPart(&item, roleIs(m, "assistant"))
		if err != nil {
			return nil, err
		}
		if part.kind != kindDict {
			continue
		}
		parts = append(parts, part)
		if s, ok := textOf(part.dict(), "text"); ok {
			texts = append(texts, s)
		}
	}
	joined := text(strings.Join(texts, " "))
	if format != FormatOpenAI {
		m.set("content", joined)
		return m, nil
	}
	m.remove("content") // the list goes behind the other fields
	if roleIs(m, "tool") && len(texts) == len(parts) {
		m.set("content", joined)
	} else {
		m.set("content", newList(parts))
	}
	return m, nil
}

// sglangPart is one part as templates get it; nothing for what SGLang leaves out.
func (b *bodyReader) sglangPart(item *value, assistant bool) (value, error) {
	if item.kind != kindDict {
		return none, refuse("a content part is a %s", item.typeName())
	}
	kind, _ := textOf(item.dict(), "type")
	part := &dict{}
	switch kind {
	case "text":
		s, ok := textOf(item.dict(), "text")
		if !ok {
			return none, refuse("a text part without text")
		}
		part.set("type", text("text"))
		part.set("text", text(s))
		return newDict(part), nil
	case "thinking", "reasoning":
		if !assistant {
			return none, refuse("thinking outside of an assistant message")
		}
		return none, nil
	case "tool_reference":
		part.set("type", text(kind))
		part.set("name", orNull(item.dict(), "name"))
		return newDict(part), nil
	case "image_url", "video_url", "audio_url", "input_audio":
		b.media = append(b.media, Media{Kind: kind})
		part.set("type", text(map[string]string{"image_url": "image", "video_url": "video"}[kind]))
		if kind == "audio_url" || kind == "input_audio" {
			part.set("type", text("audio"))
		}
		return newDict(part), nil
	}
	return none, refuse("unsupported content part %q", kind)
}

// sglangTools are the tools the template sees: none with tool_choice none, one when it is named.
func (b *bodyReader) sglangTools(inMessages bool) (value, error) {
	given := b.field("tools")
	if given.kind != kindNone && given.kind != kindList {
		return none, refuse("tools is not an array")
	}
	tools := newList(nil)
	if given.kind == kindList {
		var err error
		if tools, err = sglangToolList(&given); err != nil {
			return none, err
		}
		normalizeSchemas(&tools)
	}
	choice := b.field("tool_choice")
	name, named, err := namedTool(choice)
	if err != nil {
		return none, err
	}
	if !tools.truthy() && !inMessages {
		if named || choice.str == "required" {
			return none, refuse("tool_choice without tools")
		}
		return none, nil
	}
	if choice.str == "none" && choice.kind == kindString {
		return none, nil
	}
	var out []value
	for _, t := range tools.items() {
		if !named || hasTool([]*dict{t.dict()}, name) {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return none, nil
	}
	return newList(out), nil
}

// sglangToolList is model_dump of tools: the function's known members in the order of the request, what is missing as
// null behind them, defer_loading null unless given.
func sglangToolList(tools *value) (value, error) {
	if tools.kind != kindList {
		return none, refuse("tools is not an array")
	}
	out := []value{}
	for _, item := range tools.items() {
		if item.kind != kindDict {
			return none, refuse("a tool is not an object")
		}
		fn, err := toolDocument(item.dict())
		if err != nil {
			return none, err
		}
		lazy := orNull(item.dict(), "defer_loading")
		f := &dict{}
		for i := range fn.keys {
			switch name := fn.keys[i].str; name {
			case "strict", "defer_loading":
				if fn.vals[i].kind != kindNone {
					f.set(name, fn.vals[i])
				}
			case "name", "description", "parameters":
				f.set(name, fn.vals[i])
			}
		}
		for _, name := range [...]string{"description", "parameters"} {
			f.set(name, orNull(f, name))
		}
		if f.find("defer_loading") < 0 && lazy.kind != kindNone {
			f.set("defer_loading", lazy)
		}
		kind := text("function")
		if s, ok := textOf(item.dict(), "type"); ok {
			kind = text(s)
		}
		t := &dict{}
		t.set("type", kind)
		t.set("function", newDict(f))
		t.set("defer_loading", lazy)
		out = append(out, newDict(t))
	}
	return newList(out), nil
}

// sglangKwargs are the template's variables: reasoning fields first, the request's chat_template_kwargs over them.
func (b *bodyReader) sglangKwargs() (*dict, error) {
	user, err := b.kwargs()
	if err != nil {
		return nil, err
	}
	effort, err := b.effort()
	if err != nil {
		return nil, err
	}
	thinking := none
	if r := b.field("reasoning"); r.kind == kindDict && enabled(r.dict()) {
		thinking = trueValue
	}
	if effort.kind != kindNone {
		thinking = boolean(effort.kind != kindString || effort.str != "none")
	}
	if thinking.kind != kindNone {
		for _, name := range [...]string{"thinking", "enable_thinking"} {
			if user.find(name) < 0 {
				user.set(name, thinking)
			}
		}
	}
	for i := range b.defaults.keys {
		if name := b.defaults.keys[i].str; user.find(name) < 0 {
			user.set(name, b.defaults.vals[i])
		}
	}
	if v, ok := user.get("reasoning_effort"); !ok || v.kind == kindNone {
		if effort.kind != kindNone {
			if !ok {
				user.set("reasoning_effort", effort)
			}
		}
	}
	for _, name := range [...]string{"messages", "tools", "add_generation_prompt", "tokenize", "return_dict", "conversation"} {
		if user.find(name) >= 0 {
			return nil, refuse("got multiple values for keyword argument '%s'", name)
		}
	}
	if v, ok := user.get("continue_final_message"); ok && v.truthy() {
		return nil, refuse("continue_final_message and add_generation_prompt are not compatible")
	}
	user.remove("continue_final_message")
	return user, nil
}

var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"}

// effort is reasoning_effort, or reasoning.effort over it.
func (b *bodyReader) effort() (value, error) {
	effort := b.field("reasoning_effort")
	if r := b.field("reasoning"); r.kind == kindDict {
		inner := orNull(r.dict(), "effort")
		if inner.kind == kindNone {
			inner = orNull(r.dict(), "reasoning_effort")
		}
		if inner.kind != kindNone {
			effort = inner
		}
	}
	switch effort.kind {
	case kindNone:
		return none, nil
	case kindString:
		if slices.Contains(efforts, effort.str) {
			return effort, nil
		}
		if f, ok := parseFloat(effort.str); ok {
			effort = float(f)
		}
	case kindInt:
		effort = float(float64(effort.num))
	}
	if effort.kind != kindFloat || !(effort.float() >= 0 && effort.float() <= 0.99) || math.IsNaN(effort.float()) {
		return none, refuse("invalid reasoning effort")
	}
	return effort, nil
}

func enabled(r *dict) bool {
	v := orNull(r, "enabled")
	if v.kind == kindNone {
		v = orNull(r, "enable")
	}
	if v.kind == kindString {
		return slices.Contains([]string{"1", "true", "yes", "y", "on"}, strings.ToLower(strings.TrimFunc(v.str, isSpace)))
	}
	return v.truthy()
}
