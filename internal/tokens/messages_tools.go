package tokens

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// appendTools appends the fields tools and tool_choice.
func (c *messagesChat) appendTools(out []byte, r *api.Request) ([]byte, error) {
	tools, given := list{}, present(r.Raw(api.FieldTools))
	if !isOptional(given, '[') {
		return out, errRefused
	}
	for _, raw := range jsonscan.Items(given) {
		p, ok := readPart(raw)
		switch {
		case !ok:
			return out, errDepends
		case c.kind == SGLang && ofServer(p.kind):
			continue
		case !isString(p.name), len(p.schema) == 0, p.schema[0] != '{', !isOptional(p.description, '"'):
			return out, errRefused
		}
		tools.out = c.appendTool(tools.next(), &p)
	}
	if given != nil && tools.n == 0 && c.kind == VLLM {
		return out, errDepends // vLLM renders an empty list of tools, which a chat request cannot have
	}
	if tools.n > 0 {
		out = append(append(append(out, `,"tools":[`...), tools.out...), ']')
	}
	return c.appendChoice(out, present(r.Raw(api.FieldToolChoice)), tools.out, tools.n > 0)
}

// ofServer reports whether the type of a tool is one that Anthropic's servers run. SGLang leaves such tools out.
func ofServer(kind []byte) bool {
	for _, family := range [...]string{`"web_search_`, `"computer_`, `"bash_`, `"text_editor_`} {
		if bytes.HasPrefix(kind, []byte(family)) {
			return true
		}
	}
	return false
}

func (c *messagesChat) appendTool(out []byte, p *part) []byte {
	out = append(out, `{"type":"function"`...)
	description, strict, inFunction := p.description, p.strict, p.lazy
	if c.kind == SGLang {
		if inFunction = nil; len(p.lazy) > 0 {
			out = append(append(out, `,"defer_loading":`...), p.lazy...)
		}
		if len(description) == 0 {
			description = []byte(`""`)
		}
		if len(strict) == 0 {
			strict = []byte(`false`)
		}
	}
	out = append(append(out, `,"function":{"name":`...), p.name...)
	out = appendField(out, "description", description)
	out = append(out, `,"parameters":`...)
	typed, empty := false, true
	for name := range jsonscan.Members(p.schema) {
		typed, empty = typed || string(name) == "type", false
	}
	switch {
	case typed:
		out = append(out, p.schema...)
	case empty:
		out = append(out, `{"type":"object"}`...)
	default: // a schema without a type is an object's
		out = append(append(out, p.schema[:len(p.schema)-1]...), `,"type":"object"}`...)
	}
	out = appendField(out, "strict", strict)
	return append(appendField(out, "defer_loading", inFunction), `}}`...)
}

// appendChoice appends the field tool_choice, as far as engines render it.
func (c *messagesChat) appendChoice(out, choice, tools []byte, some bool) ([]byte, error) {
	if len(choice) == 0 {
		return out, nil
	}
	p, ok := readPart(choice)
	if !ok {
		return out, errRefused
	}
	none := string(p.kind) == `"none"`
	switch string(p.kind) {
	case `"auto"`, `"none"`:
	case `"any"`, `"tool"`:
		if c.kind == SGLang && !some {
			return out, errRefused
		}
	default:
		return out, errRefused
	}
	switch {
	case none && (some || c.kind == SGLang):
		out = append(out, `,"tool_choice":"none"`...)
	case c.kind == SGLang && string(p.kind) == `"tool"`: // SGLang renders only the tool that is named
		if !isString(p.name) || !bytes.Contains(tools, append([]byte(`"function":{"name":`), p.name...)) {
			return out, errDepends
		}
		out = append(append(out, `,"tool_choice":{"type":"function","function":{"name":`...), p.name...)
		out = append(out, `}}`...)
	}
	return out, nil
}

// appendThinking appends the fields that switch thinking on or off.
func (c *messagesChat) appendThinking(out []byte, r *api.Request) ([]byte, error) {
	var effort []byte
	for name, value := range jsonscan.Members(present(r.Raw(api.FieldOutputConfig))) {
		if string(name) == "effort" {
			effort = present(value)
		}
	}
	if string(effort) == `"xhigh"` && c.kind == SGLang {
		effort = []byte(`"max"`)
	}
	if thinking := present(r.Raw(api.FieldThinking)); thinking != nil {
		p, ok := readPart(thinking)
		switch {
		case !ok:
			return out, errRefused
		case c.kind == SGLang: // the flag --reasoning-parser decides
			return out, errDepends
		case string(p.kind) == `"disabled"`:
			if c.how.Quiet == "" {
				return out, errDepends
			}
			effort = jsonString(c.how.Quiet)
		}
	}
	if effort != nil && c.kind == SGLang { // set after the request was read, so that it does not switch thinking on
		return append(append(append(out, `,"chat_template_kwargs":{"reasoning_effort":`...), effort...), '}'), nil
	}
	return appendField(out, "reasoning_effort", effort), nil
}
