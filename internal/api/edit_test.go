package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnEditChangesOneMemberAndNoOtherByte(t *testing.T) {
	for _, c := range []struct {
		name, body, want string
		edits            []Edit
	}{
		{"a value in its place", ` {"model" : "a", "x":[1, 2]}`, ` {"model" : "b", "x":[1, 2]}`, []Edit{{"model", []byte(`"b"`)}}},
		{"a new member comes first", `{"x":1}` + "\n", `{"model":"b","x":1}` + "\n", []Edit{{"model", []byte(`"b"`)}}},
		{"an empty object", `{ }`, `{"model":"b" }`, []Edit{{"model", []byte(`"b"`)}}},
		{"every occurrence", `{"k":1,"k":{"k":2},"l":3}`, `{"k":true,"k":true,"l":3}`, []Edit{{"k", []byte("true")}}},
		{"an escaped key", `{"mod\u0065l":"a"}`, `{"mod\u0065l":"b"}`, []Edit{{"model", []byte(`"b"`)}}},
		{"members of members stay", `{"x":{"model":"a"},"model":"c"}`, `{"x":{"model":"a"},"model":"b"}`, []Edit{{"model", []byte(`"b"`)}}},
		{"both kinds at once", `{"a":1,"b":2}`, `{"n":0,"a":1,"b":3}`, []Edit{{"b", []byte("3")}, {"n", []byte("0")}}},
		{"no edit", `{"a":1}`, `{"a":1}`, nil},
	} {
		body := []byte(c.body)
		got := string(AppendEdited([]byte("before"), body[:len(body):len(body)], c.edits...))
		if diff := cmp.Diff("before"+c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if grown := append(make([]byte, 0, len(body)+40), body...); string(AppendEdited(nil, grown, c.edits...)) != c.want {
			t.Errorf("%s: another result for a body with spare capacity", c.name)
		}
	}
}

func FuzzAppendEdited(f *testing.F) {
	f.Add([]byte(`{"model":"a","prompt":"x","n":1}`))
	f.Add([]byte(` { } `))
	f.Fuzz(func(t *testing.T, body []byte) {
		if Read(OpenAIChat, body, new(Request)) != nil {
			return
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil {
			return
		}
		got := AppendEdited(nil, body, Edit{"model", []byte(`"b"`)}, Edit{"return_token_ids", []byte("true")})
		var r Request
		if err := Read(OpenAIChat, got, &r); err != nil || r.Model != "b" {
			t.Fatalf("%q became %q: model %q, %v", body, got, r.Model, err)
		}
		var have map[string]json.RawMessage
		if err := json.Unmarshal(got, &have); err != nil {
			t.Fatal(err)
		}
		want["model"], want["return_token_ids"] = json.RawMessage(`"b"`), json.RawMessage("true")
		for name, value := range want {
			if !bytes.Equal(have[name], value) {
				t.Fatalf("%q became %q: %s is %s", body, got, name, have[name])
			}
		}
	})
}

func BenchmarkAppendEdited(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("some words ", 3000) + `"}],"stream":true,"model":"m"}`)
	var dst []byte
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendEdited(dst[:0], body, Edit{"return_token_ids", []byte("true")})
	}
}
