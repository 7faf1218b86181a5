package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// A request with several prompts has several prefills, and one transfer carries only one of them.
func TestSeveralPromptsAreNotDivided(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	long := strings.Repeat(longPrompt, 30)
	for _, several := range []string{`["` + long + `","` + long + `"]`, `[[1,2,3],[1,2,4]]`} {
		status, got, _ := d.ask(t, "/v1/completions", `{"model":"m","max_tokens":4,"prompt":`+several+`}`)
		if status != http.StatusOK || strings.Count(got, `"index":`) != 2 {
			t.Errorf("%.20s: status %d: %s", several, status, got)
		}
		if r := d.Telemetry.Last(1)[0]; r.Bypass != string(policy.BypassAnswers) || r.PrefillWorker != "" || r.Worker != d.decode[0].URL() {
			t.Errorf("%.20s: %+v", several, r)
		}
	}
}

// SGLang takes members of a body from the header, too: a client must not name a bootstrap server there.
func TestOnlyTheRouterNamesABootstrapServerInTheHeader(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Override-Bootstrap-Host", "10.0.0.1")
	resp, err := d.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), "only the router sets it") {
		t.Errorf("status %d: %s", resp.StatusCode, got)
	}
}

// However many prefill workers fail, the last attempt is at one worker, which serves the whole request.
func TestTheLastAttemptIsNotDivided(t *testing.T) {
	d := divide(t, 5, 1, nil, nil)
	for _, s := range d.prefill {
		set(s, func(f *mockengine.Faults) { f.PrefillErrors = 1 })
	}
	body := legBodies()["/v1/completions true"]
	if status, got, _ := d.ask(t, "/v1/completions", body); status != http.StatusOK || textIn(t, got) == "" {
		t.Errorf("status %d: %s", status, got)
	}
	if r := d.Telemetry.Last(1)[0]; r.Attempts != 3 || r.Bypass != string(policy.BypassOneWorker) || r.Worker != d.decode[0].URL() || len(r.Failed) != 2 {
		t.Errorf("%+v", r)
	}
}

// Each failed transfer counts against its pair. After the third in a row, the next requests do not try it.
func TestThreeFailedTransfersEndTheTrialsOfAPair(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	set(d.decode[0], func(f *mockengine.Faults) { f.DecodeRefusals = 1 })
	body := legBodies()["/v1/completions true"]
	for i := range 5 {
		if status, got, _ := d.ask(t, "/v1/completions", body); status != http.StatusOK || textIn(t, got) == "" {
			t.Errorf("request %d: status %d: %s", i, status, got)
		}
		r := d.Telemetry.Last(1)[0]
		if tried := i < 3; tried && r.Attempts != 2 || !tried && (r.Attempts != 1 || r.Bypass != string(policy.BypassNoDecode)) {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

// A decode worker whose process has ended says nothing about the link.
func TestADeadDecodeWorkerIsNoFailedTransfer(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	if status, got, _ := d.ask(t, "/v1/completions", legBodies()["/v1/completions true"]); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, got)
	}
	_ = d.decode[0].Die()
	d.ask(t, "/v1/completions", legBodies()["/v1/completions true"])
	for _, l := range d.fleet.Snapshot().Links() {
		if l.Failures != 0 {
			t.Errorf("%d failures between %s and %s", l.Failures, l.From.URL, l.To.URL)
		}
	}
}

// together runs a gateway in front of one prefill and one decode worker whose legs are sent at once. A request has one
// attempt.
func together(t *testing.T, prefill, decode string) *fixture {
	t.Helper()
	f := serveLegs(t, func(s *settings) { s.gateway.Attempts = 1 })
	for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{
			Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role,
			Transfer: fleet.Transfer{Connector: "sglang", LegsOnly: true, Host: "127.0.0.1", Port: 8998},
		})
	}
	return f
}

// If the prefill leg fails, the decode worker waits for blocks that never come: its leg is ended at once.
func TestAFailedPrefillLegEndsTheDecodeLegAtOnce(t *testing.T) {
	arrived, ended := make(chan struct{}), make(chan struct{})
	prefill := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasSuffix(r.URL.Path, "/completions") {
			<-arrived
			http.Error(w, "no memory", http.StatusInternalServerError)
		}
	})
	decode := worker(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasSuffix(r.URL.Path, "/completions") {
			close(arrived)
			<-r.Context().Done()
			close(ended)
		}
	})
	f := together(t, prefill, decode) // its limit of a transfer is 30 s
	began := time.Now()
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a b c","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode < 500 || time.Since(began) > 20*time.Second {
		t.Errorf("status %d after %v: %s", resp.StatusCode, time.Since(began), got)
	}
	<-ended
}

// If the decode leg fails, the prefill leg is ended, which is no failure of the prefill worker. Both engines are told,
// and the lease of the prefill worker is counted.
func TestAFailedDecodeLegEndsThePrefillLeg(t *testing.T) {
	arrived := make(chan struct{})
	var aborts atomic.Int64
	prefill := worker(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/abort_request":
			aborts.Add(1)
		case strings.HasSuffix(r.URL.Path, "/completions"):
			close(arrived)
			<-r.Context().Done()
		}
	})
	decode := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/abort_request":
			aborts.Add(1)
		case strings.HasSuffix(r.URL.Path, "/completions"):
			<-arrived
			http.Error(w, "no memory", http.StatusInternalServerError)
		}
	})
	f := together(t, prefill, decode)
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a b c","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	testenv.Until(t, "both engines are told, and the lease is counted", func() bool {
		return aborts.Load() == 2 && strings.Contains(f.metrics(t), `warmpath_leases_aborted_total{outcome="sent"} 1`)
	})
	if m := f.metrics(t); resp.StatusCode < 500 || !strings.Contains(m, `warmpath_leg_failures_total{leg="prefill",phase="prefill"} 0`) ||
		!strings.Contains(m, `warmpath_leg_failures_total{leg="decode",phase="transfer"} 1`) {
		t.Errorf("status %d; %s", resp.StatusCode, linesWith(m, "warmpath_leg"))
	}
}

// linesWith returns the lines of a text that begin with this.
func linesWith(text, begin string) (found string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) {
			found += line
		}
	}
	return found
}

// The metrics have each leg of a divided request, its transfer with its bytes, and the lease of a decode leg that was
// refused, which no request to a vLLM ends.
func TestTheLegsAndTransfersOfRequestsAreMetrics(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	body := legBodies()["/v1/completions true"]
	if status, got, _ := d.ask(t, "/v1/completions", body); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, got)
	}
	tokens := d.Telemetry.Last(1)[0].TransferTokens
	set(d.decode[0], func(f *mockengine.Faults) { f.DecodeRefusals = 1 })
	d.ask(t, "/v1/completions", strings.Replace(body, longPrompt, "1 "+longPrompt, 1))
	m := d.metrics(t)
	for _, want := range []string{
		`warmpath_divided_total 2`, `warmpath_bypassed_total{reason="one_worker"} 1`, `warmpath_leg_requests_total{leg="prefill"} 2`, `warmpath_leg_requests_total{leg="decode"} 1`,
		`warmpath_leg_seconds_count{leg="prefill"} 2`, `warmpath_leg_failures_total{leg="decode",phase="transfer"} 1`, `warmpath_transfer_seconds_count 1`,
		fmt.Sprintf(`warmpath_transfer_tokens_total %v`, float64(tokens)), fmt.Sprintf(`warmpath_transfer_bytes_total %v`, 1000*float64(tokens)),
		`warmpath_leases_aborted_total{outcome="not_sent"} 1`,
	} {
		if tokens == 0 || !strings.Contains(m, want+"\n") {
			t.Errorf("no %s in\n%s", want, linesWith(m, "warmpath_transfer")+linesWith(m, "warmpath_leg")+linesWith(m, "warmpath_lease")+linesWith(m, "warmpath_div")+linesWith(m, "warmpath_byp"))
		}
	}
}

// A decode engine keeps the blocks of a leg whose prefill leg never comes: so it gets none if the prefill worker cannot
// be reached, and has nothing to abort.
func TestNoDecodeLegIsSentBeforeThePrefillLeg(t *testing.T) {
	gone := dead(t)
	var asked atomic.Int64
	decode := worker(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, _ = io.Copy(io.Discard, r.Body); r.Method == http.MethodPost {
			asked.Add(1)
		}
	})
	f := together(t, gone, decode)
	for range 5 {
		resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a b c","max_tokens":4}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	_ = f.stop() // waits for aborts
	m := f.metrics(t)
	if n := asked.Load(); n != 0 || !strings.Contains(m, `warmpath_leases_aborted_total{outcome="not_sent"} 0`) || strings.Contains(m, `warmpath_leg_failures_total{leg="prefill",phase="prefill"} 0`) {
		t.Errorf("%d decode legs and aborts without a prefill leg; %s", n, linesWith(m, "warmpath_leases")+linesWith(m, "warmpath_leg_failures"))
	}
}

// Each leg names the rank that was chosen for it.
func TestEachLegNamesItsRank(t *testing.T) {
	var mu sync.Mutex
	ranks := map[string]string{} // by the URL's host: that of the last leg
	of := func(answer string) string {
		return worker(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasSuffix(r.URL.Path, "/completions") {
				ranks["http://"+r.Host] = r.Header.Get("X-Data-Parallel-Rank")
			}
			_, _ = io.WriteString(w, answer)
		})
	}
	prefill := of(`{"choices":[{"index":0,"text":"a","finish_reason":"length","prompt_token_ids":[5,7]}],"kv_transfer_params":{"do_remote_prefill":true,` +
		`"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}}`)
	decode := of(`{"choices":[{"index":0,"text":"ab","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":2}}`)
	f := serveLegs(t, nil)
	for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Ranks: 4, DeclaredRanks: 4, Transfer: fleet.Transfer{Connector: "nixl"}})
	}
	for range 8 {
		resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		mu.Lock()
		r := f.Telemetry.Last(1)[0]
		if r.PrefillWorker != prefill || ranks[prefill] != fmt.Sprint(r.PrefillRank) || ranks[decode] != fmt.Sprint(r.Rank) {
			t.Errorf("ranks %v: %+v", ranks, r)
		}
		mu.Unlock()
	}
}

// The logprobs of the prompt of SGLang's own endpoint are those of the prefill engine, which has computed them.
func TestPromptLogprobsOfGenerateComeFromThePrefillLeg(t *testing.T) {
	of := func(answer string) string {
		return worker(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, answer)
		})
	}
	f := together(t, of(`{"text":"a","meta_info":{"finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,"input_token_logprobs":[[null,5,null],[-1.5,7,null]]}}`),
		of(`{"text":"ab","meta_info":{"finish_reason":{"type":"length","length":2},"prompt_tokens":2,"completion_tokens":2,"input_token_logprobs":[]}}`))
	resp, err := f.client.Post(f.url+"/generate", "application/json", strings.NewReader(`{"text":"x","return_logprob":true,"logprob_start_len":0}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, _ := io.ReadAll(resp.Body)
	if want := `{"text":"ab","meta_info":{"finish_reason":{"type":"length","length":2},"prompt_tokens":2,"completion_tokens":2,"input_token_logprobs":[[null,5,null],[-1.5,7,null]]}}`; resp.StatusCode != http.StatusOK || string(got) != want {
		t.Errorf("status %d: %s\nwant %s", resp.StatusCode, got, want)
	}
}
