package tokens

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// This file does the same as construct_input_messages, construct_tool_dicts and build_chat_params in vLLM 0.32
// (entrypoints/openai/responses/utils.py and protocol.py).

// beyondChat has the fields of a request to /v1/responses with which the prompt is not what the request alone says.
var beyondChat = map[string]bool{"previous_response_id": true, "previous_input_messages": true, "prompt": true,
	"truncation": true, "mm_processor_kwargs": true, "media_io_kwargs": true, "conversation": true}

// responsesChat writes the chat request for a request to /v1/responses.
type responsesChat struct {
	messages list
	// The assistant's message that is being written: items that follow each other become one message.
	open               bool
	content, reasoning []byte // as spelled, nil: none
	calls              list
}

// appendResponsesChat appends the chat request that vLLM makes of r. How SGLang reads such requests is not known here.
func appendResponsesChat(dst []byte, r *api.Request, kind Kind) ([]byte, error) {
	if kind != VLLM {
		return dst, errDepends
	}
	for name, value := range r.Members {
		if beyondChat[string(name)] && string(value) != "null" && string(value) != `"disabled"` {
			return dst, errDepends
		}
		if string(name) == "truncation" && string(value) == "null" {
			return dst, errDepends
		}
	}
	c := &responsesChat{}
	c.messages.out = append(dst, `{"messages":[`...)
	if text := present(r.Raw(api.FieldInstructions)); isString(text) && has(text) {
		c.say("system", text)
	}
	switch input := present(r.Raw(api.FieldInput)); {
	case isString(input):
		c.say("user", input)
	case len(input) > 0 && input[0] == '[':
		for _, raw := range jsonscan.Items(input) {
			if err := c.item(raw); err != nil {
				return dst, err
			}
		}
		c.close()
	default:
		return dst, errRefused
	}
	out := append(c.messages.out, ']')
	out = appendField(out, "model", present(r.Raw(api.FieldModel)))
	out, err := appendResponsesTools(out, r)
	if err != nil {
		return dst, err
	}
	if reasoning := present(r.Raw(api.FieldReasoning)); reasoning != nil {
		for name, value := range jsonscan.Members(reasoning) {
			if string(name) == "effort" {
				out = appendField(out, "reasoning_effort", present(value))
			}
		}
	}
	out = appendField(out, "chat_template_kwargs", present(r.Raw(api.FieldChatTemplateKwargs)))
	return append(out, '}'), nil
}

// say writes a message with one text.
func (c *responsesChat) say(role string, text []byte) {
	c.messages.out = append(append(append(c.messages.next(), `{"role":"`...), role...), `","content":`...)
	c.messages.out = append(append(c.messages.out, text...), '}')
}

// close writes the assistant's message, if there is one.
func (c *responsesChat) close() {
	if !c.open {
		return
	}
	out := append(c.messages.next(), `{"role":"assistant"`...)
	out = appendField(out, "content", c.content)
	out = appendField(out, "reasoning", c.reasoning)
	if c.calls.n > 0 {
		out = append(append(append(out, `,"tool_calls":[`...), c.calls.out...), ']')
	}
	c.messages.out = append(out, '}')
	c.open, c.content, c.reasoning, c.calls = false, nil, nil, list{}
}

// item reads one item of the input.
func (c *responsesChat) item(raw []byte) error {
	p, ok := readPart(raw)
	if !ok || string(p.status) == `"in_progress"` || string(p.status) == `"incomplete"` {
		return errDepends // the answer may continue the item
	}
	switch string(p.kind) {
	case `"function_call"`:
		if !isString(p.callID) || !isString(p.name) || !isString(p.arguments) || p.namespace != nil {
			return errDepends
		}
		c.open = true
		out := append(append(c.calls.next(), `{"id":`...), p.callID...)
		out = append(append(out, `,"type":"function","function":{"name":`...), p.name...)
		c.calls.out = append(append(append(out, `,"arguments":`...), p.arguments...), `}}`...)
		return nil
	case `"reasoning"`:
		return c.think(&p)
	case `"function_call_output"`:
		if !isString(p.output) || !isString(p.callID) {
			return errDepends
		}
		c.close()
		c.messages.out = append(append(c.messages.next(), `{"role":"tool","content":`...), p.output...)
		c.messages.out = append(append(append(c.messages.out, `,"tool_call_id":`...), p.callID...), '}')
		return nil
	case `"message"`, "":
		return c.message(&p)
	}
	return errDepends
}

// think adds the assistant's thoughts.
func (c *responsesChat) think(p *part) error {
	switch {
	case p.encrypted != nil && string(p.encrypted) != `""`:
		return errRefused
	case p.summary == nil || p.summary[0] != '[':
		return errDepends
	}
	text, some, err := firstText(p.content, `"reasoning_text"`)
	if err == nil && !some {
		text, some, err = firstText(p.summary, `"summary_text"`)
	}
	if err != nil {
		return err
	}
	if !some {
		text = []byte(`""`)
	}
	if c.open && c.reasoning != nil {
		c.close()
	}
	c.open, c.reasoning = true, text
	return nil
}

// firstText returns the text of the first part of a list, all of whose parts must have the given type.
func firstText(parts []byte, kind string) (text []byte, some bool, err error) {
	if len(parts) > 0 && parts[0] != '[' {
		return nil, false, errDepends
	}
	for _, raw := range jsonscan.Items(parts) {
		p, ok := readPart(raw)
		if !ok || string(p.kind) != kind || !isString(p.text) {
			return nil, false, errDepends
		}
		if !some {
			text, some = p.text, true
		}
	}
	return text, some, nil
}

// message adds a message of any role.
func (c *responsesChat) message(p *part) error {
	switch string(p.role) {
	case `"assistant"`:
		text := p.content
		if !isString(text) {
			var some bool
			var err error
			if text, some, err = firstText(text, `"output_text"`); err != nil || !some || p.kind == nil {
				return errDepends
			}
		}
		if c.open && c.content != nil {
			c.close()
		}
		c.open, c.content = true, text
		return nil
	case `"user"`, `"system"`, `"developer"`:
	default:
		return errDepends
	}
	c.close()
	if isString(p.content) {
		c.say(string(bytes.Trim(p.role, `"`)), p.content)
		return nil
	}
	if len(p.content) == 0 || p.content[0] != '[' {
		return errDepends
	}
	var parts list
	for _, raw := range jsonscan.Items(p.content) {
		q, ok := readPart(raw)
		if !ok || q.others || string(q.kind) != `"input_text"` || !isString(q.text) {
			return errDepends // such as an image or a file
		}
		parts.out = appendTextPart(parts.next(), q.text)
	}
	c.say(string(bytes.Trim(p.role, `"`)), append(append([]byte{'['}, parts.out...), ']'))
	return nil
}

// appendResponsesTools appends the fields tools and tool_choice.
func appendResponsesTools(out []byte, r *api.Request) ([]byte, error) {
	tools, given := list{}, present(r.Raw(api.FieldTools))
	if !isOptional(given, '[') {
		return out, errRefused
	}
	for _, raw := range jsonscan.Items(given) {
		p, ok := readPart(raw)
		if !ok || string(p.kind) != `"function"` || !isString(p.name) {
			return out, errDepends // such as a tool that the engine runs itself
		}
		next := append(append(tools.next(), `{"type":"function","function":{"name":`...), p.name...)
		for _, f := range [...]struct {
			name  string
			value []byte
		}{{"description", p.description}, {"parameters", p.parameters}, {"strict", p.strict}, {"defer_loading", p.lazy}} {
			next = appendField(next, f.name, f.value)
		}
		tools.out = append(next, `}}`...)
	}
	if tools.n == 0 {
		return out, nil
	}
	out = append(append(append(out, `,"tools":[`...), tools.out...), ']')
	if string(r.Raw(api.FieldToolChoice)) == `"none"` {
		out = append(out, `,"tool_choice":"none"`...)
	}
	return out, nil
}
