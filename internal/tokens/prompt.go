package tokens

import (
	"encoding/json"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Prompt is a request for the token ids of a prompt.
type Prompt struct {
	// Request is the client's request. Find does not change Request, and does not use Request after Find has returned.
	Request *api.Request
	// Own is the client's request to /v1/responses, if Request is the chat request that was made of it. vLLM renders such
	// requests for gpt-oss in another way than chats. Find sets Own.
	Own *api.Request
	// Authorization is the client's Authorization header. Questions to engines repeat the header, because an engine may
	// demand it at render. Authorization may be empty.
	Authorization string
	// Model is the base model of the request's model name.
	Model string
	// Kind is the kind of engine to which the prompt will go. Find sets Kind.
	Kind Kind
	// Root is the folder or name from which all engines loaded the model, or empty if it is not known: see rootOf. vLLM
	// uses Root to name images. Find sets Root for prompts with media.
	Root string
	// Scratch is a buffer for the prompt's text. Found.Text may share its memory. Scratch may be nil.
	Scratch []byte
	// Patient says that Find waits for all ids until Config.Budget has passed. If they do not come, it returns no ids,
	// also if their beginning is known. By default Find waits only as long as a request is expected to gain from the ids,
	// and may return the beginning of the ids without a wait.
	Patient bool

	engineOnly bool // the tokenizer service is not asked
}

// own returns p with the client's own request, which engines are asked for.
func (p *Prompt) own() *Prompt {
	if p.Own == nil {
		return p
	}
	q := *p
	q.Request, q.Own = p.Own, nil
	return &q
}

// Has reports whether the body has a top-level field with one of these names.
func (p *Prompt) Has(names map[string]bool) bool {
	for name := range p.Request.Members {
		if names[string(name)] {
			return true
		}
	}
	return false
}

// InBody looks for token ids in the request's own body. If the body has ids, outcome is Given. If the body has several
// prompts, outcome is Batch, because there is no single best worker for them. If the body has no prompt, outcome is
// Refused, and the engine will say what is wrong. If nobody can make the ids, outcome is Unsupported. If ids have to be
// made, outcome is empty.
func InBody(r *api.Request, kind Kind) (ids []block.Token, outcome Outcome) {
	if r.Dialect == api.SGLangGenerate && r.Multimodal {
		return nil, Unsupported // the ids that SGLang's /tokenize would give are without the images' placeholders
	}
	switch r.Form {
	case api.PromptIDs:
		// SGLang 0.5.13 and later accept input_ids together with messages. vLLM's chat request has no such field, so vLLM
		// ignores input_ids.
		if r.Dialect == api.OpenAIChat && kind != SGLang {
			if r.Raw(api.FieldMessages) == nil {
				return nil, Refused
			}
			return nil, ""
		}
		return r.IDs, Given
	case api.PromptIDLists:
		if r.Lists() == 1 {
			return r.List(0), Given
		}
		return nil, Batch
	case api.PromptTexts:
		if r.Prompts > 1 {
			return nil, Batch
		}
	case api.PromptNone:
		return nil, Refused
	}
	return nil, ""
}

// indifferent has the top-level fields that never change the prompt's tokens. All other fields go into the cache's key.
// So an unknown field can cause a miss, but never wrong ids. cache_salt is in the list because it separates caches, not
// tokens.
var indifferent = map[string]bool{
	"stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true, "min_tokens": true,
	"temperature": true, "top_p": true, "top_k": true, "min_p": true, "n": true, "best_of": true, "seed": true,
	"stop": true, "stop_token_ids": true, "ignore_eos": true, "logprobs": true, "top_logprobs": true,
	"prompt_logprobs": true, "presence_penalty": true, "frequency_penalty": true, "repetition_penalty": true,
	"logit_bias": true, "user": true, "metadata": true, "store": true, "cache_salt": true, "priority": true,
	"request_id": true, "rid": true, "return_token_ids": true, "echo": true, "service_tier": true,
	"sampling_params": true, "return_logprob": true, "prompt_cache_key": true, "safety_identifier": true, "parallel_tool_calls": true, "skip_special_tokens": true,
	"spaces_between_special_tokens": true, "include_stop_str_in_output": true, "length_penalty": true,
	"use_beam_search": true, "kv_transfer_params": true, "session_id": true, "extra_key": true, "routed_dp_rank": true,
}

// templateFields are the fields of a chat body that /tokenize takes under the same name and with the same meaning
// (vLLM: TokenizeChatRequest).
var templateFields = []api.Field{api.FieldMessages, api.FieldTools, api.FieldChatTemplate, api.FieldAddGenerationPrompt,
	api.FieldContinueFinalMessage, api.FieldAddSpecialTokens, api.FieldMMProcessorKwargs}

// kwargFields are fields of a chat body that /tokenize does not know. vLLM merges these fields into the template's
// keyword arguments. So these fields have the same effect when they are passed in chat_template_kwargs.
var kwargFields = []api.Field{api.FieldDocuments, api.FieldReasoningEffort}

// sglangFields are the fields of a chat body that decide SGLang's prompt. SGLang's /tokenize treats these fields in the
// same way as SGLang's chats do. add_generation_prompt is not in the list: /tokenize uses it, and chats do not (SGLang
// 0.5.23: TokenizeRequest in srt/entrypoints/openai/protocol.py).
var sglangFields = map[string]bool{"model": true, "messages": true, "tools": true, "tool_choice": true,
	"reasoning_effort": true, "reasoning": true, "continue_final_message": true, "chat_template_kwargs": true}

// tokenizeBody returns the body with which /tokenize of an engine of this kind returns the tokens of r's prompt.
func tokenizeBody(r *api.Request, kind Kind) []byte {
	out := make([]byte, 0, r.PromptBytes()+256)
	out = append(out, '{')
	if kind == SGLang && r.Dialect == api.OpenAIChat {
		for name, value := range r.Members {
			if sglangFields[string(name)] {
				out = appendField(out, string(name), value)
			}
		}
		return append(out, '}')
	}
	if r.Model != "" {
		out = appendField(out, api.FieldModel.String(), jsonString(r.Model))
	}
	if r.Dialect == api.OpenAICompletions || r.Dialect == api.SGLangGenerate {
		out = appendField(out, api.FieldPrompt.String(), onlyText(r.Raw(r.Dialect.Text())))
		out = appendField(out, api.FieldAddSpecialTokens.String(), r.Raw(api.FieldAddSpecialTokens))
		return append(out, '}')
	}
	for _, f := range templateFields {
		out = appendField(out, f.String(), r.Raw(f))
	}
	kwargs := []byte{'{'}
	for _, f := range kwargFields {
		if value := r.Raw(f); string(value) != "null" {
			kwargs = appendField(kwargs, f.String(), value)
		}
	}
	// The request's own arguments come last. If a name is repeated, the last value counts, as when vLLM merges the
	// arguments.
	if own := r.Raw(api.FieldChatTemplateKwargs); hasMembers(own) {
		if len(kwargs) > 1 {
			kwargs = append(kwargs, ',')
		}
		kwargs = append(kwargs, own[1:len(own)-1]...)
	}
	if len(kwargs) > 1 {
		out = appendField(out, api.FieldChatTemplateKwargs.String(), append(kwargs, '}'))
	}
	return append(out, '}')
}

// appendField adds "name":value to the members of an object. If there is no value, it adds nothing.
func appendField(out []byte, name string, value []byte) []byte {
	if len(value) == 0 {
		return out
	}
	if len(out) > 1 {
		out = append(out, ',')
	}
	out = append(append(append(out, '"'), name...), '"', ':')
	return append(out, value...)
}

// onlyText returns the first item of a list that begins with a text, because /tokenize does not take a list. It returns
// every other prompt unchanged. The callers use it for lists of one text.
func onlyText(prompt []byte) []byte {
	for _, first := range jsonscan.Items(prompt) {
		if first[0] == '"' {
			return first
		}
		break
	}
	return prompt
}

// hasMembers reports whether value is an object that is not empty.
func hasMembers(value []byte) bool {
	for range jsonscan.Members(value) {
		return true
	}
	return false
}

func jsonString(s string) []byte {
	out, _ := json.Marshal(s) // a string can always be marshalled
	return out
}
