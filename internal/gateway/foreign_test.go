package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestHeadersThatMoveBlocksAreRefused: SGLang takes members that name another engine from the header, too.
func TestHeadersThatMoveBlocksAreRefused(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	for name, want := range map[string]int{
		"X-Override-Bootstrap-Host": http.StatusBadRequest, "x-override-disagg-prefill-dp-rank": http.StatusBadRequest,
		"X-Override-Rid": http.StatusOK,
	} {
		req, err := http.NewRequest(http.MethodPost, d.url+"/v1/chat/completions",
			strings.NewReader(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(name, "1")
		resp, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want || want != http.StatusOK && !strings.Contains(string(text), "only the router sets it") {
			t.Errorf("%s: status %d, %v: %s", name, resp.StatusCode, err, text)
		}
	}
}
