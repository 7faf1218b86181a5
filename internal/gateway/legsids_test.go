package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// The legs of one attempt have the same id, and those of the next attempt another one. The client sees its own.
func TestEachDividedAttemptHasItsId(t *testing.T) {
	var mu sync.Mutex
	var ids []string
	note := func(r *http.Request) int {
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, r.Header.Get("X-Request-Id"))
		return len(ids)
	}
	prefill := func(w http.ResponseWriter, r *http.Request) {
		note(r)
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],`+
			`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},`+
			`"usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16}}}`)
	}
	decode := func(w http.ResponseWriter, r *http.Request) {
		if note(r) == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"ab","finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":2}}`)
	}
	f := serve(t, nil)
	if err := f.Router.ChangePolicies(warmpath.PolicyChange{Standard: "least_load", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
		t.Fatal(err)
	}
	put := func(url string, role fleet.Role) {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
	}
	put(worker(t, prefill), fleet.RolePrefill)
	put(worker(t, decode), fleet.RoleDecode)
	put(worker(t, decode), fleet.RoleDecode)
	r, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Request-Id", "mine")
	resp, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Request-Id") != "mine" {
		t.Errorf("status %d, %v", resp.StatusCode, resp.Header)
	}
	if got := strings.Join(ids, " "); got != "mine mine mine-2 mine-2" {
		t.Errorf("ids %s", got)
	}
	// The cached tokens of the request are those of the prefill leg.
	if rec := f.Telemetry.Last(1)[0]; rec.ReportedTokens == nil || *rec.ReportedTokens != 16 {
		t.Errorf("%+v", rec)
	}
}
