package tokens

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/warmpath/warmpath/internal/api"
)

// flat reads a body and returns its prompt as one text.
func flat(t *testing.T, d api.Dialect, body string) string {
	t.Helper()
	var r api.Request
	if err := api.Read(d, []byte(body), &r); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return string(AppendPromptText(nil, &r))
}

func chatText(t *testing.T, fields string) string {
	t.Helper()
	return flat(t, api.OpenAIChat, `{"model":"m",`+fields+`}`)
}

func TestTextOfAConversationGrowsAtItsEnd(t *testing.T) {
	turns := []string{
		`{"role":"system","content":"You help."}`,
		`{"role":"user","content":"What is the weather?\n\"Now\", I mean: caf\u00e9 \ud83d\ude00"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"weather","arguments":"{}"}}]}`,
		`{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"rain"},{"type":"text","text":"wind"}]}`,
		`{"role":"user","content":[{"type":"text","text":"See"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}`,
		`{"role":"user","content":"and now?"}`,
	}
	tools := `"tools":[{"type":"function","function":{"name":"weather"}}],`
	before := ""
	for n := 1; n <= len(turns); n++ {
		text := chatText(t, tools+`"messages":[`+strings.Join(turns[:n], ",")+`]`)
		if !strings.HasPrefix(text, before) || len(text) <= len(before) {
			t.Errorf("with %d turns the text is %q, not %q and more", n, text, before)
		}
		before = text
	}
	for _, want := range []string{"You help.", "\n\"Now\", I mean: café 😀", "rain\nwind", "weather", "and now?"} {
		if !strings.Contains(before, want) {
			t.Errorf("the text lacks %q: %q", want, before)
		}
	}
}

func TestTextsDifferWhenPromptsDiffer(t *testing.T) {
	same := `"messages":[{"role":"user","content":"hi"}]`
	texts := map[string]string{}
	for _, fields := range []string{
		same,
		`"messages":[{"role":"system","content":"hi"}]`,
		`"messages":[{"role":"user","content":"hi","name":"bob"}]`,
		`"messages":[{"role":"user","content":"h"},{"role":"user","content":"i"}]`,
		`"tools":[{"type":"function","function":{"name":"f"}}],` + same,
		`"reasoning_effort":"high",` + same,
		`"chat_template_kwargs":{"enable_thinking":false},` + same,
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/1.png"}}]}]`,
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/2.png"}}]}]`,
	} {
		text := chatText(t, fields)
		if other, twice := texts[text]; twice {
			t.Errorf("%s and %s have the same text", fields, other)
		}
		texts[text] = fields
	}
	for _, fields := range []string{
		`"messages": [ { "content" : "hi" , "role":"user" } ], "temperature":0.5, "max_tokens":7`,
		`"messages":[{"role":"user","content":"\u0068i","name":null}],"tools":null`,
		`"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]`,
	} {
		if text := chatText(t, fields); text != chatText(t, same) {
			t.Errorf("%s has another text: %q", fields, text)
		}
	}
}

func TestOnlyAPromptOfOneTextHasAText(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"a\tb"}`:      "a\tb",
		`{"prompt":["a b"]}`:     "a b",
		`{"prompt":["a","b"]}`:   "",
		`{"prompt":[1,2,3]}`:     "",
		`{"prompt":[[1,2],[3]]}`: "",
		`{"prompt":""}`:          "",
		`{}`:                     "",
	} {
		if got := flat(t, api.OpenAICompletions, body); got != want {
			t.Errorf("%s: text %q, not %q", body, got, want)
		}
	}
	if got := flat(t, api.OpenAIChat, `{"input_ids":[1,2]}`); got != "" {
		t.Errorf("ids have the text %q", got)
	}
}

// Some bodies make a text that is longer than the body or has very many parts. The text is bounded.
func TestALongListCostsNoMoreThanItsText(t *testing.T) {
	const many = 1 << 19
	for what, c := range map[string]struct {
		fields string
		most   int
	}{
		"empty messages": {`"messages":[` + strings.Repeat(`{},`, many) + `{}]`, 2 * maxTurns},
		"empty parts":    {`"messages":[{"content":[` + strings.Repeat(`{},`, many) + `{}]}]`, maxText + 64},
		"members":        {`"messages":[{` + strings.Repeat(`"a member":1,`, many) + `"b":1}]`, maxText + 64},
		"messages": {`"messages":[` + strings.Repeat(`{"content":"`+strings.Repeat("x", 2000)+`"},`, 4*maxText/2000) +
			`{}]`, maxText + 4096},
	} {
		var r api.Request
		if err := api.Read(api.OpenAIChat, []byte(`{`+c.fields+`}`), &r); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := len(appendPrompt(nil, &r)); got > c.most {
			t.Errorf("%s: %d bytes are written for a text of %d at most", what, got, c.most)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add(`{"messages":[{"role":"user","content":"hi \ud83d\ude00 \\ \u00e9"},{"role":"x","content":[{"type":"text","text":"a"},"b",{"type":"image_url"}],"n":[1, {"a" : " "}]}]}`)
	f.Add(`{"messages":[1,"a",[],{}],"tools":[ ]}`)
	f.Add(`{"messages":{}}`)
	f.Fuzz(func(t *testing.T, body string) {
		var r api.Request
		if api.Read(api.OpenAIChat, []byte(body), &r) != nil {
			return
		}
		text := AppendPromptText([]byte("x"), &r)
		if !bytes.HasPrefix(text, []byte("x")) || len(text) > 8*len(body)+64 {
			t.Errorf("%d bytes of text from %d", len(text), len(body))
		}
		var spaced bytes.Buffer
		if json.Indent(&spaced, []byte(body), "", " ") != nil {
			return
		}
		var again api.Request
		if api.Read(api.OpenAIChat, spaced.Bytes(), &again) == nil && !strings.Contains(body, "_") && utf8.ValidString(body) {
			if other := AppendPromptText([]byte("x"), &again); !bytes.Equal(text, other) && !bytes.ContainsRune(text, markMedia) {
				t.Errorf("white space makes a difference: %q and %q", text, other)
			}
		}
	})
}

func BenchmarkText(b *testing.B) {
	turn := fmt.Sprintf(`{"role":"user","content":%q},`, strings.Repeat("some words of a turn\n", 50))
	body := `{"model":"m","messages":[` + strings.Repeat(turn, 100) + `{"role":"user","content":"end"}]}`
	var r api.Request
	if err := api.Read(api.OpenAIChat, []byte(body), &r); err != nil {
		b.Fatal(err)
	}
	var dst []byte
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendPromptText(dst[:0], &r)
	}
}
