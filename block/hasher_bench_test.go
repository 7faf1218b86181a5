package block

import (
	"fmt"
	"testing"
)

// BenchmarkHash measures the chained keys of 8,192 tokens, and each of the two steps: local hashes, and their chain.
// For comparison, Dynamo on the machine of docs/design/0006: with blocks of 16 tokens, local hashes 1.5 us and chain
// 2.4 us; with blocks of 64 tokens, local hashes 2.9 us and chain 0.6 us.
func BenchmarkHash(b *testing.B) {
	tokens := make([]Token, 8192)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 151643
	}
	for _, size := range []int{16, 32, 64, 256, 1024} {
		h, err := NewHasher(XXH3, size)
		if err != nil {
			b.Fatal(err)
		}
		root := h.Root(Scope{Model: "m"})
		keys, locals := make([]Key, 0, len(tokens)/size), h.Locals(nil, tokens)
		steps := []struct {
			name string
			do   func()
		}{
			{"tokens to keys", func() { keys = h.Append(keys[:0], root, 0, tokens, nil) }},
			{"tokens to locals", func() { locals = h.Locals(locals[:0], tokens) }},
			{"locals to keys", func() { keys = h.Chain(keys[:0], root, 0, locals) }},
		}
		for _, step := range steps {
			b.Run(fmt.Sprintf("block=%d/%s", size, step.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					step.do()
				}
			})
		}
	}
}

func BenchmarkEngineAppend(b *testing.B) {
	tokens := make([]Token, 8192)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 151643
	}
	for a := range numEngineAlgorithms {
		b.Run(a.String(), func(b *testing.B) {
			h, err := NewEngineHasher(EngineChain{Algorithm: a, Size: 16})
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]Digest, 0, len(tokens)/16)
			b.ReportAllocs()
			for b.Loop() {
				dst = h.Append(dst[:0], h.Root("m", ""), tokens, nil)
			}
		})
	}
}
