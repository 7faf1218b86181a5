package tokenizer

import (
	"fmt"
	"strings"
	"testing"
)

func TestAHostileTokenizerDoesNotMakeATextGrowWithoutEnd(t *testing.T) {
	tokenizer := func(normalizer, pre, post, added string) (*Tokenizer, error) {
		return Parse(fmt.Appendf(nil, `{"added_tokens":[%s],"normalizer":%s,"pre_tokenizer":%s,"post_processor":%s,"decoder":null,
			"model":{"type":"WordLevel","vocab":{"[UNK]":0,"a":1},"unk_token":"[UNK]"}}`, added, normalizer, pre, post), nil)
	}
	sequence := func(list, item string, n int) string {
		return fmt.Sprintf(`{"type":"Sequence",%q:[%s]}`, list, strings.TrimSuffix(strings.Repeat(item+",", n), ","))
	}
	for name, normalizer := range map[string]string{
		"a literal": sequence("normalizers", `{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`, 40),
		"a pattern": sequence("normalizers", `{"type":"Replace","pattern":{"Regex":"[ab]"},"content":"ab"}`, 40),
		"long": fmt.Sprintf(`{"type":"Replace","pattern":{"String":"a"},"content":%q}`,
			strings.Repeat("b", 1<<20)),
		"byte level": sequence("normalizers", `{"type":"ByteLevel"}`, 40),
	} {
		tk, err := tokenizer(normalizer, "null", "null", "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := tk.Append(nil, strings.Repeat("a é", 10000), Options{}); err == nil {
			t.Errorf("%s: a text that grows without end is encoded", name)
		}
	}
	ids := strings.TrimSuffix(strings.Repeat("1,", 100), ",")
	for name, parts := range map[string][4]string{
		"normalizers": {sequence("normalizers", `{"type":"NFC"}`, 100), "null", "null", ""},
		"prepend": {fmt.Sprintf(`{"type":"Prepend","prepend":%q}`, strings.Repeat("b", 100)), "null",
			"null", ""},
		"byte levels": {"null", sequence("pretokenizers",
			`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, 5), "null", ""},
		"splits": {"null", sequence("pretokenizers",
			`{"type":"Split","pattern":{"String":"x"},"behavior":"Isolated"}`, 100), "null", ""},
		"metaspace": {"null", fmt.Sprintf(`{"type":"Metaspace","replacement":%q}`, strings.Repeat("b", 100)),
			"null", ""},
		"tokens around": {"null", "null",
			`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[` + ids + `]}}}`, ""},
		"one added token": {"null", "null", "null", fmt.Sprintf(`{"id":5,"content":%q}`, strings.Repeat("b", 5000))},
	} {
		if _, err := tokenizer(parts[0], parts[1], parts[2], parts[3]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
