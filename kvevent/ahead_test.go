package kvevent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
)

// aheadWith returns a stored event in map form, with two blocks of two tokens. lists is the value of its field
// lookahead_token_ids.
func aheadWith(lists any) object { return storedWith(nil, nil, "lookahead_token_ids", lists) }

func TestALookAheadIsReadInBothForms(t *testing.T) {
	plain := decodeOne(t, aheadWith(nil))
	second := plain.Tokens[2]
	fromMap := decodeOne(t, aheadWith(list(list(int(second)), list(77))))
	fromArray := decodeOne(t, list(tagStored, list(5, 6), nil, list(1, 2, 3, 4), 2, nil, "GPU", nil, list(nil, nil), 0,
		"full_attention", nil, nil, nil, "session", list(list(3, 4), list(8, 9))))
	first, tokens := fromMap.Shifted()
	if !slices.Equal(first, plain.Tokens[:1]) || !slices.Equal(tokens, append(slices.Clone(plain.Tokens[1:]), 77)) ||
		!fromMap.Aligned() {
		t.Errorf("map: %v, %v of %+v", first, tokens, fromMap)
	}
	if first, tokens = fromArray.Shifted(); !slices.Equal(first, []block.Token{1, 2}) ||
		!slices.Equal(tokens, []block.Token{3, 4, 8, 9}) {
		t.Errorf("array: %v, %v of %+v", first, tokens, fromArray)
	}
	if first, tokens = plain.Shifted(); first != nil || !slices.Equal(tokens, plain.Tokens) {
		t.Errorf("without: %v, %v", first, tokens)
	}
	byHand := Event{Tokens: []block.Token{1, 2}, Ahead: []block.Token{3}}
	if first, tokens = byHand.Shifted(); !slices.Equal(first, []block.Token{1}) ||
		!slices.Equal(tokens, []block.Token{2, 3}) {
		t.Errorf("by hand: %v, %v", first, tokens)
	}
}

func TestAnInvalidLookAheadSkipsTheEventWithAReason(t *testing.T) {
	million := make([]any, 1_000_000)
	for i := range million {
		million[i] = 1
	}
	for name, c := range map[string]struct {
		event any
		want  string
	}{
		"a million tokens":   {aheadWith(list(million, million)), "more than 64 tokens"},
		"a million lists":    {aheadWith(million), "not one list for each"},
		"too few lists":      {aheadWith(list(list(1))), "not one list for each"},
		"a negative id":      {aheadWith(list(list(-1), list(2))), "no integer of 32 bits"},
		"nested":             {aheadWith(list(list(list(1)), list(2))), "no integer of 32 bits"},
		"no list":            {aheadWith("x"), "is no array"},
		"a list that is one": {aheadWith(list(1, 2)), "a look-ahead is no array"},
		"empty lists":        {aheadWith(list(list(), list())), "is empty"},
		"uneven lists": {aheadWith(list(list(int(decodeOne(t, aheadWith(nil)).Tokens[2])), list(1, 2))),
			"differ in length"},
		"another next token": {aheadWith(list(list(999), list(2))), "contradicts token_ids"},
		"an owner of 1 MB":   {storedWith(nil, nil, "ownership", strings.Repeat("x", 1<<20)), "ownership is no string"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			var b Batch
			if err := d.Decode(pack(list(1.5, list(c.event, list(tagRemoved, list(5))), 0)), &b); err != nil {
				t.Fatal(err)
			}
			if b.Skipped != 1 || len(b.Events) != 1 || !strings.Contains(b.Problem, c.want) || b.Incomplete {
				t.Errorf("skipped %d, kept %d, problem %q, want %q", b.Skipped, len(b.Events), b.Problem, c.want)
			}
			if got := cap(b.tokens); got > 1<<21 {
				t.Errorf("%d tokens are kept", got)
			}
		})
	}
}

func TestOnlyBlocksWithoutRemainingCopiesAreGone(t *testing.T) {
	e := decodeOne(t, object{"type", tagRemoved, "block_hashes", list(5, 6, 7), "medium", "GPU", "remaining_copy_counts",
		list(0, 2, 0)})
	if diff := cmp.Diff([]Hash{5, 7}, e.Hashes); diff != "" || !e.LastCopies {
		t.Errorf("last copies: %v (-want +got):\n%s", e.LastCopies, diff)
	}
	for _, counts := range []any{list(0), list(0, -1, 0), list(0, "x", 0), "x"} {
		var d Decoder
		var b Batch
		event := object{"type", tagRemoved, "block_hashes", list(5, 6, 7), "medium", "GPU", "remaining_copy_counts", counts}
		if err := d.Decode(pack(list(1.5, list(event), 0)), &b); err != nil || !b.Incomplete || len(b.Events) != 0 {
			t.Errorf("%v: error %v, incomplete %v, %d events", counts, err, b.Incomplete, len(b.Events))
		}
	}
}

func TestDecodingLookAheadsAllocatesNothingInSteadyState(t *testing.T) {
	payload := pack(list(1.5, list(aheadWith(list(list(int(decodeOne(t, aheadWith(nil)).Tokens[2])), list(77)))), 0))
	var d Decoder
	var b Batch
	if n := testing.AllocsPerRun(100, func() {
		if err := d.Decode(payload, &b); err != nil || len(b.Events) != 1 {
			t.Fatal(err)
		}
		b.Events[0].Shifted()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
