package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
)

// caller is an engine whose answers have thoughts and tool calls. As in vLLM 0.32 a parser with a state makes the
// events of the ids, and some chunks have no event, unless ids are asked for.
type caller struct {
	mu      sync.Mutex
	after   []int // behind how many chunks the next answers are cut; guarded by mu
	asked   atomic.Int64
	grammar string // the grammar of the request's rendering, as JSON
	plain   bool   // the engine was started without a parser
	closed  bool   // the endpoints that render are closed
	fails   int    // the number of the question for an event that fails
	slow    bool   // questions for events take longer than slowQuestion
	made    atomic.Int64
}

const (
	callerTokens = 30
	callsBegin   = 8
	callLength   = 10
)

// parse is the parser: it makes the event of the ids behind the first n. The ids of calls are random.
func (c *caller) parse(n int, ids []int, pinned []string) map[string]any {
	delta := map[string]any{}
	add := func(name, text string) {
		before, _ := delta[name].(string)
		delta[name] = before + text
	}
	var calls []any
	for i := range ids {
		n := n + i
		text := fmt.Sprintf("w%d é\"\n", n)
		call, at := (n-callsBegin)/callLength, (n-callsBegin)%callLength
		switch {
		case c.plain:
			add("content", text)
		case n < 3:
			add("reasoning", text)
		case n == 3, n >= callsBegin && at == 0: // a mark of the parser
		case n < callsBegin:
			add("content", text)
		case at == 1:
			id := fmt.Sprintf("call-%p-%d", c, rand.Uint64())
			if call < len(pinned) {
				id = pinned[call]
			}
			calls = append(calls, map[string]any{"id": id, "type": "function", "index": call, "function": map[string]any{"name": "f" + text}})
		default:
			calls = append(calls, map[string]any{"index": call, "function": map[string]any{"arguments": text}})
		}
	}
	if len(calls) > 0 {
		delta["tool_calls"] = calls
	}
	return delta
}

func (c *caller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ReturnTokenIDs bool `json:"return_token_ids"`
		Tools          []any
		Prompt         []int
		State          struct {
			Calls []string `json:"last_tool_call_ids"`
			IDs   []int    `json:"output_token_ids"`
			Lens  []int    `json:"output_chunk_lens"`
		} `json:"stream_state"`
		Chunk struct {
			Choices []struct {
				IDs []int `json:"token_ids"`
			}
		} `json:"generate_chunk"`
		Chat      json.RawMessage `json:"chat_request"`
		PromptIDs []int           `json:"prompt_token_ids"`
	}
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case c.closed && strings.HasSuffix(r.URL.Path, "render"):
		http.Error(w, `{"detail":"Forbidden"}`, http.StatusForbidden)
	case strings.HasSuffix(r.URL.Path, "/render"):
		_, _ = fmt.Fprintf(w, `{"request_id":"x","token_ids":[1,2,3],"sampling_params":{"n":1,"structured_outputs":%s}}`, c.grammar)
	case strings.HasSuffix(r.URL.Path, "/derender"):
		if c.slow {
			takes(r, 60*time.Millisecond)
		}
		sum := 0
		for _, n := range q.State.Lens {
			sum += n
		}
		if int(c.made.Add(1)) == c.fails || sum != len(q.State.IDs) || len(q.Chat) == 0 || len(q.PromptIDs) != 3 {
			http.Error(w, `{"error":{"message":"invalid stream_state"}}`, http.StatusBadRequest)
			return
		}
		delta := map[string]any{"role": nil, "content": nil, "reasoning": nil}
		for name, value := range c.parse(len(q.State.IDs), q.Chunk.Choices[0].IDs, q.State.Calls) {
			delta[name] = value
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"chunk": map[string]any{"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": nil}}}, "stream_state": map[string]any{}})
	default:
		c.answer(w, strings.HasPrefix(r.URL.Path, "/v1/chat"), q.ReturnTokenIDs, q.Prompt)
	}
}

func (c *caller) answer(w http.ResponseWriter, chat, withIDs bool, prompt []int) {
	c.asked.Add(1)
	c.mu.Lock()
	after := -1
	if len(c.after) > 0 {
		after, c.after = c.after[0], c.after[1:]
	}
	c.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event map[string]any) {
		text, _ := json.Marshal(event)
		_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
		w.(http.Flusher).Flush()
	}
	choice := map[string]any{"index": 0, "finish_reason": nil}
	event := map[string]any{"id": fmt.Sprintf("id-%d", c.asked.Load()), "created": 1, "model": "m", "choices": []any{choice}}
	if chat {
		choice["delta"] = map[string]any{"role": "assistant", "content": ""}
		if withIDs {
			event["prompt_token_ids"] = []int{1, 2, 3}
		}
		send(event)
		delete(event, "prompt_token_ids")
	}
	n := max(len(prompt)-3, 0)
	for chunks := 0; n < callerTokens; chunks++ {
		if chunks == after {
			panic(http.ErrAbortHandler)
		}
		ids := []int{100 + n}
		if n%4 == 1 {
			ids = append(ids, 101+n)
		}
		if chat {
			choice["delta"] = c.parse(n, ids, nil)
		} else {
			choice["text"] = "raw"
		}
		n += len(ids)
		if n >= callerTokens {
			choice["finish_reason"], choice["stop_reason"] = "length", nil
		}
		if withIDs {
			choice["token_ids"] = ids
		}
		if delta, _ := choice["delta"].(map[string]any); !chat || withIDs || len(delta) > 0 || n >= callerTokens {
			send(event)
		}
	}
	delete(event, "choices")
	event["choices"], event["usage"] = []any{}, map[string]int{"prompt_tokens": max(len(prompt), 3), "completion_tokens": n - max(len(prompt)-3, 0), "total_tokens": 3 + n}
	send(event)
	_, _ = io.WriteString(w, doneChunk)
}

func callers(t *testing.T, change func(i int, c *caller)) (*fixture, []*caller) {
	var urls []string
	var all []*caller
	for i := range 3 {
		c := &caller{grammar: "null"}
		if change != nil {
			change(i, c)
		}
		all, urls = append(all, c), append(urls, worker(t, c.ServeHTTP))
	}
	return serve(t, func(s *settings) {
		s.policy, s.facts.Version, s.gateway.StreamRecovery = "round_robin", "0.32.0", gateway.RecoverExact
	}, urls...), all
}

// said is what the client is told: the parts of each kind joined, without the ids of calls and of the stream.
func said(t *testing.T, raw string) (text string, calls []string) {
	t.Helper()
	var content, reasoning, rest strings.Builder
	var names, arguments [callerTokens]string
	for event := range strings.SplitSeq(raw, "\n\n") {
		payload, _ := strings.CutPrefix(event, "data: ")
		var e struct {
			Choices []struct {
				Delta struct {
					Role, Content, Reasoning string
					Calls                    []struct {
						ID       string
						Index    int
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
			Usage json.RawMessage
			Error json.RawMessage
		}
		if event == "" || payload == "[DONE]" || json.Unmarshal([]byte(payload), &e) != nil {
			rest.WriteString(payload)
			continue
		}
		for _, c := range e.Choices {
			d := c.Delta
			content.WriteString(d.Content)
			reasoning.WriteString(d.Reasoning)
			rest.WriteString(d.Role + c.Finish)
			for _, call := range d.Calls {
				names[call.Index] += call.Function.Name
				arguments[call.Index] += call.Function.Arguments
				if call.ID != "" {
					calls = append(calls, call.ID)
				}
			}
		}
		rest.Write(e.Usage)
		rest.Write(e.Error)
	}
	return fmt.Sprintf("%q %q %q %q %q", content.String(), reasoning.String(), names, arguments, rest.String()), calls
}

const toolsBody = `{"model":"m","stream":true,"temperature":0,"max_tokens":30,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}`

// A stream with thoughts and tool calls is cut behind each chunk, and its continuation, too. The client sees each part
// of a call once, and one id for each call.
func TestAStreamWithToolCallsContinuesExactly(t *testing.T) {
	healthy, _ := callers(t, nil)
	_, raw := healthy.post(t, toolsBody)
	want, calls := said(t, raw)
	if len(calls) != 3 || strings.Contains(raw, `"delta":{}`) || strings.Contains(raw, `token_ids":[`) {
		t.Fatalf("%d calls: %s", len(calls), raw)
	}
	for cut := range 24 {
		for _, again := range []int{-1, 0, 1, 5} {
			f, all := callers(t, nil)
			for _, c := range all {
				c.after = []int{cut}
			}
			all[0].after, all[1].after, all[2].after = []int{cut}, nil, nil
			if again >= 0 {
				all[1].after = []int{again}
			}
			_, raw := f.post(t, toolsBody)
			got, calls := said(t, raw)
			if got != want || len(calls) != 3 || slices.Compact(calls)[0] == "" || strings.Contains(raw, `"delta":{}`) {
				t.Errorf("cut behind %d, then %d:\n%q\n%q\n%s", cut, again, got, want, raw)
			}
			f.idle(t)
			_ = f.stop()
			if t.Failed() {
				return
			}
		}
	}
}

// An event that the other worker could not make moves the stream to the next worker.
func TestAWorkerThatMakesNoEventOfItsIDsIsLeft(t *testing.T) {
	healthy, _ := callers(t, nil)
	_, raw := healthy.post(t, toolsBody)
	want, _ := said(t, raw)
	f, _ := callers(t, func(i int, c *caller) {
		switch i {
		case 0:
			c.after = []int{9}
		case 1:
			c.fails = 2
		}
	})
	_, raw = f.post(t, toolsBody)
	if got, _ := said(t, raw); got != want {
		t.Errorf("%q\n%q\n%s", got, want, raw)
	}
}

// A worker that cannot make the events of a parser, or makes other ones, does not continue the stream.
func TestParsedStreamsThatCannotContinueEndWithAnErrorEvent(t *testing.T) {
	for _, c := range []struct {
		why    string
		body   string
		cut    int
		change func(c *caller)
	}{
		{"tools", toolsBody, 12, func(c *caller) { c.closed = true }},
		{"parser", toolsBody, 12, func(c *caller) { c.plain = true }},
		{"guided", toolsBody, 12, func(c *caller) { c.grammar = `{"json":{}}` }},
		{"tools", strings.Replace(toolsBody, `"stream":true`, `"stream":true,"tool_choice":"required"`, 1), 12, nil},
		{"tools", strings.Replace(toolsBody, `"stream":true`, `"stream":true,"stop":"x"`, 1), 12, nil},
		{"reasoning", strings.Replace(strings.Replace(toolsBody, `"stream":true`, `"stream":true,"stop":"x"`, 1), `"tools"`, `"metadata"`, 1), 12, nil},
	} {
		f, _ := callers(t, func(i int, one *caller) {
			if i == 0 {
				one.after = []int{c.cut}
			} else if c.change != nil {
				c.change(one)
			}
		})
		_, raw := f.post(t, c.body)
		if strings.Count(raw, `data: {"error":`) != 1 || strings.Contains(raw, "[DONE]") || !strings.Contains(f.metrics(t), `outcome="refused",reason="`+c.why+`"`) {
			t.Errorf("%s: %s", c.why, raw)
		}
		_ = f.stop()
	}
	// A loss before the first token needs no parser: the request is repeated.
	f, _ := callers(t, func(i int, c *caller) {
		c.closed = true
		if i == 0 {
			c.after = []int{0}
		}
	})
	if _, raw := f.post(t, toolsBody); strings.Contains(raw, `"error"`) || !strings.HasSuffix(raw, doneChunk) || strings.Count(raw, `"role"`) != 1 {
		t.Errorf("lost before the first token: %s", raw)
	}
}

// While questions take long, one question asks for the ids of several events.
func TestSlowQuestionsAskForSeveralEvents(t *testing.T) {
	healthy, _ := callers(t, nil)
	_, raw := healthy.post(t, toolsBody)
	want, _ := said(t, raw)
	f, all := callers(t, func(i int, c *caller) {
		if c.slow = true; i == 0 {
			c.after = []int{2}
		}
	})
	_, raw = f.post(t, toolsBody)
	if got, _ := said(t, raw); got != want {
		t.Errorf("%s\n%s", got, want)
	}
	if n := all[1].made.Load() + all[2].made.Load(); n > 12 {
		t.Errorf("%d questions", n)
	}
}

// A worker that answers a question about ids without an end does not fill the memory.
func TestAnEndlessAnswerToAQuestionIsCut(t *testing.T) {
	const part, parts = 1 << 20, 64
	var sent atomic.Int64
	f, all := callers(t, nil)
	_ = f.stop()
	all[0].after = []int{9}
	endless := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "render") {
			all[0].ServeHTTP(w, r)
			return
		}
		for range parts {
			if _, err := w.Write(make([]byte, part)); err != nil {
				return
			}
			sent.Add(part)
		}
	})
	f = serve(t, func(s *settings) {
		s.policy, s.facts.Version, s.gateway.StreamRecovery = "round_robin", "0.32.0", gateway.RecoverExact
	}, endless, endless+"/b")
	if _, raw := f.post(t, toolsBody); strings.Count(raw, `"error"`) != 1 {
		t.Error(raw)
	}
	if n := sent.Load(); n == 0 || n >= parts*part {
		t.Errorf("the router read %d bytes", n)
	}
}
