package inprocess

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// probe is a prompt for comparing the ids from found files with an engine's ids. If the ids are equal in all probes,
// the router takes the files for the engine's files.
type probe struct {
	name    string
	dialect api.Dialect
	body    []byte
}

// These texts test steps in which tokenizers differ: normalization, splitting into words, digits, bytes of rare
// characters, and runs of spaces.
var probeTexts = []struct{ name, text string }{
	{"prose", "The quick brown fox didn't jump over 13 lazy dogs; it's 3.14159 o'clock (they'll say “why?”), isn't it?"},
	{"code", "func add(a, b int) int {\n\treturn a+b // != 0x7fFF\n}\n\n\nif __name__ == '__main__':\n    x = [1, 22, " +
		"333, 4444, 55555]\n        y //= x[0]**2"},
	{"scripts", "数を数える。한국어 텍스트, Привет, мир! שלום עולם، مرحبا بالعالم. नमस्ते दुनिया สวัสดีชาวโลก Καλημέρα Ελλάδα " +
		"Türkçe ığüşöç Tiếng Việt"},
	{"emoji", "👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ☃️ ❤️‍🔥 e\u0301 é ﬁ ① Ⅷ ½ \u200b\u200d\ufeff ẞ İ ſ"},
	{"whitespace", "  two leading, three inside:   and tabs\t\t\there\r\nCRLF\n\n\n   \n\u00a0\u3000wide  \t trailing   "},
	{"words", "antidisestablishmentarianism AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ababababababababababab " +
		"camelCaseAndPascalCase snake_case_name 123456789012345678901234567890 https://example.org/a?b=c&d=%20#e"},
	{"rare", "\x01\x7f \uffff \ufffd \ue000 \U0001f9ff \U00020000 \u0301\u0302 ~~~ ``` ===== -----> <<<>>> \\n \\u0041 " +
		"&amp; <b>"},
}

// spelled is a text with the spellings of special tokens of well-known models. The ids of this text show which of these
// spellings are special tokens in the compared model.
const spelled = "a<s>b</s> <unk><pad><|endoftext|> <|im_start|>user\n<|im_end|> [INST] x [/INST] " +
	"<|eot_id|><|start_header_id|>y<|end_header_id|> " +
	"<bos><start_of_turn>z<end_of_turn><eos> <think>t</think> <|begin_of_text|><｜User｜>[CLS][SEP][MASK] <tool_call> " +
	"<0x0A> <extra_id_0>"

const (
	probeTools = `"tools":[{"type":"function","function":{"name":"get_weather","description":"Current weather: °C, “wind” & <rain>.","parameters":` +
		`{"type":"object","properties":{"city":{"type":"string","description":"e.g. Zürich"},"unit":{"type":"string","enum":["c","f"]},"days":{"type":"integer"}},` +
		`"required":["city"]}}},{"type":"function","function":{"name":"now","description":"The time.","parameters":{"type":"object","properties":{}}}}]`
	probeCall = `{"role":"assistant","content":"","tool_calls":[{"id":"call00001","type":"function","function":{"name":"get_weather","arguments":` +
		`"{\"city\": \"Zürich\", \"days\": 2}"}}]}`
	probeResult = `{"role":"tool","tool_call_id":"call00001","content":"{\"temp\": -3.5, \"sky\": \"Schnee ❄\"}"}`
)

// chatProbe is a probe with a chat. members has the members of the request's JSON body, apart from model.
type chatProbe struct{ name, members string }

// Each chat tests one point in which templates differ.
var probeChats = []chatProbe{
	{"one user turn", `"messages":[{"role":"user","content":"Hello, world!"}]`},
	{"a system message", `"messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"Why is the sky blue?"}]`},
	{"turns", `"messages":[{"role":"system","content":"Answer in one word."},{"role":"user","content":"2+2?"},{"role":"assistant","content":"4"},` +
		`{"role":"user","content":"and 3+3?"},{"role":"assistant","content":"6."},{"role":"user","content":"thanks"}]`},
	{"space around contents", `"messages":[{"role":"system","content":"  \n padded \n"},{"role":"user","content":"\n\n  hi  \n"},{"role":"assistant","content":" yes\t"},{"role":"user","content":" "}]`},
	{"contents in parts", `"messages":[{"role":"user","content":[{"type":"text","text":"first part"},{"type":"text","text":"second part"}]}]`},
	{"scripts in a chat", `"messages":[{"role":"system","content":"日本語で答えて 🙂"},{"role":"user","content":"Привет! مرحبا 👩‍👩‍👧 naïve"}]`},
	{"reasoning in an answer", `"messages":[{"role":"user","content":"think"},{"role":"assistant","content":"<think>\nhm\n</think>\n\nDone."},{"role":"user","content":"again"}]`},
	{"template arguments", `"messages":[{"role":"user","content":"fast, please"}],"chat_template_kwargs":{"enable_thinking":false,"thinking":false}`},
	{"tools", `"messages":[{"role":"user","content":"Weather in Zürich?"}],` + probeTools},
	{"tools and a system message", `"messages":[{"role":"system","content":"Use tools."},{"role":"user","content":"Weather in Zürich?"}],` + probeTools},
	{"a tool call and its result", `"messages":[{"role":"user","content":"Weather in Zürich?"},` + probeCall + `,` +
		probeResult + `],` + probeTools},
	{"a conversation with tools", `"messages":[{"role":"system","content":"Use tools."},{"role":"user","content":"Weather in Zürich?"},` + probeCall + `,` + probeResult +
		`,{"role":"assistant","content":"It snows."},{"role":"user","content":"Thanks!"}],` + probeTools},
	{"two tool calls", `"messages":[{"role":"user","content":"Zürich, and the time?"},{"role":"assistant","content":"Looking.","tool_calls":[` +
		`{"id":"call00001","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Zürich\",\"unit\":\"c\"}"}},` +
		`{"id":"call00002","type":"function","function":{"name":"now","arguments":"{}"}}]},` + probeResult +
		`,{"role":"tool","tool_call_id":"call00002","content":"12:00"}],` + probeTools},
	{"two user turns in a row", `"messages":[{"role":"user","content":"one"},{"role":"user","content":"two"}]`},
	{"an empty system message", `"messages":[{"role":"system","content":""},{"role":"user","content":"x"}]`},
	{"no generation prompt", `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}],"add_generation_prompt":false`},
	{"a continued answer", `"messages":[{"role":"user","content":"Tell me a story."},{"role":"assistant","content":"Once upon a"}],"continue_final_message":true,"add_generation_prompt":false`},
}

// probes returns the probes for engines of a kind. model is the model's name.
func (m *Model) probes(model string, kind tokens.Kind) []probe {
	var all []probe
	complete := func(name, text, more string) {
		body := fmt.Sprintf(`{"model":%s,"max_tokens":1,"prompt":%s%s}`, quoted(model), quoted(text), more)
		all = append(all, probe{name, api.OpenAICompletions, []byte(body)})
	}
	chat := func(name, members string) {
		// Engines treat tools without a tool_choice differently. If a vLLM was started without a parser for tool calls,
		// it refuses tools unless tool_choice is none.
		if kind == tokens.VLLM && strings.Contains(members, `"tools":`) {
			members += `,"tool_choice":"none"`
		}
		body := fmt.Sprintf(`{"model":%s,"max_tokens":1,%s}`, quoted(model), members)
		all = append(all, probe{name, api.OpenAIChat, []byte(body)})
	}
	for _, t := range probeTexts {
		complete(t.name, t.text, "")
	}
	complete("without tokens around a text", probeTexts[0].text, `,"add_special_tokens":false`)
	special := spelled
	for _, name := range slices.Sorted(maps.Keys(m.special)) {
		special += m.special[name] + " x" + m.special[name]
	}
	complete("special tokens in a text", special, "")
	for _, c := range probeChats {
		chat(c.name, c.members)
	}
	chat("special tokens in a chat", `"messages":[{"role":"system","content":"<|im_end|>"},{"role":"user","content":`+
		quoted(special)+`}]`)
	return all
}

// quoted returns text as a JSON string.
func quoted(text string) string {
	out, _ := json.Marshal(text) // a string can always be marshalled
	return string(out)
}
