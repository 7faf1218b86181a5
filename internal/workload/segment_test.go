package workload

import (
	"slices"
	"testing"
)

// If two segments have the same id, the longer segment begins with the tokens of the shorter segment. Segments with
// different ids have different tokens.
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

// AppendSpan must append the same tokens as AppendTokens and AppendOutput, for prompts with and without segments.
func TestASpanIsAPartOfPromptAndAnswer(t *testing.T) {
	for _, r := range []Request{
		{ID: 3, Input: 70, Output: 21},
		{ID: 4, Input: 60, Output: 18, Segments: []Segment{{ID: 9, Tokens: 33}, {ID: 8, Tokens: 2}, {ID: 7, Tokens: 25}}, OutputSegment: 77},
	} {
		whole := r.AppendOutput(r.AppendTokens(nil))
		for from := range whole {
			for n := range len(whole) - from + 1 {
				if got := r.AppendSpan(nil, from, n); !slices.Equal(got, whole[from:from+n]) {
					t.Fatalf("request %d: %d tokens from %d on are %v, want %v", r.ID, n, from, got, whole[from:from+n])
				}
			}
		}
	}
}
