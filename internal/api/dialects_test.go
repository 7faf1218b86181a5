package api

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"
)

// answers are complete answers of the dialects, as vLLM 0.32 and SGLang 0.5.23 write them.
var answers = []struct {
	name    string
	dialect Dialect
	format  Format
	text    string
	usage   Usage
	token   bool
	id      string
}{
	{"message", AnthropicMessages, JSON,
		`{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":"hello"}],"model":"m","stop_reason":"end_turn","usage":{"input_tokens":8,"output_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":32}}`,
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, ""},
	{"stream of a message", AnthropicMessages, EventStream,
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"m\",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":40,\"output_tokens\":0}}}\n\n" +
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hel\"},\"index\":0}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"lo\"},\"index\":0}\n\n" +
			"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":8,\"output_tokens\":3,\"cache_read_input_tokens\":32}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, ""},
	{"stream of a tool call", AnthropicMessages, EventStream,
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"content\":[],\"usage\":{\"input_tokens\":40,\"output_tokens\":0}}}\n\n" +
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"id\":\"x\",\"name\":\"f\",\"input\":{}},\"index\":0}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"},\"index\":0}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":3}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		Usage{Prompt: 40, Completion: 3, Seen: true}, true, ""},
	{"tokens counted", AnthropicCountTokens, JSON, `{"input_tokens":40}`, Usage{}, false, ""},
	{"response", OpenAIResponses, JSON,
		`{"id":"resp_1","created_at":1,"incomplete_details":null,"instructions":null,"metadata":null,"model":"m","object":"response","output":[{"id":"msg_1","content":[{"annotations":[],"text":"hello","type":"output_text"}],"role":"assistant","status":"completed","type":"message"}],"status":"completed","usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":32},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":43}}`,
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, "resp_1"},
	{"response in the background", OpenAIResponses, JSON,
		`{"id":"resp_1","model":"m","object":"response","output":[],"status":"queued","usage":null}`, Usage{}, false, "resp_1"},
	{"stream of a response", OpenAIResponses, EventStream,
		"event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"model\":\"m\",\"object\":\"response\",\"output\":[],\"status\":\"in_progress\",\"usage\":null},\"sequence_number\":0,\"type\":\"response.created\"}\n\n" +
			"event: response.output_item.added\ndata: {\"item\":{\"id\":\"msg_1\",\"content\":[],\"status\":\"in_progress\",\"type\":\"message\"},\"output_index\":0,\"sequence_number\":2,\"type\":\"response.output_item.added\"}\n\n" +
			"event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":\"hel\",\"item_id\":\"msg_1\",\"sequence_number\":4,\"type\":\"response.output_text.delta\"}\n\n" +
			"event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":\"lo\",\"item_id\":\"msg_1\",\"sequence_number\":5,\"type\":\"response.output_text.delta\"}\n\n" +
			"event: response.completed\ndata: {\"response\":{\"id\":\"resp_1\",\"model\":\"m\",\"object\":\"response\",\"output\":[{\"type\":\"message\"}],\"status\":\"completed\",\"usage\":{\"input_tokens\":40,\"input_tokens_details\":{\"cached_tokens\":32},\"output_tokens\":3}},\"sequence_number\":9,\"type\":\"response.completed\"}\n\n",
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, "resp_1"},
	{"generate", SGLangGenerate, JSON,
		`{"text":"hello","output_ids":[1,2,3],"meta_info":{"id":"a","finish_reason":{"type":"length","length":3},"prompt_tokens":40,"completion_tokens":3,"cached_tokens":32}}`,
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, ""},
	{"generate a batch", SGLangGenerate, JSON,
		`[{"text":"a","meta_info":{"finish_reason":{"type":"stop","matched":2},"prompt_tokens":40,"completion_tokens":3,"cached_tokens":32}},{"text":"b","meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":2,"completion_tokens":1,"cached_tokens":1}}]`,
		Usage{Prompt: 42, Completion: 4, Cached: 33, HasCached: true, Seen: true}, true, ""},
	{"stream of generate", SGLangGenerate, EventStream,
		"data: {\"text\":\"h\",\"output_ids\":[1],\"meta_info\":{\"finish_reason\":null,\"prompt_tokens\":40,\"completion_tokens\":1,\"cached_tokens\":32}}\n\n" +
			"data: {\"text\":\"hello\",\"output_ids\":[1,2,3],\"meta_info\":{\"finish_reason\":{\"type\":\"length\",\"length\":3},\"prompt_tokens\":40,\"completion_tokens\":3,\"cached_tokens\":32}}\n\n" +
			"data: [DONE]\n\n",
		Usage{Prompt: 40, Completion: 3, Cached: 32, HasCached: true, Seen: true}, true, ""},
	{"embeddings", OpenAIEmbeddings, JSON,
		`{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"embedding","embedding":[0.5,-1]}],"usage":{"prompt_tokens":4,"total_tokens":4,"completion_tokens":0,"prompt_tokens_details":null}}`,
		Usage{Prompt: 4, Seen: true}, false, ""},
	{"rerank", Rerank, JSON, `{"id":"r","model":"m","usage":{"prompt_tokens":4,"total_tokens":4},"results":[{"index":0,"document":{"text":"a","multi_modal":null},"relevance_score":0.5}]}`,
		Usage{Prompt: 4, Seen: true}, false, ""},
	{"rerank of SGLang", Rerank, JSON, `[{"score":0.5,"document":"a","index":0},{"score":0.1,"document":"b","index":1}]`, Usage{}, false, ""},
	{"score", Score, JSON, `{"id":"e","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":1}],"usage":{"prompt_tokens":4,"total_tokens":4}}`, Usage{Prompt: 4, Seen: true}, false, ""},
	{"score of SGLang", Score, JSON, `{"scores":[[0.5,0.5]],"model":"m","usage":null,"object":"scoring"}`, Usage{}, false, ""},
	{"classify", Classify, JSON, `{"id":"c","object":"list","created":1,"model":"m","data":[{"index":0,"label":"a","probs":[1],"num_classes":1}],"usage":{"prompt_tokens":4,"total_tokens":4}}`, Usage{Prompt: 4, Seen: true}, false, ""},
	{"classify of SGLang", Classify, JSON, `[{"embedding":[0.5],"meta_info":{"id":"a","prompt_tokens":4}}]`, Usage{}, false, ""},
	{"tokens", Tokenize, JSON, `{"count":2,"max_model_len":64,"tokens":[1,2],"token_strs":null}`, Usage{}, false, ""},
	{"tokens of SGLang", Tokenize, JSON, `{"tokens":[1,2],"count":2,"max_model_len":64}`, Usage{}, false, ""},
	{"text", Detokenize, JSON, `{"prompt":"hello"}`, Usage{}, false, ""},
	{"text of SGLang", Detokenize, JSON, `{"text":"hello"}`, Usage{}, false, ""},
}

func TestCompleteAnswersOfEveryDialectAreRecognizedHoweverTheyAreSplit(t *testing.T) {
	for _, c := range answers {
		var w Watcher
		for size := 1; size <= len(c.text); size += max(1, size/3) {
			w.Reset(c.dialect, c.format)
			for rest := []byte(c.text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				w.Feed(rest[:min(size, len(rest))])
			}
			w.End()
			if !w.Complete() || w.Failed() || !w.Answers() || w.Usage() != c.usage || w.FirstToken() != c.token || string(w.ID()) != c.id {
				t.Errorf("%s in pieces of %d: complete %v, failed %v, answers %v, token %v, usage %+v, id %q",
					c.name, size, w.Complete(), w.Failed(), w.Answers(), w.FirstToken(), w.Usage(), w.ID())
				break
			}
		}
	}
}

func TestAnAnswerThatIsCutIsNotComplete(t *testing.T) {
	for _, c := range answers {
		last := strings.TrimRight(c.text, "\n")
		last = strings.TrimSuffix(last, "\n\ndata: [DONE]")
		var w Watcher
		for n := range len(last) {
			w.Reset(c.dialect, c.format)
			w.Feed([]byte(c.text[:n]))
			if w.Complete() && !strings.HasSuffix(c.text[:n], "}") && c.format == JSON {
				t.Errorf("%s: complete after %q", c.name, c.text[:n])
			}
			if c.format == EventStream && w.Complete() && !strings.Contains(c.text[:n], "message_stop") &&
				!strings.Contains(c.text[:n], "response.completed") && !strings.Contains(c.text[:n], "length") {
				t.Errorf("%s: complete after %q", c.name, c.text[:n])
			}
		}
	}
}

func TestFailuresOfEveryDialectAreRecognized(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialect Dialect
		format  Format
		text    string
		message string
	}{
		{"message", AnthropicMessages, JSON, `{"type":"error","error":{"type":"BadRequestError","message":"no"}}`, "no"},
		{"stream of a message", AnthropicMessages, EventStream, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"no\"}}\n\n", "no"},
		{"response", OpenAIResponses, JSON, `{"error":{"message":"no","type":"x","param":null,"code":400}}`, "no"},
		{"failed response", OpenAIResponses, JSON, `{"id":"resp_1","object":"response","output":[],"status":"failed","error":{"code":"x","message":"no"}}`, "no"},
		{"event of a response", OpenAIResponses, EventStream, "event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"no\",\"param\":null,\"sequence_number\":3}\n\n", "no"},
		{"failed stream of a response", OpenAIResponses, EventStream, "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"a\",\"status\":\"failed\",\"error\":{\"message\":\"no\"}}}\n\n", "no"},
		{"generate", SGLangGenerate, JSON, `{"error":{"message":"no"}}`, "no"},
		{"stream of generate", SGLangGenerate, EventStream, "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n", "no"},
		{"embeddings", OpenAIEmbeddings, JSON, `{"error":{"message":"no","type":"x","param":null,"code":400}}`, "no"},
		{"SGLang's error", Rerank, JSON, `{"object":"error","message":"no","type":"BadRequest","param":null,"code":400}`, "no"},
	} {
		var w Watcher
		w.Reset(c.dialect, c.format)
		w.Feed([]byte(c.text))
		if w.End(); !w.Failed() || w.Complete() || w.ErrorText() != c.message {
			t.Errorf("%s: failed %v, complete %v, %q", c.name, w.Failed(), w.Complete(), w.ErrorText())
		}
	}
	for name, text := range map[string]string{
		"an abort":         `{"text":"a","meta_info":{"finish_reason":{"type":"abort","message":"x"},"prompt_tokens":1}}`,
		"no finish_reason": `{"text":"a","meta_info":{"finish_reason":null}}`,
		"no text":          `{}`,
		"an empty list":    `[]`,
	} {
		var w Watcher
		w.Reset(SGLangGenerate, JSON)
		w.Feed([]byte(text))
		if w.End(); w.Complete() {
			t.Errorf("%s is complete", name)
		}
	}
	for _, d := range []Dialect{AnthropicMessages, OpenAIResponses, OpenAIEmbeddings, Rerank, Tokenize, SGLangGenerate, AnthropicCountTokens} {
		for _, text := range []string{`{}`, `{"data":null}`, `"data"`, `<html>`, ``, `{"content":[],"stop_reason":null}`, `[]`} {
			var w Watcher
			w.Reset(d, JSON)
			w.Feed([]byte(text))
			if w.End(); w.Complete() {
				t.Errorf("%v: %s is complete", d, text)
			}
		}
		var w Watcher
		w.Reset(d, EventStream)
		if w.Feed([]byte("data: [DONE]\n\n")); w.Answers() || w.Complete() {
			t.Errorf("%v: a stream that begins with [DONE] counts as an answer", d)
		}
	}
}

func TestRequestsOfEveryDialectAreRead(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		body    string
		want    Request // only the fields below are compared
		bytes   int
	}{
		{AnthropicMessages, `{"model":"m","system":"be kind","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":true,"metadata":{"user_id":"user_1_session_2"}}`,
			Request{Model: "m", Stream: true, Form: PromptMessages, LongestAnswer: 9, userID: "user_1_session_2"}, len(`"be kind"`) + len(`[{"role":"user","content":"hi"}]`)},
		{OpenAIResponses, `{"model":"m","instructions":"be kind","input":"hi","previous_response_id":"resp_1","max_output_tokens":9,"text":{"format":{"type":"text"}}}`,
			Request{Model: "m", LongestAnswer: 9, PreviousResponseID: "resp_1"}, len(`"be kind"`) + len(`"hi"`)},
		{SGLangGenerate, `{"text":"hi","sampling_params":{"max_new_tokens":9,"n":2},"stream":true}`,
			Request{Stream: true, Form: PromptText, LongestAnswer: 9}, len(`"hi"`)},
		{SGLangGenerate, `{"input_ids":[1,2,3]}`, Request{Form: PromptIDs}, len(`[1,2,3]`)},
		{SGLangGenerate, `{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":0}}`, Request{Form: PromptIDs, NoAnswer: true}, len(`[1,2,3]`)},
		{SGLangGenerate, `{"input_ids":[[1,2],[3]],"sampling_params":[{"max_new_tokens":1},{}]}`, Request{Form: PromptIDLists, NoAnswer: true}, len(`[[1,2],[3]]`)},
		{SGLangGenerate, `{"text":["a","b"],"lora_path":"x"}`, Request{Form: PromptTexts, MixedScopes: true}, len(`["a","b"]`)},
		{SGLangGenerate, `{"text":"a","lora_path":null,"image_data":null}`, Request{Form: PromptText}, len(`"a"`)},
		{SGLangGenerate, `{"text":"a","image_data":"x"}`, Request{Form: PromptText, Multimodal: true}, len(`"a"`)},
		{OpenAIEmbeddings, `{"model":"m","input":["a","b"],"encoding_format":"bytes"}`, Request{Model: "m", Bytes: true}, len(`["a","b"]`)},
		{Rerank, `{"model":"m","query":"q","documents":["a"]}`, Request{Model: "m"}, len(`"q"["a"]`)},
		{Score, `{"model":"m","text_1":"q","text_2":["a"]}`, Request{Model: "m"}, len(`"q"["a"]`)},
		{Score, `{"query":"q","items":["a"]}`, Request{}, len(`"q"["a"]`)},
		{Classify, `{"model":"m","input":"q"}`, Request{Model: "m"}, len(`"q"`)},
		{Tokenize, `{"model":"m","prompt":"q"}`, Request{Model: "m", Form: PromptText}, len(`"q"`)},
		{Detokenize, `{"model":"m","tokens":[1]}`, Request{Model: "m"}, len(`[1]`)},
	} {
		var r Request
		if err := Read(c.dialect, []byte(c.body), &r); err != nil {
			t.Errorf("%v %s: %v", c.dialect, c.body, err)
			continue
		}
		if r.Model != c.want.Model || r.Stream != c.want.Stream || r.Form != c.want.Form || r.LongestAnswer != c.want.LongestAnswer || r.NoAnswer != c.want.NoAnswer ||
			r.PreviousResponseID != c.want.PreviousResponseID || r.userID != c.want.userID || r.Bytes != c.want.Bytes ||
			r.Multimodal != c.want.Multimodal || r.MixedScopes != c.want.MixedScopes || r.PromptBytes() != c.bytes {
			t.Errorf("%v %s: %+v, prompt of %d bytes", c.dialect, c.body, r, r.PromptBytes())
		}
	}
	var r Request
	if err := Read(OpenAIResponses, []byte(`{"input":"hi"}`), &r); err != nil || r.PreviousResponseID != "" {
		t.Errorf("a field of the request before stays: %q %v", r.PreviousResponseID, err)
	}
}

func TestTheModelOfAFormIsFound(t *testing.T) {
	form := func(write func(w *multipart.Writer)) (contentType string, body []byte) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		write(w)
		_ = w.Close()
		return w.FormDataContentType(), b.Bytes()
	}
	field := func(name, value string) func(*multipart.Writer) {
		return func(w *multipart.Writer) { _ = w.WriteField(name, value) }
	}
	file := func(w *multipart.Writer) {
		part, _ := w.CreateFormFile("file", "a.wav")
		_, _ = part.Write(bytes.Repeat([]byte("\r\n--model\x00"), 1000))
	}
	for _, c := range []struct {
		name  string
		write func(w *multipart.Writer)
		model string
	}{
		{"behind a file", func(w *multipart.Writer) { file(w); field("model", "whisper")(w) }, "whisper"},
		{"before a file", func(w *multipart.Writer) { field("model", "whisper")(w); file(w) }, "whisper"},
		{"no model", file, ""},
		{"a file of that name", func(w *multipart.Writer) {
			part, _ := w.CreateFormFile("model", "model")
			_, _ = part.Write([]byte("x"))
		}, ""},
	} {
		contentType, body := form(c.write)
		r := Request{Model: "of the request before"}
		if err := ReadAs(OpenAIAudio, contentType, body, &r); err != nil || r.Model != c.model {
			t.Errorf("%s: model %q, %v", c.name, r.Model, err)
		}
	}
	r := Request{}
	if err := ReadAs(OpenAIAudio, "application/json; charset=utf-8", []byte(`{"model":"tts","input":"hi"}`), &r); err != nil || r.Model != "tts" {
		t.Errorf("JSON: model %q, %v", r.Model, err)
	}
	for _, contentType := range []string{"", "audio/wav", "; ;"} {
		if err := ReadAs(OpenAIAudio, contentType, []byte("--x"), &r); err != nil || r.Model != "" {
			t.Errorf("%q: model %q, %v", contentType, r.Model, err)
		}
	}
	// Engines read these as JSON, too.
	for _, contentType := range []string{"", "application/x+json", "application/json; ;", "text/plain"} {
		if err := ReadAs(OpenAIAudio, contentType, []byte(`{"model":"tts"}`), &r); err != nil || r.Model != "tts" {
			t.Errorf("%q: model %q, %v", contentType, r.Model, err)
		}
	}
}

func TestAFormWhoseModelIsNotCertainIsRefused(t *testing.T) {
	part := func(head, content string) string { return "--b\r\n" + head + "\r\n\r\n" + content + "\r\n" }
	field := func(params, content string) string { return part("Content-Disposition: form-data; "+params, content) }
	model := field(`name="model"`, "m")
	for name, c := range map[string]struct{ contentType, body string }{
		"two models":            {"multipart/form-data; boundary=b", model + field(`name="model"`, "other") + "--b--"},
		"no end":                {"multipart/form-data; boundary=b", model},
		"no end of a part":      {"multipart/form-data; boundary=b", model + "--bx\r\n" + field(`name="model"`, "other") + "--b--"},
		"too many parts":        {"multipart/form-data; boundary=b", strings.Repeat(field(`name="a"`, ""), maxFormParts) + model + "--b--"},
		"a long header":         {"multipart/form-data; boundary=b", model + field(`name="model"; x="`+strings.Repeat("x", maxPartHead)+`"`, "other") + "--b--"},
		"two names":             {"multipart/form-data; boundary=b", model + field(`name="a"; name="model"`, "other") + "--b--"},
		"two dispositions":      {"multipart/form-data; boundary=b", model + part("Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"", "other") + "--b--"},
		"no disposition":        {"multipart/form-data; boundary=b", model + part("X: y", "other") + "--b--"},
		"a long name":           {"multipart/form-data; boundary=b", field(`name="model"`, strings.Repeat("m", maxStringBytes+1)) + "--b--"},
		"no boundary":           {"multipart/form-data", model + "--b--"},
		"a boundary and a slip": {"multipart/form-data; boundary=b; ;x", model + "--b--"},
	} {
		var r Request
		if err := ReadAs(OpenAIAudio, c.contentType, []byte(c.body), &r); err == nil || AsError(err).Status != 400 {
			t.Errorf("%s: model %q, %v", name, r.Model, err)
		}
	}
}
