package inprocess

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// dialectRequests has requests to /v1/messages and /v1/responses, and the prompts that an engine made from them.
// testdata/engine_dialects.py recorded them.
type dialectRequests struct {
	Templates map[string]string `json:"templates"`
	Requests  []struct {
		Dialect string                            `json:"dialect"`
		Body    string                            `json:"body"`
		Results map[string]testenv.TemplateResult `json:"results"`
	} `json:"requests"`
}

var dialectsOf = map[string]api.Dialect{"messages": api.AnthropicMessages, "responses": api.OpenAIResponses}

// TestRequestsOfOtherDialectsAreRenderedAsInTheEngine compares whole prompts. A request that the router does not turn
// into a chat is fine, but at least so many prompts must have been compared.
func TestRequestsOfOtherDialectsAreRenderedAsInTheEngine(t *testing.T) {
	least := map[string]int{"vllm": 569, "sglang": 305}
	for name, kind := range map[string]tokens.Kind{"vllm": tokens.VLLM, "sglang": tokens.SGLang} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/dialects_" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var g dialectRequests
			if err := json.Unmarshal(raw, &g); err != nil {
				t.Fatal(err)
			}
			equal, none, lenient := 0, map[string]bool{}, 0
			for tname, source := range g.Templates {
				tmpl, err := parseTemplate(source)
				if err != nil {
					t.Fatal(err)
				}
				m := &Model{templates: map[string]*chatTemplate{defaultTemplate: tmpl}}
				how := m.chattingOf()
				if kind == tokens.SGLang {
					how = tokens.Chatting{}
				}
				for _, r := range g.Requests {
					want := r.Results[tname]
					var read api.Request
					if err := api.Read(dialectsOf[r.Dialect], []byte(r.Body), &read); err != nil {
						t.Fatalf("%s: %v", r.Body, err)
					}
					body, err := tokens.AppendChat(nil, &read, kind, how)
					if err != nil {
						none[r.Body] = true
						if want.Text != nil && strings.Contains(err.Error(), "refuse") {
							t.Errorf("%s, %s: %v, want %s", tname, r.Body, err, *want.Text)
						}
						continue
					}
					engine := map[tokens.Kind]templateEngine{tokens.VLLM: engineVLLM, tokens.SGLang: engineSGLang}[kind]
					got, err := renderAs(tmpl, string(body), requestConfig{Engine: engine, NameFirst: r.Dialect == "responses"})
					switch {
					case want.Text != nil && err != nil:
						t.Errorf("%s, %s: as %s: %v, want %s", tname, r.Body, body, err, *want.Text)
					case want.Text != nil && got != *want.Text:
						t.Errorf("%s, %s: as %s: %s", tname, r.Body, body, firstDifference(got, *want.Text))
					case want.Text == nil && err == nil:
						lenient++
						t.Logf("%s, %s: rendered, the engine said %s", tname, r.Body, *want.Error)
					case want.Text != nil:
						equal++
					}
				}
			}
			t.Logf("%d prompts are equal; %d that the engine refuses are rendered here; these are not rendered: %s", equal, lenient,
				strings.Join(slices.Sorted(maps.Keys(none)), "\n"))
			if equal < least[name] {
				t.Errorf("only %d prompts were compared", equal)
			}
		})
	}
}
