package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// mock runs a mock engine until the test ends.
func mock(t *testing.T, change func(*mockengine.Config)) *mockengine.Server {
	t.Helper()
	cfg := mockengine.DefaultConfig()
	cfg.Events, cfg.Replay, cfg.Model = "", "", "m"
	if change != nil {
		change(&cfg)
	}
	s, err := mockengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // ends with ctx; the cleanup waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("mock engine: %v", err)
		}
	})
	<-s.Ready()
	return s
}

// divided is a gateway in front of mock engines that exchange KV blocks over NIXL.
type divided struct {
	*fixture
	prefill, decode []*mockengine.Server
}

// serveLegs runs a gateway without workers that divides each request that can be.
func serveLegs(t *testing.T, change func(*settings)) *fixture {
	t.Helper()
	f := serve(t, func(s *settings) {
		s.policy = "least_load"
		if change != nil {
			change(s)
		}
	})
	if err := f.Router.ChangePolicies(warmpath.PolicyChange{Standard: "least_load", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// divide runs a gateway that divides each request that can be, with so many prefill and decode workers.
func divide(t *testing.T, prefill, decode int, change func(*settings), engine func(role fleet.Role, c *mockengine.Config)) *divided {
	t.Helper()
	d := &divided{fixture: serveLegs(t, change)}
	add := func(role fleet.Role, as mockengine.Role) *mockengine.Server {
		s := mock(t, func(c *mockengine.Config) {
			c.Transfer.Connector, c.Transfer.Role = mockengine.NIXL, as
			if engine != nil {
				engine(role, c)
			}
		})
		d.fleet.Put(s.URL(), fleet.Facts{
			Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16, Role: role,
			Transfer: fleet.Transfer{Connector: "nixl", TokenBytes: 1000},
		})
		return s
	}
	for range prefill {
		d.prefill = append(d.prefill, add(fleet.RolePrefill, mockengine.Prefill))
	}
	for range decode {
		d.decode = append(d.decode, add(fleet.RoleDecode, mockengine.Decode))
	}
	return d
}

// heldAt returns how many blocks requests and leases hold at the engines.
func heldAt(engines ...[]*mockengine.Server) (n int) {
	for _, list := range engines {
		for _, s := range list {
			for _, r := range s.Stats().Ranks {
				n += r.UsedBlocks
			}
		}
	}
	return n
}

// underway returns the number of requests that the router counts at all holders.
func (d *divided) underway() (n int64) {
	snap := d.fleet.Snapshot()
	for h := range fleet.Holder(snap.Holders()) {
		n += snap.Load(h).Requests
	}
	return n
}

// released waits until no block and no load is held.
func (d *divided) released(t *testing.T) {
	t.Helper()
	testenv.Until(t, "blocks and loads are released", func() bool { return heldAt(d.prefill, d.decode) == 0 && d.underway() == 0 })
}

const longPrompt = "many words make many blocks of tokens "

// ask sends a request and returns the answer's status and body.
func (d *divided) ask(t *testing.T, path, body string) (int, string, http.Header) {
	t.Helper()
	resp, err := d.client.Post(d.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer: %v after %q", err, data)
	}
	return resp.StatusCode, string(data), resp.Header
}

// textIn returns the text of an answer, streamed or not.
func textIn(t *testing.T, answer string) (text string) {
	t.Helper()
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		if line == "" || line == "[DONE]" {
			continue
		}
		var event struct {
			Choices []struct {
				Text    string
				Delta   struct{ Content string }
				Message struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		for _, c := range event.Choices {
			text += c.Text + c.Delta.Content + c.Message.Content
		}
	}
	return text
}

// bodies of requests, by path, streamed and not.
func legBodies() map[string]string {
	long := strings.Repeat(longPrompt, 30)
	bodies := map[string]string{}
	for _, stream := range []bool{false, true} {
		bodies[fmt.Sprintf("/v1/chat/completions %v", stream)] = fmt.Sprintf(
			`{"model":"m","temperature":0,"max_tokens":24,"stream":%v,"messages":[{"role":"user","content":"%s"}]}`, stream, long)
		bodies[fmt.Sprintf("/v1/completions %v", stream)] = fmt.Sprintf(
			`{"model":"m","temperature":0,"max_tokens":24,"stream":%v,"prompt":"%s"}`, stream, long)
	}
	return bodies
}

func TestADividedRequestHasTheAnswerOfOneEngine(t *testing.T) {
	alone := mock(t, nil)
	d := divide(t, 1, 1, nil, nil)
	for name, body := range legBodies() {
		path, _, _ := strings.Cut(name, " ")
		resp, err := http.Post(alone.URL()+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		status, got, header := d.ask(t, path, body)
		if status != http.StatusOK || textIn(t, got) != textIn(t, string(want)) || textIn(t, got) == "" {
			t.Errorf("%s: status %d, %q; alone %q", name, status, got, want)
		}
		if strings.Contains(got, "remote_") || strings.Contains(got, "prompt_token_ids\":[") {
			t.Errorf("%s: the client sees the transfer: %s", name, got)
		}
		if header.Get("X-Warmpath-Worker") != d.decode[0].URL() || header.Get("X-Warmpath-Prefill-Worker") != d.prefill[0].URL() {
			t.Errorf("%s: answered by %s with %s", name, header.Get("X-Warmpath-Worker"), header.Get("X-Warmpath-Prefill-Worker"))
		}
	}
	if p, n := d.prefill[0].Stats().Ranks[0], d.decode[0].Stats().Ranks[0]; p.Steps == 0 || n.Steps == 0 {
		t.Errorf("steps of the engines: %+v, %+v", p, n)
	}
	d.released(t)
	recent := d.Telemetry.Last(8)
	if len(recent) != 4 || recent[0].PrefillWorker != d.prefill[0].URL() || recent[0].Worker != d.decode[0].URL() || recent[0].PrefillMS <= 0 {
		t.Errorf("%+v", recent)
	}
}

func TestOnlyTheRouterMovesBlocks(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	for _, field := range []string{`"kv_transfer_params":{"do_remote_prefill":true}`, `"bootstrap_host":"10.0.0.1"`, `"kv_transfer\u005fparams":{}`} {
		status, got, _ := d.ask(t, "/v1/chat/completions", `{"model":"m",`+field+`,"messages":[{"role":"user","content":"a"}]}`)
		if status != http.StatusBadRequest || !strings.Contains(got, "only the router sets it") {
			t.Errorf("%s: status %d: %s", field, status, got)
		}
	}
	if status, got, _ := d.ask(t, "/v1/chat/completions", `{"model":"m","kv_transfer_params":null,"messages":[{"role":"user","content":"a"}]}`); status != http.StatusOK {
		t.Errorf("null: status %d: %s", status, got)
	}
}

func TestSeveralAnswersAreNotDivided(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	status, got, _ := d.ask(t, "/v1/completions", `{"model":"m","n":2,"max_tokens":4,"prompt":"`+strings.Repeat(longPrompt, 30)+`"}`)
	if status != http.StatusOK {
		t.Errorf("status %d: %s", status, got)
	}
	if r := d.Telemetry.Last(1)[0]; r.Bypass != string(policy.BypassAnswers) || r.PrefillWorker != "" {
		t.Errorf("%+v", r)
	}
}

// TestFaultsOfLegs: whatever fails before the first byte, the client gets the whole answer, and nothing stays held.
func TestFaultsOfLegs(t *testing.T) {
	const path = "/v1/chat/completions"
	for _, c := range []struct {
		name            string
		prefill, decode int
		fault           func(d *divided)
		mend            func(d *divided)
	}{
		{"the prefill worker answers 500", 2, 1, func(d *divided) { set(d.prefill[0], func(f *mockengine.Faults) { f.PrefillErrors = 1 }) }, nil},
		{"all prefill workers answer 500", 2, 1, func(d *divided) {
			for _, s := range d.prefill {
				set(s, func(f *mockengine.Faults) { f.PrefillErrors = 1 })
			}
		}, nil},
		{"the prefill worker is dead", 1, 1, func(d *divided) { _ = d.prefill[0].Die() }, nil},
		{"the decode worker refuses", 1, 2, func(d *divided) { set(d.decode[0], func(f *mockengine.Faults) { f.DecodeRefusals = 1 }) }, nil},
		{"the only decode worker refuses blocks", 1, 1, func(d *divided) { set(d.decode[0], func(f *mockengine.Faults) { f.DecodeRefusals = 1 }) }, nil},
		{"no decode worker can load blocks", 2, 2, func(d *divided) {
			for _, s := range d.decode {
				set(s, func(f *mockengine.Faults) { f.DecodeRefusals = 1 })
			}
		}, nil},
		{"the decode worker is dead", 1, 2, func(d *divided) { _ = d.decode[0].Die() }, nil},
		{"the transfer never ends", 1, 1, func(d *divided) { set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = true }) },
			func(d *divided) { set(d.prefill[0], func(f *mockengine.Faults) { f.HoldTransfers = false }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := divide(t, c.prefill, c.decode, func(s *settings) { s.gateway.TransferTimeout = 300 * time.Millisecond },
				func(_ fleet.Role, cfg *mockengine.Config) { cfg.Transfer.Lease = 2 * time.Second })
			body := legBodies()[path+" true"]
			_, want, _ := d.ask(t, path, body)
			c.fault(d)
			for i := range 4 {
				fresh := strings.Replace(body, longPrompt, fmt.Sprintf("%d ", i)+longPrompt, 1)
				status, got, _ := d.ask(t, path, fresh)
				if status != http.StatusOK || textIn(t, got) == "" || !strings.HasSuffix(got, "data: [DONE]\n\n") {
					t.Fatalf("request %d: status %d: %q; before the fault %q; %+v", i, status, got, want, d.Telemetry.Last(1))
				}
				if rec := d.Telemetry.Last(1)[0]; rec.PrefillWorker == "" && rec.PrefillMS != 0 {
					t.Errorf("request %d was served by one worker, and its prefill leg took %v ms", i, rec.PrefillMS)
				}
			}
			if c.mend != nil {
				c.mend(d)
			}
			d.released(t)
		})
	}
}

// A request whose only prefill worker freezes is served by the decode worker alone.
func TestAFrozenPrefillWorkerLosesItsRequests(t *testing.T) {
	d := divide(t, 1, 1, nil, nil)
	set(d.prefill[0], func(f *mockengine.Faults) { f.Frozen = true })
	answered := make(chan string, 1)
	go func() { // ends with the answer, which the test waits for
		resp, err := d.client.Post(d.url+"/v1/chat/completions", "application/json", strings.NewReader(legBodies()["/v1/chat/completions true"]))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		data, err := io.ReadAll(resp.Body)
		answered <- fmt.Sprint(resp.StatusCode, err, string(data))
	}()
	testenv.Until(t, "the prefill leg is under way", func() bool { return d.fleet.Snapshot().Load(0).Requests == 1 })
	d.fleet.Suspect(0, true, time.Now().UnixNano())
	if got := <-answered; !strings.HasPrefix(got, "200 <nil>") {
		t.Error(got)
	}
	if r := d.Telemetry.Last(1); len(r) != 1 || r[0].Bypass != string(policy.BypassNoPrefill) || r[0].Worker != d.decode[0].URL() {
		t.Errorf("%+v", r)
	}
	set(d.prefill[0], func(f *mockengine.Faults) { f.Frozen = false })
}

func set(s *mockengine.Server, change func(*mockengine.Faults)) {
	f := s.Faults()
	change(&f)
	if err := s.SetFaults(f); err != nil {
		panic(err)
	}
}

func TestARefusalOfThePrefillIsTheClients(t *testing.T) {
	refuses := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"temperature must be positive"}}`)
	}
	f := serveLegs(t, nil)
	for url, role := range map[string]fleet.Role{worker(t, refuses): fleet.RolePrefill, worker(t, refuses): fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
	}
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","temperature":-3}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), "temperature") {
		t.Errorf("status %d: %s; %+v", resp.StatusCode, got, f.Telemetry.Last(1))
	}
}

func TestAClientThatLeavesHoldsNothing(t *testing.T) {
	d := divide(t, 1, 1, nil, func(_ fleet.Role, c *mockengine.Config) { c.Transfer.Lease = time.Second; c.Speed = 0 })
	body := legBodies()["/v1/chat/completions true"]
	for i := range 40 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*500*time.Microsecond)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := d.client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		cancel()
	}
	d.released(t)
	if status, got, _ := d.ask(t, "/v1/chat/completions", body); status != http.StatusOK {
		t.Errorf("afterwards: status %d: %s", status, got)
	}
}

func TestPromptLogprobsAndCachedTokensComeFromThePrefillLeg(t *testing.T) {
	prefill := worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !bytes.Contains(body, []byte(`"do_remote_decode": true`)) && !bytes.Contains(body, []byte(`"do_remote_decode":true`)) {
			t.Errorf("prefill leg: %s", body)
		}
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length","prompt_logprobs":[null,{"7":{"logprob":-1}}],"prompt_token_ids":[5,7]}],`+
			`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},`+
			`"usage":{"prompt_tokens":2,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1}}}`)
	})
	decode := worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !bytes.Contains(body, []byte(`"prompt":[5,7]`)) || !bytes.Contains(body, []byte(`"prompt_logprobs":null`)) {
			t.Errorf("decode leg: %s", body)
		}
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"ab","finish_reason":"stop","prompt_logprobs":null}],"kv_transfer_params":{"remote_block_ids":[[9]]},"usage":{"prompt_tokens":2,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2}}}`)
	})
	f := serveLegs(t, nil)
	for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
	}
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2,"prompt_logprobs":1}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, _ := io.ReadAll(resp.Body)
	want := `{"choices":[{"index":0,"text":"ab","finish_reason":"stop","prompt_logprobs":[null,{"7":{"logprob":-1}}]}],"kv_transfer_params":null,"usage":{"prompt_tokens":2,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// rooms runs a gateway in front of mock engines that imitate SGLang: both legs are sent at once. There are
// so many workers for each leg.
func rooms(t *testing.T, each int, change func(*settings)) *divided {
	t.Helper()
	d := &divided{fixture: serveLegs(t, change)}
	for i := range 2 * each {
		role := []fleet.Role{fleet.RolePrefill, fleet.RoleDecode}[i%2]
		s := mock(t, func(c *mockengine.Config) {
			c.Kind, c.Version, c.Transfer.RetryEvery = mockengine.SGLang, "", 5*time.Millisecond
			c.Transfer.Connector, c.Transfer.Role = mockengine.Rooms, mockengine.Role(role.String())
		})
		facts := fleet.Facts{
			Engine: fleet.EngineSGLang, Version: "0.5.23", Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16, Role: role,
			Transfer: fleet.Transfer{Connector: "sglang", LegsOnly: true},
		}
		if role == fleet.RolePrefill {
			host, port, err := net.SplitHostPort(s.SideChannel())
			if err != nil {
				t.Fatal(err)
			}
			facts.Transfer.Host = host
			if facts.Transfer.Port, err = strconv.Atoi(port); err != nil {
				t.Fatal(err)
			}
			d.prefill = append(d.prefill, s)
		} else {
			d.decode = append(d.decode, s)
		}
		d.fleet.Put(s.URL(), facts)
	}
	return d
}

func TestBothLegsMeetInARoom(t *testing.T) {
	alone := mock(t, func(c *mockengine.Config) { c.Kind, c.Version = mockengine.SGLang, "" })
	d := rooms(t, 1, nil)
	for name, body := range legBodies() {
		path, _, _ := strings.Cut(name, " ")
		resp, err := http.Post(alone.URL()+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		status, got, _ := d.ask(t, path, body)
		if status != http.StatusOK || textIn(t, got) != textIn(t, string(want)) || textIn(t, got) == "" {
			t.Errorf("%s: status %d, %q; alone %q; %+v", name, status, got, want, d.Telemetry.Last(1))
		}
	}
	if p, n := d.prefill[0].Stats().Ranks[0], d.decode[0].Stats().Ranks[0]; p.Steps == 0 || n.Steps == 0 {
		t.Errorf("steps of the engines: %+v, %+v", p, n)
	}
	d.released(t)
}

func TestOneLegThatFailsEndsTheOther(t *testing.T) {
	const path = "/v1/chat/completions"
	for _, c := range []struct {
		name  string
		fault func(prefill, decode *mockengine.Server)
	}{
		{"the prefill worker answers 500", func(p, _ *mockengine.Server) { set(p, func(f *mockengine.Faults) { f.Errors = 1 }) }},
		{"the prefill worker is dead", func(p, _ *mockengine.Server) { _ = p.Die() }},
		{"the decode worker answers 500", func(_, d *mockengine.Server) { set(d, func(f *mockengine.Faults) { f.Errors = 1 }) }},
		{"the decode worker is dead", func(_, d *mockengine.Server) { _ = d.Die() }},
		{"the transfer never ends", func(p, _ *mockengine.Server) { set(p, func(f *mockengine.Faults) { f.HoldTransfers = true }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			patient := func(s *settings) { s.gateway.TransferTimeout = 400 * time.Millisecond }
			d := rooms(t, 2, patient)
			c.fault(d.prefill[0], d.decode[0])
			for range 4 {
				if status, got, _ := d.ask(t, path, legBodies()[path+" true"]); status != http.StatusOK || textIn(t, got) == "" {
					t.Fatalf("status %d: %q; %+v", status, got, d.Telemetry.Last(1))
				}
			}
			only := rooms(t, 1, patient) // nobody else can serve the request: the client must not wait
			c.fault(only.prefill[0], only.decode[0])
			if status, got, _ := only.ask(t, path, legBodies()[path+" false"]); c.name != "the transfer never ends" && status < 500 {
				t.Errorf("status %d: %q", status, got)
			}
		})
	}
}

// A stream that lost its decode worker continues at one other worker.
func TestADecodeLegIsRecovered(t *testing.T) {
	d := divide(t, 1, 2, func(s *settings) { s.gateway.StreamRecovery = gateway.RecoverExact }, func(_ fleet.Role, c *mockengine.Config) { c.Speed = 1 })
	body := strings.Replace(legBodies()["/v1/completions true"], `"max_tokens":24`, `"max_tokens":60`, 1)
	_, want, _ := d.ask(t, "/v1/completions", body)
	resp, err := d.client.Post(d.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	begin := make([]byte, 600)
	if _, err := io.ReadFull(resp.Body, begin); err != nil {
		t.Fatal(err)
	}
	for _, s := range d.decode {
		if s.URL() == resp.Header.Get("X-Warmpath-Worker") {
			_ = s.Die()
		}
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := textIn(t, string(begin)+string(rest)); got != textIn(t, want) {
		t.Errorf("got  %q\nwant %q", got, textIn(t, want))
	}
	if r := d.Telemetry.Last(1)[0]; len(r.Recovered) != 1 || r.Bypass != string(policy.BypassContinued) {
		t.Errorf("%+v", r)
	}
}
