package workload

import (
	"slices"
	"testing"
)

// A shorter run of the same content is the beginning of a longer one, whatever its length; other content is other.
func TestSegmentsOfOneContentBeginAlike(t *testing.T) {
	whole := Segment{ID: 46, Tokens: 600}.AppendTokens(nil)
	for n := range whole {
		if part := (Segment{ID: 46, Tokens: n}).AppendTokens(nil); !slices.Equal(part, whole[:n]) {
			t.Fatalf("the first %d tokens differ", n)
		}
	}
	seen := map[[4]uint32]bool{}
	for id := range uint64(2000) {
		tokens := Segment{ID: id, Tokens: 64}.AppendTokens(nil)
		for i := 0; i < len(tokens); i += 4 {
			k := [4]uint32(tokens[i : i+4])
			if seen[k] {
				t.Fatalf("segment %d repeats four tokens of another place: %v", id, k)
			}
			seen[k] = true
		}
		for _, token := range tokens {
			if token < tokenBase || token >= tokenBase+tokenSpan {
				t.Fatalf("token %d is out of range", token)
			}
		}
	}
}
