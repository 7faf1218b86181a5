package jinja

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

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
	for name, spelling := range testenv.TemplateTokens {
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
	return tmpl.Render(dst, Options{Now: testenv.TemplateTime}, vars...)
}

// digest writes the result of the conversation of that name to h.
func digest(h io.Writer, name string, g *testenv.TemplateResult) {
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

func TestExampleTemplatesRenderAsInPython(t *testing.T) { compare(t, testenv.SampleTemplates(t)) }

func TestCollectedTemplatesRenderAsInPython(t *testing.T) { compare(t, testenv.CollectedTemplates(t)) }

// compare renders every conversation with every template, and compares each text with the text that Python rendered.
func compare(t *testing.T, templates []testenv.Template) {
	cs := conversations(t)
	committed := digests(t)
	renders, wrong := 0, map[string]int{}
	for _, g := range templates {
		h := sha256.New()
		for i := range cs {
			r := g.Results[cs[i].Name]
			digest(h, cs[i].Name, &r)
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
func differs(got []byte, err error, want *testenv.TemplateResult) string {
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
