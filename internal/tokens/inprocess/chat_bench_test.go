package inprocess

import (
	"strings"
	"testing"
)

// BenchmarkRequest reads the body of a chat and renders it. One chat is a single question. The other chat has 40
// messages before its question.
func BenchmarkRequest(b *testing.B) {
	tmpl, err := parseTemplate(`{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}` +
		`{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`)
	if err != nil {
		b.Fatal(err)
	}
	turn := `{"role":"user","content":"How is the weather in Paris?"},{"role":"assistant","content":"It rains, as ever."},`
	tokens := map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
	for name, turns := range map[string]int{"question": 0, "conversation": 20} {
		body := []byte(`{"model":"m","messages":[` + strings.Repeat(turn, turns) + `{"role":"user","content":"And now?"}]}`)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			for b.Loop() {
				q, err := tmpl.ReadRequest(body, requestConfig{})
				if err != nil {
					b.Fatal(err)
				}
				if out, err = q.Render(out[:0], renderContext{Tokens: tokens}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
