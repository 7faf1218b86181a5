package jinja

import (
	"errors"
	"strings"
	"testing"
)

func TestArgumentsBeyondTheBoundsAreNotTakenForOthers(t *testing.T) {
	tmpl, err := ParseChat(`{{ messages[0].tool_calls[0].function.arguments }}`)
	if err != nil {
		t.Fatal(err)
	}
	half := `{\"a\":[` + strings.Repeat(`1,`, maxValues/2) + `1]}`
	for name, arguments := range map[string][]string{
		"too many values":        {`{\"a\":[` + strings.Repeat(`1,`, maxValues) + `1]}`},
		"too many values in all": {half, half},
		"nested too deep":        {`{\"a\":` + strings.Repeat(`[`, 2*maxJSONDepth) + strings.Repeat(`]`, 2*maxJSONDepth) + `}`},
	} {
		var calls []string
		for _, a := range arguments {
			calls = append(calls, `{"id":"c","type":"function","function":{"name":"f","arguments":"`+a+`"}}`)
		}
		body := `{"messages":[{"role":"assistant","tool_calls":[` + strings.Join(calls, ",") + `]},{"role":"user","content":"x"}]}`
		for _, engine := range []Engine{EngineVLLM, EngineSGLang} {
			var refused *RequestError
			if _, err := tmpl.ReadRequest([]byte(body), RequestConfig{Engine: engine}); !errors.Is(err, ErrLimit) || errors.As(err, &refused) {
				t.Errorf("%s, engine %d: %v", name, engine, err)
			}
		}
	}
}
