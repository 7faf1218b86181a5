package gateway_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// In a mixed fleet, one worker does not have the endpoint that returns token ids. Then only the other worker is asked
// for token ids.
func TestOnlyWorkersThatGiveTokensAreAsked(t *testing.T) {
	var asked, without atomic.Int64
	gives := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			asked.Add(1)
			_, _ = io.WriteString(w, `{"count":3,"tokens":[1,2,3]}`)
			return
		}
		plain(w, r)
	})
	lacks := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			without.Add(1)
			http.Error(w, `{"error":{"message":"no such path"}}`, http.StatusNotFound)
			return
		}
		plain(w, r)
	})
	f := serve(t, func(s *settings) { s.tokens.Budget, s.tokens.CacheBytes = 5*time.Second, 0 }, gives, lacks)
	facts := fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}
	f.fleet.Put(lacks, facts)
	facts.CanTokenize = true
	f.fleet.Put(gives, facts)
	for range 10 {
		if resp, text := f.post(t, chat); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	if asked.Load() != 10 || without.Load() != 0 {
		t.Errorf("asked the one that gives tokens %d times, the other %d times", asked.Load(), without.Load())
	}

	// If no worker is known to give tokens, all workers are asked: the probes may have failed by chance.
	facts.CanTokenize = false
	f.fleet.Put(gives, facts)
	for range 10 {
		f.post(t, chat)
	}
	if asked.Load() == 10 || without.Load() == 0 {
		t.Error("nobody is asked though somebody may know")
	}
}
