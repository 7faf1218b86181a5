package testenv_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// booked is what the gateway booked about a request.
type booked struct {
	Source     string `json:"token_source"`
	Missing    string `json:"tokens_missing"`
	Prompt     int    `json:"prompt_tokens"`
	Match      int    `json:"match_tokens"`
	Reported   *int   `json:"reported_tokens"`
	Difference *int   `json:"difference"`
	Line       string `json:"changing_line"`
}

// send posts a body and returns what the gateway booked about it, after all events have arrived.
func (k *clientTalk) send(t *testing.T, path, body string) booked {
	t.Helper()
	resp, err := http.Post(k.gateway.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v %.500s\n%s", path, resp.StatusCode, err, answer, body)
	}
	k.asked++
	var last struct{ Decisions []booked }
	testenv.Until(t, "the request is booked", func() bool {
		var all struct{ Decisions []json.RawMessage }
		testenv.JSON(t, k.gateway.Admin+"/admin/decisions?n=1000", &all)
		return len(all.Decisions) >= k.asked
	})
	testenv.JSON(t, k.gateway.Admin+"/admin/decisions?n=1", &last)
	k.settle(t)
	return last.Decisions[0]
}

// awaitIDs sends prompts until the ids of one come within the budget. On a busy machine the first ones may not.
func (k *clientTalk) awaitIDs(t *testing.T) {
	t.Helper()
	n := 0
	testenv.Until(t, "the ids of a prompt come within the budget", func() bool {
		n++
		b := k.send(t, "/v1/messages", fmt.Sprintf(`{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"prompt %d"}]}`, n))
		return b.Missing != "timeout"
	})
}

// agents plays conversations of an agent at /v1/messages: a system prompt in blocks, tools, thoughts, and results of
// tools. Every second answer is streamed. The predicted cached tokens must be the reported ones.
func agents(t *testing.T, k *clientTalk, name, fields string, thoughts bool) {
	const block = 32
	for talk := range 2 {
		system := fmt.Sprintf(`[{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}]`, sentences(fmt.Sprintf("%s%d", name, talk), 120))
		messages := fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}]}`, sentences("fix", 40))
		for turn := range 4 {
			body := fmt.Sprintf(`{"model":"tiny","max_tokens":8,"temperature":0,"stream":%t,"system":%s,"messages":[%s]%s}`, turn%2 == 1, system, messages, fields)
			b := k.send(t, "/v1/messages", body)
			what := fmt.Sprintf("conversation %d, turn %d", talk, turn)
			switch {
			case b.Missing == "timeout":
				k.countBlind(t)
			case b.Source == "text" || b.Difference == nil:
				t.Errorf("%s: ids by %s (%s), reported %v", what, b.Source, b.Missing, b.Reported)
			case *b.Difference != 0:
				t.Errorf("%s: matched %d of %d tokens, the engine reports %d", what, b.Match, b.Prompt, *b.Reported)
			case turn > 0 && b.Match < b.Prompt/2-block:
				t.Errorf("%s: matched %d of %d tokens", what, b.Match, b.Prompt)
			}
			thought := ""
			if thoughts {
				thought = fmt.Sprintf(`{"type":"thinking","thinking":"hm %d","signature":"s"},`, turn)
			}
			messages += fmt.Sprintf(`,{"role":"assistant","content":[%s{"type":"text","text":"I look."},{"type":"tool_use","id":"t%d","name":"bash","input":{"command":"ls é","n":1.0}}]}`+
				`,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":[{"type":"text","text":%q}]}]}`, thought, turn, turn, sentences("file", 20))
		}
	}
}

const agentTools = `,"tools":[{"name":"bash","description":"run a command","input_schema":{"type":"object","properties":{"z":{},"command":{"type":"string"}}}}]`

// changingLine sends two prompts that differ only in the line that Claude Code changes, and more as long as their ids
// do not come in time. It returns what was booked about the last.
func changingLine(t *testing.T, k *clientTalk) (b booked) {
	for i := 0; i < 2 || b.Missing == "timeout"; i++ {
		if b.Missing == "timeout" {
			k.countBlind(t)
		}
		b = k.send(t, "/v1/messages", fmt.Sprintf(`{"model":"tiny","max_tokens":4,"temperature":0,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.9; cch=%da%d;"},`+
			`{"type":"text","text":%q}],"messages":[{"role":"user","content":"hi"}]}`, i, i, sentences("line", 200)))
	}
	if b.Difference == nil || *b.Difference != 0 {
		t.Errorf("the prompt with the line: %+v", b)
	}
	return b
}

// messagesOfVLLM compares predictions with reports at /v1/messages and /v1/responses.
func messagesOfVLLM(t *testing.T, engine *realEngine) {
	k := &clientTalk{gateway: testenv.Serve(t, "--worker", engine.url)}
	k.gateway.Ready(t)
	waitTrust(t, k.gateway, "exact", 1)
	k.awaitIDs(t)
	t.Run("messages", func(t *testing.T) { agents(t, k, "plain", "", false) })
	t.Run("with tools", func(t *testing.T) { agents(t, k, "tools", agentTools, false) })
	t.Run("with thoughts", func(t *testing.T) { agents(t, k, "thoughts", agentTools+`,"thinking":{"type":"adaptive"}`, true) })
	t.Run("the changing line is dropped", func(t *testing.T) {
		if b := changingLine(t, k); b.Line != "dropped" || b.Match < b.Prompt-64 {
			t.Errorf("%+v", b)
		}
	})
	t.Run("responses", func(t *testing.T) {
		input := fmt.Sprintf(`{"role":"user","content":%q}`, sentences("respond", 80))
		for turn := range 4 {
			b := k.send(t, "/v1/responses", fmt.Sprintf(`{"model":"tiny","max_output_tokens":8,"temperature":0,"stream":%t,"instructions":%q,"input":[%s]}`,
				turn%2 == 1, sentences("instructions", 100), input))
			if b.Missing == "timeout" {
				k.countBlind(t)
			} else if b.Source == "text" || b.Difference == nil || *b.Difference != 0 || turn > 0 && b.Match == 0 {
				t.Errorf("turn %d: %+v", turn, b)
			}
			input += fmt.Sprintf(`,{"role":"assistant","content":"So."},{"role":"user","content":%q}`, sentences(fmt.Sprint("more", turn), 30))
		}
	})
}

// messagesOfSGLang compares predictions with reports at /v1/messages.
func messagesOfSGLang(t *testing.T, engine *realEngine) {
	k := &clientTalk{gateway: testenv.Serve(t, "--worker", engine.url)}
	k.gateway.Ready(t)
	waitTrust(t, k.gateway, "exact", 1)
	k.awaitIDs(t)
	t.Run("messages", func(t *testing.T) { agents(t, k, "plain", "", false) })
	t.Run("with tools", func(t *testing.T) { agents(t, k, "tools", agentTools, false) })
	t.Run("the changing line is rendered", func(t *testing.T) {
		if b := changingLine(t, k); b.Line != "rendered" || b.Match > 128 {
			t.Errorf("%+v", b)
		}
	})
}
