package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// A reload or a probe removes the last worker of a model while the worker answers a request. The answer must still
// arrive.
func TestAWorkerThatLeavesStillAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   int
	}{
		"404":           {answering(404, "application/json", `{"error":{"message":"no"}}`), 404},
		"500":           {answering(500, "application/json", `{"error":{"message":"no"}}`), 500},
		"HTML":          {answering(200, "text/html", "<html></html>"), 502},
		"another model": {answering(200, "application/json", strings.Replace(whole, "{", `{"model":"other",`, 1)), 200},
	} {
		t.Run(name, func(t *testing.T) {
			var f *fixture
			f = serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
				f.fleet.Remove(fleet.WorkerID(0))
				c.answer(w, r)
			}))
			resp, text, err := f.try(t.Context(), chat)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.want {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, c.want, text)
			}
			if !strings.Contains(f.metrics(t), "warmpath_panics_total 0\n") {
				t.Error("the request panicked")
			}
		})
	}
}
