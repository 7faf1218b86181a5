package testenv_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/test/testenv"
)

// waitFiles waits until the gateway has found the model's files in dir without configuration, and makes token ids with
// them in its own process.
func waitFiles(t *testing.T, g *testenv.Gateway, dir string) {
	t.Helper()
	testenv.WaitFor(t, 60*time.Second, "the model's files to be found", func() error {
		var s struct {
			Tokens struct {
				Models []struct{ Source, Folder, Why string }
			}
		}
		testenv.JSON(t, g.Admin+"/admin/workers", &s)
		if m := s.Tokens.Models; len(m) != 1 || m[0].Source != "files" || m[0].Folder != dir {
			return fmt.Errorf("models: %+v", m)
		}
		return nil
	})
}

// sources returns how many of the last 1,000 requests got their token ids from each source, and the number of all these
// requests. It logs how long requests waited for ids.
func sources(t *testing.T, g *testenv.Gateway) (count map[string]int, all int) {
	t.Helper()
	var last struct {
		Decisions []struct {
			Source string  `json:"token_source"`
			Waited float64 `json:"tokens_ms"`
		} `json:"decisions"`
	}
	testenv.JSON(t, g.Admin+"/admin/decisions?n=1000", &last)
	count = map[string]int{}
	var waits []float64
	for _, d := range last.Decisions {
		count[d.Source]++
		waits = append(waits, d.Waited)
	}
	if len(waits) == 0 {
		t.Fatal("no request was routed")
	}
	slices.Sort(waits)
	t.Logf("ids of %d requests: %v; waited for them: half %.3f ms, p99 %.3f ms", len(waits), count, waits[len(waits)/2], waits[len(waits)*99/100])
	return count, len(waits)
}

// foundFiles checks that the gateway made the token ids of nearly all requests in its own process, although its
// configuration names no model files.
func foundFiles(t *testing.T, k *clientTalk) {
	count, all := sources(t, k.gateway)
	if here := count["local"] + count["given"]; here*100 < all*99 {
		t.Errorf("the ids of %d of %d requests were made here or given, want 99 %%", here, all)
	}
	if log := k.gateway.Log(); strings.Contains(log, "differ from the engine's") {
		t.Error("the gateway found ids of its own that differ from the engine's")
	}
}

// askedIDs repeats the basic tests with a gateway that looks for no files and asks the engines. The budget is 10 s, so
// a request waits for all its ids. With the default budget of 500 ms, a request whose chat begins with known ids does
// not wait, or waits only about 10 ms, and the prediction may be a block less than the engine's match.
func askedIDs(t *testing.T, k *clientTalk, engines ...*realEngine) {
	config := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(config, []byte("tokens:\n  discover: false\n  budget: 10s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config", config}
	for _, e := range engines {
		args = append(args, "--worker", e.url)
	}
	mine := &clientTalk{client: k.client, gateway: testenv.Serve(t, args...)}
	mine.gateway.Ready(t)
	waitTrust(t, mine.gateway, "exact", len(engines))
	conversations(t, mine, "tiny", "asked")
	salts(t, mine, "asked")
	tools(t, mine, "asked")
	continued(t, mine, "asked")
	adapters(t, mine, "asked")
	if count, _ := sources(t, mine.gateway); count["local"] > 0 {
		t.Errorf("discovery is off, and the ids of %d requests were made in the gateway", count["local"])
	}
}

// sameIDs compares ids that the router makes in its own process with the engine's own ids, for a few hundred requests
// of all kinds.
func sameIDs(t *testing.T, dir string, kind tokens.Kind, e *realEngine) {
	m, err := inprocess.OpenOne(dir)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	compared := 0
	for i := range 300 {
		body, d := randomRequest(random, i, kind)
		want, status := engineIDs(t, e, d, body)
		if status != http.StatusOK {
			continue // the engine refuses the request, so it has no ids
		}
		var read api.Request
		if err := api.Read(d, body, &read); err != nil {
			t.Fatalf("request %d: %v\n%s", i, err, body)
		}
		got, err := m.Tokens(nil, &read, kind)
		if err != nil {
			t.Errorf("request %d: %v\n%s", i, err, body)
			continue
		}
		compared++
		if !slices.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("request %d: ids differ from position %d on: ours %q, the engine's %q\n%s", i, at,
				m.Decode(got[at:min(at+12, len(got))]), m.Decode(want[at:min(at+12, len(want))]), body)
		}
	}
	t.Logf("%d of 300 requests compared with %s", compared, e.name)
	if compared < 250 {
		t.Errorf("only %d of 300 requests could be compared", compared)
	}
}

// engineIDs asks the engine to generate one token and to report the prompt's ids.
func engineIDs(t *testing.T, e *realEngine, d api.Dialect, body []byte) ([]uint32, int) {
	t.Helper()
	resp, err := http.Post(e.url+d.Path(), "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		IDs     []uint32 `json:"prompt_token_ids"`
		Choices []struct {
			IDs []uint32 `json:"prompt_token_ids"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.IDs == nil && len(answer.Choices) > 0 {
		answer.IDs = answer.Choices[0].IDs
	}
	return answer.IDs, resp.StatusCode
}

var snippets = []string{"Hello, world!", "  leading space", "naïve café – “quoted”", "数を数える", "emoji 👩‍👩‍👧 done", "line one\nline two\n\n\nline five", "tabs\tand\ttabs",
	"1234567890 3.14159", "def f(x):\n    return x ** 2\n", "<|im_end|> in text", "{\"json\": [1, 2, null]}", "", " ", "мир", "A very long word: " + strings.Repeat("ab", 60)}

// randomRequest makes a request of a random kind. The same state of r, and the same i and kind, give the same request.
func randomRequest(r *rand.Rand, i int, kind tokens.Kind) ([]byte, api.Dialect) {
	text := func() string { return snippets[r.IntN(len(snippets))] + " " + snippets[r.IntN(len(snippets))] }
	body := map[string]any{"model": "tiny", "max_tokens": 1, "temperature": 0}
	if kind == tokens.SGLang {
		body["return_prompt_token_ids"] = true
	} else {
		body["return_token_ids"] = true
	}
	if i%5 == 0 && kind == tokens.VLLM {
		body["prompt"] = text()
		if r.IntN(3) == 0 {
			body["add_special_tokens"] = false
		}
		return encode(body), api.OpenAICompletions
	}
	var messages []chatMessage
	switch n := r.IntN(12); {
	case n < 5:
		messages = append(messages, say("system", text()))
	case n < 7 && kind == tokens.VLLM:
		messages = append(messages, say("developer", text()))
	}
	for turn := range 1 + r.IntN(3) {
		if r.IntN(4) == 0 {
			messages = append(messages, chatMessage{"role": "user", "content": []any{
				map[string]any{"type": "text", "text": text()}, map[string]any{"type": "text", "text": text()}}})
		} else {
			messages = append(messages, say("user", text()))
		}
		if turn == 2 || r.IntN(3) == 0 {
			break
		}
		if r.IntN(3) == 0 {
			messages = append(messages,
				chatMessage{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"id": fmt.Sprintf("call_%d", turn), "type": "function",
					"function": map[string]any{"name": "weather", "arguments": `{"city": "Köln", "days": 3, "deep": {"a": [1.0, 2e3]}}`}}}},
				chatMessage{"role": "tool", "tool_call_id": fmt.Sprintf("call_%d", turn), "content": text()})
		} else {
			messages = append(messages, say("assistant", text()))
		}
		if r.IntN(3) == 0 && kind == tokens.VLLM {
			messages[len(messages)-1][[]string{"reasoning", "reasoning_content"}[r.IntN(2)]] = text()
		}
		messages = append(messages, say("user", text()))
	}
	body["messages"] = messages
	if r.IntN(2) == 0 {
		body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"description": text(), "name": "weather",
			"parameters": map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string", "description": text()}}, "required": []string{"city"}}}}}
		body["tool_choice"] = "none"
	}
	switch r.IntN(6) {
	case 0:
		messages = append(messages, say("assistant", "I was about to say"))
		body["messages"], body["continue_final_message"], body["add_generation_prompt"] = messages, true, false
	case 1:
		body["add_generation_prompt"] = false // only for vLLM, because SGLang's chats do not have this field
	case 2:
		body["chat_template_kwargs"] = map[string]any{"enable_thinking": false, "unused": []int{1}}
	case 3:
		if kind == tokens.VLLM {
			body["documents"] = []any{map[string]any{"title": "One", "text": text()}, map[string]any{"title": "Two", "text": text()}}
			body["reasoning_effort"] = []string{"low", "high", "none"}[r.IntN(3)]
		}
	}
	return encode(body), api.OpenAIChat
}

func encode(body map[string]any) []byte {
	out, err := json.Marshal(body)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return out
}
