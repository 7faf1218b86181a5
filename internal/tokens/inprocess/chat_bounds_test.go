package inprocess

import (
	"errors"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// These are the bounds of a jinja.Decoder: the number of values in a document, and the depth of their nesting.
const maxChatValues, maxDepth = 1 << 18, 500

func TestArgumentsBeyondTheBoundsAreNotTakenForOthers(t *testing.T) {
	tmpl, err := parseTemplate(`{{ messages[0].tool_calls[0].function.arguments }}`)
	if err != nil {
		t.Fatal(err)
	}
	half := `{\"a\":[` + strings.Repeat(`1,`, maxChatValues/2) + `1]}`
	for name, arguments := range map[string][]string{
		"too many values":        {`{\"a\":[` + strings.Repeat(`1,`, maxChatValues) + `1]}`},
		"too many values in all": {half, half},
		"nested too deep":        {`{\"a\":` + strings.Repeat(`[`, 2*maxDepth) + strings.Repeat(`]`, 2*maxDepth) + `}`},
	} {
		var calls []string
		for _, a := range arguments {
			calls = append(calls, `{"id":"c","type":"function","function":{"name":"f","arguments":"`+a+`"}}`)
		}
		body := `{"messages":[{"role":"assistant","tool_calls":[` + strings.Join(calls, ",") +
			`]},{"role":"user","content":"x"}]}`
		for _, engine := range []templateEngine{engineVLLM, engineSGLang} {
			var refused *requestError
			_, err := tmpl.ReadRequest([]byte(body), requestConfig{Engine: engine})
			if !errors.Is(err, jinja.ErrLimit) || errors.As(err, &refused) {
				t.Errorf("%s, engine %d: %v", name, engine, err)
			}
		}
	}
}
