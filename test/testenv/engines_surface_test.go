package testenv_test

import (
	"bytes"
	"encoding/json"
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
)

// volatile matches what differs between two answers to one request: ids, times, and what was cached.
var volatile = regexp.MustCompile(`"(id|rid|item_id|request_id|weight_version)":"[^"]*"|"(created|created_at|cached_tokens|cache_read_input_tokens|input_tokens|timestamp|completed_at|cached_tokens_per_turn|input_tokens_per_turn)":(\[[^\]]*\]|[0-9.]+|null)|"(e2e_latency|[a-z_]*_time|[a-z_]*_ts|[a-z_]*_latency|[a-z_]*_throughput|spec[a-z_]*)":[0-9.e-]+|[a-z]+_[0-9a-f]{16,32}|"cached_tokens_details":(null|\{[^}]*\})`)

// same sends a call directly and through the gateway. Both answers must be equal but for what is volatile.
func same(t *testing.T, gateway, engine string, c surfaceCall) {
	t.Helper()
	get := func(base string) (int, string, string) {
		resp, err := http.Post(base+c.path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("%s at %s: %v", c.name, base, err)
		}
		kind := resp.Header.Get("Content-Type")
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
		last, text = data, text+at(document, "delta.text")
		if delta, is := document["delta"].(string); is {
			text += delta
		}
	}
	return kinds + text + "\n" + last
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

// TestTheSurfaceOfSGLang compares the answers of a real SGLang through the gateway with its direct answers.
func TestTheSurfaceOfSGLang(t *testing.T) {
	engine := begin(t, "surface", launch{kind: "sglang"})
	engine.await(t)
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
	t.Run("a cache is flushed by order", func(t *testing.T) {
		if status, text := send(t, http.MethodPost, gateway.Admin+"/flush_cache", ""); status != 200 {
			t.Errorf("%d %s", status, text)
		}
	})
}
