package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// An engine may begin the stream of a decode leg before it knows whether the blocks came. The client gets nothing of a
// stream that breaks before its first token, and the request is sent again.
func TestADecodeLegThatBeginsAndFailsIsSentAgain(t *testing.T) {
	const (
		role  = `data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[5,7]}` + "\n\n"
		wrong = `data: {"error":{"message":"Internal server error","type":"InternalServerError","code":500}}` + "\n\n" + "data: [DONE]\n\n"
		right = `data: {"id":"d","model":"m","choices":[{"index":0,"delta":{"content":"right"},"finish_reason":"stop"}]}` + "\n\n" + "data: [DONE]\n\n"
	)
	answerPrefill := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length"}],`+
			`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},`+
			`"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request){
		"with an error event": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, wrong) },
		"by a cut":            func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"by a silence":        func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"with [DONE]":         func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data: [DONE]\n\n") },
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute // so that no leg is given up on a busy machine
			if name == "by a silence" {
				limit = 300 * time.Millisecond
			}
			f := serveLegs(t, func(s *settings) { s.policy, s.gateway.TransferTimeout = "kv_aware", limit })
			decode := worker(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				body, _ := io.ReadAll(r.Body)
				_, _ = io.WriteString(w, role)
				if bytes.Contains(body, []byte("remote_block_ids")) {
					_ = http.NewResponseController(w).Flush()
					fail(w, r)
					return
				}
				_, _ = io.WriteString(w, right)
			})
			for url, role := range map[string]fleet.Role{worker(t, answerPrefill): fleet.RolePrefill, decode: fleet.RoleDecode} {
				f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
			}
			resp, err := f.client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			got, err := io.ReadAll(resp.Body)
			if err != nil || string(got) != role+right {
				t.Errorf("%v: %s", err, got)
			}
			if r := f.Telemetry.Last(1)[0]; r.Attempts != 2 || r.Bypass != string(policy.BypassOneWorker) || len(r.Failed) != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}
