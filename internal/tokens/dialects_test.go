package tokens

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/warmpath/warmpath/internal/api"
)

const messagesBody = `{"model":"m","max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]`

func TestMessagesAreAskedForAsChats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			asked = append(asked, body)
			return tokenizing(r, body)
		}})
		defer s.Close()
		wants(t, find(t, s, prompt(api.AnthropicMessages, messagesBody+`}`), a), Tokenize, 4, 5)
		chat := `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`
		if len(asked) == 0 || asked[len(asked)-1] != chat {
			t.Errorf("asked %q, want %s", asked, chat)
		}
	})
}

// The template decides how vLLM switches thinking off. So vLLM is asked for the request itself, and its other endpoints
// stay in use if it does not answer.
func TestWhatCannotBeTurnedIntoAChatIsRenderedByTheEngineOrByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": rendering, "b": tokenizing})
		defer s.Close()
		quiet := messagesBody + `,"thinking":{"type":"disabled"}}`
		wants(t, find(t, s, prompt(api.AnthropicMessages, quiet), a), Render, 1, 2, 3)
		if got := e.calls(); !slices.Equal(got, []string{"a/v1/messages/render"}) {
			t.Errorf("called %q", got)
		}
		wants(t, find(t, s, prompt(api.AnthropicMessages, quiet[:len(quiet)-1]+`,"x":1}`), b), Unrendered)
		wants(t, find(t, s, chat("x"), b), Tokenize, 4, 5)
		wants(t, find(t, s, prompt(api.OpenAIResponses, `{"model":"m","input":"hi"}`), a), Render, 1, 2, 3)
		wants(t, find(t, s, prompt(api.OpenAIResponses, `{"model":"m","input":"hi","previous_response_id":"r"}`), a), Unrendered)
		sglang := Worker{URL: "http://b", Kind: SGLang}
		wants(t, find(t, s, prompt(api.AnthropicMessages, quiet), sglang), Unrendered)
		if got := len(e.calls()); got > 6 {
			t.Errorf("%d calls: %q", got, e.calls())
		}
	})
}

// FuzzChats turns any body into a chat. The chat is JSON, and not much longer than the body.
func FuzzChats(f *testing.F) {
	f.Add(messagesBody+`}`, `{"model":"m","input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}`)
	f.Add(messagesBody+`,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"none"}}`, `{"input":[{"type":"reasoning","summary":[]}]}`)
	f.Add(`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"\ud83d"}]},{"type":"text","text":"x"}]},`+
		`{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":[1e400,-0]}}]}]}`, `{"input":"x","tools":[{"type":"function","name":"f"}]}`)
	f.Fuzz(func(t *testing.T, messages, responses string) {
		for d, body := range map[api.Dialect]string{api.AnthropicMessages: messages, api.OpenAIResponses: responses} {
			var r api.Request
			if api.Read(d, []byte(body), &r) != nil {
				continue
			}
			for _, kind := range []Kind{VLLM, SGLang} {
				for _, how := range []Chatting{{}, {Known: true, Merges: true, Quiet: "low"}, {Known: true, Quiet: "none"}} {
					out, err := AppendChat(nil, &r, kind, how)
					if err == nil && (!json.Valid(out) || len(out) > 16*len(body)+1024) {
						t.Errorf("%s: %d bytes: %s", body, len(out), out)
					}
				}
			}
		}
	})
}
