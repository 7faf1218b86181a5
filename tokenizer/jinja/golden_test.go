package jinja

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// goldenTime is the current time in testdata/gather.py.
var goldenTime = time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)

var goldenTokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
	"pad_token": "<pad>"}

// conversation is one entry of testdata/conversations.json.
type conversation struct {
	Name                 string          `json:"name"`
	Messages             json.RawMessage `json:"messages"`
	Tools                json.RawMessage `json:"tools"`
	Documents            json.RawMessage `json:"documents"`
	Kwargs               json.RawMessage `json:"kwargs"`
	AddGenerationPrompt  bool            `json:"add_generation_prompt"`
	ContinueFinalMessage bool            `json:"continue_final_message"`
}

// variables returns the variables with which Transformers' apply_chat_template renders the conversation. The first dict
// has the keyword arguments, which hide other variables of the same name.
func (c *conversation) variables() ([]*Dict, error) {
	kwargs, vars, tokens := &Dict{}, &Dict{}, &Dict{}
	if len(c.Kwargs) > 0 {
		v, err := new(Decoder).Decode(c.Kwargs)
		if err != nil {
			return nil, err
		}
		if v.Kind() == KindDict {
			kwargs = v.Dict()
		}
	}
	for name, raw := range map[string][]byte{"messages": c.Messages, "tools": c.Tools, "documents": c.Documents} {
		v := None
		if len(raw) > 0 {
			var err error
			if v, err = new(Decoder).Decode(raw); err != nil {
				return nil, err
			}
		}
		vars.Set(name, v)
	}
	vars.Set("add_generation_prompt", Bool(c.AddGenerationPrompt))
	for name, spelling := range goldenTokens {
		tokens.Set(name, Text(spelling))
	}
	return []*Dict{kwargs, vars, tokens}, nil
}

// render appends the rendered conversation to dst.
func (c *conversation) render(dst []byte, tmpl *Template) ([]byte, error) {
	vars, err := c.variables()
	if err != nil {
		return nil, err
	}
	return tmpl.Render(dst, Options{Now: goldenTime}, vars...)
}

// golden is one template, with the results that testdata/gather.py got from Python.
type golden struct {
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

func (g *goldenResult) digest(h interface{ Write([]byte) (int, error) }, name string) {
	kind, text := "unstable", ""
	switch {
	case g.Text != nil:
		kind, text = "text", *g.Text
	case g.Raised != nil:
		kind, text = "raised", *g.Raised
	case g.Error != nil:
		kind = "error"
	}
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00", name, kind, text)
}

func conversations(t testing.TB) []conversation {
	t.Helper()
	raw, err := os.ReadFile("testdata/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	var cs []conversation
	if err := json.Unmarshal(raw, &cs); err != nil {
		t.Fatal(err)
	}
	return cs
}

// sample reads the committed sample of the golden data: vLLM's own example templates.
func sample(t testing.TB) (out []golden) {
	t.Helper()
	if err := json.Unmarshal(testenv.Gunzip(t, "testdata/sample.json.gz"), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// collected reads all golden data. If the data are not installed, it skips the test.
func collected(t testing.TB) []golden {
	t.Helper()
	return testenv.JSONFiles[golden](t, "templates/golden", "make golden")
}

// digests returns the committed digests, by template.
func digests(t testing.TB) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("testdata/golden.sha256")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) >= 3 && f[0] != "#" {
			out[f[1]] = f[0]
		}
	}
	return out
}

func TestExampleTemplatesRenderAsInPython(t *testing.T) { compare(t, sample(t)) }

func TestCollectedTemplatesRenderAsInPython(t *testing.T) { compare(t, collected(t)) }

// compare renders every conversation with every template, and compares each text with the text that Python rendered.
func compare(t *testing.T, templates []golden) {
	cs := conversations(t)
	committed := digests(t)
	renders, wrong := 0, map[string]int{}
	for _, g := range templates {
		h := sha256.New()
		for i := range cs {
			r := g.Results[cs[i].Name]
			r.digest(h, cs[i].Name)
		}
		if want, known := committed[g.SHA256]; known && want != hex.EncodeToString(h.Sum(nil)) {
			t.Errorf("%s: the expected texts are not those of testdata/golden.sha256", g.Name)
		}
		tmpl, parseErr := Parse(g.Template)
		for i := range cs {
			want := g.Results[cs[i].Name]
			if want.Unstable || cs[i].ContinueFinalMessage { // the package internal/tokens/inprocess tests conversations with continue_final_message
				continue
			}
			renders++
			got, err := []byte(nil), parseErr
			if err == nil {
				got, err = cs[i].render(nil, tmpl)
			}
			if d := differs(got, err, &want); d != "" {
				wrong[g.Name]++
				if wrong[g.Name] <= 2 {
					t.Errorf("%s (%s), %s: %s", g.Name, g.SHA256[:12], cs[i].Name, d)
				}
			}
		}
	}
	t.Logf("%d renders, %d templates differ", renders, len(wrong))
}

// differs describes how a rendered text differs from the text that Python rendered. It returns "" if the two texts are
// equal.
func differs(got []byte, err error, want *goldenResult) string {
	var raised *RaisedError
	switch {
	case want.Text != nil && err != nil:
		return fmt.Sprintf("failed: %v", err)
	case want.Text != nil:
		if d := firstDifference(string(got), *want.Text); d != "" {
			return d
		}
	case err == nil:
		said := want.Raised
		if said == nil {
			said = want.Error
		}
		return fmt.Sprintf("rendered, Python failed with %q", *said)
	case want.Raised != nil && (!errors.As(err, &raised) || raised.Message != *want.Raised):
		return fmt.Sprintf("failed with %v, the template raised %q", err, *want.Raised)
	case want.Error != nil && errors.As(err, &raised):
		return fmt.Sprintf("raised %q, Python failed with %s", raised.Message, *want.Error)
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
