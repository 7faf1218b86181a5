package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// completion returns a request with n token ids, all equal to first.
func completion(first, n int) string {
	return `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprint(first, ","), n), ",") + `]}`
}

func (f *fixture) complete(t *testing.T, body string) *http.Response {
	t.Helper()
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp
}

func TestAShadowIsAskedAndChangesNothing(t *testing.T) {
	workers := []string{worker(t, plain), worker(t, plain)}
	f := serve(t, func(s *settings) { s.policy, s.shadow, s.sample = "round_robin", "kv_aware", 1 }, workers...)
	for i := range 4 {
		f.complete(t, completion(7, 64))
		f.last(t, i+1)
	}
	records := f.Telemetry.Last(0)
	turns := map[string]int{}
	for _, rec := range records {
		turns[rec.Worker]++
		if rec.Policy != "round_robin" || rec.Shadow == nil || rec.Shadow.Policy != "kv_aware" || rec.Shadow.MS <= 0 {
			t.Fatalf("record %+v, shadow %+v", rec, rec.Shadow)
		}
		if rec.Shadow.Agrees != (rec.Shadow.Worker == rec.Worker) {
			t.Errorf("agrees %v: it would be %s, and was %s", rec.Shadow.Agrees, rec.Shadow.Worker, rec.Worker)
		}
	}
	if turns[workers[0]] != 2 || turns[workers[1]] != 2 {
		t.Errorf("round robin with a shadow: %v", turns)
	}
	// After the first request the shadow knows which worker has the prompt, but round robin chooses the other worker.
	if second := records[2]; second.Shadow.Agrees || second.Shadow.Worker != records[3].Worker || second.Shadow.Difference <= 0 {
		t.Errorf("second %+v", second.Shadow)
	}
	f.idle(t)
	if n := f.fleet.Snapshot().Load(fleet.Holder(0)).Processed + f.fleet.Snapshot().Load(fleet.Holder(1)).Processed; n != 4 {
		t.Errorf("%d requests were counted", n)
	}
	text := f.metrics(t)
	for _, want := range []string{`warmpath_shadow_decisions_total{policy="kv_aware",result="other"}`, `warmpath_shadow_difference_tokens_count{policy="kv_aware"}`,
		`warmpath_shadow_seconds_count{policy="kv_aware"} 4`, `warmpath_decisions_total{branch="match_unused",policy="round_robin"} 4`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in the scrape", want)
		}
	}
}

func TestAShadowIsAskedAboutASample(t *testing.T) {
	f := serve(t, func(s *settings) { s.shadow, s.sample = "least_load", 0.5; s.allowed = []string{"least_load"} }, worker(t, plain))
	const n = 60
	for i := range n {
		f.post(t, chat)
		f.last(t, i+1)
	}
	asked := 0
	for _, rec := range f.Telemetry.Last(0) {
		if rec.Shadow != nil {
			asked++
		}
	}
	if asked < 10 || asked > 50 { // one run in about 30 million is outside of these limits
		t.Errorf("asked about %d of %d, want half", asked, n)
	}
	f.post(t, chat, "X-Warmpath-Policy", "least_load")
	if rec := f.last(t, n+1); rec.Shadow != nil {
		t.Error("the shadow is asked about what it decides itself")
	}
}
