package tokens

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
)

func TestTheChangingLineIsFoundAtTheBeginningOfTheSystemPromptOnly(t *testing.T) {
	line := `x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=8f3a1;`
	user := `{"role":"user","content":"` + line + `"}`
	for _, c := range []struct {
		name string
		d    api.Dialect
		body string
		has  bool
	}{
		{"a block", api.AnthropicMessages, `{"system":[{"type":"text","text":"` + line + `"},{"type":"text","text":"You code."}],"messages":[` + user + `]}`, true},
		{"the second block", api.AnthropicMessages, `{"system":[{"type":"text","text":"You code."},{"text":"` + line + `","type":"text"}],"messages":[]}`, true},
		{"a text", api.AnthropicMessages, `{"system":"` + line + `\nYou code.","messages":[` + user + `]}`, true},
		{"a message of the system", api.AnthropicMessages, `{"messages":[{"role":"system","content":"` + line + `"},` + user + `]}`, true},
		{"the user's text", api.AnthropicMessages, `{"system":"You code.","messages":[` + user + `]}`, false},
		{"within a text", api.AnthropicMessages, `{"system":"What is ` + line + `?","messages":[]}`, false},
		{"far behind", api.AnthropicMessages, `{"system":[{"type":"text","text":"` + strings.Repeat("a ", 1000) + `"},{"type":"text","text":"` + line + `"}],"messages":[]}`, false},
		{"a chat", api.OpenAIChat, `{"messages":[{"role":"system","content":"` + line + `\nYou code."},` + user + `]}`, true},
		{"a part of a chat", api.OpenAIChat, `{"messages":[{"content":[{"type":"text","text":"` + line + `"}],"role":"system"},` + user + `]}`, true},
		{"a chat without", api.OpenAIChat, `{"messages":[` + user + `]}`, false},
		{"instructions", api.OpenAIResponses, `{"instructions":"` + line + `\nYou code.","input":"hi"}`, true},
		{"a completion", api.OpenAICompletions, `{"prompt":"` + line + `"}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r api.Request
			if err := api.Read(c.d, []byte(c.body), &r); err != nil {
				t.Fatal(err)
			}
			if HasChangingLine(&r) != c.has {
				t.Errorf("%t, want %t", !c.has, c.has)
			}
		})
	}
	var r api.Request
	if err := api.Read(api.OpenAIChat, []byte(`{"messages":[{"role":"user","content":"`+strings.Repeat("hi ", 1000)+`"}]}`), &r); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { HasChangingLine(&r) }); n != 0 {
		t.Errorf("%v allocations for a request without the line", n)
	}
}
