package inprocess

import (
	"strings"
	"time"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// Harmony is the prompt format of gpt-oss models. For these models vLLM does not use the chat template. vLLM renders
// the prompt with the library openai-harmony (entrypoints/openai/parser/harmony_utils.py, renderers/online_renderer.py
// of vLLM 0.32).

// readHarmony returns the prompt of a chat completion request for gpt-oss, as vLLM makes it. The prompt contains the
// date of the time now. The body must not change while the pieces are in use, because they share its bytes. The errors
// are those of chatTemplate.ReadRequest, and errSchema.
func readHarmony(body []byte, now time.Time) ([]harmonyPiece, error) {
	b := &bodyReader{config: &requestConfig{}, defaults: &jinja.Dict{}}
	if err := b.open(body); err != nil {
		return nil, err
	}
	if _, err := b.vllmKwargs(); err != nil { // vLLM checks chat_template_kwargs before it renders
		return nil, err
	}
	effort := b.field("reasoning_effort").Text()
	switch effort {
	case "":
		effort = "medium"
	case "low", "medium", "high":
	default:
		return nil, refuse("reasoning_effort %q is not supported by Harmony", effort)
	}
	tools, err := b.vllmTools()
	if err != nil {
		return nil, err
	}
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	h := &harmonyReader{}
	if messages, err = h.preamble(messages, tools, effort, now); err != nil {
		return nil, err
	}
	if err := h.read(messages); err != nil {
		return nil, err
	}
	return renderHarmony(h.conversation), nil
}

// harmonyReader turns the messages of a request into Harmony messages.
type harmonyReader struct {
	conversation []harmonyMessage
	names        map[string]string // id of a tool call → name of the called tool
}

// preamble adds Harmony's system message. If there are instructions or tools, it also adds a developer message with
// them. If the role of the request's first message is system or developer, this message has the instructions. preamble
// returns the messages that are left.
func (h *harmonyReader) preamble(messages []*jinja.Dict, tools jinja.Value, effort string,
	now time.Time) ([]*jinja.Dict, error) {
	var instructions string
	if first := messages[0]; roleIs(first, "system") || roleIs(first, "developer") {
		content, _ := first.Get("content")
		instructions, _ = flatText(content)
		messages = messages[1:]
	}
	offered := harmonyTools(tools)
	h.add(harmonyMessage{Author: "system", Texts: []string{harmonySystem(effort, now, len(offered) > 0)}})
	if instructions == "" && len(offered) == 0 {
		return messages, nil
	}
	text, err := harmonyDeveloper(instructions, offered)
	if err != nil {
		return nil, err
	}
	h.add(harmonyMessage{Author: "developer", Texts: []string{text}})
	return messages, nil
}

// harmonyTools returns the functions of tools. vllmTools has already checked tools.
func harmonyTools(tools jinja.Value) []harmonyTool {
	var out []harmonyTool
	for _, tool := range tools.Items() {
		fn, _ := tool.Dict().Get("function")
		t := harmonyTool{}
		t.Name, _ = textOf(fn.Dict(), "name")
		t.Description, _ = textOf(fn.Dict(), "description")
		t.Parameters, _ = fn.Dict().Get("parameters")
		out = append(out, t)
	}
	return out
}

func (h *harmonyReader) add(m harmonyMessage) { h.conversation = append(h.conversation, m) }

// flatText returns the text of a message's content. If the content is a list of parts, their texts are joined. ok is
// false if the content has no text.
func flatText(content jinja.Value) (string, bool) {
	switch content.Kind() {
	case jinja.KindString:
		return content.Text(), true
	case jinja.KindList:
		var b strings.Builder
		any := false
		for _, part := range content.Items() {
			s, ok := part.Text(), part.Kind() == jinja.KindString
			if part.Kind() == jinja.KindDict {
				s, ok = textOf(part.Dict(), "text")
			}
			any = any || ok
			b.WriteString(s)
		}
		return b.String(), any
	}
	return "", false
}

// read adds the request's messages to the conversation.
func (h *harmonyReader) read(messages []*jinja.Dict) error {
	h.names = map[string]string{}
	for _, m := range messages {
		calls, given := m.Get("tool_calls")
		if !given {
			continue
		}
		if calls.Kind() != jinja.KindList {
			return refuse("tool_calls is not an array")
		}
		for _, call := range calls.Items() {
			if call.Kind() != jinja.KindDict {
				return refuse("a tool call is not an object")
			}
			id, _ := textOf(call.Dict(), "id")
			fn, _ := call.Dict().Get("function")
			if fn.Kind() != jinja.KindDict {
				return refuse("a tool call has no function")
			}
			h.names[id], _ = textOf(fn.Dict(), "name")
		}
	}
	for _, m := range messages {
		role, ok := textOf(m, "role")
		if !ok {
			return refuse("a message has no role")
		}
		switch role {
		case "assistant":
			h.assistant(m)
		case "tool":
			id, _ := textOf(m, "tool_call_id")
			content, _ := m.Get("content")
			text, _ := flatText(content)
			h.add(harmonyMessage{Author: "functions." + h.names[id], Channel: "commentary to=assistant",
				Texts: []string{text}})
		case "system", "developer":
			content, _ := m.Get("content")
			if text, ok := flatText(content); ok {
				h.add(harmonyMessage{Author: "developer", Texts: []string{"# Instructions\n\n" + text}})
			}
		case "user":
			h.add(harmonyMessage{Author: "user", Texts: partTexts(m)})
		default:
			return refuse("unknown role %q", role)
		}
	}
	return nil
}

// partTexts returns the text of each part of a message's content.
func partTexts(m *jinja.Dict) []string {
	content, _ := m.Get("content")
	if content.Kind() != jinja.KindList {
		return []string{content.Text()}
	}
	var texts []string
	for _, part := range content.Items() {
		s := ""
		if part.Kind() == jinja.KindDict {
			s, _ = textOf(part.Dict(), "text")
		}
		texts = append(texts, s)
	}
	return texts
}

// assistant adds the Harmony messages for one assistant message: separate messages for the reasoning, each tool call,
// and the answer.
func (h *harmonyReader) assistant(m *jinja.Dict) {
	reasoning, _ := textOf(m, "reasoning")
	analysis := harmonyMessage{Author: "assistant", Channel: "analysis", Texts: []string{reasoning}}
	calls, _ := m.Get("tool_calls")
	if calls.Kind() == jinja.KindList && len(calls.Items()) > 0 {
		content, _ := m.Get("content")
		if text, _ := flatText(content); text != "" {
			h.add(harmonyMessage{Author: "assistant", Channel: "commentary", Texts: []string{text}})
		}
		if reasoning != "" {
			h.add(analysis)
		}
		for _, call := range calls.Items() {
			fn, _ := call.Dict().Get("function")
			name, _ := textOf(fn.Dict(), "name")
			arguments, _ := textOf(fn.Dict(), "arguments")
			h.add(harmonyMessage{Author: "assistant to=functions." + name, Channel: "commentary json",
				Texts: []string{arguments}, Call: true})
		}
		return
	}
	if reasoning != "" {
		h.add(analysis)
	}
	if texts := partTexts(m); len(texts) > 0 && texts[0] != "" {
		h.add(harmonyMessage{Author: "assistant", Channel: "final", Texts: texts})
	}
}
