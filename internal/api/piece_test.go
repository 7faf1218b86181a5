package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
)

// The first three are events of vLLM 0.32.0 with return_token_ids.
var events = []string{
	`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,20,300]}`,
	`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"content":" a\u00e9\""},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":[4,5]}],"prompt_token_ids":null}`,
	`{"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[6],"prompt_token_ids":[1]}],"usage":null}`,
	`{"choices":[{"token_ids":[1] , "index":0}]}`,
	`{"choices":[{"token_ids":[1,"a",-2,1e3,99999999999]}]}`,
	`{"choices":[{},{}]}`, `{"error":{"message":"x"}}`, `{"choices":[],"usage":{"prompt_tokens":1}}`, `[]`, `{`, ``, `{"choices":{"delta":[]}}`,
}

func TestAPieceShowsTextAndIds(t *testing.T) {
	var c api.Piece
	if !c.Read([]byte(events[0])) || !c.Role || !slices.Equal(c.Prompt, []uint32{1, 20, 300}) || string(c.ID) != `"chatcmpl-1"` || c.Finish != nil {
		t.Errorf("%+v", c)
	}
	if !c.Read([]byte(events[1])) || string(c.Text) != " aé\"" || !slices.Equal(c.IDs, []uint32{4, 5}) || string(c.Finish) != `"stop"` || string(c.Stop) != "null" || c.Role {
		t.Errorf("%+v", c)
	}
	if got := string(c.AppendLike(nil, "x", &c)); got != `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":[4,5]}],"prompt_token_ids":null}` {
		t.Errorf("%s", got)
	}
	if c.Read([]byte(events[5])) || !c.Read([]byte(events[6])) || !c.Failed || !c.Read([]byte(events[4])) || !c.Other {
		t.Errorf("%+v", c)
	}
	for event, want := range map[string][2]string{
		events[2]: {`{"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null,"prompt_token_ids":null}],"usage":null}`,
			`{"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`},
		events[3]: {`{"choices":[{"token_ids":null , "index":0}]}`, `{"choices":[{ "index":0}]}`},
	} {
		if c.Read([]byte(event)); string(c.AppendWithoutIDs(nil, false)) != want[0] || string(c.AppendWithoutIDs(nil, true)) != want[1] {
			t.Errorf("%s\n%s\n%s", event, c.AppendWithoutIDs(nil, false), c.AppendWithoutIDs(nil, true))
		}
	}
}

// A worker may send the members of an event in any order.
func TestAPieceKeepsTheOrderOfMembers(t *testing.T) {
	var c, from api.Piece
	from.Read([]byte(`{"choices":[{"finish_reason":"stop","stop_reason":7}]}`))
	for event, want := range map[string]string{
		`{"choices":[{"finish_reason":null,"text":"a"}]}`:                                 `{"choices":[{"finish_reason":"stop","stop_reason":7,"text":"b"}]}`,
		`{"choices":[{"stop_reason":null,"text":"a","finish_reason":null}]}`:              `{"choices":[{"stop_reason":7,"text":"b","finish_reason":"stop"}]}`,
		`{"choices":[{"stop_reason":null,"finish_reason":null,"delta":{"content":"a"}}]}`: `{"choices":[{"stop_reason":7,"finish_reason":"stop","delta":{"content":"b"}}]}`,
	} {
		if c.Read([]byte(event)); string(c.AppendLike(nil, "b", &from)) != want {
			t.Errorf("%s: %s, want %s", event, c.AppendLike(nil, "b", &from), want)
		}
	}
}

// What remains of an event without its ids is JSON, whatever the engine sent.
func FuzzPiece(f *testing.F) {
	for _, event := range events {
		f.Add([]byte(event), "text")
	}
	f.Add([]byte(`{"choices":[{"stop_reason":null,"finish_reason":null,"text":"a","delta":{}}]}`), "text")
	var last api.Piece
	last.Read([]byte(`{"choices":[{"finish_reason":"stop","stop_reason":7}]}`))
	f.Fuzz(func(t *testing.T, event []byte, text string) {
		var c api.Piece
		if !c.Read(event) {
			return
		}
		if !json.Valid(event) {
			t.Errorf("%q was read", event)
		}
		var again api.Piece
		again.Read([]byte(events[2]))
		again.Read(event)
		if whatIs(&again) != whatIs(&c) {
			t.Errorf("%q is %s, and behind another event %s", event, whatIs(&c), whatIs(&again))
		}
		outs := [][]byte{c.AppendWithoutIDs(nil, false), c.AppendWithoutIDs(nil, true)}
		if c.HasText {
			outs = append(outs, c.AppendLike(nil, text, &c), c.AppendLike(nil, text, &last))
		}
		if c.Delta != nil {
			outs = append(outs, c.AppendDelta(nil, []byte(`{"content":"b"}`), last.Finish, last.Stop))
		}
		for i, out := range outs {
			if !json.Valid(out) {
				t.Errorf("%q becomes %q (%d)", event, out, i)
			}
		}
	})
}

// whatIs has all that a piece says.
func whatIs(c *api.Piece) string {
	return fmt.Sprintf("%t %t %t %t %q %q %q %q %q %q %q %v %v %s %s", c.Failed, c.Role, c.Other, c.HasText, c.Text, c.Finish, c.Stop, c.Delta, c.Usage,
		c.ID, c.Created, c.Prompt, c.IDs, c.AppendWithoutIDs(nil, false), c.AppendWithoutIDs(nil, true))
}

// An event that is recognized by the event before it says the same as when it is read alone.
func TestAPieceDoesNotDependOnThePieceBefore(t *testing.T) {
	chat := `{"id":"x-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null,"token_ids":[%s]}]}`
	completion := `{"id":"y","created":8,"choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[%s],"prompt_token_ids":null}],"usage":null}`
	both := `{"choices":[{"delta":{"refusal":null},"text":"%s","token_ids":[%s]}]}` // a delta that does not have the text
	all := slices.Clone(events)
	for _, form := range []string{chat, completion, both} {
		for _, text := range []string{"", "a", " word", `a\"b`, `\u00e9`, "é", `","x":"`} {
			for _, ids := range []string{"", "1", "1,2", "4294967295", "4294967296", "1,", ",", "1,,2", "-1", "1.5", "99999999999999999999999", " 1 ", `1],"y":[2`} {
				all = append(all, fmt.Sprintf(form, text, ids))
			}
		}
	}
	for _, first := range []string{fmt.Sprintf(chat, "b", "5"), fmt.Sprintf(completion, " c", "6,7"), fmt.Sprintf(both, " a long text", "8"), events[2]} {
		for _, event := range all {
			var after, alone api.Piece
			after.Read([]byte(first))
			got, want := after.Read([]byte(event)), alone.Read([]byte(event))
			if got != want || got && whatIs(&after) != whatIs(&alone) {
				t.Errorf("%s\n%t %s\n%t %s", event, got, whatIs(&after), want, whatIs(&alone))
			}
			if got && after.HasText && string(after.AppendLike(nil, "z", &after)) != string(alone.AppendLike(nil, "z", &alone)) {
				t.Errorf("%s: %s", event, after.AppendLike(nil, "z", &after))
			}
		}
	}
}

func BenchmarkPiece(b *testing.B) {
	event := `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795918144,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":[12345]}]}`
	for name, next := range map[string]string{"like": event, "whole": strings.Replace(event, " word", `\n`, 1)} {
		b.Run(name, func(b *testing.B) {
			var c api.Piece
			c.Read([]byte(event))
			text := []byte(next)
			b.ReportAllocs()
			for b.Loop() {
				c.Read(text)
			}
		})
	}
}
