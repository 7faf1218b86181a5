package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// completion returns a request with 640+more token ids. Requests with different values of text have different ids.
func completion(text, more int) string {
	ids := make([]string, 640+more)
	for i := range ids {
		ids[i] = fmt.Sprint(1000*text + i)
	}
	return `{"model":"mock","max_tokens":1,"prompt":[` + strings.Join(ids, ",") + `]}`
}

// A prompt that waits at an engine with a full cache will evict the end of the oldest prompt there. Explain, the
// decision's record and the metrics show how much of that prompt is at risk.
func TestTokensAtRiskAreShown(t *testing.T) {
	e := engine(t, func(c *mockengine.Config) { c.Blocks = 101 }) // 100 of the 101 blocks can be used
	r := start(t, nil, e)
	r.exact(1)
	complete := func(body string) {
		resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	}
	for text := range 3 {
		complete(completion(text, 0))
		r.wait("the request is over", func() bool { return len(r.Telemetry().Last(0)) == text+1 })
		r.indexed(e)
	}
	if err := e.SetFaults(mockengine.Faults{Stalled: true}); err != nil {
		t.Fatal(err)
	}
	requests := func(n int64) {
		t.Helper()
		r.wait(fmt.Sprintf("%d requests wait", n), func() bool { return r.Router().Fleet().Snapshot().Load(0).Requests == n })
	}
	var waiting sync.WaitGroup
	waiting.Go(func() { complete(completion(3, 0)) })
	requests(1)

	oldest := completion(1, 1)
	resp, err := r.client.Post("http://"+r.AdminAddr().String()+"/admin/explain", "application/json", strings.NewReader(oldest))
	if err != nil {
		t.Fatal(err)
	}
	var explained admin.Explanation
	err = json.NewDecoder(resp.Body).Decode(&explained)
	resp.Body.Close()
	if err != nil || len(explained.Candidates) != 1 {
		t.Fatalf("explain: %v, %+v", err, explained)
	}
	risk := explained.AtRiskTokens
	if c := explained.Candidates[0]; risk == 0 || c.AtRiskTokens != risk || explained.PredictedTokens != explained.MatchTokens-risk {
		t.Errorf("explain: %d of %d tokens are at risk, %d predicted; of the candidate %d", risk, explained.MatchTokens,
			explained.PredictedTokens, c.AtRiskTokens)
	}

	waiting.Go(func() { complete(oldest) })
	requests(2)
	if err := e.SetFaults(mockengine.Faults{}); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	r.wait("the requests are booked", func() bool { return len(r.Telemetry().Last(0)) == 5 })
	recorded := 0
	for _, rec := range r.Telemetry().Last(2) {
		if rec.PromptTokens == 641 {
			recorded = rec.AtRiskTokens
		}
	}
	if recorded != risk {
		t.Errorf("the decision's record has %d tokens at risk, explain had %d", recorded, risk)
	}
	if want := fmt.Sprintf("warmpath_tokens_total{kind=\"at_risk\",policy=\"marginal\",worker=%q} %d\n", e.URL(), risk); !strings.Contains(r.scrape(), want) {
		t.Errorf("the metrics lack %s", want)
	}
}
