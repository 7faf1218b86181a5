package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
)

// tinySpec is a small byte-level model like Qwen's: every byte, some merges, and three special tokens. Tests change it.
type tinySpec map[string]any

const qwenSplit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

func tiny() tinySpec {
	vocab := map[string]int{}
	add := func(s string) {
		if _, ok := vocab[s]; !ok {
			vocab[s] = len(vocab)
		}
	}
	for b := range 256 {
		add(string(byteLevelChar[b]))
	}
	var merges []string
	for _, m := range []string{"h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "a a",
		"aa aa", "aaaa aaaa", "Ġ t", "Ġt he", "a b", "Ċ Ċ"} {
		left, right, _ := strings.Cut(m, " ")
		add(left)
		add(right)
		add(left + right)
		merges = append(merges, m)
	}
	special := func(id int, content string) map[string]any {
		return map[string]any{"id": id, "content": content, "special": true, "normalized": false,
			"single_word": false, "lstrip": false, "rstrip": false}
	}
	return tinySpec{
		"added_tokens": []any{special(1000, "<|im_start|>"), special(1001, "<|im_end|>"), special(1002, "<|bos|>")},
		"normalizer":   map[string]any{"type": "NFC"},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": qwenSplit}, "behavior": "Isolated",
				"invert": false},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}},
		"post_processor": map[string]any{"type": "TemplateProcessing",
			"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<|bos|>", "type_id": 0}},
				map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}},
			"special_tokens": map[string]any{"<|bos|>": map[string]any{"id": "<|bos|>", "ids": []int{1002},
				"tokens": []string{"<|bos|>"}}}},
		"decoder": map[string]any{"type": "ByteLevel"},
		"model":   map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	}
}

func (s tinySpec) json() []byte {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return data
}

func (s tinySpec) parse(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(s.json(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// pieceList encodes a text and returns the spellings of its tokens, separated by spaces.
func pieceList(t testing.TB, tok *Tokenizer, text string, opts Options) string {
	t.Helper()
	ids, err := tok.Append(nil, text, opts)
	if err != nil {
		t.Fatal(err)
	}
	return spellings(tok, ids)
}

func spellings(tok *Tokenizer, ids []block.Token) string {
	var out []string
	for _, id := range ids {
		s, ok := tok.Spelling(id)
		if !ok {
			s = fmt.Sprintf("#%d", id)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}
