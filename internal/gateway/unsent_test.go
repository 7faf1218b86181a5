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

// A worker that refuses a request has not computed its prompt, so the prompt is expected in no cache. After other
// failures the worker may have computed the prompt.
func TestAPromptThatWasRefusedIsExpectedNowhere(t *testing.T) {
	for status, left := range map[int]bool{
		http.StatusBadRequest:            false,
		http.StatusUnauthorized:          false,
		http.StatusForbidden:             false,
		http.StatusNotFound:              false,
		http.StatusRequestEntityTooLarge: false,
		http.StatusUnprocessableEntity:   false,
		http.StatusTooManyRequests:       false,
		http.StatusServiceUnavailable:    false,
		http.StatusRequestTimeout:        true,
		http.StatusInternalServerError:   true,
		http.StatusBadGateway:            true,
		http.StatusGatewayTimeout:        true,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			refuse := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
			f := serve(t, nil, worker(t, refuse), worker(t, refuse))
			f.post(t, strings.Replace(chat, "hi", strings.Repeat("a long prompt ", 100), 1))
			f.idle(t)
			if s := f.Router.IndexStats()[0]; s.Speculative > 0 != left {
				t.Errorf("%d blocks are expected", s.Speculative)
			}
		})
	}
}
