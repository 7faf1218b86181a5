package tokens

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// billing is the beginning of the changing line: a line that Claude Code puts before the system prompt, for example
// "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=8f3a1;". The hash cch changes with every
// request. vLLM 0.32 leaves the line out (vllm#36829; renderers/chat_utils.py, _strip_claude_code_billing_header).
// SGLang 0.5.23 renders it, so two prompts of one conversation begin alike only up to the line.
const billing = "x-anthropic-billing-header"

// changingWithin is the number of bytes of a request's messages or system prompt in which the line must begin. The line
// stands at the beginning, so a longer search would only cost time.
const changingWithin = 1 << 10

// HasChangingLine reports whether the system prompt of r has the line that Claude Code changes with every request. It
// looks at the beginning of the system prompt only, and allocates nothing for a request without the line.
func HasChangingLine(r *api.Request) bool {
	field := api.FieldMessages
	switch {
	case r.Dialect == api.OpenAIResponses:
		field = api.FieldInstructions
	case r.Dialect == api.AnthropicMessages && len(present(r.Raw(api.FieldSystem))) > 0:
		field = api.FieldSystem
	case r.Dialect != api.AnthropicMessages && r.Dialect != api.OpenAIChat:
		return false
	}
	raw := r.Raw(field)
	if len(raw) == 0 || !bytes.Contains(raw[:min(len(raw), changingWithin)], []byte(billing)) {
		return false
	}
	if field != api.FieldMessages {
		return hasBilling(raw)
	}
	if raw[0] != '[' {
		return false
	}
	for _, message := range jsonscan.Items(raw) {
		p, ok := readPart(message)
		return ok && string(p.role) == `"system"` && hasBilling(p.content)
	}
	return false
}

// hasBilling reports whether a text begins with the changing line, or one of the first blocks of a list does.
func hasBilling(content []byte) bool {
	if isString(content) {
		return begins(content, billing)
	}
	if len(content) == 0 || content[0] != '[' {
		return false
	}
	at := 0
	for _, block := range jsonscan.Items(content) {
		p, ok := readPart(block)
		if ok && isString(p.text) && begins(p.text, billing) {
			return true
		}
		if at += len(block); at > changingWithin {
			break
		}
	}
	return false
}
