package block

import (
	"fmt"
	"testing"
)

// BenchmarkHash measures how long the keys of 8,192 tokens take, and each of the two steps: local hashes, and the chain
// of keys. For comparison, these are the times of Dynamo on the machine of docs/design/0006. With blocks of 16 tokens,
// the local hashes take 1.5 µs and the chain 2.4 µs. With blocks of 64 tokens, the local hashes take 2.9 µs and the
// chain 0.6 µs.
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

// BenchmarkHashFeatures measures the keys of 8,192 tokens in blocks of 16 with 32,000 features. "spread": the features
// lie in all blocks, in order. "one block": all features lie in the first block, out of order, as in an event of a
// hostile engine.
func BenchmarkHashFeatures(b *testing.B) {
	tokens := make([]Token, 8192)
	h, err := NewHasher(XXH3, 16)
	if err != nil {
		b.Fatal(err)
	}
	for name, offset := range map[string]func(i int) int{
		"spread":    func(i int) int { return i * len(tokens) / 32_000 },
		"one block": func(i int) int { return i % 16 },
	} {
		features := make([]Feature, 32_000)
		for i := range features {
			features[i] = Feature{ID: fmt.Sprintf("%016x", i), Offset: offset(i)}
		}
		b.Run(name, func(b *testing.B) {
			var keys []Key
			b.ReportAllocs()
			for b.Loop() {
				keys = h.Append(keys[:0], 1, 0, tokens, features)
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
