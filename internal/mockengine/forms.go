package mockengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// form is the form of a request and of its answer. The mock engine computes each form as a chat or as a completion: it
// turns the body into that of the chat or the completion, and writes the answer in the form's own way.
type form uint8

const (
	formText      form = iota // /v1/completions
	formChat                  // /v1/chat/completions
	formMessages              // /v1/messages
	formResponses             // /v1/responses
	formGenerate              // /generate

	numForms
)

// prefix returns the beginning of the ids of answers. vLLM gives messages the ids of chats.
func (f form) prefix() string {
	return [...]string{"cmpl-", "chatcmpl-", "chatcmpl-", "resp_", ""}[f]
}

// writer writes the answers of a form. If a function is nil, response.go writes.
type writer struct {
	whole, opening, closing func(x *run, dst []byte) []byte
	chunk                   func(x *run, dst []byte, i, at int) []byte
}

var writers = [numForms]writer{
	formMessages:  {(*run).wholeMessage, (*run).openMessage, (*run).closeMessage, (*run).chunkOfMessage},
	formResponses: {(*run).wholeResponse, (*run).openResponse, (*run).closeResponse, (*run).chunkOfResponse},
	formGenerate:  {(*run).wholeGenerate, (*run).openGenerate, (*run).closeGenerate, (*run).chunkOfGenerate},
}

// chatMessage is a message of a chat.
type chatMessage = map[string]any

// computeAs computes the request as a chat or a completion with the given body, and answers in the form f.
func (l *life) computeAs(w http.ResponseWriter, r *http.Request, f form, body map[string]any, kept []chatMessage) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic("bug: encode a chat: " + err.Error())
	}
	parsed, err := fastjson.ParseBytes(raw)
	if err != nil {
		panic("bug: read a chat: " + err.Error())
	}
	g, err := l.readGeneration(parsed, f != formGenerate, r.Header.Get("X-Data-Parallel-Rank"))
	if err != nil {
		l.refuseForm(w, f, err)
		return
	}
	g.form = f
	l.answer(w, r, g, kept)
}

// refuseForm refuses a request in the error shape of its form.
func (l *life) refuseForm(w http.ResponseWriter, f form, err error) {
	if f != formMessages {
		l.refuseRequest(w, err)
		return
	}
	status, kind := http.StatusBadRequest, "invalid_request_error"
	if errors.Is(err, errModel) {
		status, kind = http.StatusNotFound, "not_found_error"
	}
	writeJSON(w, status, map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": err.Error()}})
}

// asMap decodes a body that is an object.
func asMap(body *fastjson.Value) (map[string]any, error) {
	var m map[string]any
	if err := json.Unmarshal(body.MarshalTo(nil), &m); err != nil {
		return nil, errors.New("body is not a JSON object")
	}
	return m, nil
}

// take copies the named members of from that are given, under the names in names.
func take(from map[string]any, names ...string) map[string]any {
	to := map[string]any{}
	for i := 0; i+1 < len(names); i += 2 {
		if v, has := from[names[i]]; has && v != nil {
			to[names[i+1]] = v
		}
	}
	return to
}

func (l *life) messages(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		chat, err := l.chatOfMessages(body)
		if err != nil {
			l.refuseForm(w, formMessages, err)
			return
		}
		l.computeAs(w, r, formMessages, chat, nil)
	})
}

func (l *life) countTokens(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		chat, err := l.chatOfMessages(body)
		if err != nil {
			l.refuseForm(w, formMessages, err)
			return
		}
		raw, err := json.Marshal(chat)
		if err != nil {
			panic("bug: encode a chat: " + err.Error())
		}
		g, err := l.readGeneration(fastjson.MustParseBytes(raw), true, "")
		if err != nil {
			l.refuseForm(w, formMessages, err)
			return
		}
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(g.prompts[0].tokens)})
	})
}

// chatOfMessages turns a body of /v1/messages into that of a chat, as the engine does. Requests that the router does
// not turn into chats get a simpler form.
func (l *life) chatOfMessages(body *fastjson.Value) (map[string]any, error) {
	in, err := asMap(body)
	if err != nil {
		return nil, err
	}
	kind := tokens.VLLM
	if l.cfg.Kind == SGLang {
		kind = tokens.SGLang
	}
	var read api.Request
	if api.Read(api.AnthropicMessages, body.MarshalTo(nil), &read) == nil {
		chat, err := tokens.AppendChat(nil, &read, kind, tokens.Chatting{})
		if err == nil {
			out := take(in, "stream", "stream", "max_tokens", "max_tokens", "stop_sequences", "stop", "cache_salt", "cache_salt")
			var members map[string]json.RawMessage // which keeps the order of the members of tools
			if err := json.Unmarshal(chat, &members); err != nil {
				return nil, fmt.Errorf("read the chat: %w", err)
			}
			for name, value := range members {
				out[name] = value
			}
			chooseTool(out, in)
			return out, nil
		}
	}
	out := take(in, "model", "model", "stream", "stream", "max_tokens", "max_tokens", "stop_sequences", "stop", "cache_salt", "cache_salt")
	var messages []chatMessage
	if in["system"] != nil {
		messages = append(messages, chatMessage{"role": "system", "content": in["system"]})
	}
	list, _ := in["messages"].([]any)
	for i, m := range list {
		message, ok := m.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("messages[%d]: is not an object", i)
		}
		messages = append(messages, splitBlocks(message)...)
	}
	if len(messages) > 0 {
		out["messages"] = messages
	}
	var tools []any
	given, _ := in["tools"].([]any)
	for _, t := range given {
		tool, _ := t.(map[string]any)
		tools = append(tools, map[string]any{"type": "function",
			"function": take(tool, "name", "name", "description", "description", "input_schema", "parameters")})
	}
	if tools != nil {
		out["tools"] = tools
	}
	chooseTool(out, in)
	return out, nil
}

// chooseTool sets the chat's tool_choice, which makes the mock engine call a tool.
func chooseTool(out, in map[string]any) {
	if choice, _ := in["tool_choice"].(map[string]any); choice["type"] == "any" {
		out["tool_choice"] = "required"
	} else if choice["type"] == "tool" {
		out["tool_choice"] = map[string]any{"type": "function", "function": map[string]any{"name": choice["name"]}}
	}
}

// splitBlocks turns a message with content blocks into messages of a chat: results of tools become messages of their
// own.
func splitBlocks(message map[string]any) []chatMessage {
	blocks, isList := message["content"].([]any)
	if !isList {
		return []chatMessage{message}
	}
	var parts, calls []any
	var results []chatMessage
	for _, b := range blocks {
		switch b, _ := b.(map[string]any); b["type"] {
		case "tool_use":
			arguments, err := json.Marshal(b["input"])
			if err != nil {
				panic("bug: encode a tool's input: " + err.Error())
			}
			calls = append(calls, map[string]any{"type": "function",
				"function": map[string]any{"name": b["name"], "arguments": string(arguments)}})
		case "tool_result":
			results = append(results, chatMessage{"role": "tool", "content": b["content"]})
		case "image":
			parts = append(parts, map[string]any{"type": "image_url", "image_url": b["source"]})
		case "thinking":
		default:
			parts = append(parts, b)
		}
	}
	if len(parts) == 0 && len(calls) == 0 {
		return results
	}
	out := chatMessage{"role": message["role"], "content": parts}
	if calls != nil {
		out["tool_calls"] = calls
	}
	return append(results, out)
}

// sglangGenerate serves SGLang's /generate: a completion with other names.
func (l *life) sglangGenerate(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		in, err := asMap(body)
		if err != nil {
			l.refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		out := take(in, "model", "model", "stream", "stream", "text", "prompt", "input_ids", "prompt", "cache_salt", "cache_salt",
			"extra_key", "extra_key", "lora_path", "lora_path", "routed_dp_rank", "routed_dp_rank", "rid", "rid",
			"bootstrap_host", "bootstrap_host", "bootstrap_port", "bootstrap_port", "bootstrap_room", "bootstrap_room",
			"disagg_prefill_dp_rank", "disagg_prefill_dp_rank")
		sampling, _ := in["sampling_params"].(map[string]any)
		for name, v := range take(sampling, "max_new_tokens", "max_tokens", "n", "n", "stop", "stop", "ignore_eos", "ignore_eos") {
			out[name] = v
		}
		if out["max_tokens"] == nil {
			out["max_tokens"] = 128 // SGLang's default
		}
		l.computeAs(w, r, formGenerate, out, nil)
	})
}
