package jinja

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

func TestExpressionsRenderAsInPython(t *testing.T) {
	raw, err := os.ReadFile("testdata/expressions.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Vars  json.RawMessage      `json:"vars"`
		Cases [][2]json.RawMessage `json:"cases"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for _, c := range doc.Cases {
		var source string
		var want testenv.TemplateResult
		if err := json.Unmarshal(c[0], &source); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(c[1], &want); err != nil {
			t.Fatal(err)
		}
		conv := &conversation{Messages: json.RawMessage("null"), Kwargs: doc.Vars}
		var got []byte
		tmpl, err := Parse(source)
		if err == nil {
			got, err = conv.render(nil, tmpl)
		}
		if d := differs(got, err, &want); d != "" {
			t.Errorf("%s: %s", source, d)
		}
	}
	t.Logf("%d templates", len(doc.Cases))
}
