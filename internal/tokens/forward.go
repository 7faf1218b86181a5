package tokens

import (
	"bytes"
	"strconv"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Ids may replace a body's text only if all other fields of the body are in these sets. These fields choose the
// answer's tokens, shape the answer, or name the request. Other fields could need the text, such as echo, suffix,
// prompt_logprobs, truncate_prompt_tokens, a template's arguments, or a future engine's fields. A body with such a
// field is sent unchanged.
var (
	forwardable = map[string]bool{
		"model": true, "stream": true, "stream_options": true, "max_tokens": true, "min_tokens": true, "temperature": true,
		"top_p": true, "top_k": true, "min_p": true, "n": true, "seed": true, "stop": true, "stop_token_ids": true,
		"ignore_eos": true, "presence_penalty": true, "frequency_penalty": true, "repetition_penalty": true,
		"logit_bias": true,
		"user":       true, "metadata": true, "service_tier": true, "cache_salt": true, "priority": true, "request_id": true,
		"skip_special_tokens": true, "spaces_between_special_tokens": true, "include_stop_str_in_output": true,
	}
	// add_special_tokens may stay: the ids were made as this field says, and vLLM ignores the field if the body has
	// ids.
	forwardableCompletions = map[string]bool{"prompt": true, "add_special_tokens": true}
	forwardableChatVLLM    = map[string]bool{"messages": true, "max_completion_tokens": true}
	forwardableChatSGLang  = map[string]bool{"messages": true, "max_completion_tokens": true, "rid": true,
		"extra_key": true, "routed_dp_rank": true}
)

// Forward describes a request that is about to be sent to a worker.
type Forward struct {
	Request *api.Request
	Model   string // the base model
	Found   *Found
	To      Worker
}

// AppendForwarded appends to dst the body for the worker. The body has the request's own bytes and the prompt's ids. In
// vLLM completions the ids replace the text. In chats the body has the ids in addition to the messages, and the engine
// does not render the messages. If ok is false, the request's own body must be sent. The ids are sent only if all of
// this holds:
//
//   - Config.Forward is auto.
//   - The ids were made in process for this kind of engine, and for the base model itself (not for a LoRA). The model
//     is not distrusted. The last twenty compared prompts had the same ids as an engine; if the router found the
//     model's files itself, this worker agreed in all probes instead.
//   - The prompt is one text, or messages with plain texts as contents, and has no media. The last message is not the
//     assistant's, because the answer may continue such a message.
//   - The body has only fields that mean the same with ids as with text: see forwardable.
//   - For a vLLM chat, which takes ids in kv_transfer_params (renderers/online_renderer.py, vllm#48145): the engine is
//     known to be 0.32 or later, because older versions pass the ids to a connector. The prompt and the answer fit the
//     model's length, because otherwise the engine would refuse the ids only after the stream has begun.
func (s *Source) AppendForwarded(dst []byte, f *Forward) (body []byte, ok bool) {
	r, kind := f.Request, f.To.Kind
	if s.cfg.Forward != ForwardAuto || f.Found.Outcome != InProcess || f.Found.Kind != kind || len(f.Found.Tokens) == 0 {
		return dst, false
	}
	if r.Model != f.Model || r.Multimodal || !s.proven(f) {
		return dst, false
	}
	ids := f.Found.Tokens
	if kind == VLLM && r.Dialect == api.OpenAICompletions {
		if r.Form != api.PromptText || !hasOnly(r, forwardableCompletions) {
			return dst, false
		}
		start, end := r.Offsets(api.FieldPrompt)
		dst = append(dst, r.Body()[:start]...)
		dst = appendIDs(dst, ids)
		return append(dst, r.Body()[end:]...), true
	}
	if r.Dialect != api.OpenAIChat || r.Form != api.PromptMessages || !textTurns(r.Raw(api.FieldMessages)) {
		return dst, false
	}
	switch {
	case kind == SGLang && hasOnly(r, forwardableChatSGLang):
		return appendBeside(dst, r.Body(), `"input_ids":`, ids, ""), true
	case kind == VLLM && hasOnly(r, forwardableChatVLLM) && atLeast(f.To.Version, 0, 32) &&
		max(r.MaxTokens, 1) <= f.To.MaxModelLen-len(ids):
		return appendBeside(dst, r.Body(), `"kv_transfer_params":{"prompt_token_ids":`, ids, "}"), true
	}
	return dst, false
}

// appendBeside appends body to dst, with one more field before the body's own fields. The new field consists of the
// text before, the ids, and the text after. body must have at least one field.
func appendBeside(dst, body []byte, before string, ids []block.Token, after string) []byte {
	open := bytes.IndexByte(body, '{') + 1
	dst = append(dst, body[:open]...)
	dst = appendIDs(append(dst, before...), ids)
	dst = append(append(dst, after...), ',')
	return append(dst, body[open:]...)
}

// hasOnly reports whether every field of r's body is in forwardable or in more.
func hasOnly(r *api.Request, more map[string]bool) bool {
	for name := range r.Members {
		if !forwardable[string(name)] && !more[string(name)] {
			return false
		}
	}
	return true
}

// textTurns reports whether all messages are {"role","content"} with a string as content, and the last message is not
// the assistant's. It returns false if a role or a key is spelled with escapes.
func textTurns(messages []byte) bool {
	last := ""
	for _, turn := range jsonscan.Items(messages) {
		role, text := "", false
		for name, value := range jsonscan.Members(turn) {
			switch string(name) {
			case "role":
				role = string(value)
			case "content":
				text = value[0] == '"'
			default:
				return false
			}
		}
		if !text || role != `"system"` && role != `"user"` && role != `"assistant"` {
			return false
		}
		last = role
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

// SendsNulls reports whether a vLLM of this version sends null in place of token ids that a request did not ask for.
// Older versions leave the fields out.
func SendsNulls(version string) bool { return atLeast(version, 0, 32) }
