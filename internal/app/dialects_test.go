package app_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// An agent's conversation: a system prompt in blocks, a line that changes with every request, tools, and results of
// tools. vLLM leaves the line out.
func TestMessagesAreMatchedByIDsAndPredictionsAreRight(t *testing.T) {
	one, two := engine(t, nil), engine(t, nil)
	r := startPatiently(t, one, two)
	r.exact(2)
	talk := `{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("fix the test ", 40) + `","cache_control":{"type":"ephemeral"}}]}`
	home := ""
	for turn := range 5 {
		body := fmt.Sprintf(`{"model":"mock","max_tokens":4,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=%d;"},`+
			`{"type":"text","text":"%s","cache_control":{"type":"ephemeral"}}],"messages":[%s],"tools":[{"name":"bash","input_schema":`+
			`{"type":"object","properties":{"z":{},"command":{"type":"string"}}}}],"thinking":{"type":"adaptive"}}`, turn,
			strings.Repeat("You write code. ", 50), talk)
		resp, err := r.client.Post(r.url+"/v1/messages", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("turn %d: %d %s", turn, resp.StatusCode, answer)
		}
		if got := resp.Header.Get("X-Warmpath-Worker"); turn == 0 {
			home = got
		} else if got != home || resp.Header.Get("X-Warmpath-Match") == "0" {
			t.Errorf("turn %d went to %s, its home is %s: match %s", turn, got, home, resp.Header.Get("X-Warmpath-Match"))
		}
		r.indexed(one, two)
		talk += fmt.Sprintf(`,{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"I look."},`+
			`{"type":"tool_use","id":"t%d","name":"bash","input":{"command":"ls é","n":1.0}}]},`+
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":[{"type":"text","text":"%s"}]}]}`, turn, turn,
			strings.Repeat("a.go b.go ", 20))
	}
	r.wait("all is booked", func() bool { return len(r.Telemetry().Last(0)) == 5 })
	for i, rec := range r.Telemetry().Last(0) {
		if rec.TokenSource == "text" || rec.Difference == nil || *rec.Difference != 0 {
			t.Errorf("request %d: ids by %s (%s), matched %d, reported %v", i, rec.TokenSource, rec.TokensMissing, rec.MatchTokens, rec.ReportedTokens)
		}
	}
}
