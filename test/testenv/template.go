package testenv

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TemplateTime is the current time that tokenizer/jinja/testdata/gather.py gives to the templates.
var TemplateTime = time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)

// TemplateTokens are the special tokens that gather.py gives to the templates.
var TemplateTokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

// Template is a chat template, with the results that gather.py got from Python for each conversation.
type Template struct {
	Name     string                    `json:"name"`
	SHA256   string                    `json:"sha256"`
	Template string                    `json:"template"`
	Results  map[string]TemplateResult `json:"results"`
}

// TemplateResult is the text that Python rendered, or the reason why Python failed.
type TemplateResult struct {
	Text     *string `json:"text"`
	Raised   *string `json:"raised"`
	Error    *string `json:"error"`
	Unstable bool    `json:"unstable"` // Python printed a memory address, which differs each time
}

// SampleTemplates reads the templates in the repository: vLLM's own example templates.
func SampleTemplates(t testing.TB) (out []Template) {
	t.Helper()
	if err := json.Unmarshal(Gunzip(t, Path(t, "../../../tokenizer/jinja/testdata/sample.json.gz")), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// CollectedTemplates reads all templates that gather.py collected, in the order of the files' names. If they are not
// installed, it skips the test.
func CollectedTemplates(t testing.TB) []Template {
	t.Helper()
	dir := Installed(t, "templates/golden", "make golden")
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no JSON files in %s: %v", dir, err)
	}
	out := make([]Template, len(paths))
	for i, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
