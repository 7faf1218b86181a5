package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/admin"
)

// Explain shows the source of a model's token ids, as the finder of files reports it. For a mistyped name it suggests a
// name from the configuration.
func TestExplainUsesTheFinderAndTheConfiguration(t *testing.T) {
	r := start(t, nil, engine(t, nil))
	r.exact(1)
	ask := func(query string) (int, string) {
		resp, err := r.client.Post("http://"+r.AdminAddr().String()+"/admin/explain"+query, "application/json",
			strings.NewReader(`{"model":"mock","prompt":"once upon a time"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	r.wait("explain says where the ids come from", func() bool { // true after the finder has seen the worker
		var explained admin.Explanation
		status, text := ask("")
		if err := json.Unmarshal([]byte(text), &explained); err != nil || status != http.StatusOK {
			t.Fatal(err, status, text)
		}
		return strings.Contains(explained.TokenOrigin, "The engines (vllm) are asked for the ids of mock")
	})
	if status, text := ask("?policy=margnal"); status != http.StatusBadRequest || !strings.Contains(text, "did you mean marginal?") {
		t.Errorf("%d %s", status, text)
	}
}
