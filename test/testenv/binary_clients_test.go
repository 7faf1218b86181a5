package testenv_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// clientOf calls methods of an official client, and fails the test if a call fails.
type clientOf struct {
	*testenv.Client
	name, base string
}

func (c *clientOf) call(t *testing.T, method string, body map[string]any, args ...any) *testenv.Answer {
	t.Helper()
	a := c.Any(t, c.base, c.name, method, body, args...)
	if a.Error != nil && a.Error.Type == "ModuleNotFoundError" {
		testenv.Missing(t, "the Anthropic client for Python", "make interop")
	}
	if a.Error != nil {
		t.Errorf("%s %s: %+v", c.name, method, a.Error)
		return &testenv.Answer{}
	}
	return a
}

// at returns the value at a path such as "data.0.id" in a JSON document, as text; "" if there is none.
func at(document any, path string) string {
	for _, step := range strings.Split(path, ".") {
		switch v := document.(type) {
		case map[string]any:
			document = v[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(v) {
				return ""
			}
			document = v[i]
		default:
			return ""
		}
	}
	if document == nil {
		return ""
	}
	return fmt.Sprint(document)
}

// seeded makes mock engines whose answers have different ids.
func seeded(t *testing.T) []*mockengine.Server {
	var all []*mockengine.Server
	for i := range 2 {
		all = append(all, mock(t, func(c *mockengine.Config) { c.Seed = uint64(i + 1) }))
	}
	return all
}

// languages start the clients of each language in which they are published.
var languages = map[string]func(testing.TB) *testenv.Client{"python": testenv.StartClient, "node": testenv.StartNodeClient}

func TestTheOpenAIClientOnEveryEndpoint(t *testing.T) {
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			g := serve(t, seeded(t))
			everyEndpointOfOpenAI(t, &clientOf{start(t), "openai", g.URL + "/v1"})
		})
	}
}

func everyEndpointOfOpenAI(t *testing.T, c *clientOf) {
	m := func(fields ...any) map[string]any {
		body := map[string]any{"model": "mock"}
		for i := 0; i < len(fields); i += 2 {
			body[fields[i].(string)] = fields[i+1]
		}
		return body
	}
	is := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	has := func(what, got string) {
		t.Helper()
		if got == "" {
			t.Errorf("%s is missing", what)
		}
	}
	is("the model", at(c.call(t, "models.retrieve", nil, "mock").Value, "id"), "mock")
	is("the listed model", at(c.call(t, "models.list", nil).Value, "data.0.id"), "mock")
	said := []any{map[string]any{"role": "user", "content": "Hello"}}
	for method, prompt := range map[string]map[string]any{"chat.completions.create": {"messages": said, "temperature": 0}, "completions.create": {"prompt": "Hello", "temperature": 0}} {
		prompt["model"], prompt["max_tokens"] = "mock", 12
		whole, text := c.call(t, method, prompt), ""
		prompt["stream"] = true
		for _, e := range c.call(t, method, prompt).Events {
			text += at(e, "choices.0.delta.content") + at(e, "choices.0.text")
		}
		// Each worker has its own text, so only the lengths are equal.
		is("the words of "+method, fmt.Sprint(len(strings.Fields(at(whole.Value, "choices.0.message.content")+at(whole.Value, "choices.0.text")))), "12")
		is("the streamed words of "+method, fmt.Sprint(len(strings.Fields(text))), "12")
	}

	made := c.call(t, "responses.create", m("input", "Hello", "instructions", "Be short.", "max_output_tokens", 12))
	id := at(made.Value, "id")
	has("the response's text", at(made.Value, "output.0.content.0.text"))
	for i := range 6 { // whichever worker made it
		next := c.call(t, "responses.create", m("input", fmt.Sprint("More ", i), "previous_response_id", id))
		is("the next status", at(next.Value, "status"), "completed")
		is("the response found", at(c.call(t, "responses.retrieve", nil, at(next.Value, "id")).Value, "id"), at(next.Value, "id"))
		if i%2 == 0 {
			id = at(next.Value, "id")
		}
	}
	is("the first input", at(c.call(t, "responses.input_items.list", nil, id).Value, "data.0.content.0.text"), "Hello")
	if a := c.Any(t, c.base, c.name, "responses.cancel", nil, id); a.Error == nil || a.Error.Type != "BadRequestError" {
		t.Errorf("a response that is complete was cancelled: %+v", a)
	}
	c.call(t, "responses.delete", nil, id)
	if a := c.Any(t, c.base, c.name, "responses.retrieve", nil, id); a.Error == nil || a.Error.Type != "NotFoundError" {
		t.Errorf("a deleted response is found: %+v", a)
	}
	streamed := c.call(t, "responses.create", m("input", "Hello", "stream", true, "max_output_tokens", 12)).Events
	if n := len(streamed); n < 10 || streamed[0]["type"] != "response.created" || streamed[n-1]["type"] != "response.incomplete" {
		t.Errorf("%d events", n)
	} else {
		again := c.call(t, "responses.retrieve", map[string]any{"stream": true}, at(streamed[n-1], "response.id")).Events
		is("the response streamed again", at(again[len(again)-1], "response.id"), at(streamed[n-1], "response.id"))
	}
	tool := map[string]any{"type": "function", "name": "weather", "parameters": map[string]any{"type": "object"}}
	called := c.call(t, "responses.create", m("input", "Hello", "tools", []any{tool}, "tool_choice", "required"))
	is("the tool", at(called.Value, "output.0.name"), "weather")

	for _, format := range []string{"float", "base64"} {
		a := c.call(t, "embeddings.create", m("input", []any{"a", "b"}, "encoding_format", format))
		has("the second vector in "+format, at(a.Value, "data.1.embedding"))
	}
	has("the vectors by default", at(c.call(t, "embeddings.create", m("input", "a")).Value, "data.0.embedding.7"))
	is("the length of the sound", at(c.call(t, "audio.speech.create", m("input", "hello", "voice", "alloy")).Value, "bytes"), "49")
	sound := map[string]any{"$file": strings.Repeat("x", 100_000)}
	is("the text", at(c.call(t, "audio.transcriptions.create", m("file", sound)).Value, "text"), "100000 bytes of sound")
	is("the translation", at(c.call(t, "audio.translations.create", m("file", sound)).Value, "text"), "100000 bytes of sound")
	has("the image", at(c.call(t, "images.generate", m("prompt", "a")).Value, "data.0.b64_json"))
	has("the edited image", at(c.call(t, "images.edit", m("prompt", "a", "image", sound)).Value, "data.0.b64_json"))
	for method, body := range map[string]map[string]any{
		"responses.create": {"input": "x"}, "embeddings.create": {"input": "x"}, "images.generate": {"prompt": "x"},
		"audio.transcriptions.create": {"file": sound}, "audio.speech.create": {"input": "x", "voice": "v"},
	} {
		body["model"] = "nobody"
		if a := c.Any(t, c.base, c.name, method, body); a.Error == nil || a.Error.Type != "NotFoundError" || !strings.Contains(a.Error.Message, "nobody") {
			t.Errorf("%s with an unknown model: %+v", method, a.Error)
		}
	}
}

func TestTheAnthropicClientOnEveryEndpoint(t *testing.T) {
	for language, start := range languages {
		for _, kind := range []mockengine.Kind{mockengine.VLLM, mockengine.SGLang} {
			t.Run(language+"/"+string(kind), func(t *testing.T) {
				like := func(c *mockengine.Config) { c.Kind = kind }
				g := serve(t, []*mockengine.Server{mock(t, like), mock(t, like)})
				everyEndpointOfAnthropic(t, &clientOf{start(t), "anthropic", g.URL})
			})
		}
	}
}

func everyEndpointOfAnthropic(t *testing.T, c *clientOf) {
	said := []any{map[string]any{"role": "user", "content": "Hello"}}
	body := map[string]any{"model": "mock", "max_tokens": 12, "system": "Be short.", "messages": said}
	whole := c.call(t, "messages.create", body)
	text := at(whole.Value, "content.0.text")
	counted := c.call(t, "messages.count_tokens", map[string]any{"model": "mock", "system": "Be short.", "messages": said})
	if text == "" || at(whole.Value, "stop_reason") != "max_tokens" || at(counted.Value, "input_tokens") == "" {
		t.Errorf("%+v, counted %+v", whole.Value, counted.Value)
	}
	body["stream"] = true
	streamed := ""
	events := c.call(t, "messages.create", body).Events
	for _, e := range events {
		streamed += at(e, "delta.text")
	}
	if n := len(events); streamed != text || n < 5 || events[n-1]["type"] != "message_stop" {
		t.Errorf("%q streamed, %q whole", streamed, text)
	}
	delete(body, "stream")
	body["tools"] = []any{map[string]any{"name": "weather", "input_schema": map[string]any{"type": "object"}}}
	body["tool_choice"] = map[string]any{"type": "any"}
	body["max_tokens"] = 100
	if a := c.call(t, "messages.create", body); at(a.Value, "content.0.name") != "weather" {
		t.Errorf("%+v", a.Value)
	}
	body["model"] = "nobody"
	for _, stream := range []bool{false, true} {
		body["stream"] = stream
		a := c.Any(t, c.base, c.name, "messages.create", body)
		if a.Error == nil || a.Error.Type != "NotFoundError" || !strings.Contains(fmt.Sprint(a.Error.Body), "not_found_error") {
			t.Errorf("an unknown model: %+v", a.Error)
		}
	}
	if a := c.call(t, "models.retrieve", nil, "mock"); at(a.Value, "id") != "mock" {
		t.Errorf("%+v", a.Value)
	}
}
