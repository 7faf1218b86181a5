package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engines is an HTTP transport in memory. For each host, one function stands for the engine at that host.
type engines struct {
	mu    sync.Mutex
	hosts map[string]func(*http.Request, string) (int, string)
	seen  []string // guarded by mu; host + path of each call
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.seen = append(e.seen, r.URL.Host+r.URL.Path)
	answer := e.hosts[r.URL.Host]
	e.mu.Unlock()
	type said struct {
		status int
		text   string
	}
	out := make(chan said, 1)
	go func() {
		status, text := answer(r, string(body))
		out <- said{status, text}
	}()
	select {
	case s := <-out:
		return &http.Response{StatusCode: s.status, Body: io.NopCloser(strings.NewReader(s.text)),
			ContentLength: int64(len(s.text))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (e *engines) calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.seen)
}

// newSource returns a Source whose calls reach the functions in hosts.
func newSource(hosts map[string]func(*http.Request, string) (int, string)) (*Source, *engines) {
	e := &engines{hosts: hosts}
	return New(DefaultConfig(), &http.Client{Transport: e}), e
}

// pass waits for the time d. It must be called inside a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

type handler = func(*http.Request, string) (int, string)

// rendering is an engine that answers render with the ids 1,2,3. tokenizing is an engine that has only /tokenize and
// answers with the ids 4,5.
func rendering(*http.Request, string) (int, string) {
	return 200, `{"token_ids":[1,2,3],"features":null}`
}

func tokenizing(r *http.Request, _ string) (int, string) {
	if r.URL.Path != "/tokenize" {
		return 403, `{"error":"needs --enable-scale-out"}`
	}
	return 200, `{"count":2,"tokens":[4,5]}`
}

func chat(text string) Prompt {
	return prompt(api.OpenAIChat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, text))
}

// prompt reads a body as the gateway does.
func prompt(d api.Dialect, body string) Prompt {
	r := new(api.Request)
	if err := api.Read(d, []byte(body), r); err != nil {
		panic(fmt.Sprintf("%s: %v", body, err))
	}
	return Prompt{Request: r}
}

var (
	a = Worker{URL: "http://a"}
	b = Worker{URL: "http://b"}
)

func find(t *testing.T, s *Source, p Prompt, workers ...Worker) Found {
	t.Helper()
	return s.Find(t.Context(), p, workers)
}

func wants(t *testing.T, got Found, outcome Outcome, ids ...block.Token) {
	t.Helper()
	by := got.Outcome
	if by == Text {
		by = got.Missing // if there are no ids, Outcome is Text and Missing has the reason
	}
	if by != outcome || !slices.Equal(got.Tokens, ids) || (got.Tokens == nil) != (got.Missing != "") {
		t.Errorf("found %v by %s (%s), want %v by %s", got.Tokens, got.Outcome, got.Missing, ids, outcome)
	}
}

func TestRenderIsAskedFirstAndTheAnswerRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": rendering})
		defer s.Close()
		wants(t, find(t, s, chat("hi"), a), Render, 1, 2, 3)
		wants(t, find(t, s, chat("hi"), a), Cached, 1, 2, 3)
		if got := e.calls(); !slices.Equal(got, []string{"a/v1/chat/completions/render"}) {
			t.Errorf("calls %v", got)
		}
	})
}

func TestRefusedRenderFallsBackToTokenizeAndIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": tokenizing})
		defer s.Close()
		wants(t, find(t, s, chat("one"), a), Tokenize, 4, 5)
		wants(t, find(t, s, chat("two"), a), Tokenize, 4, 5)
		if got := e.calls(); !slices.Equal(got, []string{"a/v1/chat/completions/render", "a/tokenize", "a/tokenize"}) {
			t.Errorf("calls %v", got)
		}
		pass(relearn)
		find(t, s, chat("three"), a)
		if got := e.calls(); len(got) != 5 {
			t.Errorf("after a minute render is worth a question again; calls %v", got)
		}
	})
}

func TestSGLangIsAskedByEitherPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": func(r *http.Request, _ string) (int, string) {
			if r.URL.Path != "/v1/tokenize" {
				return 404, `{"detail":"Not Found"}`
			}
			return 200, `{"tokens":[7],"count":1}`
		}})
		defer s.Close()
		sglang := Worker{URL: "http://a", Kind: SGLang}
		wants(t, find(t, s, chat("one"), sglang), Tokenize, 7)
		wants(t, find(t, s, chat("two"), sglang), Tokenize, 7)
		if got := e.calls(); !slices.Equal(got, []string{"a/tokenize", "a/v1/tokenize", "a/v1/tokenize"}) {
			t.Errorf("calls %v", got)
		}
	})
}

func TestPausedWorkerIsTriedAgainByOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			if broken {
				return 500, ""
			}
			return rendering(r, body)
		}})
		defer s.Close()
		for i := range 3 {
			wants(t, find(t, s, chat(fmt.Sprint(i)), a), Failed)
		}
		wants(t, find(t, s, chat("paused"), a), NoWorker)
		broken = false
		pass(5 * time.Second)
		wants(t, find(t, s, chat("back"), a), Render, 1, 2, 3)
		wants(t, find(t, s, chat("stays"), a), Render, 1, 2, 3)
	})
}

func TestEqualPromptsShareOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			pass(3 * time.Millisecond)
			return rendering(r, body)
		}})
		defer s.Close()
		var wg sync.WaitGroup
		counts := make(chan Outcome, 20)
		for range 20 {
			wg.Go(func() { counts <- s.Find(context.Background(), chat("same"), []Worker{a}).Outcome })
		}
		wg.Wait()
		close(counts)
		got := map[Outcome]int{}
		for o := range counts {
			got[o]++
		}
		if got[Render] != 1 || got[Shared] != 19 || len(e.calls()) != 1 {
			t.Errorf("outcomes %v with %d calls", got, len(e.calls()))
		}
	})
}

func TestCallsAreSpreadOverWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := newSource(map[string]handler{"a": rendering, "b": rendering})
		defer s.Close()
		for i := range 10 {
			find(t, s, chat(fmt.Sprint(i)), a, b)
		}
		count := 0
		for _, c := range e.calls() {
			if strings.HasPrefix(c, "a/") {
				count++
			}
		}
		if count != 5 {
			t.Errorf("worker a was asked %d of 10 times", count)
		}
	})
}

func TestSomePromptsNeedNoQuestionToAnEngine(t *testing.T) {
	refuse := func(*http.Request, string) (int, string) { return 400, `{"error":{"message":"bad template"}}` }
	none := func(*http.Request, string) (int, string) { return 404, `{"detail":"Not Found"}` }
	completions := func(text string) Prompt {
		return prompt(api.OpenAICompletions, `{"model":"m","prompt":`+text+`}`)
	}
	for _, c := range []struct {
		name    string
		prompt  Prompt
		engine  handler
		kind    Kind
		outcome Outcome
		ids     []block.Token
	}{
		{"ids", completions(`[1, 2,3]`), none, VLLM, Given, []block.Token{1, 2, 3}},
		{"one list of ids", completions(`[[5,6]]`), none, VLLM, Given, []block.Token{5, 6}},
		{"several lists", completions(`[[5],[6]]`), none, VLLM, Batch, nil},
		{"several texts", completions(`["a","b"]`), none, VLLM, Batch, nil},
		{"no prompt", prompt(api.OpenAICompletions, `{"model":"m"}`), none, VLLM, Refused, nil},
		{"sglang chat ids", prompt(api.OpenAIChat, `{"messages":[],"input_ids":[8]}`), none, SGLang, Given, []block.Token{8}},
		{"vllm ignores chat ids", prompt(api.OpenAIChat, `{"messages":[],"input_ids":[8]}`), rendering, VLLM, Render,
			[]block.Token{1, 2, 3}},
		{"bad request", chat("x"), refuse, VLLM, Refused, nil},
		{"no endpoint", chat("x"), none, VLLM, Unsupported, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the bubble's clock makes the wait independent of the machine
				s, _ := newSource(map[string]handler{"a": c.engine})
				defer s.Close()
				wants(t, find(t, s, c.prompt, Worker{URL: "http://a", Kind: c.kind}), c.outcome, c.ids...)
			})
		})
	}
	s, _ := newSource(nil)
	defer s.Close()
	wants(t, find(t, s, chat("x")), NoWorker)
}

func TestAPromptBeyondTheLimitIsNotCopiedToAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock makes the budget independent of the machine
		s, e := newSource(map[string]handler{"a": rendering})
		defer s.Close()
		wants(t, find(t, s, chat(strings.Repeat("x", 4<<20)), a), TooLong)
		if got := e.calls(); got != nil {
			t.Errorf("calls %v", got)
		}
		wants(t, find(t, s, chat(strings.Repeat("x", 3<<20)), a), Render, 1, 2, 3)
	})
}

func TestTokenizeIsAskedForTheSamePrompt(t *testing.T) {
	for _, c := range []struct {
		dialect    api.Dialect
		body, want string
		kind       Kind
	}{
		{api.OpenAIChat, `{"model":"m","temperature":0,"messages":[{"role":"user","content":"é\"}"}],"tools":[ {"type":"function"} ],"stream":true}`,
			`{"model":"m","messages":[{"role":"user","content":"é\"}"}],"tools":[ {"type":"function"} ]}`, VLLM},
		{api.OpenAIChat, `{"messages":[],"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","documents":null,"continue_final_message":true,"add_generation_prompt":false}`,
			`{"messages":[],"add_generation_prompt":false,"continue_final_message":true,"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":false}}`, VLLM},
		{api.OpenAIChat, `{"messages":[],"chat_template_kwargs":{ }}`, `{"messages":[]}`, VLLM},
		{api.OpenAIChat, `{"messages":[],"documents":[1]}`, `{"messages":[],"chat_template_kwargs":{"documents":[1]}}`, VLLM},
		{api.OpenAICompletions, `{"prompt":["hi"],"max_tokens":3,"add_special_tokens":false}`,
			`{"prompt":"hi","add_special_tokens":false}`, VLLM},
		{api.OpenAICompletions, `{"prompt":["hi"],"max_tokens":3,"add_special_tokens":false}`,
			`{"prompt":"hi","add_special_tokens":false}`, SGLang},
		// The prompt of an SGLang chat does not depend on add_generation_prompt and documents. It depends on
		// reasoning_effort and tool_choice.
		{api.OpenAIChat, `{"model":"m","messages":[ ],"add_generation_prompt":false,"add_special_tokens":true,"continue_final_message":true,"top_k":1}`,
			`{"model":"m","messages":[ ],"continue_final_message":true}`, SGLang},
		{api.OpenAIChat, `{"messages":[],"reasoning_effort":"low","reasoning":{"effort":"high"},"documents":[1],"chat_template_kwargs":{"a":1},"tools":[2],"tool_choice":"none"}`,
			`{"messages":[],"reasoning_effort":"low","reasoning":{"effort":"high"},"chat_template_kwargs":{"a":1},"tools":[2],"tool_choice":"none"}`, SGLang},
	} {
		if got := tokenizeBody(prompt(c.dialect, c.body).Request, c.kind); string(got) != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.want)
		}
	}
}

func keyOf(t *testing.T, p Prompt) key {
	t.Helper()
	return turnsOf(p.Request).key()
}

func TestTheKeyDependsOnEverythingThatDecidesTheTokens(t *testing.T) {
	base := `{"model":"m","messages":[{"role":"a"}],"stream":true,"temperature":1}`
	for _, c := range []struct {
		body string
		same bool
	}{
		{`{"model":"m","messages":[{"role":"a"}],"stream":false,"max_tokens":5}`, true},
		{`{"model":"m","messages":[{"role":"a"}],"cache_salt":"x"}`, true},
		{`{"messages":[{"role":"a"}],"n":3,"model":"m"}`, true},
		{`{"model":"m","messages":[{"role":"a"}, {"role":"a"}]}`, false},
		{`{"model":"m","messages":[{"role":"b"}]}`, false},
		{`{"model":"m","messages":[{"role":"a"}],"tools":[]}`, false},
		{`{"model":"m","messages":[{"role":"a"}],"something_new":1}`, false},
	} {
		k1, k2 := keyOf(t, prompt(api.OpenAIChat, base)), keyOf(t, prompt(api.OpenAIChat, c.body))
		if (k1 == k2) != c.same {
			t.Errorf("%s: same key is %v, want %v", c.body, k1 == k2, c.same)
		}
	}
}

func TestCacheStaysWithinItsBytes(t *testing.T) {
	c := newCache(10 * (entryOverhead + 400))
	for i := range 100 {
		c.put(key{byte(i)}, &answer{tokens: make([]block.Token, 100)})
	}
	entries, bytes := c.stats()
	if entries != 10 || bytes > c.limit {
		t.Errorf("%d entries in %d of %d bytes", entries, bytes, c.limit)
	}
	if _, ok := c.get(key{99}); !ok {
		t.Error("the newest entry is gone")
	}
	c.put(key{200}, &answer{tokens: make([]block.Token, 10000)})
	if got, _ := c.stats(); got != 10 {
		t.Errorf("an answer beyond the whole cache left %d entries", got)
	}
}

func TestFeaturesOfRenderAreSortedByOffset(t *testing.T) {
	ids := "0" + strings.Repeat(",1", 33)
	got, err := decodeRender([]byte(`[{"request_id":"r","token_ids":[` + ids + `],"features":{"mm_hashes":{"image":["h1","h2"],"audio":["h3"]},
		"mm_placeholders":{"image":[{"offset":9,"length":4},{"offset":30,"length":4}],"audio":[{"offset":20,"length":1}]},"kwargs_data":"xxxx"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []string{"-1", "34", "9223372036854775807"} {
		if _, err := decodeRender([]byte(`{"token_ids":[` + ids +
			`],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":` + offset + `}]}}}`)); err == nil {
			t.Errorf("an image at %s of 34 tokens is accepted", offset)
		}
	}
	want := []block.Feature{{ID: "h1", Offset: 9}, {ID: "h3", Offset: 20}, {ID: "h2", Offset: 30}}
	if !slices.Equal(got.features, want) {
		t.Errorf("features %v, want %v", got.features, want)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{`{"tokens":[1,2,3]}`,
		`[{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1}]}}}]`,
		`{"token_ids":[1,2],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1}]}}}`,
		`{"tokens":[99999999999]}`, `{"a":"\\\""}`, `[`, `{"tokens":[`, `{"tokens":[1,]}`,
		`{"features":null,"token_ids":[]}`, `{"prompt":["x"]}`, `{"prompt":[]}`, `{"prompt":[[1]]}`,
		`{"messages":[],"documents":[1],"chat_template_kwargs":{ "a":1}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, decode := range []func([]byte) (*answer, error){decodeRender, decodeTokenize} {
			a, err := decode(data)
			if err != nil {
				continue
			}
			if len(a.tokens) > len(data) {
				t.Errorf("%d ids from %d bytes", len(a.tokens), len(data))
			}
			for _, f := range a.features {
				if f.Offset < 0 || f.Offset >= len(a.tokens) {
					t.Errorf("%+v beside %d ids", f, len(a.tokens))
				}
			}
		}
		for _, d := range []api.Dialect{api.OpenAIChat, api.OpenAICompletions} {
			var r api.Request
			if api.Read(d, data, &r) != nil {
				continue
			}
			l := turnsOf(&r)
			for _, step := range l.steps {
				if found := (&known{at: step.at}).withStandIns(l); len(l.turns) > 0 && len(found.Tokens) > len(data) {
					t.Errorf("%d ids stand for %d bytes", len(found.Tokens), len(data))
				}
			}
			for _, kind := range [...]Kind{VLLM, SGLang} {
				if body := tokenizeBody(&r, kind); !json.Valid(body) {
					t.Errorf("tokenize body is not JSON: %s", body)
				}
			}
		}
	})
}
