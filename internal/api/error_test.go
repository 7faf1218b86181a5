package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestErrorsHaveTheDialectsShape(t *testing.T) {
	for d := range numDialects {
		e := &Error{Status: 400, Type: "invalid_request_error", Param: "model", Message: "a \"b\" \\ \n\x00\x7f é \xff"}
		var v struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal(d.AppendError(nil, e), &v); err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		if want := "a \"b\" \\ \n\x00\x7f é \ufffd"; v.Error.Message != want || v.Error.Type != e.Type ||
			v.Error.Code != nil || *v.Error.Param != "model" {
			t.Errorf("%v: %+v", d, v.Error)
		}
		event := string(d.AppendErrorEvent(nil, e))
		if d.Unchecked() {
			continue // nobody reads such a stream
		}
		_, data, named := strings.Cut(event, "event: error\n")
		if !named {
			data = event
		}
		if !strings.HasPrefix(data, "data: {") || !strings.HasSuffix(event, "}\n\n") || strings.Count(data, "\n") != 2 ||
			named != (d == OpenAIResponses || d == AnthropicMessages) {
			t.Errorf("%v: event %q", d, event)
		}
		var w Watcher
		w.Reset(d, EventStream)
		if w.Feed([]byte(event)); !w.Failed() {
			t.Errorf("%v: our own error event is not seen as one", d)
		}
	}
}

func TestWriteErrorGivesStatusAndHeader(t *testing.T) {
	rec := httptest.NewRecorder()
	WriteError(rec, OpenAIChat, fmt.Errorf("route: %w",
		&Error{Status: 503, Type: "x", Message: "m", RetryAfter: 1500 * time.Millisecond}))
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "2" ||
		rec.Header().Get("Content-Type") != "application/json" {
		t.Errorf("status %d, header %v", rec.Code, rec.Header())
	}
	rec = httptest.NewRecorder()
	WriteError(rec, OpenAIChat, errors.New("a secret"))
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "secret") {
		t.Errorf("status %d, body %s; want 500 without the cause", rec.Code, rec.Body)
	}
}

func TestAnUnknownPathIsAnsweredWithTheRightPlace(t *testing.T) {
	for path, want := range map[string]string{"/metrics": "operators' listener", "/admin/workers": "operators' listener", "/list_workers": "admin.peer_paths",
		"/v1/v1/models": "base URL", "/chat/completions": "try POST /v1/chat/completions"} {
		if e := UnknownPath("GET", path); !strings.Contains(e.Message, want) {
			t.Errorf("%s: %s, want %s", path, e.Message, want)
		}
	}
}
