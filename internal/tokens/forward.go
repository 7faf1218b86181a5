package tokens

import (
	"bytes"
	"strconv"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// The fields of a body beside which ids may stand for its text: those that choose tokens, shape the answer or name the
// request. A field that is not listed here could need the text (echo, suffix, prompt_logprobs, truncate_prompt_tokens,
// a template's arguments, what a future engine adds), and the body passes unchanged.
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
	forwardableChatVLLM    = map[string]bool{"messages": true, "max_completion_tokens": true}
	forwardableChatSGLang  = map[string]bool{"messages": true, "max_completion_tokens": true, "rid": true, "extra_key": true, "routed_dp_rank": true}
)

// Forward is a request on its way to a worker.
type Forward struct {
	Request *api.Request
	Model   string // the base model
	Found   *Found
	To      Worker
}

// AppendForwarded appends to dst the body that the worker gets in place of the request's own: the same bytes, but with
// the prompt's ids for its text (vLLM completions) or beside its messages (chats, which then render nothing). ok is
// false when the request's own body must be sent. The ids may stand for the text only when
//
//   - Config.Forward is auto;
//   - they were made in process for that kind of engine, for the base model itself, and the model is proven: its ids are
//     believed, and the last twenty prompts compared were equal to an engine's, or that worker agreed in all probes;
//   - the prompt is one text, or messages whose contents are plain texts, the last of them not the assistant's (a turn to be
//     continued), and nothing in it is media;
//   - every field of the body is one beside which nothing is lost: see forwardable;
//   - for vLLM chats, which take ids in kv_transfer_params (renderers/online_renderer.py, vllm#48145): the engine is known to
//     be 0.32 or later, older ones hand them on to a connector; and prompt and answer fit the model's length, because what is
//     too long is then refused in the middle of a stream instead of before it.
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
	if r.Dialect != api.OpenAIChat || r.Form != api.PromptMessages || !plainTurns(r.Raw(api.FieldMessages)) {
		return dst, false
	}
	switch {
	case kind == SGLang && hasOnly(r, forwardableChatSGLang):
		return appendBeside(dst, r.Body(), `"input_ids":`, ids, ""), true
	case kind == VLLM && hasOnly(r, forwardableChatVLLM) && atLeast(f.To.Version, 0, 32) && max(r.MaxTokens, 1) <= f.To.MaxModelLen-len(ids):
		return appendBeside(dst, r.Body(), `"kv_transfer_params":{"prompt_token_ids":`, ids, "}"), true
	}
	return dst, false
}

// appendBeside appends body with one field more in front of the others, of which there are some.
func appendBeside(dst, body []byte, before string, ids []block.Token, after string) []byte {
	open := bytes.IndexByte(body, '{') + 1
	dst = append(dst, body[:open]...)
	dst = appendIDs(append(dst, before...), ids)
	dst = append(append(dst, after...), ',')
	return append(dst, body[open:]...)
}

// hasOnly reports whether every field of r's body is forwardable or one of more.
func hasOnly(r *api.Request, more map[string]bool) bool {
	for name := range r.Members {
		if !forwardable[string(name)] && !more[string(name)] {
			return false
		}
	}
	return true
}

// plainTurns reports whether messages are all {"role","content"} with a text as content, and the last is not the
// assistant's. What is spelled with escapes counts as not plain.
func plainTurns(messages []byte) bool {
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
