package testenv_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// span is a line of test/otlp_receiver.py.
type span struct {
	Protocol, Service, Name, Trace, Span, Parent string
	Kind                                         int
	Start, End                                   int64
	Failed                                       bool
	Attributes                                   map[string]any
}

// The kinds of spans in OTLP.
const (
	spanInternal = 1
	spanServer   = 2
	spanClient   = 3
)

// TestOpenTelemetryTraces: a receiver that this project did not write gets the spans of a request over both protocols.
// They are in the trace of the caller, one inside the other, and have the facts of the decision.
func TestOpenTelemetryTraces(t *testing.T) {
	python := testenv.Installed(t, "otlp/bin/python", "make interop")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100") // the pause between two messages to the receiver, in milliseconds
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(strings.TrimSuffix(protocol, "/protobuf"), func(t *testing.T) {
			receiver := testenv.Start(t, "the receiver of traces", python, "../otlp_receiver.py")
			var ports struct{ HTTP, GRPC int }
			testenv.WaitFor(t, 30*time.Second, "the receiver's ports", func() error {
				first, _, _ := strings.Cut(receiver.Log(), "\n")
				return json.Unmarshal([]byte(first), &ports)
			})
			port := ports.HTTP
			if protocol == "grpc" {
				port = ports.GRPC
			}
			file := filepath.Join(t.TempDir(), "warmpath.yaml")
			text := fmt.Sprintf("telemetry: {traces: {endpoint: %q, protocol: %s}}\n", fmt.Sprintf("http://127.0.0.1:%d", port), protocol)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			worker := mock(t, func(c *mockengine.Config) { c.Speed = 100 })
			g := testenv.Serve(t, "--config", file, "--worker", worker.URL())
			g.Ready(t)
			const trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
			req, _ := http.NewRequest(http.MethodPost, g.URL+"/v1/chat/completions",
				strings.NewReader(`{"model":"mock","messages":[{"role":"user","content":"hello there"}],"max_tokens":4}`))
			req.Header.Set("traceparent", "00-"+trace+"-"+caller+"-01")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("status %d", resp.StatusCode)
			}
			checkSpans(t, spansOf(t, receiver, 4), trace, caller, strings.TrimSuffix(protocol, "/protobuf"), worker.URL())
		})
	}
}

// spansOf waits until the receiver has n spans, and returns them by name.
func spansOf(t *testing.T, receiver *testenv.Process, n int) map[string]span {
	t.Helper()
	spans := map[string]span{}
	testenv.Until(t, "the spans have come", func() bool {
		_, lines, _ := strings.Cut(receiver.Log(), "\n")
		for line := range strings.Lines(lines) {
			var s span
			if json.Unmarshal([]byte(line), &s) == nil {
				spans[s.Name] = s
			}
		}
		return len(spans) >= n
	})
	return spans
}

func checkSpans(t *testing.T, spans map[string]span, trace, caller, protocol, worker string) {
	t.Helper()
	root := spans["POST /v1/chat/completions"]
	if root.Parent != caller || root.Kind != spanServer || root.Service != "warmpath" || root.Attributes["http.response.status_code"] != 200.0 ||
		root.Attributes["http.route"] != "/v1/chat/completions" || root.Attributes["url.scheme"] != "http" || root.Attributes["network.protocol.version"] != "1.1" || root.Attributes["warmpath.worker"] != worker {
		t.Errorf("the request's span: %+v", root)
	}
	for name, kind := range map[string]int{"tokenize": spanInternal, "decide": spanInternal, "chat mock": spanClient} {
		s, ok := spans[name]
		if !ok || s.Parent != root.Span || s.Kind != kind || s.Start < root.Start || s.End > root.End || s.End < s.Start {
			t.Errorf("the span %s: %+v\nwithin %+v", name, s, root)
		}
	}
	for _, s := range spans {
		if s.Trace != trace || s.Protocol != protocol || s.Failed {
			t.Errorf("%+v", s)
		}
	}
	decide, call := spans["decide"].Attributes, spans["chat mock"].Attributes
	for _, key := range []string{"warmpath.policy", "warmpath.branch", "warmpath.reason", "warmpath.match_tokens", "warmpath.predicted_tokens", "warmpath.candidates", "warmpath.score", "warmpath.term.prefill"} {
		if decide[key] == nil {
			t.Errorf("the decision's span lacks %s: %v", key, decide)
		}
	}
	if call["gen_ai.operation.name"] != "chat" || call["gen_ai.request.model"] != "mock" || call["gen_ai.usage.output_tokens"] != 4.0 ||
		call["gen_ai.usage.input_tokens"] == nil || call["gen_ai.usage.cache_read.input_tokens"] == nil || call["server.address"] != "127.0.0.1" || call["server.port"] == nil {
		t.Errorf("the attempt's span: %v", call)
	}
}
