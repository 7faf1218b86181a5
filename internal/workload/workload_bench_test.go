package workload

import (
	"bytes"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

func BenchmarkReadMooncake(b *testing.B) {
	data := testenv.Gunzip(b, testenv.Path(b, "traces/mooncake_conversation.jsonl.gz"))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := read(bytes.NewReader(data), "mooncake", "", Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendTokens(b *testing.B) {
	s := Segment{ID: 46, Tokens: 8192}
	dst := make([]block.Token, 0, s.Tokens)
	b.SetBytes(int64(4 * s.Tokens))
	b.ReportAllocs()
	for b.Loop() {
		dst = s.AppendTokens(dst[:0])
	}
}
