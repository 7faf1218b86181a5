package mockengine

import (
	"strconv"

	"github.com/warmpath/warmpath/block"
)

// The functions in this file do not use encoding/json, because writing responses is most of the mock engine's work.

// appendHead appends the first fields of every response object and chunk.
func (x *run) appendHead(dst []byte, object string) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(dst, x.id...)
	dst = append(dst, `","object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, x.created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, x.model)
	return dst
}

// appendWhole appends the answer to a request that is not streamed.
func (x *run) appendWhole(dst []byte) []byte {
	if w := writers[x.form]; w.whole != nil {
		return w.whole(x, dst)
	}
	object := "text_completion"
	if x.chat {
		object = "chat.completion"
	}
	dst = x.appendHead(dst, object)
	dst = append(dst, `,"choices":[`...)
	for i := range x.parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = x.appendChoice(dst, i)
	}
	dst = append(dst, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	dst = x.appendUsage(dst)
	if x.tokenIDs && x.chat && x.disaggregated == nil {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, x.prompts[0].tokens)
	}
	if x.disaggregated != nil && x.disaggregated.context {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, x.prompts[0].tokens)
	}
	dst = append(dst, `,"kv_transfer_params":`...)
	if params := x.parts[len(x.parts)-1].progress.params; len(params) > 0 && x.disaggregated == nil {
		return append(append(dst, params...), '}')
	}
	return append(dst, "null}"...)
}

func (x *run) appendChoice(dst []byte, i int) []byte {
	a := &x.parts[i].answer
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	var text [512]byte
	switch {
	case !x.chat:
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, appendText(text[:0], a.tokens[:a.text]))
	case a.call != nil && a.reason == "tool_calls":
		dst = append(dst, `,"message":{"role":"assistant","content":null,"reasoning_content":null,"tool_calls":[`...)
		dst = appendToolCall(dst, a.call, -1)
		dst = append(dst, "]}"...)
	default:
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = appendString(dst, appendText(text[:0], a.tokens[:a.text]))
		dst = append(dst, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning_content":null}`...)
	}
	dst = append(dst, `,"logprobs":null,"finish_reason":"`...)
	dst = append(dst, a.reason...)
	dst = append(dst, `","stop_reason":`...)
	dst = appendStop(dst, a)
	if params := x.parts[i].progress.params; x.disaggregated != nil && len(params) > 0 {
		dst = append(append(dst, `,"disaggregated_params":`...), params...)
	}
	if x.tokenIDs {
		dst = append(dst, `,"token_ids":`...)
		dst = appendIDs(dst, a.tokens)
		if !x.chat {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, x.prompts[i/x.choices].tokens)
		}
	}
	return append(dst, '}')
}

func appendStop(dst []byte, a *answer) []byte {
	if a.stop == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, a.stop)
}

// appendToolCall appends a tool call. In a stream the call has a field index. If index is negative, the field is left
// out.
func appendToolCall(dst []byte, c *toolCall, index int) []byte {
	dst = append(dst, '{')
	if index >= 0 {
		dst = append(dst, `"index":`...)
		dst = strconv.AppendInt(dst, int64(index), 10)
		dst = append(dst, ',')
	}
	dst = append(dst, `"id":`...)
	dst = appendString(dst, c.id)
	dst = append(dst, `,"type":"function","function":{"name":`...)
	dst = appendString(dst, c.name)
	dst = append(dst, `,"arguments":`...)
	dst = appendString(dst, c.arguments)
	return append(dst, "}}"...)
}

// appendOpening appends the chunks that come before any text. A chat has one such chunk for each choice, with the role.
func (x *run) appendOpening(dst []byte) []byte {
	if w := writers[x.form]; w.opening != nil {
		return w.opening(x, dst)
	}
	if !x.chat {
		return dst
	}
	for i := range x.parts {
		dst = append(dst, "data: "...)
		dst = x.appendHead(dst, "chat.completion.chunk")
		dst = append(dst, `,"choices":[{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		if x.tokenIDs && i == 0 {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, x.prompts[0].tokens)
		}
		dst = append(dst, "}\n\n"...)
	}
	return dst
}

// appendChunk appends the chunk for token number at of choice i.
func (x *run) appendChunk(dst []byte, i, at int) []byte {
	if w := writers[x.form]; w.chunk != nil {
		return w.chunk(x, dst, i, at)
	}
	a := &x.parts[i].answer
	last := at == len(a.tokens)-1
	if a.call != nil && !last && at > 0 {
		return dst // the chunk of the first token already has the whole tool call
	}
	dst = append(dst, "data: "...)
	object := "text_completion"
	if x.chat {
		object = "chat.completion.chunk"
	}
	dst = x.appendHead(dst, object)
	dst = append(dst, `,"choices":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	var piece [16]byte
	text := piece[:0]
	if at < a.text {
		text = appendPiece(text, a.tokens[at])
	}
	switch {
	case !x.chat:
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, text)
	case a.call != nil && at == 0:
		dst = append(dst, `,"delta":{"tool_calls":[`...)
		dst = appendToolCall(dst, a.call, 0)
		dst = append(dst, "]}"...)
	default:
		dst = append(dst, `,"delta":{"content":`...)
		dst = appendString(dst, text)
		dst = append(dst, '}')
	}
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	if last {
		dst = append(dst, '"')
		dst = append(dst, a.reason...)
		dst = append(dst, `","stop_reason":`...)
		dst = appendStop(dst, a)
	} else {
		dst = append(dst, "null"...)
	}
	if x.tokenIDs {
		dst = append(dst, `,"token_ids":`...)
		dst = appendIDs(dst, a.tokens[at:at+1])
		if !x.chat && at == 0 {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, x.prompts[i/x.choices].tokens)
		}
	}
	return append(dst, "}]}\n\n"...)
}

// appendClosing appends the last chunks of a stream: the usage, if the request asks for usage, and [DONE].
func (x *run) appendClosing(dst []byte) []byte {
	if w := writers[x.form]; w.closing != nil {
		return w.closing(x, dst)
	}
	if x.includeUsage {
		dst = append(dst, "data: "...)
		object := "text_completion"
		if x.chat {
			object = "chat.completion.chunk"
		}
		dst = x.appendHead(dst, object)
		dst = append(dst, `,"choices":[],"usage":`...)
		dst = x.appendUsage(dst)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// appendUsage appends the usage object. cached_tokens counts only the first prompt, as in vLLM's answer to a request
// with several prompts.
func (x *run) appendUsage(dst []byte) []byte {
	prompt, completion := 0, 0
	for i := range x.prompts {
		prompt += len(x.prompts[i].tokens)
	}
	for i := range x.parts {
		completion += len(x.parts[i].answer.tokens)
	}
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(prompt+completion), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(completion), 10)
	dst = append(dst, `,"prompt_tokens_details":`...)
	cached := x.parts[0].request.Cached
	if t := x.transfer; t != nil && t.cached >= 0 && x.life.exchange != nil {
		cached = t.cached // the tokens that the prefill worker found in its cache (v1/engine/output_processor.py, vLLM 0.32)
	}
	if x.bootstrap != nil && x.parts[0].progress.room == nil {
		cached = x.parts[0].progress.cached // SGLang's prefill worker tells the decode worker (decode.py)
	}
	// SGLang writes no cached_tokens if the number is 0.
	if x.life.cfg.HideCachedTokens || x.life.cfg.Kind == SGLang && cached == 0 {
		return append(dst, "null}"...)
	}
	dst = append(dst, `{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(cached), 10)
	return append(dst, "}}"...)
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

// appendString appends s as a JSON string. It does not change bytes that are not UTF-8, because a token may end inside
// a character.
func appendString[T string | []byte](dst []byte, s T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, `\u00`...)
			dst = append(dst, digits[c>>4], digits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
