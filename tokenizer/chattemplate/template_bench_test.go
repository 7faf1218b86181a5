package chattemplate

import (
	"strings"
	"testing"
)

// BenchmarkRender renders conversations with known templates; run testdata/gather.py first.
func BenchmarkRender(b *testing.B) {
	cs := map[string]conversation{}
	for _, c := range conversations(b) {
		cs[c.Name] = c
	}
	for _, g := range goldens(b) {
		switch g.Name {
		case "tokenizer-qwen3/0", "tokenizer-llama3_1/0", "tokenizer-mistral_nemo/0", "tokenizer-deepseek_v3/0":
		default:
			continue
		}
		tmpl, err := Parse(g.Template)
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"user", "tool_answered", "long"} {
			c := cs[name]
			in := c.input()
			out, err := tmpl.Render(nil, in)
			if err != nil {
				continue
			}
			b.Run(strings.ReplaceAll(g.Name, "/0", "")+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(out)))
				for b.Loop() {
					out, _ = tmpl.Render(out[:0], in)
				}
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, g := range goldens(b) {
		if g.Name != "tokenizer-qwen3/0" {
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
