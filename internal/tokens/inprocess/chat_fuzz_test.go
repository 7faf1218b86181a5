package inprocess

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

func FuzzRequest(f *testing.F) {
	for _, name := range []string{"vllm", "sglang"} {
		raw, err := os.ReadFile("testdata/requests_" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		var known engineRequests
		if err := json.Unmarshal(raw, &known); err != nil {
			f.Fatal(err)
		}
		for _, r := range known.Requests {
			f.Add(r.Body)
		}
	}
	tmpl, err := parseTemplate(`{{ messages | tojson }}{{ tools | tojson }}{{ x }}`)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, c := range []requestConfig{{}, {Engine: engineSGLang}, {Content: formatOpenAI},
			{Engine: engineSGLang, Content: formatOpenAI, TrustTemplate: true}} {
			q, err := tmpl.ReadRequest([]byte(body), c)
			if err != nil {
				continue
			}
			_, _ = q.Render(nil, renderContext{Limits: jinja.Limits{Steps: 20_000, OutputBytes: 1 << 16,
				Memory: 1 << 20, Depth: 20}, Now: time.Time{}})
		}
	})
}
