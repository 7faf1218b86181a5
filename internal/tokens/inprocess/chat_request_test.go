package inprocess

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// engineRequests has requests, and the prompts that an engine made from them. testdata/engine_requests.py recorded
// them.
type engineRequests struct {
	Templates map[string]string `json:"templates"`
	Requests  []struct {
		Body    string                            `json:"body"`
		Results map[string]testenv.TemplateResult `json:"results"`
	} `json:"requests"`
}

func TestRequestsReachTheTemplateAsInTheEngine(t *testing.T) {
	for name, engine := range map[string]templateEngine{"vllm": engineVLLM, "sglang": engineSGLang} {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/requests_" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var g engineRequests
			if err := json.Unmarshal(raw, &g); err != nil {
				t.Fatal(err)
			}
			lenient, renders := 0, 0
			for tname, source := range g.Templates {
				tmpl, err := parseTemplate(source)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range g.Requests {
					renders++
					want := r.Results[tname]
					got, err := renderRequest(tmpl, r.Body, engine)
					switch {
					case want.Text != nil && err != nil:
						t.Errorf("%s, %s: %v, want %s", tname, r.Body, err, *want.Text)
					case want.Text != nil && got != *want.Text:
						t.Errorf("%s, %s: %s", tname, r.Body, firstDifference(got, *want.Text))
					case want.Text == nil && err == nil && !strings.HasPrefix(*want.Error, "ValidationError"):
						t.Errorf("%s, %s: rendered %q, the engine said %s", tname, r.Body, got, *want.Error)
					case want.Text == nil && err == nil:
						lenient++
						t.Logf("%s, %s: rendered, the engine said %s", tname, r.Body, *want.Error)
					}
				}
			}
			t.Logf("%d renders; %d that the engine's validation refuses are rendered here", renders, lenient)
		})
	}
}

func renderRequest(tmpl *chatTemplate, body string, engine templateEngine) (string, error) {
	return renderAs(tmpl, body, requestConfig{Engine: engine, TrustTemplate: true})
}

func renderAs(tmpl *chatTemplate, body string, c requestConfig) (string, error) {
	q, err := tmpl.ReadRequest([]byte(body), c)
	if err != nil {
		return "", err
	}
	out, err := q.Render(nil, renderContext{Now: testenv.TemplateTime,
		Tokens: map[string]string{"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}})
	if err != nil {
		return "", err
	}
	again, err := q.Render(nil, renderContext{Now: testenv.TemplateTime,
		Tokens: map[string]string{"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}})
	if err != nil || string(again) != string(out) {
		return "", fmt.Errorf("a second render differs: %w", err)
	}
	return string(out) + q.Suffix, nil
}
