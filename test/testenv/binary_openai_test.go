package testenv_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

var weather = map[string]any{"type": "function", "function": map[string]any{"name": "weather",
	"parameters": map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}}}

func TestTheOpenAIClient(t *testing.T) {
	adapter := func(c *mockengine.Config) { c.LoRA = []string{"adapter"} }
	g := serve(t, []*mockengine.Server{mock(t, adapter), mock(t, adapter)})
	client := testenv.StartClient(t)
	base := g.URL + "/v1"
	messages := []any{map[string]any{"role": "system", "content": "You are short."}, map[string]any{"role": "user", "content": "Hello."}}

	t.Run("lists the models of all workers once", func(t *testing.T) {
		a := client.Do(t, testenv.Call{Call: "models", Base: base})
		slices.Sort(a.IDs)
		if a.Error != nil || !slices.Equal(a.IDs, []string{"adapter", "mock"}) {
			t.Errorf("models %v, error %+v", a.IDs, a.Error)
		}
	})
	t.Run("chats, plain and streamed, with the same text", func(t *testing.T) {
		plain := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "mock", "messages": messages, "max_tokens": 20}})
		streamed := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "mock", "messages": messages, "max_tokens": 20,
			"stream": true, "stream_options": map[string]any{"include_usage": true}}})
		for name, a := range map[string]*testenv.Answer{"plain": plain, "streamed": streamed} {
			if a.Error != nil || a.Finish == "" || a.Text == "" || a.Usage == nil || a.Usage.PromptTokens == 0 {
				t.Fatalf("%s: %+v error %+v", name, a, a.Error)
			}
			if a.Header("X-Warmpath-Worker") == "" || a.Header("X-Warmpath-Policy") != "marginal" {
				t.Errorf("%s: headers %v", name, a.Headers)
			}
		}
		if plain.Text != streamed.Text || streamed.Chunks < 5 {
			t.Errorf("plain %q, streamed %q in %d chunks", plain.Text, streamed.Text, streamed.Chunks)
		}
	})
	t.Run("streams without usage when it is not asked for", func(t *testing.T) {
		a := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "mock", "messages": messages, "max_tokens": 20, "stream": true}})
		if a.Error != nil || a.Usage != nil || a.Finish == "" {
			t.Errorf("%+v error %+v", a, a.Error)
		}
	})
	t.Run("calls tools", func(t *testing.T) {
		for _, stream := range []bool{false, true} {
			a := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "mock", "messages": messages, "stream": stream,
				"tools": []any{weather}, "tool_choice": map[string]any{"type": "function", "function": map[string]any{"name": "weather"}}}})
			if a.Error != nil || len(a.ToolCalls) == 0 {
				t.Errorf("stream %v: %+v error %+v", stream, a, a.Error)
			}
		}
	})
	t.Run("completes text and ids", func(t *testing.T) {
		for _, prompt := range []any{"Once upon a time", []int{5, 6, 7, 8}, []any{"one", "two"}} {
			for _, stream := range []bool{false, true} {
				a := client.Do(t, testenv.Call{Call: "completions", Base: base, Body: map[string]any{"model": "mock", "prompt": prompt, "max_tokens": 10, "stream": stream}})
				if a.Error != nil || a.Text == "" || a.Finish == "" {
					t.Errorf("prompt %v stream %v: %+v error %+v", prompt, stream, a, a.Error)
				}
			}
		}
	})
	t.Run("uses an adapter", func(t *testing.T) {
		a := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "adapter", "messages": messages, "max_tokens": 5}})
		if a.Error != nil || a.Text == "" {
			t.Errorf("%+v error %+v", a, a.Error)
		}
	})
	t.Run("understands our errors", func(t *testing.T) {
		unknown := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": "nobody", "messages": messages}})
		if unknown.Error == nil || unknown.Error.Type != "NotFoundError" || !strings.Contains(unknown.Error.Message, "nobody") {
			t.Errorf("an unknown model: %+v", unknown.Error)
		}
		wrong := client.Do(t, testenv.Call{Call: "chat", Base: base, Body: map[string]any{"model": 5, "messages": messages}})
		if wrong.Error == nil || wrong.Error.Type != "BadRequestError" {
			t.Errorf("a model that is a number: %+v", wrong.Error)
		}
	})
}

// TestTheOpenAIClientsBodyArrivesUnchanged compares the body that a worker gets through the gateway with the body that
// it gets directly from the OpenAI client.
func TestTheOpenAIClientsBodyArrivesUnchanged(t *testing.T) {
	var mu sync.Mutex
	var received []byte
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":4096}]}`)
		case r.URL.Path == "/version":
			io.WriteString(w, `{"version":"0.32.0"}`)
		case r.URL.Path == "/health":
		case r.Method == http.MethodPost && r.URL.Path == "/v1/chat/completions":
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			received = body
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"new_field":{"kept":[1,2.50]}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer worker.Close()
	g := testenv.Serve(t, "--worker", worker.URL)
	g.Ready(t)
	client := testenv.StartClient(t)

	extra := map[string]any{"zz_unknown": map[string]any{"b": []any{1.5, nil}, "a": "ü"}, "aa_unknown": true}
	call := testenv.Call{Call: "chat", Base: g.URL + "/v1", Extra: extra,
		Body: map[string]any{"model": "m", "temperature": 0.25, "messages": []any{map[string]any{"role": "user", "content": "héllo", "name": "n"}}}}
	a := client.Do(t, call)
	if a.Error != nil || a.Text != "ok" || a.Extra["new_field"] == nil {
		t.Fatalf("%+v error %+v", a, a.Error)
	}
	mu.Lock()
	through := slices.Clone(received)
	mu.Unlock()
	call.Base = worker.URL + "/v1"
	client.Do(t, call)
	mu.Lock()
	defer mu.Unlock()
	if string(through) != string(received) {
		t.Errorf("through the gateway:\n%s\ndirectly:\n%s", through, received)
	}
	var fields map[string]any
	if err := json.Unmarshal(through, &fields); err != nil || fields["zz_unknown"] == nil {
		t.Errorf("an unknown field was lost: %s", through)
	}
}
