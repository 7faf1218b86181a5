package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// goldenTime is the current time that tokenizer/jinja/testdata/gather.py gives to the templates.
var goldenTime = time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)

var goldenTokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
	"pad_token": "<pad>"}

// templateGolden is a template, with the text that Python renders from it for each conversation; see
// tokenizer/jinja/testdata.
type templateGolden struct {
	Name     string                  `json:"name"`
	SHA256   string                  `json:"sha256"`
	Template string                  `json:"template"`
	Results  map[string]goldenResult `json:"results"`
}

type goldenResult struct {
	Text     *string `json:"text"`
	Raised   *string `json:"raised"`
	Error    *string `json:"error"`
	Unstable bool    `json:"unstable"` // Python printed a memory address, which differs each time
}

// sample reads the committed sample of the golden data: vLLM's own example templates.
func sample(t testing.TB) (out []templateGolden) {
	t.Helper()
	if err := json.Unmarshal(testenv.Gunzip(t, "../../../tokenizer/jinja/testdata/sample.json.gz"), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// collected reads all golden data. If the data are not installed, it skips the test.
func collected(t testing.TB) []templateGolden {
	t.Helper()
	return testenv.JSONFiles[templateGolden](t, "templates/golden", "make golden")
}

// templateDiffers describes how a rendered text differs from the text that Python rendered. It returns "" if the two
// texts are equal.
func templateDiffers(got string, err error, want *goldenResult) string {
	var raised *jinja.RaisedError
	switch {
	case want.Text != nil && err != nil:
		return fmt.Sprintf("failed: %v", err)
	case want.Text != nil:
		return firstDifference(got, *want.Text)
	case err == nil:
		return fmt.Sprintf("rendered %q, Python failed", got)
	case want.Raised != nil && (!errors.As(err, &raised) || raised.Message != *want.Raised):
		return fmt.Sprintf("failed with %v, the template raised %q", err, *want.Raised)
	}
	return ""
}

func firstDifference(got, want string) string {
	if got == want {
		return ""
	}
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	from := max(0, n-40)
	return fmt.Sprintf("at byte %d:\n got %q\nwant %q", n, got[from:min(len(got), n+60)],
		want[from:min(len(want), n+60)])
}
