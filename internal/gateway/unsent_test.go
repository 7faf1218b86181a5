package gateway_test

import (
	"net/http"
	"strings"
	"testing"
)

// A prompt that was sent to a worker is expected in the worker's cache. A prompt that could not be sent is expected in
// no cache.
func TestAPromptThatWasNotSentIsExpectedNowhere(t *testing.T) {
	failing := worker(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	for name, c := range map[string]struct {
		worker string
		left   bool
	}{"refused": {dead(t), false}, "sent": {failing, true}} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, nil, c.worker)
			if resp, text := f.post(t, strings.Replace(chat, "hi", strings.Repeat("a long prompt ", 100), 1)); resp.StatusCode < 500 {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			f.idle(t)
			if s := f.Router.IndexStats()[0]; s.Speculative > 0 != c.left {
				t.Errorf("%d blocks are expected", s.Speculative)
			}
		})
	}
}
