package inprocess

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// openConversations returns the variables of the golden conversations with continue_final_message, by name.
func openConversations(t *testing.T) map[string]*jinja.Dict {
	t.Helper()
	raw, err := os.ReadFile("../../../tokenizer/jinja/testdata/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name     string          `json:"name"`
		Messages json.RawMessage `json:"messages"`
		Open     bool            `json:"continue_final_message"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]*jinja.Dict{}
	for _, c := range all {
		if !c.Open {
			continue
		}
		messages, err := new(jinja.Decoder).Decode(c.Messages)
		if err != nil {
			t.Fatal(err)
		}
		vars := &jinja.Dict{}
		vars.Set("messages", messages)
		vars.Set("tools", jinja.None)
		vars.Set("documents", jinja.None)
		vars.Set("add_generation_prompt", jinja.Bool(false))
		out[c.Name] = vars
	}
	return out
}

func TestFinalMessagesAreContinuedAsTransformersDoes(t *testing.T) {
	t.Run("examples", func(t *testing.T) { compareContinued(t, testenv.SampleTemplates(t)) })
	t.Run("collected", func(t *testing.T) { compareContinued(t, testenv.CollectedTemplates(t)) })
}

func compareContinued(t *testing.T, templates []testenv.Template) {
	renders := 0
	open := openConversations(t)
	for _, g := range templates {
		tmpl, parseErr := parseTemplate(g.Template)
		for name, vars := range open {
			want := g.Results[name]
			if want.Unstable {
				continue
			}
			renders++
			var got []byte
			err := parseErr
			if err == nil {
				j := &renderJob{template: tmpl, kwargs: &jinja.Dict{}, vars: vars.Clone(), field: "content",
					context: &renderContext{Tokens: testenv.TemplateTokens, Now: testenv.TemplateTime}}
				got, err = j.render(nil)
			}
			if d := templateDiffers(string(got), err, &want); d != "" {
				t.Errorf("%s (%s), %s: %s", g.Name, g.SHA256[:12], name, d)
			}
		}
	}
	t.Logf("%d renders", renders)
}
