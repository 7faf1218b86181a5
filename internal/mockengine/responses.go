package mockengine

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/valyala/fastjson"
)

// maxResponses bounds the responses that a mock engine keeps. It forgets the oldest first.
const maxResponses = 1024

// responses are the responses that a life keeps, as vLLM keeps them with VLLM_ENABLE_RESPONSES_API_STORE.
type responses struct {
	mu    sync.Mutex
	all   map[string]*response
	order []string
}

type response struct {
	document fields
	messages []chatMessage // the conversation, without instructions, up to and including the answer
}

func (s *responses) put(id string, r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*response{}
	}
	if len(s.order) == maxResponses {
		delete(s.all, s.order[0])
		s.order = s.order[1:]
	}
	s.all[id], s.order = r, append(s.order, id)
}

func (s *responses) get(id string) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// keep keeps the answer of x if the request asked for it.
func (x *run) keep() {
	if x.kept == nil {
		return
	}
	a := &x.parts[0].answer
	said := chatMessage{"role": "assistant", "content": a.string(a.text)}
	if a.call != nil {
		said = chatMessage{"role": "assistant", "tool_calls": []any{fields{"type": "function", "function": fields{"name": a.call.name, "arguments": a.call.arguments}}}}
	}
	x.life.responses.put(x.id, &response{x.response("completed", true), append(x.kept, said)})
}

// respond serves /v1/responses.
func (l *life) respond(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		in, err := asMap(body)
		if err != nil {
			l.refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		messages := []chatMessage{}
		if id, _ := in["previous_response_id"].(string); id != "" {
			before := l.responses.get(id)
			if before == nil {
				l.refuseResponse(w, id)
				return
			}
			messages = append(messages, before.messages...)
		}
		more, err := messagesOfInput(in["input"])
		if err != nil {
			l.refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		messages = append(messages, more...)
		out := take(in, "model", "model", "stream", "stream", "max_output_tokens", "max_tokens", "cache_salt", "cache_salt")
		out["messages"] = messages
		if in["instructions"] != nil {
			out["messages"] = append([]chatMessage{{"role": "system", "content": in["instructions"]}}, messages...)
		}
		takeTools(out, in)
		if store, given := in["store"].(bool); given && !store {
			messages = nil
		}
		l.computeAs(w, r, formResponses, out, messages)
	})
}

// takeTools copies the tools of a request for a response into a chat, where a function has an object of its own.
func takeTools(out, in fields) {
	var tools []any
	given, _ := in["tools"].([]any)
	for _, t := range given {
		tool, _ := t.(map[string]any)
		tools = append(tools, fields{"type": "function", "function": take(tool, "name", "name", "description", "description", "parameters", "parameters")})
	}
	if tools == nil {
		return
	}
	out["tools"] = tools
	out["tool_choice"] = in["tool_choice"]
	if choice, _ := in["tool_choice"].(map[string]any); choice != nil {
		out["tool_choice"] = fields{"type": "function", "function": fields{"name": choice["name"]}}
	}
}

// messagesOfInput turns the input of a request for a response into messages.
func messagesOfInput(input any) ([]chatMessage, error) {
	if text, is := input.(string); is {
		return []chatMessage{{"role": "user", "content": text}}, nil
	}
	list, is := input.([]any)
	if !is || len(list) == 0 {
		return nil, fmt.Errorf("input: field required, a text or a list of items")
	}
	var messages []chatMessage
	for i, v := range list {
		item, is := v.(map[string]any)
		if !is {
			return nil, fmt.Errorf("input[%d]: is not an object", i)
		}
		switch item["type"] {
		case "function_call":
			messages = append(messages, chatMessage{"role": "assistant", "tool_calls": []any{fields{"type": "function", "function": take(item, "name", "name", "arguments", "arguments")}}})
		case "function_call_output":
			messages = append(messages, chatMessage{"role": "tool", "content": item["output"]})
		default:
			messages = append(messages, take(item, "role", "role", "content", "content"))
		}
	}
	return messages, nil
}

func (l *life) refuseResponse(w http.ResponseWriter, id string) {
	writeJSON(w, http.StatusNotFound, fields{"error": fields{"message": fmt.Sprintf("Response with id '%s' not found.", id),
		"type": "invalid_request_error", "param": "response_id", "code": http.StatusNotFound}})
}

// keptResponse answers GET, DELETE and cancel of a response.
func (l *life) keptResponse(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	kept := l.responses.get(id)
	switch {
	case kept == nil:
		l.refuseResponse(w, id)
	case r.Method == http.MethodDelete:
		l.responses.mu.Lock()
		delete(l.responses.all, id)
		l.responses.mu.Unlock()
		writeJSON(w, http.StatusOK, fields{"id": id, "object": "response", "deleted": true})
	case r.Method == http.MethodPost:
		l.refuse(w, http.StatusBadRequest, "Cannot cancel a synchronous response.")
	case r.URL.Query().Get("stream") == "true":
		beginStream(w)
		status, _ := kept.document["status"].(string)
		_, _ = w.Write(appendEvent(nil, fields{"type": "response." + status, "sequence_number": 0, "response": kept.document}))
	default:
		writeJSON(w, http.StatusOK, kept.document)
	}
}

func (l *life) inputItems(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	kept := l.responses.get(id)
	if kept == nil {
		l.refuseResponse(w, id)
		return
	}
	items := []any{}
	for i, m := range kept.messages[:len(kept.messages)-1] {
		items = append(items, fields{"id": fmt.Sprintf("msg_%d", i), "type": "message", "role": m["role"], "status": "completed",
			"content": []any{fields{"type": "input_text", "text": fmt.Sprint(m["content"])}}})
	}
	writeJSON(w, http.StatusOK, fields{"object": "list", "data": items, "first_id": "msg_0", "last_id": fmt.Sprintf("msg_%d", len(items)-1), "has_more": false})
}
