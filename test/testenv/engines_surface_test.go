package testenv_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// surfaceCall is a request to an engine. status is what the engine answers, whatever that is worth.
type surfaceCall struct {
	name, path, body string
	status           int
}

// stream returns the call with a streamed answer.
func (c surfaceCall) stream() surfaceCall {
	c.name, c.body = c.name+", streamed", `{"stream":true,`+c.body[1:]
	return c
}

const (
	hello    = `"messages":[{"role":"user","content":"Say hello to the whole wide world, and then some more words."}]`
	sampling = `"model":"tiny","temperature":0`
	askTool  = `"tools":[{"name":"weather","description":"the weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}]`
	form     = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"
)

// volatile matches what differs between two answers to one request: ids, times, what was cached, and how many events a
// stream has.
var volatile = regexp.MustCompile(`"(id|rid|item_id|request_id|weight_version)":"[^"]*"|"(created|created_at|sequence_number|cached_tokens|cache_read_input_tokens|input_tokens|timestamp|completed_at|cached_tokens_per_turn|input_tokens_per_turn)":(\[[^\]]*\]|[0-9.]+|null)|"(e2e_latency|[a-z_]*_time|[a-z_]*_ts|[a-z_]*_latency|[a-z_]*_throughput|spec[a-z_]*)":[0-9.e-]+|[a-z]+_[0-9a-f]{16,32}|"cached_tokens_details":(null|\{[^}]*\})`)

// pieces matches the piece of text in the last document of a stream: the piece may have one token or two.
var pieces = regexp.MustCompile(`"(text|content|delta)":"(\\.|[^"\\])*"`)

// same sends a call directly and through the gateway. Both answers must be equal but for what is volatile.
func same(t *testing.T, gateway, engine string, c surfaceCall) {
	t.Helper()
	get := func(base string) (int, string, string) {
		kind := "application/json"
		if strings.HasPrefix(c.body, "--b") {
			kind = "multipart/form-data; boundary=b"
		}
		resp, err := http.Post(base+c.path, kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("%s at %s: %v", c.name, base, err)
		}
		kind = resp.Header.Get("Content-Type")
		if strings.HasPrefix(kind, "text/event-stream") {
			text = []byte(summary(t, string(text)))
		}
		return resp.StatusCode, kind, volatile.ReplaceAllString(string(text), "X")
	}
	get(engine) // fills the cache, so that both others find the same
	status, kind, text := get(engine)
	s, k, through := get(gateway)
	if status != c.status {
		t.Errorf("%s: the engine answers %d, not %d: %.300s", c.name, status, c.status, text)
	}
	if s != status || k != kind || through != text {
		t.Errorf("%s through the gateway: %d %s\n%.2000s\ndirectly: %d %s\n%.2000s", c.name, s, k, through, status, kind, text)
	}
}

// summary sums up a stream: which events came, the whole text, and the last document. A busy engine may put two tokens
// into one event, so two streams of one answer may differ in their events.
func summary(t *testing.T, stream string) string {
	t.Helper()
	var kinds, text, last string
	for line := range strings.Lines(stream) {
		line = strings.TrimSpace(line)
		kind, isKind := strings.CutPrefix(line, "event: ")
		if isKind && !strings.HasSuffix(kinds, kind+"\n") {
			kinds += kind + "\n"
		}
		data, isData := strings.CutPrefix(line, "data: ")
		var document map[string]any
		if !isData || data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(data), &document); err != nil {
			t.Errorf("%v in %s", err, data)
		}
		last, text = data, text+at(document, "delta.text")+at(document, "choices.0.delta.content")+at(document, "choices.0.text")
		if delta, is := document["delta"].(string); is {
			text += delta
		}
	}
	return kinds + text + "\n" + pieces.ReplaceAllString(last, "X")
}

// TestTheSurfaceOfVLLM compares the answers of a real vLLM through the gateway with its direct answers: what vLLM
// serves, and what it refuses.
func TestTheSurfaceOfVLLM(t *testing.T) {
	env := []string{"VLLM_ENABLE_RESPONSES_API_STORE=1", "MAXLEN=8192"}
	chats := begin(t, "chats", launch{kind: "vllm", env: env, args: []string{"--enable-auto-tool-choice", "--tool-call-parser", "hermes"}})
	vectors := begin(t, "vectors", launch{kind: "vllm", env: []string{"SERVED=vectors", "KV_JSON="}, args: []string{"--runner", "pooling", "--convert", "embed"}})
	chats.await(t)
	vectors.await(t)
	t.Run("the doctor finds nothing", func(t *testing.T) { examine(t, chats) })
	gateway := testenv.Serve(t, "--worker", chats.url, "--worker", vectors.url)
	waitModels(t, gateway.URL, "tiny", "vectors")

	response := surfaceCall{"a response", "/v1/responses", `{` + sampling + `,"input":"Say hello to the world.","instructions":"Be short.","max_output_tokens":12}`, 200}
	message := surfaceCall{"a message", "/v1/messages", `{` + sampling + `,"max_tokens":12,"system":"Be short.",` + hello + `}`, 200}
	tools := surfaceCall{"a message with tools", "/v1/messages", `{` + sampling + `,"max_tokens":12,` + askTool + `,` + hello + `}`, 200}
	chat := surfaceCall{"a chat", "/v1/chat/completions", `{` + sampling + `,"max_tokens":12,` + hello + `}`, 200}
	completion := surfaceCall{"a completion", "/v1/completions", `{` + sampling + `,"max_tokens":12,"prompt":"Hello world, what a day"}`, 200}
	for _, c := range []surfaceCall{
		chat, chat.stream(), completion, completion.stream(), response, response.stream(), message, message.stream(), tools, tools.stream(),
		{"count_tokens", "/v1/messages/count_tokens", `{"model":"tiny","system":"Be short.",` + hello + `}`, 200},
		{"tokenize a prompt", "/tokenize", `{"model":"tiny","prompt":"Hello world"}`, 200},
		{"tokenize a chat", "/tokenize", `{"model":"tiny",` + hello + `}`, 200},
		{"detokenize", "/detokenize", `{"model":"tiny","tokens":[5,6,7,8]}`, 200},
		{"a response that continues nothing", "/v1/responses", `{` + sampling + `,"input":"x","max_output_tokens":-5}`, 400},
		{"a message without an end", "/v1/messages", `{` + sampling + `,"max_tokens":-1,` + hello + `}`, 400},
		{"generate", "/generate", `{"model":"tiny","text":"Hello"}`, 404},
		{"an embedding of a chat model", "/v1/embeddings", `{"model":"tiny","input":"Hello"}`, 404},
		{"rerank of a chat model", "/rerank", `{"model":"tiny","query":"a","documents":["b"]}`, 404},
		{"a transcription", "/v1/audio/transcriptions", form, 404},
		{"an image", "/v1/images/generations", `{"model":"tiny","prompt":"a"}`, 404},
	} {
		t.Run(c.name, func(t *testing.T) { same(t, gateway.URL, chats.url, c) })
	}
	for _, c := range []surfaceCall{
		{"embeddings", "/v1/embeddings", `{"model":"vectors","input":["Hello world","What a day"]}`, 200},
		{"embeddings in base64", "/v1/embeddings", `{"model":"vectors","input":"Hello world","encoding_format":"base64"}`, 200},
		{"embeddings as bytes", "/v1/embeddings", `{"model":"vectors","input":"Hello world","encoding_format":"bytes"}`, 200},
		{"a score", "/v1/score", `{"model":"vectors","text_1":"Hello","text_2":["Hello world","What a day"]}`, 200},
		{"a score by the short path", "/score", `{"model":"vectors","text_1":"Hello","text_2":["Hello world"]}`, 200},
		{"rerank", "/rerank", `{"model":"vectors","query":"Hello","documents":["Hello world","What a day"]}`, 200},
		{"rerank, version 1", "/v1/rerank", `{"model":"vectors","query":"Hello","documents":["Hello world","What a day"]}`, 200},
		{"rerank, version 2", "/v2/rerank", `{"model":"vectors","query":"Hello","documents":["Hello world","What a day"]}`, 200},
		{"classify by a model that does not", "/classify", `{"model":"vectors","input":"Hello"}`, 404},
	} {
		t.Run(c.name, func(t *testing.T) { same(t, gateway.URL, vectors.url, c) })
	}
	t.Run("responses are continued and found", func(t *testing.T) { keptResponses(t, gateway.URL) })
	t.Run("predictions", func(t *testing.T) { messagesOfVLLM(t, chats) })
	t.Run("the official clients", func(t *testing.T) { officialClients(t, gateway.URL, chats, vectors) })
	t.Run("the load of others is seen", func(t *testing.T) { saysHowBusyItIs(t, chats) })
	t.Run("a cache is flushed by order", func(t *testing.T) {
		status, text := send(t, http.MethodPost, gateway.Admin+"/flush_cache", "")
		if status != 200 || !strings.Contains(text, chats.url) || !strings.Contains(text, vectors.url) {
			t.Errorf("%d %s", status, text)
		}
	})
}

// waitModels waits until the router lists the models.
func waitModels(t *testing.T, base string, models ...string) {
	t.Helper()
	for _, m := range models {
		testenv.Until(t, "the model "+m+" is served", func() bool {
			status, _ := send(t, http.MethodGet, base+"/v1/models/"+m, "")
			return status == 200
		})
	}
}

func send(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// keptResponses makes, continues and retrieves a response that vLLM keeps.
func keptResponses(t *testing.T, base string) {
	status, text := send(t, http.MethodPost, base+"/v1/responses", `{`+sampling+`,"input":"Hello","max_output_tokens":8}`)
	var made struct{ ID, Object string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != 200 || made.Object != "response" {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := send(t, http.MethodGet, base+"/v1/responses/"+made.ID, ""); status != 200 || !strings.Contains(text, made.ID) {
		t.Errorf("retrieve: %d %s", status, text)
	}
	next := fmt.Sprintf(`{%s,"input":"And more","max_output_tokens":8,"previous_response_id":%q}`, sampling, made.ID)
	if status, text := send(t, http.MethodPost, base+"/v1/responses", next); status != 200 {
		t.Errorf("continue: %d %s", status, text)
	}
	if status, text := send(t, http.MethodPost, base+"/v1/responses/"+made.ID+"/cancel", ""); status != 400 {
		t.Errorf("cancel: %d %s", status, text)
	}
	if status, text := send(t, http.MethodGet, base+"/v1/responses/resp_0", ""); status != 404 || !strings.Contains(text, "response_not_found") {
		t.Errorf("an unknown one: %d %s", status, text)
	}
}

// officialClients compares the results of the official clients through the gateway with direct results.
func officialClients(t *testing.T, base string, chats, vectors *realEngine) {
	client := testenv.StartClient(t)
	said := []any{map[string]any{"role": "user", "content": "Say hello to the world."}}
	for _, c := range []struct {
		engine         *realEngine
		client, method string
		body           map[string]any
		shows          string // what is compared
	}{
		{chats, "openai", "responses.create", map[string]any{"model": "tiny", "input": "Hello world", "temperature": 0, "max_output_tokens": 10}, "output.0.content.0.text"},
		{vectors, "openai", "embeddings.create", map[string]any{"model": "vectors", "input": "Hello world"}, "data.0.embedding.3"},
		{chats, "anthropic", "messages.create", map[string]any{"model": "tiny", "messages": said, "max_tokens": 10, "extra_body": map[string]any{"temperature": 0}}, "content.0.text"},
		{chats, "anthropic", "messages.count_tokens", map[string]any{"model": "tiny", "messages": said}, "input_tokens"},
	} {
		shown := func(base string) string {
			if c.client == "openai" {
				base += "/v1"
			}
			a := client.Any(t, base, c.client, c.method, c.body)
			if a.Error != nil {
				t.Errorf("%s %s: %+v", c.client, c.method, a.Error)
			}
			return at(a.Value, c.shows)
		}
		if direct, through := shown(c.engine.url), shown(base); direct == "" || direct != through {
			t.Errorf("%s %s: %q through the gateway, %q directly", c.client, c.method, through, direct)
		}
	}
}

// TestTheSurfaceOfSGLang compares the answers of a real SGLang as TestTheSurfaceOfVLLM does.
func TestTheSurfaceOfSGLang(t *testing.T) {
	besideAnother(t)
	engine := begin(t, "surface", launch{kind: "sglang"})
	engine.await(t)
	t.Run("the doctor finds nothing", func(t *testing.T) { examine(t, engine) })
	gateway := testenv.Serve(t, "--worker", engine.url)
	waitModels(t, gateway.URL, "tiny")
	params := `"sampling_params":{"temperature":0,"max_new_tokens":12}`
	text := surfaceCall{"generate", "/generate", `{"text":"Hello world, what a day",` + params + `}`, 200}
	ids := surfaceCall{"generate by ids", "/generate", `{"input_ids":[5,6,7,8,9,10],` + params + `}`, 200}
	batch := surfaceCall{"generate a batch", "/generate", `{"text":["Hello world","What a day"],` + params + `}`, 200}
	message := surfaceCall{"a message", "/v1/messages", `{` + sampling + `,"max_tokens":12,"system":"Be short.",` + hello + `}`, 200}
	for _, c := range []surfaceCall{
		text, text.stream(), ids, ids.stream(), batch, message, message.stream(),
		{"count_tokens", "/v1/messages/count_tokens", `{"model":"tiny",` + hello + `}`, 200},
		{"tokenize", "/tokenize", `{"model":"tiny","prompt":"Hello world"}`, 200},
		{"tokenize, version 1", "/v1/tokenize", `{"model":"tiny","prompt":"Hello world"}`, 200},
		{"detokenize", "/detokenize", `{"model":"tiny","tokens":[5,6,7,8]}`, 200},
		{"a score", "/v1/score", `{"model":"tiny","query":"Hello","items":["a","b"],"label_token_ids":[5,6]}`, 200},
		{"an embedding of a chat model", "/v1/embeddings", `{"model":"tiny","input":"Hello"}`, 400},
	} {
		t.Run(c.name, func(t *testing.T) { same(t, gateway.URL, engine.url, c) })
	}
	t.Run("ids that were sent are matched", func(t *testing.T) {
		long := bytes.Repeat([]byte("7,"), 199)
		body := `{"input_ids":[` + string(long) + `7],` + params + `}`
		for range 2 {
			if status, text := send(t, http.MethodPost, gateway.URL+"/generate", body); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
		}
		_, decisions := send(t, http.MethodGet, gateway.Admin+"/admin/decisions?n=1", "")
		for _, want := range []string{`"token_source": "given"`, `"prompt_tokens": 200`, `"predicted_tokens": 192`, `"difference": 0`} {
			if !strings.Contains(decisions, want) {
				t.Errorf("the decision has no %s: %s", want, decisions)
			}
		}
	})
	t.Run("predictions", func(t *testing.T) { messagesOfSGLang(t, engine) })
	t.Run("the load of others is seen", func(t *testing.T) { saysHowBusyItIs(t, engine) })
	t.Run("a cache is flushed by order", func(t *testing.T) {
		if status, text := send(t, http.MethodPost, gateway.Admin+"/flush_cache", ""); status != 200 {
			t.Errorf("%d %s", status, text)
		}
	})
}
