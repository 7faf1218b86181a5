package inprocess

import (
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// SGLang 0.5.23 changes a chat request before it renders the template. This file makes the same changes as SGLang's
// srt/entrypoints/openai/protocol.py, serving_chat.py, srt/parser/jinja_template_utils.py and
// srt/function_call/utils.py. It does not cover models for which SGLang uses an encoder instead of a template
// (DeepSeek-V3.2, Kimi-K3 …).

func (b *bodyReader) sglang(t *chatTemplate) (*chatRequest, error) {
	q := &chatRequest{template: t, vars: &jinja.Dict{}}
	format := b.config.Content
	if format == formatAuto {
		format = t.ContentFormat(engineSGLang)
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
	conversation := make([]*jinja.Dict, len(messages))
	hasTools := false
	for i, m := range messages {
		out, err := b.sglangMessage(m)
		if err != nil {
			return nil, err
		}
		if tools, ok := out.Get("tools"); ok && tools.Truthy() {
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
	q.vars.Set("messages", listOfDicts(conversation))
	q.vars.Set("tools", tools)
	q.vars.Set("documents", jinja.None)
	q.vars.Set("add_generation_prompt", jinja.Bool(true))
	q.retry, q.tools = true, bareTools(tools)
	return q, nil
}

// sglangTemplate replaces the model's template by the template in the request's chat_template_kwargs, if there is one.
// It refuses such a request unless TrustTemplate is set. The content keeps the format that the model's own template
// expects.
func (b *bodyReader) sglangTemplate(q *chatRequest) error {
	own, _ := q.kwargs.Get("chat_template")
	q.kwargs.Remove("chat_template")
	if own.Kind() != jinja.KindString {
		return nil
	}
	if !b.config.TrustTemplate {
		return refuse("chat_template in the request is not trusted")
	}
	var err error
	q.template, err = parseTemplate(own.Text())
	return err
}

// lastAssistant changes a final assistant message whose content is a text. If open is true, lastAssistant removes the
// message and returns its text, which the answer continues. If open is false, the message becomes a user message.
func lastAssistant(messages []*jinja.Dict, open bool) ([]*jinja.Dict, string) {
	last := messages[len(messages)-1]
	content, _ := last.Get("content")
	if !roleIs(last, "assistant") || content.Kind() != jinja.KindString {
		return messages, ""
	}
	messages = messages[:len(messages)-1]
	if open {
		return messages, content.Text()
	}
	user := &jinja.Dict{}
	user.Set("role", jinja.Text("user"))
	user.Set("content", content)
	return append(messages, user), ""
}

// bareTools returns the functions of the tools. If the first render fails, SGLang renders with these functions.
func bareTools(tools jinja.Value) jinja.Value {
	if tools.Kind() != jinja.KindList {
		return jinja.None
	}
	var out []jinja.Value
	for _, t := range tools.Items() {
		if fn, ok := t.Dict().Get("function"); ok {
			t = fn
		}
		out = append(out, t)
	}
	return jinja.List(out)
}

// genericRoles has the roles that SGLang accepts in addition to user. Upper and lower case do not matter.
var genericRoles = map[string]bool{"system": true, "assistant": true, "tool": true, "function": true, "developer": true,
	"latest_reminder": true, "root": true}

// sglangMessage returns the same as pydantic's model_dump of a message, without nulls: the known fields, in the order
// of the pydantic class.
func (b *bodyReader) sglangMessage(m *jinja.Dict) (*jinja.Dict, error) {
	role, _ := textOf(m, "role")
	out := &jinja.Dict{}
	if role == "user" {
		content, _ := m.Get("content")
		if content.Kind() != jinja.KindString && content.Kind() != jinja.KindList {
			return nil, refuse("a user message has no content")
		}
		out.Set("role", jinja.Text(role))
		out.Set("content", content)
		return out, nil
	}
	role = strings.ToLower(role)
	if !genericRoles[role] {
		return nil, refuse("unknown role %q", role)
	}
	out.Set("role", jinja.Text(role))
	content, _ := m.Get("content")
	switch content.Kind() {
	case jinja.KindString, jinja.KindList:
	case jinja.KindUndefined, jinja.KindNone:
		content = jinja.Text("")
	default:
		return nil, refuse("the content of a %s message is a %s", role, content.TypeName())
	}
	out.Set("content", content)
	for _, name := range [...]string{"tool_call_id", "name", "phase", "reasoning_content"} {
		if v, ok := m.Get(name); ok && v.Kind() != jinja.KindNone {
			if v.Kind() != jinja.KindString {
				return nil, refuse("%s is not a text", name)
			}
			out.Set(name, v)
		}
	}
	if calls, ok := m.Get("tool_calls"); ok && calls.Kind() != jinja.KindNone {
		parsed, err := b.sglangCalls(&calls, role == "assistant")
		if err != nil {
			return nil, err
		}
		out.Set("tool_calls", parsed)
	}
	if tools, ok := m.Get("tools"); ok && tools.Kind() != jinja.KindNone {
		dumped, err := sglangToolList(&tools)
		if err != nil {
			return nil, err
		}
		out.Set("tools", dumped)
	}
	put(out, m, "prefix")
	return out, nil
}

// sglangCalls adds the missing members of tool calls as null. If parse is true, it also parses the calls' arguments,
// which must be JSON objects.
func (b *bodyReader) sglangCalls(calls *jinja.Value, parse bool) (jinja.Value, error) {
	if calls.Kind() != jinja.KindList {
		return jinja.None, refuse("tool_calls is not an array")
	}
	out := []jinja.Value{}
	for _, item := range calls.Items() {
		if item.Kind() != jinja.KindDict {
			return jinja.None, refuse("a tool call is not an object")
		}
		fn, _ := item.Dict().Get("function")
		if fn.Kind() != jinja.KindDict {
			return jinja.None, refuse("a tool call has no function")
		}
		f := &jinja.Dict{}
		f.Set("name", orNull(fn.Dict(), "name"))
		arguments := orNull(fn.Dict(), "arguments")
		if parse && arguments.Kind() == jinja.KindString {
			parsed, err := b.json.DecodeText(arguments.Text(), jinja.Orjson)
			switch {
			case errors.Is(err, jinja.ErrLimit):
				return jinja.None, err
			case err != nil || parsed.Kind() != jinja.KindDict:
				return jinja.None, refuse("a tool call's arguments are not a JSON object")
			}
			arguments = parsed
		}
		f.Set("arguments", arguments)
		c := &jinja.Dict{}
		c.Set("id", orNull(item.Dict(), "id"))
		c.Set("index", orNull(item.Dict(), "index"))
		c.Set("type", jinja.Text("function"))
		c.Set("function", jinja.FromDict(f))
		out = append(out, jinja.FromDict(c))
	}
	return jinja.List(out), nil
}

func orNull(d *jinja.Dict, name string) jinja.Value {
	if v, ok := d.Get(name); ok {
		return v
	}
	return jinja.None
}

// sglangContent converts a message's content to the template's format.
func (b *bodyReader) sglangContent(m *jinja.Dict, format contentFormat) (*jinja.Dict, error) {
	content, _ := m.Get("content")
	if content.Kind() != jinja.KindList {
		return m, nil
	}
	var parts []jinja.Value
	var texts []string
	for _, item := range content.Items() {
		part, err := b.sglangPart(&item, roleIs(m, "assistant"))
		if err != nil {
			return nil, err
		}
		if part.Kind() != jinja.KindDict {
			continue
		}
		parts = append(parts, part)
		if s, ok := textOf(part.Dict(), "text"); ok {
			texts = append(texts, s)
		}
	}
	joined := jinja.Text(strings.Join(texts, " "))
	if format != formatOpenAI {
		m.Set("content", joined)
		return m, nil
	}
	m.Remove("content") // SGLang puts the list of parts after the other fields
	if roleIs(m, "tool") && len(texts) == len(parts) {
		m.Set("content", joined)
	} else {
		m.Set("content", jinja.List(parts))
	}
	return m, nil
}

// sglangPart returns one part as SGLang passes it to templates. It returns None if SGLang leaves the part out.
func (b *bodyReader) sglangPart(item *jinja.Value, assistant bool) (jinja.Value, error) {
	if item.Kind() != jinja.KindDict {
		return jinja.None, refuse("a content part is a %s", item.TypeName())
	}
	kind, _ := textOf(item.Dict(), "type")
	part := &jinja.Dict{}
	switch kind {
	case "text":
		s, ok := textOf(item.Dict(), "text")
		if !ok {
			return jinja.None, refuse("a text part without text")
		}
		part.Set("type", jinja.Text("text"))
		part.Set("text", jinja.Text(s))
		return jinja.FromDict(part), nil
	case "thinking", "reasoning":
		if !assistant {
			return jinja.None, refuse("thinking outside of an assistant message")
		}
		return jinja.None, nil
	case "tool_reference":
		part.Set("type", jinja.Text(kind))
		part.Set("name", orNull(item.Dict(), "name"))
		return jinja.FromDict(part), nil
	case "image_url", "video_url", "audio_url", "input_audio":
		b.media = append(b.media, chatMedia{Kind: kind})
		part.Set("type", jinja.Text(map[string]string{"image_url": "image", "video_url": "video"}[kind]))
		if kind == "audio_url" || kind == "input_audio" {
			part.Set("type", jinja.Text("audio"))
		}
		return jinja.FromDict(part), nil
	}
	return jinja.None, refuse("unsupported content part %q", kind)
}

// sglangTools returns the request's tools for the template. If tool_choice is none, there are no tools. If tool_choice
// names a tool, there is only this tool. inMessages is true if messages have tools of their own.
func (b *bodyReader) sglangTools(inMessages bool) (jinja.Value, error) {
	given := b.field("tools")
	if given.Kind() != jinja.KindNone && given.Kind() != jinja.KindList {
		return jinja.None, refuse("tools is not an array")
	}
	tools := jinja.List(nil)
	if given.Kind() == jinja.KindList {
		var err error
		if tools, err = sglangToolList(&given); err != nil {
			return jinja.None, err
		}
		normalizeSchemas(tools)
	}
	choice := b.field("tool_choice")
	name, named, err := namedTool(choice)
	if err != nil {
		return jinja.None, err
	}
	if !tools.Truthy() && !inMessages {
		if named || choice.Text() == "required" {
			return jinja.None, refuse("tool_choice without tools")
		}
		return jinja.None, nil
	}
	if choice.Text() == "none" && choice.Kind() == jinja.KindString {
		return jinja.None, nil
	}
	var out []jinja.Value
	for _, t := range tools.Items() {
		if !named || hasTool([]*jinja.Dict{t.Dict()}, name) {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return jinja.None, nil
	}
	return jinja.List(out), nil
}

// sglangToolList returns the same as pydantic's model_dump of the tools. A function has its known members in the order
// of the request, and then a missing description or missing parameters as null. The member defer_loading of the tool
// itself is null unless the request has it.
func sglangToolList(tools *jinja.Value) (jinja.Value, error) {
	if tools.Kind() != jinja.KindList {
		return jinja.None, refuse("tools is not an array")
	}
	out := []jinja.Value{}
	for _, item := range tools.Items() {
		if item.Kind() != jinja.KindDict {
			return jinja.None, refuse("a tool is not an object")
		}
		fn, err := toolDocument(item.Dict())
		if err != nil {
			return jinja.None, err
		}
		lazy := orNull(item.Dict(), "defer_loading")
		f := &jinja.Dict{}
		for name, v := range fn.All() {
			switch name {
			case "strict", "defer_loading":
				if v.Kind() != jinja.KindNone {
					f.Set(name, v)
				}
			case "name", "description", "parameters":
				f.Set(name, v)
			}
		}
		for _, name := range [...]string{"description", "parameters"} {
			f.Set(name, orNull(f, name))
		}
		if !f.Has("defer_loading") && lazy.Kind() != jinja.KindNone {
			f.Set("defer_loading", lazy)
		}
		kind := jinja.Text("function")
		if s, ok := textOf(item.Dict(), "type"); ok {
			kind = jinja.Text(s)
		}
		t := &jinja.Dict{}
		t.Set("type", kind)
		t.Set("function", jinja.FromDict(f))
		t.Set("defer_loading", lazy)
		out = append(out, jinja.FromDict(t))
	}
	return jinja.List(out), nil
}

// sglangKwargs returns the template's further variables. The request's chat_template_kwargs take precedence over the
// request's reasoning fields.
func (b *bodyReader) sglangKwargs() (*jinja.Dict, error) {
	user, err := b.kwargs()
	if err != nil {
		return nil, err
	}
	effort, err := b.effort()
	if err != nil {
		return nil, err
	}
	thinking := jinja.None
	if r := b.field("reasoning"); r.Kind() == jinja.KindDict && enabled(r.Dict()) {
		thinking = jinja.Bool(true)
	}
	if effort.Kind() != jinja.KindNone {
		thinking = jinja.Bool(effort.Kind() != jinja.KindString || effort.Text() != "none")
	}
	if thinking.Kind() != jinja.KindNone {
		for _, name := range [...]string{"thinking", "enable_thinking"} {
			if !user.Has(name) {
				user.Set(name, thinking)
			}
		}
	}
	for name, v := range b.defaults.All() {
		if !user.Has(name) {
			user.Set(name, v)
		}
	}
	if v, ok := user.Get("reasoning_effort"); !ok || v.Kind() == jinja.KindNone {
		if effort.Kind() != jinja.KindNone {
			if !ok {
				user.Set("reasoning_effort", effort)
			}
		}
	}
	for _, name := range [...]string{"messages", "tools", "add_generation_prompt", "tokenize", "return_dict",
		"conversation"} {
		if user.Has(name) {
			return nil, refuse("got multiple values for keyword argument '%s'", name)
		}
	}
	if v, ok := user.Get("continue_final_message"); ok && v.Truthy() {
		return nil, refuse("continue_final_message and add_generation_prompt are not compatible")
	}
	user.Remove("continue_final_message")
	return user, nil
}

var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"}

// effort returns the request's reasoning.effort. If reasoning.effort is missing, effort returns reasoning_effort.
func (b *bodyReader) effort() (jinja.Value, error) {
	effort := b.field("reasoning_effort")
	if r := b.field("reasoning"); r.Kind() == jinja.KindDict {
		inner := orNull(r.Dict(), "effort")
		if inner.Kind() == jinja.KindNone {
			inner = orNull(r.Dict(), "reasoning_effort")
		}
		if inner.Kind() != jinja.KindNone {
			effort = inner
		}
	}
	switch effort.Kind() {
	case jinja.KindNone:
		return jinja.None, nil
	case jinja.KindString:
		if slices.Contains(efforts, effort.Text()) {
			return effort, nil
		}
		if f, ok := jinja.ParseFloat(effort.Text()); ok {
			effort = jinja.Float(f)
		}
	case jinja.KindInt:
		effort = jinja.Float(float64(effort.Int()))
	}
	if effort.Kind() != jinja.KindFloat || !(effort.Float() >= 0 && effort.Float() <= 0.99) ||
		math.IsNaN(effort.Float()) {
		return jinja.None, refuse("invalid reasoning effort")
	}
	return effort, nil
}

func enabled(r *jinja.Dict) bool {
	v := orNull(r, "enabled")
	if v.Kind() == jinja.KindNone {
		v = orNull(r, "enable")
	}
	if v.Kind() == jinja.KindString {
		return slices.Contains([]string{"1", "true", "yes", "y", "on"},
			strings.ToLower(strings.TrimFunc(v.Text(), jinja.IsSpace)))
	}
	return v.Truthy()
}
