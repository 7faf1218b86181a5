package gateway_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
)

// The line that Claude Code changes with every request is reported, and stays in the body.
func TestTheChangingLineIsReportedAndReachesTheEngine(t *testing.T) {
	body := `{"model":"m","max_tokens":4,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.9; cch=8f3a1;"},` +
		`{"type":"text","text":"You write code."}],"messages":[{"role":"user","content":"hi"}]}`
	for _, c := range []struct {
		engine fleet.Engine
		effect string
		logged int
	}{{fleet.EngineSGLang, "rendered", 1}, {fleet.EngineVLLM, "dropped", 0}} {
		t.Run(c.effect, func(t *testing.T) {
			var got sync.Map
			url := worker(t, func(w http.ResponseWriter, r *http.Request) {
				sent, _ := io.ReadAll(r.Body)
				got.Store(string(sent), true)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"type":"message","role":"assistant","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":1}}`)
			})
			var log bytes.Buffer
			f := serve(t, func(s *settings) {
				s.facts.Engine = c.engine
				s.parts = func(p *gateway.Parts) { p.Log = slog.New(slog.NewTextHandler(&log, nil)) }
			}, url)
			for range 3 {
				resp, err := f.client.Post(f.url+"/v1/messages", "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Fatal(resp.Status)
				}
			}
			if rec := f.last(t, 3); rec.ChangingLine != c.effect {
				t.Errorf("the decision says %q, want %q", rec.ChangingLine, c.effect)
			}
			f.post(t, chat)
			if rec := f.last(t, 4); rec.ChangingLine != "" {
				t.Errorf("a request without the line: %q", rec.ChangingLine)
			}
			if want := `warmpath_changing_line_prompts_total{effect="` + c.effect + `"} 3`; !strings.Contains(f.metrics(t), want) {
				t.Errorf("the metrics lack %s", want)
			}
			explained, err := f.Explain(t.Context(), &gateway.Question{Dialect: api.AnthropicMessages, Body: []byte(body)})
			if err != nil || explained[0].ChangingLine != c.effect {
				t.Errorf("explained %v, %v", explained, err)
			}
			if _, ok := got.Load(body); !ok {
				t.Error("the body did not reach the engine byte for byte")
			}
			if err := f.stop(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(log.String(), "CLAUDE_CODE_ATTRIBUTION_HEADER=0"); n != c.logged {
				t.Errorf("%d lines of the log, want %d: %s", n, c.logged, log.String())
			}
		})
	}
}
