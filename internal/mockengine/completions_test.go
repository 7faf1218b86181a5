package mockengine

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/valyala/fastjson"
)

const chatPath, textPath = "/v1/chat/completions", "/v1/completions"

func TestAChatIsAnswered(t *testing.T) {
	s := start(t, nil)
	c := complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("hello there")}})
	ch := c.Choices[0]
	if c.Object != "chat.completion" || c.Model != "mock" || !strings.HasPrefix(c.ID, "chatcmpl-") ||
		ch.Message.Role != "assistant" {
		t.Errorf("answer %+v", c)
	}
	if *ch.FinishReason != "stop" || *ch.Message.Content == "" || c.Usage.Completion != 49 ||
		c.Usage.Total != c.Usage.Prompt+49 {
		t.Errorf("choice %+v, usage %+v", ch, c.Usage)
	}
	again := complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("hello there")}})
	if *again.Choices[0].Message.Content != *ch.Message.Content || again.ID == c.ID {
		t.Error("the same prompt was answered differently, or under the same id")
	}
}

func TestStreamsEqualWholeAnswers(t *testing.T) {
	s := start(t, nil)
	for path, body := range map[string]object{
		chatPath: {"model": "mock", "messages": []any{userSays("stream it")}, "n": 2, "max_tokens": 30,
			"return_token_ids": true},
		textPath: {"model": "mock", "prompt": []any{"first", "second"}, "n": 2, "max_tokens": 30, "return_token_ids": true},
	} {
		whole := complete(t, s, path, body)
		body["stream_options"] = object{"include_usage": true}
		st := streamed(t, s, path, body)
		if st.err != nil || !st.done {
			t.Fatalf("%s: stream ended with done %v, error %v", path, st.done, st.err)
		}
		for i, ch := range whole.Choices {
			want := ch.Text
			if ch.Message.Content != nil {
				want = *ch.Message.Content
			}
			if got := st.text(i); got != want || st.finish(i) != *ch.FinishReason {
				t.Errorf("%s choice %d: streamed %q (%s), whole %q (%s)", path, i, got, st.finish(i), want, *ch.FinishReason)
			}
			var ids []uint32
			for _, c := range st.chunks {
				for _, part := range c.Choices {
					if part.Index == i {
						ids = append(ids, part.TokenIDs...)
					}
				}
			}
			if !slices.Equal(ids, ch.TokenIDs) {
				t.Errorf("%s choice %d: streamed ids differ", path, i)
			}
		}
		last := st.chunks[len(st.chunks)-1]
		if last.Usage == nil || len(last.Choices) != 0 || last.Usage.Completion != whole.Usage.Completion ||
			last.Usage.Prompt != whole.Usage.Prompt {
			t.Errorf("%s: last chunk %+v, want the usage %+v", path, last, whole.Usage)
		}
		if first := st.chunks[0]; path == chatPath &&
			(first.Choices[0].Delta.Role != "assistant" || len(first.PromptIDs) == 0) {
			t.Errorf("first chunk %+v, want the role and the prompt's ids", first)
		}
	}
}

func TestUsageIsStreamedOnlyOnRequest(t *testing.T) {
	s := start(t, nil)
	st := streamed(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}})
	for _, c := range st.chunks {
		if c.Usage != nil || len(c.Choices) == 0 {
			t.Errorf("chunk %+v", c)
		}
	}
}

// A client sends an answer back in its next request. For the prompt of this next request, the engine must find the
// blocks that it cached while it generated the answer.
func TestGrowingConversationsShareTheirPrefix(t *testing.T) {
	s := start(t, func(c *Config) { c.ScaleOut = true })
	tools := []any{object{"type": "function", "function": object{"name": "look", "parameters": object{"type": "object"}}}}
	messages := []any{object{"role": "system", "content": long("you are", 100)}, userSays("what is new?")}
	computed := 0 // number of the last turn's tokens whose KV is computed: all tokens but the last generated one
	for turn := range 6 {
		body := object{"model": "mock", "messages": messages, "tools": tools, "return_token_ids": true}
		if turn == 3 {
			body["tool_choice"] = "required"
		}
		if turn == 4 {
			body["max_tokens"] = 9
		}
		c := complete(t, s, chatPath, body)
		if want := computed / 16 * 16; c.cached() != want {
			t.Errorf("turn %d: cached %d, want %d", turn, c.cached(), want)
		}
		ch := c.Choices[0]
		if got := rendered(t, s, body); !slices.Equal(got, c.PromptIDs) {
			t.Errorf("turn %d: render and the engine disagree about the prompt", turn)
		}
		computed = len(c.PromptIDs) + len(ch.TokenIDs) - 1
		answer := object{"role": "assistant", "content": ch.Message.Content}
		if len(ch.Message.ToolCalls) > 0 {
			call := ch.Message.ToolCalls[0]
			answer["tool_calls"] = []any{object{"id": call.ID, "type": "function",
				"function": object{"name": call.Function.Name, "arguments": call.Function.Arguments}}}
			messages = append(messages, answer, object{"role": "tool", "tool_call_id": call.ID, "content": "it is there"})
			continue
		}
		messages = append(messages, answer, userSays(fmt.Sprint("and then, ", turn)))
	}
}

func rendered(t *testing.T, s *Server, body object) []uint32 {
	t.Helper()
	status, data := call(t, s, chatPath+"/render", body)
	var r struct {
		IDs []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(data, &r); status != http.StatusOK || err != nil {
		t.Fatalf("render: status %d: %s", status, data)
	}
	return r.IDs
}

func TestMockAnswerSetsTheAnswer(t *testing.T) {
	s := start(t, nil)
	script := []any{70, 80, 90, 100}
	c := complete(t, s, textPath, object{"model": "mock", "prompt": []any{1, 2, 3}, "mock_answer": script,
		"return_token_ids": true})
	if got := c.Choices[0].TokenIDs; !slices.Equal(got, []uint32{70, 80, 90, 100}) ||
		*c.Choices[0].FinishReason != "length" {
		t.Errorf("answered %v, finish reason %s", got, *c.Choices[0].FinishReason)
	}
	c = complete(t, s, textPath, object{"model": "mock", "prompt": []any{1, 2, 3}, "mock_answer": script, "max_tokens": 2,
		"return_token_ids": true})
	if got := c.Choices[0].TokenIDs; !slices.Equal(got, []uint32{70, 80}) {
		t.Errorf("cut at max_tokens: %v", got)
	}
	if status, _ := call(t, s, textPath, object{"model": "mock", "prompt": []any{1},
		"mock_answer": "text"}); status != http.StatusBadRequest {
		t.Errorf("an answer that is no list of ids: status %d", status)
	}
}

func TestCompletionsTakeTextAndIds(t *testing.T) {
	s := start(t, nil)
	text := long("once upon", 60)
	c := complete(t, s, textPath, object{"model": "mock", "prompt": text, "return_token_ids": true})
	ids := c.Choices[0].PromptIDs
	if c.Choices[0].Text == "" || *c.Choices[0].FinishReason != "length" || c.Usage.Completion != 16 {
		t.Errorf("answer %+v, want the 16 tokens of the API's default", c)
	}
	byID := complete(t, s, textPath, object{"model": "mock", "prompt": ids})
	if want := (len(ids) - 1) / 16 * 16; byID.cached() != want || byID.Choices[0].Text != c.Choices[0].Text {
		t.Errorf("as ids: cached %d, want %d; text %q, want %q", byID.cached(), want, byID.Choices[0].Text, c.Choices[0].Text)
	}
	batch := complete(t, s, textPath, object{"model": "mock", "prompt": []any{ids, ids[:20]}})
	if len(batch.Choices) != 2 || batch.Usage.Prompt != len(ids)+20 {
		t.Errorf("batch of ids: %+v", batch)
	}
	longer := complete(t, s, textPath, object{"model": "mock", "prompt": text + c.Choices[0].Text + " and more"})
	if want := (len(ids) + 15) / 16 * 16; longer.cached() != want {
		t.Errorf("prompt, answer and more: cached %d, want %d", longer.cached(), want)
	}
}

func TestStopStringsEndAnswers(t *testing.T) {
	s := start(t, nil)
	body := object{"model": "mock", "messages": []any{userSays("stop me")}, "stream": false}
	whole := *complete(t, s, chatPath, body).Choices[0].Message.Content
	body["stop"] = whole[30:36]
	ch := complete(t, s, chatPath, body).Choices[0]
	if *ch.FinishReason != "stop" || ch.StopReason == nil || *ch.StopReason != whole[30:36] ||
		!strings.HasPrefix(whole, *ch.Message.Content) || len(*ch.Message.Content) > 30 {
		t.Errorf("choice %+v from %q", ch, whole)
	}
}

func TestRequiredToolsAreCalled(t *testing.T) {
	s := start(t, nil)
	tools := []any{
		object{"type": "function", "function": object{"name": "first"}},
		object{"type": "function", "function": object{"name": "second"}},
	}
	f := func(choice any, want string) {
		t.Helper()
		body := object{"model": "mock", "messages": []any{userSays("do it")}, "tools": tools, "tool_choice": choice}
		ch := complete(t, s, chatPath, body).Choices[0]
		got := ""
		if len(ch.Message.ToolCalls) > 0 {
			got = ch.Message.ToolCalls[0].Function.Name
			if !json.Valid([]byte(ch.Message.ToolCalls[0].Function.Arguments)) || *ch.FinishReason != "tool_calls" {
				t.Errorf("call %+v, finish reason %s", ch.Message.ToolCalls[0], *ch.FinishReason)
			}
		}
		if got != want {
			t.Errorf("tool_choice %v called %q, want %q", choice, got, want)
		}
		st := streamed(t, s, chatPath, body)
		got = ""
		for _, c := range st.chunks {
			for _, ch := range c.Choices {
				for _, call := range ch.Delta.ToolCalls {
					got += call.Function.Name
				}
			}
		}
		if got != want {
			t.Errorf("tool_choice %v streamed %q, want %q", choice, got, want)
		}
	}
	f("auto", "")
	f("none", "")
	f("required", "first")
	f(object{"type": "function", "function": object{"name": "second"}}, "second")
}

func TestSaltsAdaptersAndImagesSeparateRequests(t *testing.T) {
	s := start(t, func(c *Config) { c.LoRA = []string{"ada"}; c.Served = []string{"alias"} })
	image := func(url string) object {
		return object{"role": "user", "content": []any{object{"type": "image_url", "image_url": object{"url": url}},
			object{"type": "text", "text": long("see", 40)}}}
	}
	f := func(name string, warm bool, change object) {
		t.Helper()
		body := object{"model": "mock", "messages": []any{userSays(long("same text", 60))}}
		for k, v := range change {
			body[k] = v
		}
		if c := complete(t, s, chatPath, body); (c.cached() > 0) != warm {
			t.Errorf("%s: cached %d, warm should be %v", name, c.cached(), warm)
		}
	}
	f("plain", false, nil)
	f("plain again", true, nil)
	f("another name of the model", true, object{"model": "alias"})
	f("salted", false, object{"cache_salt": "s"})
	f("salted again", true, object{"cache_salt": "s"})
	f("adapter", false, object{"model": "ada"})
	f("adapter again", true, object{"model": "ada"})
	f("image", false, object{"messages": []any{image("a")}})
	f("the same image", true, object{"messages": []any{image("a")}})
	f("another image", false, object{"messages": []any{image("b")}})
	f("prompt logprobs read no cache", false, object{"prompt_logprobs": 1})
	f("documents are rendered", false, object{"documents": []any{object{"text": "d"}}})
}

func TestEachRankHasItsOwnCache(t *testing.T) {
	s := start(t, func(c *Config) { c.Ranks = 2 })
	body := object{"model": "mock", "messages": []any{userSays(long("rank", 60))}}
	if c := complete(t, s, chatPath, body, "X-data-parallel-rank", "1"); c.cached() != 0 {
		t.Errorf("first on rank 1: cached %d", c.cached())
	}
	if c := complete(t, s, chatPath, body, "X-data-parallel-rank", "0"); c.cached() != 0 {
		t.Errorf("first on rank 0: cached %d", c.cached())
	}
	if c := complete(t, s, chatPath, body, "X-data-parallel-rank", "1"); c.cached() == 0 {
		t.Error("second on rank 1: nothing cached")
	}
	complete(t, s, chatPath, body, "X-data-parallel-rank", "abc")
	if status, data := call(t, s, chatPath, body, "X-data-parallel-rank", "2"); status != http.StatusBadRequest {
		t.Errorf("rank 2 of 2: status %d: %s", status, data)
	}
}

func TestIdleRanksTakeTurns(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		s := start(t, func(c *Config) { c.Ranks = ranks })
		for i := range 2 * ranks {
			complete(t, s, textPath, object{"model": "mock", "prompt": fmt.Sprint("question ", i), "max_tokens": 1})
		}
		for i, r := range s.Stats().Ranks {
			if r.PromptTokens != s.Stats().Ranks[0].PromptTokens {
				t.Errorf("of %d idle ranks, rank %d computed %d prompt tokens, rank 0 %d", ranks, i, r.PromptTokens, s.Stats().Ranks[0].PromptTokens)
			}
		}
	}
}

func TestBadRequestsAreRefusedInOpenAIsShape(t *testing.T) {
	s := start(t, func(c *Config) { c.MaxModelLen, c.BodyLimit = 256, 20000 })
	ok := []any{userSays("x")}
	f := func(path string, body any, status int, mentions string) {
		t.Helper()
		got, data := call(t, s, path, body)
		var c completion
		if err := json.Unmarshal(data, &c); err != nil || got != status || c.Error == nil || c.Error.Code != status ||
			!strings.Contains(c.Error.Message, mentions) {
			t.Errorf("%s %v: status %d, %s; want %d with %q", path, body, got, data, status, mentions)
		}
	}
	f(chatPath, []byte("{"), 400, "JSON")
	f(chatPath, []byte("[]"), 400, "object")
	f(chatPath, []byte("{\"model\":\"m\xff\"}"), 400, "UTF-8")
	f(chatPath, []byte(strings.Repeat("[", 5000)), 400, "JSON")
	f(chatPath, object{"model": "other", "messages": ok}, 404, "The model `other` does not exist.")
	f(textPath, object{"model": "other", "prompt": "x"}, 404, "does not exist")
	f(chatPath, object{"model": "mock"}, 400, "messages")
	f(chatPath, object{"model": "mock", "messages": []any{}}, 400, "messages")
	f(chatPath, object{"model": "mock", "messages": []any{object{"role": "wizard"}}}, 400, "wizard")
	f(chatPath, object{"model": "mock", "messages": []any{object{"role": "user", "content": 5}}}, 400, "content")
	f(chatPath, object{"model": "mock", "messages": ok, "max_tokens": 0}, 400, "max_tokens")
	f(chatPath, object{"model": "mock", "messages": ok, "n": 0}, 400, "n:")
	f(chatPath, object{"model": "mock", "messages": ok, "n": 100000}, 400, "n:")
	f(chatPath, object{"model": "mock", "messages": ok, "cache_salt": ""}, 400, "cache_salt")
	f(chatPath, object{"model": "mock", "messages": ok, "tool_choice": "required"}, 400, "tool")
	f(chatPath, object{"model": "mock", "messages": []any{userSays(long("far too", 300))}}, 400,
		"maximum context length is 256")
	f(textPath, object{"model": "mock"}, 400, "prompt")
	f(textPath, object{"model": "mock", "prompt": []any{}}, 400, "prompt")
	f(textPath, object{"model": "mock", "prompt": []any{1, "x"}}, 400, "token id")
	f(textPath, object{"model": "mock", "prompt": []any{-1}}, 400, "token id")
	f(chatPath, []byte(`{"model":"mock","pad":"`+strings.Repeat("x", 30000)+`"}`), 413, "larger")
}

func TestHugeRequestsAreRefused(t *testing.T) {
	s := start(t, nil)
	body := object{"model": "mock", "messages": []any{userSays("x")}, "n": 1000, "max_tokens": 100000, "ignore_eos": true}
	if status, data := call(t, s, chatPath, body); status != http.StatusBadRequest ||
		!strings.Contains(string(data), "limit") {
		t.Errorf("status %d: %.200s", status, data)
	}
	delete(body, "ignore_eos")
	body["max_tokens"], body["min_tokens"] = int64(math.MaxInt64), int64(math.MaxInt64)
	if status, data := call(t, s, chatPath, body); status != http.StatusBadRequest ||
		!strings.Contains(string(data), "limit") {
		t.Errorf("without an end in sight: status %d: %.200s", status, data)
	}
	if status, data := call(t, s, textPath, object{"prompt": []any{"a", "b", "c", "d"},
		"n": int64(1) << 62}); status != http.StatusBadRequest {
		t.Errorf("2^62 answers to each of four prompts: status %d: %.200s", status, data)
	}
}

// For any body, the engine must return an error, or make prompts and answers within bounds.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}},{"type":"text","text":"x"}]}],"tools":[{}],"tool_choice":"required"}`,
		`{"prompt":[[1,2],[3]],"n":2,"stop":["a"],"max_tokens":5,"ignore_eos":true,"cache_salt":"s"}`,
		`{"prompt":"x","min_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"continue_final_message":true}`,
		`{"messages":[null],"prompt":[null],"tools":{},"stop":{},"n":1.5}`,
		`{"prompt":["a","b","c","d"],"n":4611686018427387904,"max_tokens":9223372036854775807,"min_tokens":9223372036854775807}`,
		`{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,-2,1e30],null],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":-1,"remote_num_tokens":-5,"tp_size":1}}`,
		`{"messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"do_remote_decode":true,"prompt_token_ids":[1,2],"remote_kv_source":{"kv_request_id":1},"remote_decoder":[]}}`,
		`{"prompt":["a","b"],"bootstrap_host":["h",null],"bootstrap_port":[null,8998],"bootstrap_room":[1,-9223372036854775808],"disagg_prefill_dp_rank":-3}`,
		`{"prompt":"x","disaggregated_params":{"request_type":"generation_only","ctx_request_id":4611686018427387954,"first_gen_tokens":[1],"encoded_opaque_state":"AAE="}}`,
	} {
		f.Add([]byte(body))
	}
	var lives []*life
	for _, connector := range []Connector{NIXL, TRTLLM, Rooms} {
		cfg := DefaultConfig()
		cfg.MaxModelLen, cfg.Kind, cfg.Transfer.Connector = 4096, connectors[connector], connector
		lives = append(lives, &life{cfg: &cfg})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := fastjson.ParseBytes(data)
		if err != nil {
			return
		}
		for _, l := range lives {
			for _, chat := range []bool{true, false} {
				checkGeneration(t, l, body, chat)
			}
		}
	})
}

// checkGeneration reads a request, and makes its answers if the engine does not refuse it.
func checkGeneration(t *testing.T, l *life, body *fastjson.Value, chat bool) {
	g, err := l.readGeneration(body, chat, "")
	if err != nil || g.excess(l.cfg.MaxModelLen) != "" {
		return
	}
	if g.choices < 1 || g.choices*len(g.prompts) > maxChoices || g.choices > maxChoices {
		t.Fatalf("%d choices for each of %d prompts", g.choices, len(g.prompts))
	}
	if b := g.bootstrap; b != nil && (len(b.rooms) != len(g.prompts) || len(b.hosts) != len(g.prompts) || len(b.ports) != len(g.prompts)) {
		t.Fatalf("%+v for %d prompts", b, len(g.prompts))
	}
	for i := range g.prompts {
		options := g.options
		options.limit = min(options.limit, l.cfg.MaxModelLen-len(g.prompts[i].tokens))
		a := answerTo(g.prompts[i].tokens, 0, &options)
		if len(a.tokens) == 0 || len(a.tokens) > options.limit || a.text > len(a.tokens) {
			t.Fatalf("answer of %d tokens, %d of text, limit %d", len(a.tokens), a.text, options.limit)
		}
	}
}

func TestTwoHundredConcurrentStreamsAreComplete(t *testing.T) {
	s := start(t, nil)
	body := func(i int) object {
		return object{"model": "mock", "messages": []any{userSays(fmt.Sprint(i, " ",
			strings.Repeat("eight kilobytes of text ", 340)))}}
	}
	want := make([]string, 5)
	for i := range want {
		want[i] = *complete(t, s, chatPath, body(i)).Choices[0].Message.Content
	}
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Go(func() {
			st := streamed(t, s, chatPath, body(i%5))
			if st.err != nil || !st.done || st.text(0) != want[i%5] || st.finish(0) != "stop" {
				t.Errorf("stream %d: error %v, done %v, %d bytes of text, want %d", i, st.err, st.done, len(st.text(0)),
					len(want[i%5]))
			}
		})
	}
	wait.Wait()
	if st := s.Stats(); st.Ranks[0].UsedBlocks != 0 || st.Ranks[0].Running+st.Ranks[0].Waiting != 0 || st.Requests != 205 {
		t.Errorf("after all: %+v", st)
	}
}

// Two engines with the same seed agree about the rest of an answer. So a router may continue a stream at the other one.
func TestAGreedyAnswerContinuesFromItsIds(t *testing.T) {
	one, two := start(t, nil), start(t, nil)
	whole := complete(t, one, textPath, object{"model": "mock", "prompt": []any{100, 200, 300}, "temperature": 0, "max_tokens": 60, "ignore_eos": true, "return_token_ids": true})
	ids := whole.Choices[0].TokenIDs
	if len(ids) != 60 {
		t.Fatalf("%d ids", len(ids))
	}
	for k := range 60 {
		prompt := []any{100, 200, 300}
		for _, id := range ids[:k] {
			prompt = append(prompt, id)
		}
		rest := complete(t, two, textPath, object{"model": "mock", "prompt": prompt, "temperature": 0, "max_tokens": 60 - k, "ignore_eos": true, "return_token_ids": true})
		if !slices.Equal(rest.Choices[0].TokenIDs, ids[k:]) || !strings.HasSuffix(whole.Choices[0].Text, rest.Choices[0].Text) {
			t.Fatalf("after %d ids: %v, want %v", k, rest.Choices[0].TokenIDs, ids[k:])
		}
	}
}
