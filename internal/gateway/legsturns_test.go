package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/policy"
)

// twoWay runs a gateway in front of a prefill and a decode engine that exchange blocks in both directions. A decode
// engine keeps the blocks of its answers for the time kept. A transfer takes at most the time limit.
func twoWay(t *testing.T, kept, limit time.Duration) *divided {
	t.Helper()
	d := &divided{fixture: serve(t, func(s *settings) { s.policy, s.gateway.TransferTimeout = "kv_aware", limit })}
	if err := d.Router.ChangePolicies(warmpath.PolicyChange{Standard: "kv_aware", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
		t.Fatal(err)
	}
	for _, role := range []fleet.Role{fleet.RolePrefill, fleet.RoleDecode} {
		s := mock(t, func(c *mockengine.Config) {
			c.Transfer = mockengine.Transfer{
				Connector: mockengine.NIXL, Role: mockengine.Role(role.String()), Bidirectional: true, RecomputeThreshold: -1, Kept: kept,
			}
		})
		d.fleet.Put(s.URL(), fleet.Facts{
			Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16, Role: role,
			Transfer: fleet.Transfer{Connector: "nixl_two_way", TokenBytes: 1000},
		})
		if role == fleet.RolePrefill {
			d.prefill = append(d.prefill, s)
		} else {
			d.decode = append(d.decode, s)
		}
	}
	return d
}

// turnOf is a request for an answer of n tokens to a prompt of ids.
func turnOf(ids []int, n int, more string) string {
	list, _ := json.Marshal(ids)
	return fmt.Sprintf(`{"model":"m","temperature":0,"max_tokens":%d,"min_tokens":%d,"ignore_eos":true,"prompt":%s%s}`, n, n, list, more)
}

// generated returns the ids and the text of an answer.
func generated(t *testing.T, answer string) (ids []int, text string) {
	t.Helper()
	var a struct {
		Choices []struct {
			Text     string
			TokenIDs []int `json:"token_ids"`
		}
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Choices) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	return a.Choices[0].TokenIDs, a.Choices[0].Text
}

// answerOf returns what one engine answers.
func answerOf(t *testing.T, s *mockengine.Server, body string) (ids []int, text string) {
	t.Helper()
	resp, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	return generated(t, string(answer))
}

func promptOf(n int) []int {
	prompt := make([]int, n)
	for i := range prompt {
		prompt[i] = 'a' + i%26
	}
	return prompt
}

// The prefill worker of a conversation's next turn reads the blocks of the last answer from its decode worker. The
// prefill worker of another conversation does not.
func TestTheNextTurnReadsTheAnswersBlocks(t *testing.T) {
	alone := mock(t, nil)
	d := twoWay(t, 0, time.Minute)
	prompt := promptOf(300)
	for turn := range 3 {
		made, want := answerOf(t, alone, turnOf(prompt, 1000, `,"return_token_ids":true`))
		status, got, _ := d.ask(t, "/v1/completions", turnOf(prompt, 1000, ""))
		ids, text := generated(t, got)
		if status != http.StatusOK || text != want || ids != nil || strings.Contains(got, "remote_") {
			t.Errorf("turn %d: status %d, %s; want %q", turn, status, got, want)
		}
		r := d.Telemetry.Last(1)[0]
		if r.PrefillWorker == "" || (r.FetchedTokens > 0) != (turn > 0) || r.FetchedFrom != "" && r.FetchedFrom != d.decode[0].URL() {
			t.Errorf("turn %d: %+v", turn, r)
		}
		prompt = append(append(prompt, made...), 'x', 'y', 'z')
	}
	prompt[0] = 'q' // the same conversation but for one token
	if status, got, _ := d.ask(t, "/v1/completions", turnOf(prompt, 24, "")); status != http.StatusOK {
		t.Errorf("status %d: %s", status, got)
	}
	if r := d.Telemetry.Last(1)[0]; r.FetchedTokens != 0 {
		t.Errorf("%+v", r)
	}
}

// If the next turn does not read the blocks, the decode worker frees them, and does not wait until their time is over.
func TestBlocksThatTheNextTurnDoesNotNeedAreReleased(t *testing.T) {
	alone := mock(t, nil)
	d := twoWay(t, 2*time.Second, time.Minute)
	prompt := promptOf(300)
	for range 3 {
		made, want := answerOf(t, alone, turnOf(prompt, 20, `,"return_token_ids":true`))
		status, got, _ := d.ask(t, "/v1/completions", turnOf(prompt, 20, ""))
		if _, text := generated(t, got); status != http.StatusOK || text != want {
			t.Errorf("status %d, %s; want %q", status, got, want)
		}
		if r := d.Telemetry.Last(1)[0]; r.PrefillWorker == "" || r.FetchedTokens != 0 {
			t.Errorf("%+v", r)
		}
		prompt = append(append(prompt, made...), 'x', 'y', 'z')
	}
	d.released(t)
	if n := metric(t, d.decode[0].URL(), "vllm:nixl_num_kv_expired_reqs_total"); n != 1 {
		t.Errorf("%v leases of the decode worker ended by themselves, want only that of the last turn", n)
	}
}

// The engine may have freed the blocks before the router expects it. The prefill leg is then sent again without them.
func TestAPrefillLegThatCannotReadItsTurnIsSentAgain(t *testing.T) {
	alone := mock(t, nil)
	d := twoWay(t, 50*time.Millisecond, time.Minute)
	prompt := promptOf(300)
	for turn := range 3 {
		made, want := answerOf(t, alone, turnOf(prompt, 1000, `,"return_token_ids":true`))
		status, got, _ := d.ask(t, "/v1/completions", turnOf(prompt, 1000, ""))
		if _, text := generated(t, got); status != http.StatusOK || text != want {
			t.Errorf("turn %d: status %d, %s; want %q", turn, status, got, want)
		}
		r := d.Telemetry.Last(1)[0]
		if failed := strings.Contains(strings.Join(r.Failed, " "), "with KV blocks of"); r.Attempts != 1 || r.PrefillWorker == "" || r.FetchedTokens != 0 || failed != (turn > 0) {
			t.Errorf("turn %d: %+v", turn, r)
		}
		prompt = append(append(prompt, made...), 'x', 'y', 'z')
		d.released(t) // the engine has freed the blocks
	}
}

// A read that never ends does not hold up the request.
func TestAPrefillLegDoesNotWaitForItsTurnWithoutEnd(t *testing.T) {
	alone := mock(t, nil)
	d := twoWay(t, 0, 500*time.Millisecond)
	first := promptOf(300)
	made, _ := answerOf(t, alone, turnOf(first, 1000, `,"return_token_ids":true`))
	if status, got, _ := d.ask(t, "/v1/completions", turnOf(first, 1000, "")); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, got)
	}
	set(d.decode[0], func(f *mockengine.Faults) { f.HoldTransfers = true })
	next := append(append(first, made...), 'x', 'y', 'z')
	_, want := answerOf(t, alone, turnOf(next, 10, ""))
	status, got, _ := d.ask(t, "/v1/completions", turnOf(next, 10, ""))
	set(d.decode[0], func(f *mockengine.Faults) { f.HoldTransfers = false })
	if _, text := generated(t, got); status != http.StatusOK || text != want {
		t.Errorf("status %d, %s; want %q", status, got, want)
	}
	if r := d.Telemetry.Last(1)[0]; r.Attempts != 1 || r.PrefillWorker == "" || r.FetchedTokens != 0 || len(r.Failed) != 1 {
		t.Errorf("%+v", r)
	}
}

// metric returns the sum of the lines of a metric of an engine.
func metric(t *testing.T, url, name string) (sum float64) {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// What a decode worker says about its blocks is used only if it fits the answer: an engine that is to read more blocks
// than there are dies. The client sees neither the parameters nor ids that it did not ask for.
func TestOnlyPlausibleTurnsAreKept(t *testing.T) {
	const prompt = `[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]`
	for kept, reads := range map[string]bool{
		`"remote_block_ids":[[7,8]],"remote_num_tokens":22`: true,
		`"remote_block_ids":[[7]],"remote_num_tokens":22`:   false, // too few blocks
		`"remote_block_ids":[[7,8]],"remote_num_tokens":24`: false, // more tokens than the answer has
		`"remote_block_ids":[[7,8]],"remote_num_tokens":-1`: false,
		`"remote_block_ids":[],"remote_num_tokens":22`:      false,
		`"remote_block_ids":[[7,8]]`:                        false,
	} {
		var mu sync.Mutex
		var legs []string
		prefill := worker(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			legs = append(legs, string(body))
			mu.Unlock()
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,2]],`+
				`"remote_engine_id":"P","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},"usage":{"prompt_tokens":20,"completion_tokens":1}}`)
		})
		decode := worker(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"abc","finish_reason":"stop","prompt_token_ids":`+prompt+`,"token_ids":[21,22,23]}],`+
				`"kv_transfer_params":{"do_remote_decode":true,`+kept+`,"remote_engine_id":"D","remote_request_id":"r","remote_host":"10.0.0.2","remote_port":5600,"tp_size":1},`+
				`"usage":{"prompt_tokens":20,"completion_tokens":3}}`)
		})
		f := serve(t, nil)
		if err := f.Router.ChangePolicies(warmpath.PolicyChange{Standard: "kv_aware", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
			t.Fatal(err)
		}
		for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
			f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl_two_way"}})
		}
		for _, ids := range []string{prompt, strings.Replace(prompt, "20]", "20,21,22,23,24]", 1)} {
			resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":`+ids+`,"max_tokens":3}`))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || strings.Contains(string(got), "[") && strings.Contains(string(got), "21,22") || strings.Contains(string(got), "remote") {
				t.Errorf("%s: status %d: %s", kept, resp.StatusCode, got)
			}
		}
		if len(legs) != 2 || strings.Contains(legs[1], `"remote_engine_id":"D"`) != reads || strings.Contains(legs[0], "remote_engine_id") {
			t.Errorf("%s: prefill legs %q", kept, legs)
		}
	}
}

// Engines that cannot reach each other can neither read nor release. After three failures the next turns try neither.
func TestAPairThatIsLeftAloneGetsNoReleases(t *testing.T) {
	const prompt = `1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20`
	var tried atomic.Int64
	prefill := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"remote_engine_id":"D"`) {
			tried.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,2]],`+
			`"remote_engine_id":"P","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},"usage":{"prompt_tokens":20,"completion_tokens":1}}`)
	})
	decode := worker(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"abc","finish_reason":"stop","prompt_token_ids":[`+prompt+`],"token_ids":[21,22,23]}],`+
			`"kv_transfer_params":{"do_remote_decode":true,"remote_block_ids":[[7,8]],"remote_num_tokens":22,"remote_engine_id":"D","remote_request_id":"r","remote_host":"10.0.0.2","remote_port":5600,"tp_size":1},`+
			`"usage":{"prompt_tokens":20,"completion_tokens":3}}`)
	})
	f := serve(t, nil)
	if err := f.Router.ChangePolicies(warmpath.PolicyChange{Standard: "kv_aware", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
		t.Fatal(err)
	}
	for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl_two_way"}})
	}
	for range 8 {
		resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":[`+prompt+`,21,22,23,24],"max_tokens":3}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if r := f.Telemetry.Last(1)[0]; resp.StatusCode != http.StatusOK || r.PrefillWorker == "" {
			t.Errorf("status %d: %+v", resp.StatusCode, r)
		}
	}
	if n := tried.Load(); n != 3 {
		t.Errorf("%d legs read or released the blocks of a worker that cannot be reached, want 3", n)
	}
}
