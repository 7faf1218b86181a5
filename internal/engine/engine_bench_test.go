package engine

import "testing"

// BenchmarkConversation serves a request of 1,024 tokens and an answer of 16 tokens. Half of the prompt tokens are
// cached.
func BenchmarkConversation(b *testing.B) {
	cfg := DefaultConfig()
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	prompt := tokens(0, 1024)
	output := tokens(5000, 16)
	var s Step
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		prompt[512] = uint32(i)
		if err := e.Submit(&Request{Prompt: prompt, Output: output}); err != nil {
			b.Fatal(err)
		}
		for e.Step(&s) {
		}
	}
}
