package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// seen holds the parts of a Request that tests compare.
type seen struct {
	Model, Salt, Extra, ID, User     string
	Session                          map[string]string // sessions by field
	Stream, Usage, Multimodal, Tools bool
	Form                             PromptForm
	Lists                            [][]uint32
	Prompts, Max, N, Priority, Rank  int
}

func look(r *Request) seen {
	s := seen{Model: r.Model, Salt: r.CacheSalt, Extra: r.ExtraKey, ID: r.RequestID, User: r.User,
		Stream: r.Stream, Usage: r.IncludeUsage, Multimodal: r.Multimodal, Tools: r.Tools, Form: r.Form, Prompts: r.Prompts,
		Max: r.MaxTokens, N: r.N, Priority: r.Priority, Rank: r.Rank}
	for _, f := range []Field{FieldSessionID, FieldPromptCacheKey, FieldUserID, FieldSessionParams} {
		if key := r.Session(f); key != "" {
			if s.Session == nil {
				s.Session = map[string]string{}
			}
			s.Session[f.String()] = key
		}
	}
	for i := range r.Lists() {
		s.Lists = append(s.Lists, r.List(i))
	}
	return s
}

// Some versions of SGLang prefer max_tokens; other engines prefer max_completion_tokens.
func TestTheLongestAnswerIsTheGreaterOfTwoLimits(t *testing.T) {
	var r Request
	for body, want := range map[string][2]int{
		`{"max_completion_tokens":0,"max_tokens":0}`:   {0, 0},
		`{"max_completion_tokens":0,"max_tokens":9}`:   {9, 9},
		`{"max_completion_tokens":1,"max_tokens":100}`: {1, 100},
		`{"max_tokens":100,"max_completion_tokens":1}`: {1, 100},
		`{"max_tokens":1,"max_completion_tokens":100}`: {100, 100},
		`{"max_tokens":9}`: {9, 9},
		`{}`:               {0, 0},
	} {
		if err := Read(OpenAIChat, []byte(body), &r); err != nil || r.MaxTokens != want[0] || r.LongestAnswer != want[1] ||
			r.NoAnswer != (want[1] == 0 && body != "{}") {
			t.Errorf("%s: %d and %d, no answer: %t, %v", body, r.MaxTokens, r.LongestAnswer, r.NoAnswer, err)
		}
	}
}

func TestReadReturnsTheFieldsForRouting(t *testing.T) {
	var r Request // one Request for all bodies: nothing of an earlier body may remain
	f := func(d Dialect, body string, want seen) {
		t.Helper()
		if err := Read(d, []byte(body), &r); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if diff := cmp.Diff(want, look(&r)); diff != "" {
			t.Errorf("%s:\n%s", body, diff)
		}
	}
	f(OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},
		"cache_salt":"s","extra_key":"x","rid":"r","user":"u","session_id":"sess","priority":-2,"n":3,"max_tokens":5,"max_completion_tokens":7,
		"tools":[{"type":"function"}],"routed_dp_rank":1}`,
		seen{Model: "m", Salt: "s", Extra: "x", ID: "r", Session: map[string]string{"session_id": "sess"}, User: "u",
			Stream: true, Usage: true, Tools: true,
			Form: PromptMessages, Prompts: 1, Max: 7, N: 3, Priority: -2, Rank: 1})
	f(OpenAIChat, `{"user_id":"u","session_params":{"offset":{},"id":"i","session_id":"s","x":[1]}}`,
		seen{Session: map[string]string{"user_id": "u", "session_params": "s"}, N: 1, Rank: -1})
	f(OpenAIChat, `{"user_id":7,"session_params":{"session_id":5,"id":"i"}}`,
		seen{Session: map[string]string{"session_params": "i"}, N: 1, Rank: -1})
	f(OpenAIChat, `{"user_id":null,"session_params":null}`, seen{N: 1, Rank: -1})
	f(OpenAIChat, `{"user_id":"again","session_params":{"session_id":"again"}}`,
		seen{Session: map[string]string{"user_id": "again", "session_params": "again"}, N: 1, Rank: -1})
	f(OpenAIChat, `{"user_id":["x"],"session_params":[]}`, seen{N: 1, Rank: -1})
	f(OpenAIChat, ` {"messages" : [ ] } `, seen{N: 1, Rank: -1})
	f(OpenAIChat, `{}`, seen{N: 1, Rank: -1})
	f(OpenAIChat, `{"model":null,"stream":null,"stream_options":null,"n":null,"max_tokens":null,"user":null,"tools":null,"messages":null}`,
		seen{N: 1, Rank: -1})
	f(OpenAIChat, `{"max_completion_tokens":7,"max_tokens":5}`, seen{Max: 7, N: 1, Rank: -1})
	f(OpenAIChat, `{"max_completion_tokens":null,"max_tokens":6.4e1}`, seen{Max: 64, N: 1, Rank: -1})
	f(OpenAIChat, `{"\u006dodel":"a\n\u00e9\ud83d\ude00\/","Model":"no","MODEL":"no"}`,
		seen{Model: "a\né😀/", N: 1, Rank: -1})
	f(OpenAIChat, `{"prompt":5,"input_ids":[1, 2,4294967295],"data_parallel_rank":3,"routed_dp_rank":3,"prompt_cache_key":"k"}`,
		seen{Session: map[string]string{"prompt_cache_key": "k"}, Form: PromptIDs, Prompts: 1,
			Lists: [][]uint32{{1, 2, 4294967295}}, N: 1, Rank: 3})
	f(OpenAIChat, `{"messages":[{"content":[{"type":"text","text":"x"},{"type":"image_url"}]}],"tools":[ ]}`,
		seen{Form: PromptMessages, Prompts: 1, Multimodal: true, N: 1, Rank: -1})
	f(OpenAIChat, `{"messages":[{"content":[{"text":"x","type":"text"},"y"]},{"content":null,"tool_calls":[{"type":"function"}]}]}`,
		seen{Form: PromptMessages, Prompts: 1, N: 1, Rank: -1})
	f(OpenAIChat, `{"messages":[{"content":[{"image_url":{"type":"text"}}]}]}`,
		seen{Form: PromptMessages, Prompts: 1, Multimodal: true, N: 1, Rank: -1})
	f(OpenAICompletions, `{"prompt":"text","messages":7}`, seen{Form: PromptText, Prompts: 1, N: 1, Rank: -1})
	f(OpenAICompletions, `{"prompt":["a","b"]}`, seen{Form: PromptTexts, Prompts: 2, N: 1, Rank: -1})
	f(OpenAICompletions, `{"prompt":[]}`, seen{N: 1, Rank: -1})
	f(OpenAICompletions, `{"prompt":[0,17]}`, seen{Form: PromptIDs, Prompts: 1, Lists: [][]uint32{{0, 17}}, N: 1,
		Rank: -1})
	f(OpenAICompletions, `{"prompt":[ [1,2] , [], [3]]}`,
		seen{Form: PromptIDLists, Prompts: 3, Lists: [][]uint32{{1, 2}, {}, {3}}, N: 1, Rank: -1})
	f(OpenAICompletions, `{"prompt":"","prompt_embeds":"AAAA"}`,
		seen{Form: PromptText, Prompts: 1, Multimodal: true, N: 1, Rank: -1})
}

func TestReadRefusesBodiesThatEnginesCouldReadInAnotherWay(t *testing.T) {
	f := func(body, param, want string) {
		t.Helper()
		d := OpenAIChat
		if strings.Contains(body, `"prompt"`) {
			d = OpenAICompletions
		}
		var e *Error
		if err := Read(d, []byte(body), new(Request)); !errors.As(err, &e) {
			t.Errorf("%q: error %v, want an *Error", body, err)
		} else if e.Status != 400 || e.Param != param || !strings.Contains(e.Message, want) {
			t.Errorf("%q: status %d, param %q, message %q; want 400, %q, %q", body, e.Status, e.Param, e.Message, param, want)
		}
	}
	f(``, "", "empty")
	f(` `, "", "empty")
	f(`[]`, "", "must be a JSON object")
	f(`"x"`, "", "must be a JSON object")
	f(`nope`, "", "at byte 0")
	f(`{"model":"a","model":"a"}`, "model", "twice")
	f(`{"model":"a","\u006dodel":"b"}`, "model", "twice")
	f(`{"stream":true,"x":1,"stream":false}`, "stream", "twice")
	f(`{"stream_options":{"include_usage":true,"include_usage":false}}`, "stream_options", "twice")
	f(`{"model":"a"} {}`, "", "follows")
	f(`{"model":"a"}x`, "", "follows")
	f(`{"model":"a"`, "", "ends inside")
	f(`{"model":"a`, "", "without an end")
	f(`{"model":`, "", "ends where")
	f(`{"a":1,}`, "", "key in quotes")
	f(`{a:1}`, "", "key in quotes")
	f(`{"a" 1}`, "", "colon")
	f(`{"a":[1,]}`, "", "expected a value")
	f(`{"a":01}`, "", "comma")
	f(`{"a":1.}`, "", "digits")
	f(`{"a":-}`, "", "digits")
	f(`{"a":1e}`, "", "digits")
	f(`{"a":NaN}`, "", "expected a value")
	f("{\"a\":\"\x01\"}", "", "control character")
	f("{\"a\":\"\xff\"}", "", "UTF-8")
	f("{\"a\":\"12345678\xc0\xaf\"}", "", "UTF-8")
	f("{\"a\":\"\xed\xa0\x80\"}", "", "UTF-8")
	f("\xef\xbb\xbf{}", "", "at byte 0")
	f(`{"a":"\x41"}`, "", "escape")
	f(`{"a":"\u12g4"}`, "", "escape")
	f(`{"model":"\ud800"}`, "model", "surrogate")
	f(`{"model":5}`, "model", "must be a string")
	f(`{"stream":"true"}`, "stream", "true or false")
	f(`{"stream":1}`, "stream", "true or false")
	f(`{"n":"3"}`, "n", "whole number")
	f(`{"max_tokens":1.5}`, "max_tokens", "whole number")
	f(`{"max_tokens":1e99}`, "max_tokens", "whole number")
	f(`{"messages":{}}`, "messages", "list")
	f(`{"messages":["x"]}`, "messages", "list of objects")
	f(`{"tools":{}}`, "tools", "list")
	f(`{"routed_dp_rank":-1}`, "routed_dp_rank", "rank")
	f(`{"routed_dp_rank":1,"data_parallel_rank":2}`, "data_parallel_rank", "disagree")
	f(`{"prompt":{}}`, "prompt", "list of texts")
	f(`{"prompt":[1,"a"]}`, "prompt", "token ids only")
	f(`{"prompt":["a",1]}`, "prompt", "list of texts")
	f(`{"prompt":[-1]}`, "prompt", "whole number from 0")
	f(`{"prompt":[1.0]}`, "prompt", "whole number from 0")
	f(`{"prompt":[4294967296]}`, "prompt", "whole number from 0")
	f(`{"a":`+strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth)+`}`, "", "nested deeper")
	f(`{"a":`+strings.Repeat("[", 1<<20), "", "nested deeper")
	f(`{"prompt":[`+strings.Repeat("1,", MaxPromptIDs)+`1]}`, "prompt", "more than 4194304")
}

func TestRawReturnsTheValuesBytes(t *testing.T) {
	body := []byte(`{"model": "m" , "messages":[ {"role":"user"} ],"tools":null}`)
	var r Request
	if err := Read(OpenAIChat, body, &r); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[Field]string{FieldModel: `"m"`, FieldMessages: `[ {"role":"user"} ]`, FieldTools: "null",
		FieldN: ""} {
		if got := string(r.Raw(f)); got != want {
			t.Errorf("Raw(%v) = %q, want %q", f, got, want)
		}
	}
	if start, end := r.Offsets(FieldModel); start != 10 || end != 13 {
		t.Errorf("the model lies at %d..%d, want 10..13", start, end)
	}
}

func TestEveryFieldIsFoundByItsKey(t *testing.T) {
	for f := Field(0); f < numFields; f++ {
		if got := fieldOf([]byte(f.String())); got != f {
			t.Errorf("fieldOf(%q) = %d, want %d", f, got, f)
		}
	}
}

func TestReadAllocatesNothingInSteadyState(t *testing.T) {
	chat, ids := chatBody(32<<10), []byte(`{"model":"m","prompt":[`+strings.Repeat("12345,", 5000)+`1]}`)
	var r Request
	for name, f := range map[string]func() error{
		"chat": func() error { return Read(OpenAIChat, chat, &r) },
		"ids":  func() error { return Read(OpenAICompletions, ids, &r) },
	} {
		if n := testing.AllocsPerRun(20, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func chatBody(size int) []byte {
	text, _ := json.Marshal(strings.Repeat("The quick \"brown\" fox jumps over the lazy dog.\n", size/48))
	return []byte(`{"messages":[{"role":"system","content":` + string(text) +
		`}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":64,"model":"mock"}`)
}

// FuzzRead compares Read with encoding/json, which must accept every body that Read accepts, with the same values.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true}`), false)
	f.Add([]byte(`{"prompt":[[1,2],[3]],"n":2,"\u006dodel":"\ud83d\ude00","max_tokens":1e2}`), true)
	f.Add([]byte(`{"prompt":["a","\u00e9"],"stream_options":{"include_usage":true}}`), true)
	f.Add([]byte(`{"input_ids":[1],"routed_dp_rank":1,"user":"\\\"","tools":[{}],"a":{"b":[null,true,-1.5e-7]}}`), false)
	f.Add([]byte(`{"priority":9007199254740993,"n":9223372036854775807}`), true)
	f.Fuzz(func(t *testing.T, body []byte, completions bool) {
		d := OpenAIChat
		if completions {
			d = OpenAICompletions
		}
		before := bytes.Clone(body)
		var r Request
		err := Read(d, body, &r)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Status != 400 || !json.Valid(d.AppendError(nil, e)) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		compare(t, &r, body)
	})
}

func compare(t *testing.T, r *Request, body []byte) {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("accepted what encoding/json refuses: %v", err)
	}
	for f := Field(0); f < numFields; f++ {
		if !dialects[r.Dialect].reads.has(f) {
			continue
		}
		if raw, want := r.Raw(f), m[f.String()]; !bytes.Equal(bytes.TrimSpace(want), raw) {
			t.Fatalf("%v: raw %q, encoding/json %q", f, raw, want)
		}
		text := r.stringOf(f)
		if text == nil || f == FieldRID || f == FieldRequestID || m[f.String()] == nil || len(r.Raw(f)) > maxStringBytes {
			continue
		}
		var want *string
		if json.Unmarshal(m[f.String()], &want) == nil && want != nil && *want != *text {
			t.Fatalf("%v: %q, encoding/json %q", f, *text, *want)
		}
	}
	for f, got := range map[Field]int{FieldN: r.N, FieldPriority: r.Priority} {
		want, ok := wholeNumber(m[f.String()])
		if f == FieldN {
			want = max(want, 1)
		}
		if ok && dialects[r.Dialect].reads.has(f) && want != got {
			t.Fatalf("%v: %d, encoding/json %d", f, got, want)
		}
	}
	var stream *bool
	if json.Unmarshal(m["stream"], &stream) == nil && stream != nil && *stream != r.Stream {
		t.Fatalf("stream %v", r.Stream)
	}
	comparePrompt(t, r, m)
}

// wholeNumber reads a number. A whole number is read as an int, because a float64 would be exact only to 53 bits. Other
// forms of numbers, such as 1e3 and 2.5, are read as a float64, and the fraction is dropped.
func wholeNumber(raw []byte) (n int, ok bool) {
	var whole *int
	if json.Unmarshal(raw, &whole) == nil {
		if whole == nil {
			return 0, false
		}
		return *whole, true
	}
	var v float64
	err := json.Unmarshal(raw, &v)
	return int(v), err == nil
}

func comparePrompt(t *testing.T, r *Request, m map[string]json.RawMessage) {
	t.Helper()
	raw := m["prompt"]
	if r.Dialect == OpenAIChat {
		raw = m["input_ids"]
	}
	switch r.Form {
	case PromptIDs:
		var want []uint32
		if err := json.Unmarshal(raw, &want); err != nil || !cmp.Equal(want, r.List(0)) {
			t.Fatalf("ids %v, encoding/json %v (%v)", r.IDs, want, err)
		}
	case PromptIDLists:
		var want [][]uint32
		if err := json.Unmarshal(raw, &want); err != nil || len(want) != r.Lists() {
			t.Fatalf("%d lists, encoding/json %d (%v)", r.Lists(), len(want), err)
		}
		for i := range want {
			if len(want[i]) != len(r.List(i)) || len(want[i]) > 0 && !cmp.Equal(want[i], r.List(i)) {
				t.Fatalf("list %d: %v, encoding/json %v", i, r.List(i), want[i])
			}
		}
	case PromptTexts:
		var want []string
		if err := json.Unmarshal(raw, &want); err != nil || len(want) != r.Prompts {
			t.Fatalf("%d texts, encoding/json %d (%v)", r.Prompts, len(want), err)
		}
	}
}

// A string that is copied out of a body stays in memory, with the pooled request and with the decision's record. So a
// long string must not be copied.
func TestALongTextIsNotCopied(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for field, check := range map[string]func(r *Request) bool{
		"cache_salt":       func(r *Request) bool { return r.CacheSalt == "" && r.MixedScopes },
		"extra_key":        func(r *Request) bool { return r.ExtraKey == "" && r.MixedScopes },
		"rid":              func(r *Request) bool { return r.RequestID == "" },
		"user":             func(r *Request) bool { return len(r.User) == len("sha256-")+64 },
		"session_id":       func(r *Request) bool { return len(r.SessionID) == len("sha256-")+64 },
		"prompt_cache_key": func(r *Request) bool { return len(r.PromptCacheKey) == len("sha256-")+64 },
		"user_id":          func(r *Request) bool { return len(r.userID) == len("sha256-")+64 },
		long:               func(r *Request) bool { return true },
		`\u0061` + long:    func(r *Request) bool { return true },
	} {
		body := []byte(`{"model":"m","` + field + `":"` + long + `","session_params":{"id":"` + long + `"}}`)
		var r Request
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := Read(OpenAIChat, body, &r); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		bytes := after.TotalAlloc - before.TotalAlloc
		if !check(&r) || len(r.sessionParams) != len("sha256-")+64 || bytes > 64<<10 {
			t.Errorf("%.20s: %d bytes are allocated for a text of 1 MiB", field, bytes)
		}
	}
	err := Read(OpenAIChat, []byte(`{"model":"`+long+`"}`), new(Request))
	if e := AsError(err); e.Status != 400 || e.Param != "model" || len(e.Message) > 200 {
		t.Errorf("a model's name of 1 MiB: %.300v", err)
	}
}
