package mockengine

import (
	"bytes"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

// documents returns the documents of a stream.
func documents(t *testing.T, stream []byte) (all []object) {
	t.Helper()
	for line := range strings.Lines(string(stream)) {
		data, is := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !is || data == "[DONE]" {
			continue
		}
		var o object
		if err := json.Unmarshal([]byte(data), &o); err != nil {
			t.Fatal(err, data)
		}
		all = append(all, o)
	}
	return all
}

func streamOf(t *testing.T, s *Server, path string, body object) []object {
	t.Helper()
	body["stream"] = true
	defer delete(body, "stream")
	status, data := call(t, s, path, body)
	if status != 200 {
		t.Fatalf("%d %s", status, data)
	}
	return documents(t, data)
}

func TestMessagesAreChatsInAnotherForm(t *testing.T) {
	s := start(t, nil)
	body := object{"model": "mock", "max_tokens": 12, "system": "be short", "messages": []any{userSays(long("a", 60))}}
	whole := decode(t, s, "/v1/messages", body, 200)
	text := whole["content"].([]any)[0].(object)["text"].(string)
	usage := whole["usage"].(object)
	counted := decode(t, s, "/v1/messages/count_tokens", body, 200)["input_tokens"]
	if text == "" || whole["stop_reason"] != "max_tokens" || usage["input_tokens"] != counted || usage["output_tokens"] != 12.0 {
		t.Errorf("%v, counted %v", whole, counted)
	}
	events := streamOf(t, s, "/v1/messages", body)
	said := ""
	for _, e := range events {
		if e["type"] == "content_block_delta" {
			said += e["delta"].(object)["text"].(string)
		}
	}
	last := events[len(events)-2]["usage"].(object)
	if said != text || events[0]["type"] != "message_start" || events[len(events)-1]["type"] != "message_stop" || last["cache_read_input_tokens"].(float64) < 16 {
		t.Errorf("%q, usage %v", said, last)
	}
	tools := object{"model": "mock", "max_tokens": 50, "messages": []any{userSays("x")}, "tools": []any{object{"name": "f", "input_schema": object{}}},
		"tool_choice": object{"type": "any"}}
	call := decode(t, s, "/v1/messages", tools, 200)
	if block := call["content"].([]any)[0].(object); block["type"] != "tool_use" || block["name"] != "f" || call["stop_reason"] != "tool_use" {
		t.Errorf("%v", call)
	}
	tools["messages"] = []any{userSays("x"), object{"role": "assistant", "content": call["content"]},
		object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": "a", "content": "ok"}}}}
	delete(tools, "tool_choice")
	decode(t, s, "/v1/messages", tools, 200)
	if e := decode(t, s, "/v1/messages", object{"model": "other", "messages": []any{userSays("x")}}, 404); e["type"] != "error" {
		t.Errorf("%v", e)
	}
}

func TestResponsesAreKeptAndContinued(t *testing.T) {
	s := start(t, nil)
	body := object{"model": "mock", "max_output_tokens": 12, "instructions": "be short", "input": long("a", 60)}
	first := decode(t, s, "/v1/responses", body, 200)
	id := first["id"].(string)
	text := func(r object) string {
		return r["output"].([]any)[0].(object)["content"].([]any)[0].(object)["text"].(string)
	}
	if !strings.HasPrefix(id, "resp_") || first["status"] != "incomplete" || text(first) == "" {
		t.Errorf("%v", first)
	}
	events := streamOf(t, s, "/v1/responses", body)
	said := ""
	for i, e := range events {
		if e["sequence_number"] != float64(i) {
			t.Errorf("event %d has number %v", i, e["sequence_number"])
		}
		if e["type"] == "response.output_text.delta" {
			said += e["delta"].(string)
		}
	}
	if last := events[len(events)-1]; last["type"] != "response.incomplete" || said != text(first) {
		t.Errorf("%q, %v", said, last)
	}
	if got := decode(t, s, "/v1/responses/"+id, nil, 200); text(got) != text(first) {
		t.Errorf("%v", got)
	}
	if items := decode(t, s, "/v1/responses/"+id+"/input_items", nil, 200)["data"].([]any); len(items) != 1 {
		t.Errorf("%v", items)
	}
	next := decode(t, s, "/v1/responses", object{"model": "mock", "input": "more", "previous_response_id": id, "instructions": "be short"}, 200)
	if cached := next["usage"].(object)["input_tokens_details"].(object)["cached_tokens"].(float64); cached < 64 {
		t.Errorf("the conversation is not continued: %v cached", cached)
	}
	decode(t, s, "/v1/responses/resp_0", nil, 404)
	decode(t, s, "/v1/responses", object{"model": "mock", "input": "x", "previous_response_id": "resp_0"}, 404)
}

func TestGenerateIsACompletionInAnotherForm(t *testing.T) {
	s := start(t, func(c *Config) { c.Kind = SGLang })
	prompt := long("a", 60)
	body := object{"text": prompt, "sampling_params": object{"max_new_tokens": 8}}
	whole := decode(t, s, "/generate", body, 200)
	ids := decode(t, s, "/tokenize", object{"model": "mock", "prompt": prompt}, 200)["tokens"]
	given := decode(t, s, "/generate", object{"input_ids": ids, "sampling_params": object{"max_new_tokens": 8}}, 200)
	meta := given["meta_info"].(object)
	if whole["text"] == "" || given["text"] != whole["text"] || meta["cached_tokens"].(float64) < 16 || meta["completion_tokens"] != 8.0 {
		t.Errorf("%v, by ids %v", whole, given)
	}
	events := streamOf(t, s, "/generate", body)
	if last := events[len(events)-1]; last["text"] != whole["text"] || len(events) != 8 || last["meta_info"].(object)["finish_reason"] == nil {
		t.Errorf("%d events, the last is %v", len(events), last)
	}
	_, data := call(t, s, "/generate", object{"text": []any{"a", "b"}})
	var batch []object
	if err := json.Unmarshal(data, &batch); err != nil || len(batch) != 2 {
		t.Errorf("%v: %s", err, data)
	}
}

func TestASleepingEngineComputesNothing(t *testing.T) {
	for kind, paths := range map[Kind][2]string{VLLM: {"/sleep", "/wake_up"}, SGLang: {"/release_memory_occupation", "/resume_memory_occupation"}} {
		s := start(t, func(c *Config) { c.Kind = kind })
		body := object{"model": "mock", "messages": []any{userSays(long("a", 60))}}
		complete(t, s, chatPath, body)
		call(t, s, paths[0], object{})
		if n := len(s.CachedHashes(0, 0)); n != 0 {
			t.Errorf("%d blocks are cached", n)
		}
		if kind == VLLM && decode(t, s, "/is_sleeping", nil, 200)["is_sleeping"] != true {
			t.Error("the engine does not sleep")
		}
		decode(t, s, chatPath, body, 500)
		call(t, s, paths[1], object{})
		complete(t, s, chatPath, body)
	}
}

func TestPoolingAndMedia(t *testing.T) {
	s := start(t, nil)
	for path, body := range map[string]object{
		"/v1/embeddings":         {"model": "mock", "input": []any{"a", "b"}},
		"/rerank":                {"model": "mock", "query": "q", "documents": []any{"a", "b"}},
		"/v1/score":              {"model": "mock", "text_1": "q", "text_2": []any{"a", "b"}},
		"/classify":              {"model": "mock", "input": []any{"a", "b"}},
		"/v1/images/generations": {"model": "mock", "prompt": "a"},
	} {
		out := decode(t, s, path, body, 200)
		list, _ := out["data"].([]any)
		if path == "/rerank" {
			list, _ = out["results"].([]any)
		}
		if len(list) == 0 {
			t.Errorf("%s: %v", path, out)
		}
		body["model"] = "other"
		decode(t, s, path, body, 404)
	}
	if status, sound := call(t, s, "/v1/audio/speech", object{"model": "mock", "input": "hello"}); status != 200 || !bytes.HasPrefix(sound, []byte("RIFF")) {
		t.Errorf("%d %q", status, sound)
	}
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("model", "mock")
	file, err := parts.CreateFormFile("file", "a.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(make([]byte, 77))
	_ = parts.Close()
	resp, err := http.Post(s.URL()+"/v1/audio/transcriptions", parts.FormDataContentType(), &form)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var out object
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out["text"] != "77 bytes of sound" {
		t.Errorf("%v, %v", out, err)
	}
}
