package tokens

import (
	"strconv"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

// The fields of a body beside which ids may stand for its text: those that choose tokens, shape the answer or name the
// request. A field that is not listed here could need the text (echo, suffix, prompt_logprobs, truncate_prompt_tokens, a
// template's arguments, what a future engine adds), and the body passes unchanged.
var (
	forwardable = map[string]bool{
		"model": true, "stream": true, "stream_options": true, "max_tokens": true, "min_tokens": true, "temperature": true,
		"top_p": true, "top_k": true, "min_p": true, "n": true, "seed": true, "stop": true, "stop_token_ids": true,
		"ignore_eos": true, "presence_penalty": true, "frequency_penalty": true, "repetition_penalty": true, "logit_bias": true,
		"user": true, "metadata": true, "service_tier": true, "cache_salt": true, "priority": true, "request_id": true,
		"skip_special_tokens": true, "spaces_between_special_tokens": true, "include_stop_str_in_output": true,
	}
	// add_special_tokens is in the ids already, and vLLM ignores it beside them.
	forwardableCompletions = map[string]bool{"prompt": true, "add_special_tokens": true}
	forwardableChat        = map[string]bool{"messages": true, "max_completion_tokens": true, "rid": true, "extra_key": true, "routed_dp_rank": true}
)

// AppendForwarded appends to dst the body that an engine of that kind gets in place of r's own: the same bytes, but with the
// prompt's ids for its text (vLLM completions) or beside its messages (SGLang chat, which then renders nothing). ok is false
// when r's own body must be sent. model is the base model. The ids may stand for the text only when
//
//   - Config.Forward is auto;
//   - they were made in process for that kind of engine, for the base model itself, and the model is proven: its ids are
//     believed, and the last twenty prompts compared were equal to an engine's;
//   - the prompt is one text, or for SGLang messages whose contents are plain texts, the last of them not the assistant's
//     (a turn to be continued), and nothing in it is media;
//   - every field of the body is one beside which nothing is lost: see forwardable.
func (s *Source) AppendForwarded(dst []byte, r *api.Request, model string, found *Found, kind Kind) (body []byte, ok bool) {
	if s.cfg.Forward != ForwardAuto || found.Outcome != InProcess || found.Kind != kind || len(found.Tokens) == 0 {
		return dst, false
	}
	if r.Model != model || r.Multimodal || !s.checks.proven(model) {
		return dst, false
	}
	switch {
	case kind == VLLM && r.Dialect == api.OpenAICompletions && r.Form == api.PromptText && hasOnly(r, forwardableCompletions):
		start, end := r.Offsets(api.FieldPrompt)
		dst = append(dst, r.Body()[:start]...)
		dst = appendIDs(dst, found.Tokens)
		return append(dst, r.Body()[end:]...), true
	case kind == SGLang && r.Dialect == api.OpenAIChat && r.Form == api.PromptMessages && hasOnly(r, forwardableChat) && plainTurns(r.Raw(api.FieldMessages)):
		open := skipSpace(r.Body(), 0) + 1 // after the brace: there are messages behind it
		dst = append(dst, r.Body()[:open]...)
		dst = append(dst, `"input_ids":`...)
		dst = append(appendIDs(dst, found.Tokens), ',')
		return append(dst, r.Body()[open:]...), true
	}
	return dst, false
}

// hasOnly reports whether every field of r's body is forwardable or one of more.
func hasOnly(r *api.Request, more map[string]bool) bool {
	only := true
	err := eachField(r.Body(), func(name, _ []byte) bool {
		only = forwardable[string(name)] || more[string(name)]
		return only
	})
	return err == nil && only
}

// plainTurns reports whether messages are all {"role","content"} with a text as content, and the last is not the
// assistant's. What is spelled with escapes counts as not plain.
func plainTurns(messages []byte) bool {
	last := ""
	for i := skipSpace(messages, 1); i < len(messages) && messages[i] == '{'; {
		end := skipValue(messages, i)
		if end < 0 {
			return false
		}
		role, text := "", false
		err := eachField(messages[i:end], func(name, value []byte) bool {
			switch string(name) {
			case "role":
				role = string(value)
			case "content":
				text = value[0] == '"'
			default:
				text = false
				return false
			}
			return true
		})
		if err != nil || !text || role != `"system"` && role != `"user"` && role != `"assistant"` {
			return false
		}
		last = role
		if i = skipSpace(messages, end); i < len(messages) && messages[i] == ',' {
			i = skipSpace(messages, i+1)
		}
	}
	return last != "" && last != `"assistant"`
}

func appendIDs(dst []byte, ids []block.Token) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}
