package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reported has the reports of a Watcher that the tests compare.
type reported struct {
	Token, Finished, Failed, Done, Complete bool
	Usage                                   Usage
	Text                                    string
}

// watch feeds response in pieces of n bytes, one after the other.
func watch(w *Watcher, format Format, response string, n int) reported {
	w.Reset(OpenAIChat, format)
	for b := []byte(response); len(b) > 0 && !(format == EventStream && w.Failed()); {
		k := min(n, len(b))
		w.Feed(b[:k])
		b = b[k:]
	}
	if !w.Failed() {
		w.End()
	}
	t := reported{w.FirstToken(), w.Finished(), w.Failed(), w.Done(), w.Complete(), w.Usage(), ""}
	if t.Failed {
		t.Text = w.ErrorText()
	}
	return t
}

const (
	roleEvent   = `data: {"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	tokenEvent  = `data: {"id":"c-1","choices":[{"index":0,"delta":{"content":" to\"k\\"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	finishEvent = `data: {"id":"c-1","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n"
	usageEvent  = `data: {"id":"c-1","choices":[],"usage":{"prompt_tokens":11,"total_tokens":13,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
	// vLLM 0.32.0 sends this event when its EngineCore dies.
	deadEvent = `data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
)

var usage = Usage{Prompt: 11, Completion: 2, Cached: 8, HasCached: true, Seen: true}

var responses = []struct {
	name, body string
	format     Format
	want       reported
}{
	{"a whole stream", roleEvent + tokenEvent + tokenEvent + finishEvent + usageEvent + doneEvent, EventStream,
		reported{Token: true, Finished: true, Done: true, Complete: true, Usage: usage}},
	{"CR LF lines", strings.ReplaceAll(roleEvent+tokenEvent+tokenEvent+finishEvent+usageEvent+doneEvent, "\n", "\r\n"),
		EventStream, reported{Token: true, Finished: true, Done: true, Complete: true, Usage: usage}},
	{"CR lines", strings.ReplaceAll(roleEvent+tokenEvent+tokenEvent+finishEvent+usageEvent+doneEvent, "\n", "\r"),
		EventStream, reported{Token: true, Finished: true, Done: true, Complete: true, Usage: usage}},
	{"comments, other fields, no space behind the colon, data over two lines",
		": ping\n\nevent: x\nid: 4\n" +
			"data:{\"choices\":[{\"index\":0,\ndata:\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n", EventStream,
		reported{Token: true, Finished: true, Complete: true}},
	{"the role alone is no token", roleEvent, EventStream, reported{}},
	{"[DONE] without a finish_reason is no success", roleEvent + tokenEvent + doneEvent, EventStream,
		reported{Token: true, Done: true}},
	{"[DONE] without line end", finishEvent + "data: [DONE]", EventStream,
		reported{Finished: true, Done: true, Complete: true}},
	{"not quite [DONE]", "data: [DONE] \n\ndata: [DON\n\ndata: x[DONE]\n\n[DONE]\n\n", EventStream, reported{}},
	{"a dead vLLM engine", roleEvent + tokenEvent + deadEvent + doneEvent, EventStream,
		reported{Token: true, Failed: true, Text: "EngineCore encountered an issue. See stack trace (above) for the root " +
			"cause."}},
	{"an error of the old shape", `data: {"object":"error","message":"boom","code":400}` + "\n\n" + doneEvent,
		EventStream, reported{Failed: true, Text: "boom"}},
	{"an error after the end", finishEvent + deadEvent, EventStream,
		reported{Finished: true, Failed: true, Text: "EngineCore encountered an issue. See stack trace (above) for the " +
			"root cause."}},
	{"content that looks like structure", `data: {"choices":[{"index":0,"delta":{"content":"\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":5},\"error\":{}"},"finish_reason":null}]}` + "\n\n", EventStream,
		reported{Token: true}},
	{"keys that lie elsewhere", `data: {"x":{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1},"error":{"message":"no"}},"choices":[{"delta":{"role":"a"},"logprobs":{"content":[{"token":"a","finish_reason":"b"}]},"finish_reason":null}]}` + "\n\n", EventStream, reported{}},
	{"reasoning is a token", `data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}` + "\n\n", EventStream,
		reported{Token: true}},
	{"a tool call is a token", `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n",
		EventStream, reported{Token: true}},
	{"an empty tool list is none", `data: {"choices":[{"index":0,"delta":{"tool_calls":[],"content":null}}]}` + "\n\n",
		EventStream, reported{}},
	{"ids are tokens", `data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":[ 5]}]}` + "\n\n", EventStream,
		reported{Token: true}},
	{"null ids are none", `data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":null}]}` + "\n\n", EventStream,
		reported{}},
	{"two choices, one unfinished", `data: {"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":null}]}` +
		"\n\n" + finishEvent, EventStream, reported{Token: true}},
	{"two choices, both finished", tokenEvent + `data: {"choices":[{"finish_reason":"length","index":1}]}` + "\n\n" +
		finishEvent, EventStream, reported{Token: true, Finished: true, Complete: true}},
	{"choice 200 of many, not all finished", strings.ReplaceAll(finishEvent, `"index":0`, `"index":200`) + finishEvent,
		EventStream, reported{}},
	{"usage in every event: the last counts", strings.ReplaceAll(usageEvent, "11", "9") + usageEvent, EventStream,
		reported{Usage: usage}},
	{"no details", strings.ReplaceAll(usageEvent, `{"cached_tokens":8}`, "null"), EventStream,
		reported{Usage: Usage{Prompt: 11, Completion: 2, Seen: true}}},
	{"details without cached tokens", strings.ReplaceAll(usageEvent, `{"cached_tokens":8}`,
		`{"audio_tokens":8,"cached_tokens":null}`), EventStream,
		reported{Usage: Usage{Prompt: 11, Completion: 2, Seen: true}}},
	{"aborted by the engine", strings.ReplaceAll(finishEvent, "stop", "abort"), EventStream, reported{Finished: true}},
	{"a chat answer", `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi","tool_calls":[]},"finish_reason":"stop"}],"usage":{"prompt_tokens": 11 ,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n", JSON,
		reported{Token: true, Finished: true, Complete: true, Usage: usage}},
	{"a completion answer", `{"choices":[{"index":0,"text":"a","finish_reason":"length"},{"index":1,"text":"b","finish_reason":"stop"}]}`, JSON,
		reported{Token: true, Finished: true, Complete: true}},
	{"a cut answer", `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":11`, JSON,
		reported{Token: true, Finished: true, Usage: Usage{Prompt: 11, Seen: true}}},
	{"an error answer", `{"error":{"message":"no \"way\"","type":"x"}}`, JSON, reported{Failed: true, Text: `no \"way\"`}},
	{"no error", `{"error":null,"choices":[{"text":"","finish_reason":"stop"}]}`, JSON,
		reported{Finished: true, Complete: true}},
	{"a choice without a message", `{"choices":[{"index":0,"finish_reason":"stop"}]}`, JSON, reported{Finished: true}},
	{"a choice whose message is null", `{"choices":[{"index":0,"message":null,"finish_reason":"stop"}]}`, JSON,
		reported{Finished: true}},
	{"a choice whose text is null", `{"choices":[{"index":0,"text":null,"finish_reason":"stop"}]}`, JSON,
		reported{Finished: true}},
	{"one of two choices without a message", `{"choices":[{"index":0,"message":{},"finish_reason":"stop"},{"index":1,"finish_reason":"stop"}]}`, JSON, reported{Finished: true}},
	{"a message without content", `{"choices":[{"index":0,"message":{"content":null},"finish_reason":"tool_calls"}]}`,
		JSON, reported{Finished: true, Complete: true}},
	{"not JSON", "<html>}}]]\"", JSON, reported{}},
	{"nothing", "", JSON, reported{}},
}

func TestWatcherReportsTheSameForEverySplitOfAResponse(t *testing.T) {
	var w Watcher // one Watcher for all responses: nothing of an earlier response may remain
	for _, r := range responses {
		for n := 1; n <= len(r.body)+1; n++ {
			if diff := cmp.Diff(r.want, watch(&w, r.format, r.body, n)); diff != "" {
				t.Errorf("%s, in pieces of %d bytes:\n%s", r.name, n, diff)
				break
			}
		}
		for i := range r.body { // feed the response in two pieces
			w.Reset(OpenAIChat, r.format)
			w.Feed([]byte(r.body[:i]))
			if !w.Failed() || r.format == JSON {
				w.Feed([]byte(r.body[i:]))
			}
			if !w.Failed() {
				w.End()
			}
			if got := (reported{w.FirstToken(), w.Finished(), w.Failed(), w.Done(), w.Complete(), w.Usage(),
				""}); got.Token != r.want.Token || got.Complete != r.want.Complete || got.Failed != r.want.Failed ||
				got.Done != r.want.Done {
				t.Errorf("%s, split at %d: %+v", r.name, i, got)
				break
			}
		}
	}
}

func TestTokensAreCountedForEverySplitOfAStream(t *testing.T) {
	other := strings.ReplaceAll(tokenEvent, "c-1", "c-2")
	ids := `data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":[5,6]}]}` + "\n\n"
	stream := roleEvent + tokenEvent + tokenEvent + other + tokenEvent + ids + finishEvent
	for event, want := range map[string]int{ // the ids of an event do not change what is counted
		`"a"},"token_ids":[5,6]`: 2, `" b"},"token_ids":[1234567]`: 2, `""},"token_ids":[1]`: 2, `""},"token_ids":[]`: 1, `"c"},"token_ids":[7,"x"]`: 2,
	} {
		var w Watcher
		w.Reset(OpenAIChat, EventStream)
		w.Feed([]byte(strings.Replace(ids, `""`, `"word"`, 1) + `data: {"choices":[{"index":0,"delta":{"content":` + event + `}]}` + "\n\n"))
		if w.Tokens() != want {
			t.Errorf("%d tokens, want %d: %s", w.Tokens(), want, event)
		}
	}
	var w Watcher
	for n := 1; n <= len(stream); n++ {
		watch(&w, EventStream, stream, n)
		if got := w.Tokens(); got != 5 {
			t.Fatalf("in pieces of %d bytes: %d tokens, want 5", n, got)
		}
	}
	if watch(&w, EventStream, tokenEvent+strings.ReplaceAll(usageEvent, `"completion_tokens":2`,
		`"completion_tokens":40`), 64); w.Tokens() != 40 {
		t.Errorf("%d tokens where the usage says 40", w.Tokens())
	}
}

func TestFeedReturnsTheEndOfTheLastCompleteEvent(t *testing.T) {
	stream := "event: a\n" + tokenEvent + ": c\n\n" + strings.ReplaceAll(tokenEvent, "\n", "\r\n") + tokenEvent + doneEvent
	var ends []int // positions of the ends of the events; an event ends with an empty line
	for i := 1; i < len(stream); i++ {
		if stream[i-1:i+1] == "\n\n" || i > 2 && stream[i-3:i+1] == "\r\n\r\n" {
			ends = append(ends, i+1)
		}
	}
	for i := 1; i <= len(stream); i++ {
		for j := i; j <= len(stream); j++ {
			var w Watcher
			w.Reset(OpenAIChat, EventStream)
			whole := w.Feed([]byte(stream[:i]))
			if j > i {
				if n := w.Feed([]byte(stream[i:j])); n > 0 {
					whole = i + n
				}
			}
			want := 0
			for _, e := range ends {
				if e <= j {
					want = e
				}
			}
			// After CR LF CR an event is complete: an LF that follows belongs to the event's end.
			if whole != want && !(stream[whole-1] == '\r' && whole == j) {
				t.Fatalf("split at %d, ended at %d: whole %d, want %d", i, j, whole, want)
			}
		}
	}
}

func TestFeedStopsBehindAnErrorEvent(t *testing.T) {
	var w Watcher
	w.Reset(OpenAIChat, EventStream)
	before := tokenEvent + deadEvent
	if n := w.Feed([]byte(before + doneEvent)); n != len(before) || !w.Failed() || w.Done() {
		t.Errorf("stopped at %d, failed %v, done %v; want %d, true, false", n, w.Failed(), w.Done(), len(before))
	}
}

func TestWatcherAllocatesNothing(t *testing.T) {
	stream := []byte(roleEvent + strings.Repeat(tokenEvent, 20) + finishEvent + usageEvent + doneEvent)
	var w Watcher
	if n := testing.AllocsPerRun(50, func() {
		w.Reset(OpenAIChat, EventStream)
		for i := 0; i < len(stream); i += 100 {
			w.Feed(stream[i:min(i+100, len(stream))])
		}
		w.End()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzWatcher compares two Watchers that get the same response in different pieces. If all events are JSON objects,
// FuzzWatcher also compares the Watcher with naive.
func FuzzWatcher(f *testing.F) {
	for _, r := range responses {
		f.Add([]byte(r.body), 3, r.format == EventStream)
	}
	f.Add([]byte(doneMark), 1, false)
	f.Add([]byte(`{"choices":[null,{"index":1,"finish_reason":"stop"}]}`), 1, false)
	for _, noComma := range []string{`8:"":`, `8 9`, `8{}`} { // invalid JSON behind a number, which ends there
		f.Add([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":`+noComma), 1, false)
	}
	f.Fuzz(func(t *testing.T, body []byte, n int, events bool) {
		format := JSON
		if events {
			format = EventStream
		}
		var w Watcher
		whole := watch(&w, format, string(body), len(body)+1)
		if got := watch(&w, format, string(body), max(1, n)); got != whole {
			t.Fatalf("split: %+v, whole: %+v", got, whole)
		}
		if want, ok := naive(body, format); ok && (want.Failed != whole.Failed || !want.Failed &&
			(want.Finished != whole.Finished || want.Done != whole.Done)) {
			t.Fatalf("naive: %+v, watcher %+v", want, whole)
		}
	})
}

// naive reads a response with encoding/json. ok is false unless the response is a plain stream of well-formed events,
// or one well-formed document.
func naive(body []byte, format Format) (t reported, ok bool) {
	docs := [][]byte{body}
	if format == EventStream {
		if bytes.ContainsRune(body, '\r') || !bytes.HasSuffix(body, []byte("\n\n")) {
			return t, false
		}
		docs = nil
		for _, line := range bytes.Split(body, []byte("\n")) {
			if data, is := bytes.CutPrefix(line, []byte("data: ")); is {
				docs = append(docs, data)
			}
		}
		if bytes.Count(body, []byte("data:")) != len(docs) || bytes.Count(body, []byte("\n\n")) != len(docs) {
			return t, false
		}
	}
	finish := map[int]bool{}
	for _, doc := range docs {
		if format == EventStream && string(doc) == doneMark {
			t.Done = true
			continue
		}
		var v struct {
			Object  any
			Error   any
			Choices []*struct { // null means that the list is absent
				Index  int
				Finish any `json:"finish_reason"`
			}
		}
		if !strictJSON(doc) || json.Unmarshal(doc, &v) != nil {
			return t, false
		}
		switch v.Error.(type) {
		case string, map[string]any:
			t.Failed = true
		case nil:
		default:
			return t, false
		}
		t.Failed = t.Failed || v.Object == "error"
		for _, c := range v.Choices {
			if c == nil {
				continue
			}
			if _, is := c.Finish.(string); !is && c.Finish != nil || c.Index < 0 || c.Index > 127 {
				return t, false
			}
			finish[c.Index] = finish[c.Index] || c.Finish != nil
		}
		if t.Failed {
			return t, true
		}
	}
	t.Finished = len(finish) > 0
	for _, done := range finish {
		t.Finished = t.Finished && done
	}
	return t, true
}

// strictJSON reports whether encoding/json reads doc as the watcher does. doc must be an object without duplicate keys,
// without escapes in keys, and without a watched key in other letter cases.
func strictJSON(doc []byte) bool {
	if !json.Valid(doc) || bytes.Contains(doc, []byte(`\u`)) || !bytes.HasPrefix(doc, []byte("{")) {
		return false
	}
	lower := bytes.ToLower(doc)
	for _, key := range []string{"choices", "error", "object", "index", "finish_reason"} {
		quoted := []byte(strconv.Quote(key))
		if bytes.Count(lower, []byte(key)) != bytes.Count(doc, quoted) || key != "index" && key != "finish_reason" &&
			key != "error" && bytes.Count(doc, quoted) > 1 {
			return false
		}
	}
	return bytes.Count(doc, []byte(`"error"`)) <= 1 && bytes.Count(doc, []byte(`"index"`)) <= 1 &&
		bytes.Count(doc, []byte(`"finish_reason"`)) <= 1 &&
		!bytes.Contains(doc, []byte("ſ"))
}

func TestTheFirstEventDecidesWhetherAStreamIsAnAnswer(t *testing.T) {
	for events, want := range map[string]bool{
		`data: {"model":"m","choices":[{"delta":{}}]}` + "\n\n":                    true,
		": ping\n\ndata: {\"choices\":[]}\n\n":                                     true,
		"event: x\r\ndata: {\"choices\":\r\ndata: []}\r\n\r\ndata: [DONE]\r\n\r\n": true,
		"data: [DONE]\n\n":                       false,
		"data: {\"choices\":[{\"delta\":\n\n":    false,
		"data: <html>\n\n":                       false,
		"data: {}\n\ndata: {\"choices\":[]}\n\n": false,
		": ping\n\n":                             false,
	} {
		for split := range events {
			var w Watcher
			w.Reset(OpenAIChat, EventStream)
			w.Feed([]byte(events[:split]))
			w.Feed([]byte(events[split:]))
			if w.Answers() != want || (w.Events() == 0) != (events == ": ping\n\n") {
				t.Fatalf("%q split at %d: answers %t, %d events", events, split, w.Answers(), w.Events())
			}
		}
	}
	for text, want := range map[string]bool{
		`{"choices":[]}`: true, " \n{} \t": true, `{}x`: false, `x{}`: false, `[]{}`: false, `{}{}`: false, `"a"`: false,
		`{}]`: false, `{`: false, `<html>`: false, ``: false,
	} {
		var w Watcher
		w.Reset(OpenAIChat, JSON)
		w.Feed([]byte(text))
		w.End()
		if w.Whole() != want {
			t.Errorf("%q: whole %t", text, w.Whole())
		}
	}
	var w Watcher
	w.Reset(OpenAICompletions, JSON)
	w.Feed([]byte(`{"model":"a/b","error":{"message":"x","code":404},"choices":[{"model":"no"}]}`))
	if string(w.Model()) != "a/b" || w.ErrorCode() != 404 {
		t.Errorf("model %q, code %d", w.Model(), w.ErrorCode())
	}
}
