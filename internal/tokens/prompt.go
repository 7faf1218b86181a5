package tokens

import (
	"encoding/json"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// Dialect says which endpoint a body was sent to.
type Dialect uint8

// The dialects whose prompts an engine can turn into tokens for us.
const (
	Chat        Dialect = iota // /v1/chat/completions
	Completions                // /v1/completions
)

// Prompt is a request whose token ids are wanted.
type Prompt struct {
	Dialect Dialect
	// Model is the name asked for; a LoRA adapter may have a template of its own, so the engine is asked by that name.
	Model string
	// Body is the request as it came, already read strictly (no duplicate keys, valid UTF-8). It is only read.
	Body []byte
	// Authorization is the client's header, passed on because render lies behind the engine's key; may be empty.
	Authorization string
}

// given looks for token ids in p's own body. text is the raw text prompt of a completion, unwrapped when it is a list of
// one; outcome is Given, Batch (several prompts: no single place to route to), or empty when an engine must be asked.
func given(p *Prompt, kind Kind) (ids []block.Token, text []byte, outcome Outcome) {
	field := "prompt"
	if p.Dialect == Chat {
		if kind != SGLang { // vLLM ignores ids beside messages (facts/engines.md §9.3)
			return nil, nil, ""
		}
		field = "input_ids"
	}
	var value []byte
	if err := eachField(p.Body, func(name, v []byte) bool {
		if string(name) == field {
			value = v
		}
		return value == nil
	}); err != nil || len(value) == 0 || value[0] != '[' {
		return nil, value, ""
	}
	inner := skipSpace(value, 1)
	switch value[inner] {
	case '[', '"':
		end := skipValue(value, inner)
		if end < 0 || value[skipSpace(value, end)] != ']' {
			return nil, nil, Batch
		}
		if value[inner] == '"' {
			return nil, value[inner:end], ""
		}
		value = value[inner:end]
	}
	ids, err := parseIDs(value)
	if err != nil || len(ids) == 0 {
		return nil, nil, Refused // the engine will say what is wrong with it
	}
	return ids, nil, Given
}

// key identifies what decides the tokens of a prompt: 128 bits, so that two prompts never share ids by chance.
type key = xxh3.Uint128

// indifferent are the top-level fields that never change the prompt's tokens. Everything else goes into the key: an
// unknown field then costs a miss, never wrong ids. cache_salt separates caches, not tokens.
var indifferent = map[string]bool{
	"stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true, "min_tokens": true,
	"temperature": true, "top_p": true, "top_k": true, "min_p": true, "n": true, "best_of": true, "seed": true,
	"stop": true, "stop_token_ids": true, "ignore_eos": true, "logprobs": true, "top_logprobs": true,
	"prompt_logprobs": true, "presence_penalty": true, "frequency_penalty": true, "repetition_penalty": true,
	"logit_bias": true, "user": true, "metadata": true, "store": true, "cache_salt": true, "priority": true,
	"request_id": true, "rid": true, "return_token_ids": true, "echo": true, "service_tier": true,
	"prompt_cache_key": true, "safety_identifier": true, "parallel_tool_calls": true, "skip_special_tokens": true,
	"spaces_between_special_tokens": true, "include_stop_str_in_output": true, "length_penalty": true,
	"use_beam_search": true, "kv_transfer_params": true, "session_id": true, "extra_key": true, "routed_dp_rank": true,
}

// keyOf hashes the parts of p's body that decide the tokens.
func keyOf(p *Prompt) (key, error) {
	var h xxh3.Hasher
	_, _ = h.Write([]byte{byte(p.Dialect)})
	_, _ = h.WriteString(p.Model)
	err := eachField(p.Body, func(name, value []byte) bool {
		if !indifferent[string(name)] {
			_, _ = h.Write([]byte{0xff}) // cannot occur in UTF-8: the parts stay apart
			_, _ = h.Write(name)
			_, _ = h.Write([]byte{0xfe})
			_, _ = h.Write(value)
		}
		return true
	})
	return h.Sum128(), err
}

// templateFields are the parts of a chat body that /tokenize takes by the same name and with the same meaning
// (vLLM: TokenizeChatRequest; facts/engines.md §6).
var templateFields = map[string]bool{
	"messages": true, "tools": true, "chat_template": true, "add_generation_prompt": true,
	"continue_final_message": true, "add_special_tokens": true, "mm_processor_kwargs": true,
}

// kwargFields are parts of a chat body that /tokenize does not know, but that vLLM merges into the template's keyword
// arguments: handed over inside chat_template_kwargs they render the same.
var kwargFields = map[string]bool{"documents": true, "reasoning_effort": true}

// tokenizeBody is the body for /tokenize that asks for the same tokens as p's request, with the values' bytes unchanged.
// text is a completion's raw text prompt.
func tokenizeBody(p *Prompt, text []byte) ([]byte, error) {
	model, err := json.Marshal(p.Model)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(p.Body)+128)
	out = append(append(out, `{"model":`...), model...)
	var kwargs, merged []byte
	err = eachField(p.Body, func(name, value []byte) bool {
		field := string(name)
		switch {
		case p.Dialect == Completions && field == "prompt":
			out = appendField(out, name, text)
		case p.Dialect == Completions && field == "add_special_tokens", p.Dialect == Chat && templateFields[field]:
			out = appendField(out, name, value)
		case p.Dialect == Chat && field == "chat_template_kwargs":
			kwargs = value
		case p.Dialect == Chat && kwargFields[field] && string(value) != "null":
			merged = appendField(merged, name, value)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return append(appendKwargs(out, kwargs, merged), '}'), nil
}

// appendField adds `,"name":value`.
func appendField(out, name, value []byte) []byte {
	out = append(append(append(out, ',', '"'), name...), '"', ':')
	return append(out, value...)
}

// appendKwargs adds chat_template_kwargs made of the request's own and of the merged fields; the request's own come
// last, because a repeated name counts by its last value, as it does when vLLM merges them.
func appendKwargs(out, kwargs, merged []byte) []byte {
	own := kwargs
	if len(own) > 0 && own[0] == '{' {
		own = own[skipSpace(own, 1) : len(own)-1]
	} else {
		own = nil
	}
	if len(merged) == 0 && len(own) == 0 {
		return out
	}
	out = append(out, `,"chat_template_kwargs":{`...)
	if len(merged) > 0 {
		out = append(out, merged[1:]...) // without the leading comma
	}
	if len(merged) > 0 && len(own) > 0 {
		out = append(out, ',')
	}
	return append(append(out, own...), '}')
}
