package block

import (
	"fmt"
	"testing"
)

func BenchmarkAppend(b *testing.B) {
	tokens := make([]Token, 8192)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 151643
	}
	for _, size := range []int{16, 32, 64, 256, 1024} {
		b.Run(fmt.Sprintf("tokens=%d/block=%d", len(tokens), size), func(b *testing.B) {
			h, err := NewHasher(XXH3, size)
			if err != nil {
				b.Fatal(err)
			}
			root := h.Root(Scope{Model: "m"})
			dst := make([]Key, 0, len(tokens)/size)
			b.ReportAllocs()
			for b.Loop() {
				dst = h.Append(dst[:0], root, 0, tokens, nil)
			}
		})
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
