package mockengine

import (
	"encoding/json"
	"strconv"
)

// fields is a JSON object that is written.
type fields = map[string]any

// appendEvent appends a server-sent event. If the document has a type, the event has its name.
func appendEvent(dst []byte, document fields) []byte {
	if name, ok := document["type"].(string); ok {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	return append(append(append(dst, "data: "...), encoded(document)...), "\n\n"...)
}

func encoded(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("bug: encode an answer: " + err.Error())
	}
	return raw
}

// counts returns the number of tokens of the prompt, of the cached part, and of the answers.
func (x *run) counts() (prompt, cached, output int) {
	for i := range x.prompts {
		prompt += len(x.prompts[i].tokens)
	}
	for i := range x.parts {
		output += len(x.parts[i].answer.tokens)
	}
	return prompt, x.parts[0].request.Cached, output
}

// string returns the first n tokens of an answer as text.
func (a *answer) string(n int) string { return string(appendText(nil, a.tokens[:min(n, a.text)])) }

func (a *answer) piece(at int) string {
	if at >= a.text {
		return ""
	}
	return string(appendText(nil, a.tokens[at:at+1]))
}

// The functions below write messages.

func (x *run) messageUsage() fields {
	prompt, cached, output := x.counts()
	return fields{"input_tokens": prompt - cached, "output_tokens": output, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
}

func stopReason(a *answer) fields {
	reason := map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[a.reason]
	out := fields{"stop_reason": reason, "stop_sequence": nil}
	if a.stop != "" {
		out["stop_reason"], out["stop_sequence"] = "stop_sequence", a.stop
	}
	return out
}

func (a *answer) contentBlock() fields {
	if a.call != nil {
		return fields{"type": "tool_use", "id": a.call.id, "name": a.call.name, "input": json.RawMessage(a.call.arguments)}
	}
	return fields{"type": "text", "text": a.string(a.text)}
}

func (x *run) wholeMessage(dst []byte) []byte {
	a := &x.parts[0].answer
	out := stopReason(a)
	out["id"], out["type"], out["role"], out["model"], out["usage"] = x.id, "message", "assistant", x.model, x.messageUsage()
	out["content"] = []any{a.contentBlock()}
	return append(dst, encoded(out)...)
}

func (x *run) openMessage(dst []byte) []byte {
	a := &x.parts[0].answer
	prompt, _, _ := x.counts()
	dst = appendEvent(dst, fields{"type": "message_start", "message": fields{"id": x.id, "type": "message", "role": "assistant", "content": []any{},
		"model": x.model, "stop_reason": nil, "stop_sequence": nil, "usage": fields{"input_tokens": prompt, "output_tokens": 0}}})
	block := fields{"type": "text", "text": ""}
	if a.call != nil {
		block = a.contentBlock()
		block["input"] = fields{}
	}
	return appendEvent(dst, fields{"type": "content_block_start", "index": 0, "content_block": block})
}

func (x *run) chunkOfMessage(dst []byte, i, at int) []byte {
	a := &x.parts[i].answer
	switch {
	case a.call != nil && at == 0:
		return appendEvent(dst, fields{"type": "content_block_delta", "index": 0, "delta": fields{"type": "input_json_delta", "partial_json": a.call.arguments}})
	case a.call != nil || at >= a.text:
		return dst
	}
	return appendEvent(dst, fields{"type": "content_block_delta", "index": 0, "delta": fields{"type": "text_delta", "text": a.piece(at)}})
}

func (x *run) closeMessage(dst []byte) []byte {
	dst = appendEvent(dst, fields{"type": "content_block_stop", "index": 0})
	dst = appendEvent(dst, fields{"type": "message_delta", "delta": stopReason(&x.parts[0].answer), "usage": x.messageUsage()})
	return appendEvent(dst, fields{"type": "message_stop"})
}

// The functions below write responses.

func (x *run) response(status string, done bool) fields {
	out := fields{"id": x.id, "object": "response", "created_at": x.created, "model": x.model, "status": status, "output": []any{}, "usage": nil,
		"error": nil, "incomplete_details": nil, "instructions": nil, "metadata": nil, "parallel_tool_calls": true, "temperature": 1.0,
		"tool_choice": "auto", "tools": []any{}, "top_p": 1.0, "background": false, "previous_response_id": nil, "truncation": "disabled"}
	if !done {
		return out
	}
	prompt, cached, output := x.counts()
	out["output"] = []any{x.item(true)}
	out["usage"] = fields{"input_tokens": prompt, "input_tokens_details": fields{"cached_tokens": cached}, "output_tokens": output,
		"output_tokens_details": fields{"reasoning_tokens": 0}, "total_tokens": prompt + output}
	if x.parts[0].answer.reason == "length" {
		out["status"], out["incomplete_details"] = "incomplete", fields{"reason": "max_output_tokens"}
	}
	return out
}

// item returns the only item of a response: a message or a call of a tool.
func (x *run) item(done bool) fields {
	a := &x.parts[0].answer
	status, text, arguments := "in_progress", []any{}, ""
	if done {
		status = "completed"
		text = []any{fields{"type": "output_text", "text": a.string(a.text), "annotations": []any{}, "logprobs": nil}}
	}
	if a.call != nil {
		if done {
			arguments = a.call.arguments
		}
		return fields{"id": "fc_" + x.id[5:], "type": "function_call", "call_id": a.call.id, "name": a.call.name, "arguments": arguments, "status": status}
	}
	return fields{"id": "msg_" + x.id[5:], "type": "message", "role": "assistant", "status": status, "content": text}
}

func (x *run) wholeResponse(dst []byte) []byte {
	return append(dst, encoded(x.response("completed", true))...)
}

// event appends an event of a response. about are further members.
func (x *run) event(dst []byte, kind string, about fields) []byte {
	about["type"], about["sequence_number"] = kind, x.number
	x.number++
	return appendEvent(dst, about)
}

// inPart returns the members that say to which part of a response an event belongs.
func (x *run) inPart(name string, value any) fields {
	return fields{"item_id": x.item(false)["id"], "output_index": 0, "content_index": 0, name: value}
}

func (x *run) openResponse(dst []byte) []byte {
	dst = x.event(dst, "response.created", fields{"response": x.response("in_progress", false)})
	dst = x.event(dst, "response.in_progress", fields{"response": x.response("in_progress", false)})
	dst = x.event(dst, "response.output_item.added", fields{"output_index": 0, "item": x.item(false)})
	if x.parts[0].answer.call != nil {
		return dst
	}
	return x.event(dst, "response.content_part.added", x.inPart("part", fields{"type": "output_text", "text": "", "annotations": []any{}}))
}

func (x *run) chunkOfResponse(dst []byte, i, at int) []byte {
	a := &x.parts[i].answer
	switch {
	case a.call != nil && at == 0:
		return x.event(dst, "response.function_call_arguments.delta", x.inPart("delta", a.call.arguments))
	case a.call != nil || at >= a.text:
		return dst
	}
	return x.event(dst, "response.output_text.delta", x.inPart("delta", a.piece(at)))
}

func (x *run) closeResponse(dst []byte) []byte {
	a := &x.parts[0].answer
	if a.call != nil {
		dst = x.event(dst, "response.function_call_arguments.done", x.inPart("arguments", a.call.arguments))
	} else {
		dst = x.event(dst, "response.output_text.done", x.inPart("text", a.string(a.text)))
		dst = x.event(dst, "response.content_part.done", x.inPart("part", fields{"type": "output_text", "text": a.string(a.text), "annotations": []any{}}))
	}
	dst = x.event(dst, "response.output_item.done", fields{"output_index": 0, "item": x.item(true)})
	whole := x.response("completed", true)
	return x.event(dst, "response."+whole["status"].(string), fields{"response": whole})
}

// The functions below write answers of /generate.

// generated returns the first n tokens of choice i.
func (x *run) generated(i, n int) fields {
	p := &x.parts[i]
	var reason any
	if n == len(p.answer.tokens) {
		switch p.answer.reason {
		case "length":
			reason = fields{"type": "length", "length": n}
		default:
			reason = fields{"type": "stop", "matched": tokenEnd}
		}
	}
	prompt := x.prompts[i/x.choices].tokens
	return fields{"text": p.answer.string(n), "output_ids": p.answer.tokens[:n], "meta_info": fields{"id": x.id + strconv.Itoa(i),
		"finish_reason": reason, "prompt_tokens": len(prompt), "completion_tokens": n, "cached_tokens": p.request.Cached}}
}

func (x *run) wholeGenerate(dst []byte) []byte {
	if len(x.parts) == 1 {
		return append(dst, encoded(x.generated(0, len(x.parts[0].answer.tokens)))...)
	}
	list := make([]fields, len(x.parts))
	for i := range x.parts {
		list[i] = x.generated(i, len(x.parts[i].answer.tokens))
	}
	return append(dst, encoded(list)...)
}

func (x *run) openGenerate(dst []byte) []byte { return dst }

func (x *run) chunkOfGenerate(dst []byte, i, at int) []byte {
	document := x.generated(i, at+1)
	if len(x.parts) > 1 {
		document["index"] = i
	}
	return appendEvent(dst, document)
}

func (x *run) closeGenerate(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }
