package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Each rank of a worker has a cache and a side channel of its own, so the request names the rank that has the prompt.
func TestAFetchGoesToTheRankThatHasThePrompt(t *testing.T) {
	var body string
	f := serve(t, nil)
	put := func(answer http.HandlerFunc, ranks int) (url string) {
		url = worker(t, answer)
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Ranks: ranks,
			Transfer: fleet.Transfer{Connector: "p2p", Host: "10.0.0.1", Port: 5710, Fetches: true, TokenBytes: 1}})
		return url
	}
	source := put(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 2)
	reader := put(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		body = string(sent)
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":8000,"completion_tokens":1}}`)
	}, 1)
	prompt, ids := make([]block.Token, 8000), make([]string, 8000)
	for i := range prompt {
		prompt[i], ids[i] = block.Token(i), fmt.Sprint(i)
	}
	stored := kvindex.Stored{BlockSize: 16, Tokens: prompt}
	for i := range len(prompt) / 16 {
		stored.Hashes = append(stored.Hashes, uint64(i+1))
	}
	f.Router.Store(f.fleet.Snapshot().Workers()[0].Holders[1], &stored)
	r, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(`{"model":"m","max_tokens":1,"prompt":[`+strings.Join(ids, ",")+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Warmpath-Worker", reader)
	resp, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"remote_kv_source":{`) || !strings.Contains(body, `"remote_port":5711}`) {
		t.Errorf("status %d: sent %.300s", resp.StatusCode, body)
	}
	if rec := f.Telemetry.Last(1)[0]; rec.FetchedFrom != source || rec.FetchedTokens != 7984 {
		t.Errorf("%+v", rec)
	}
}
