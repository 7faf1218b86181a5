package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// A prefill worker may look well and never end a leg. The request is then served by one worker.
func TestAPrefillLegThatHangsIsGivenUp(t *testing.T) {
	for name, hang := range map[string]func(w http.ResponseWriter){
		"silent":      func(http.ResponseWriter) {},
		"a head only": func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"some bytes": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"choices":[`)
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := serveLegs(t, func(s *settings) { s.policy, s.gateway.TransferTimeout = "kv_aware", 300*time.Millisecond })
			prefill := worker(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				hang(w)
				<-r.Context().Done()
			})
			decode := worker(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"alone","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":2}}`)
			})
			for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
				f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
			}
			resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			got, _ := io.ReadAll(resp.Body)
			r := f.Telemetry.Last(1)[0]
			if resp.StatusCode != http.StatusOK || !strings.Contains(string(got), "alone") || r.Attempts != 2 || r.Bypass != string(policy.BypassNoPrefill) {
				t.Errorf("status %d: %s; %+v", resp.StatusCode, got, r)
			}
		})
	}
}

// An answer in one piece may begin and never go on. The request is then served by one worker.
func TestADecodeLegThatHangsAfterItsHeadIsGivenUp(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.gateway.TransferTimeout = 200 * time.Millisecond })
	prefill := worker(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],`+
			`"remote_engine_id":"P","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	})
	decode := worker(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("remote_engine_id")) {
			_, _ = io.WriteString(w, `{"choices":[`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"alone","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	})
	for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
	}
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !bytes.Contains(got, []byte("alone")) {
		t.Errorf("status %d: %s", resp.StatusCode, got)
	}
}

// sglangPair adds a prefill worker and a decode worker like those of SGLang.
func sglangPair(t *testing.T, f *fixture, prefill, decode http.HandlerFunc) {
	t.Helper()
	for url, role := range map[string]fleet.Role{worker(t, prefill): fleet.RolePrefill, worker(t, decode): fleet.RoleDecode} {
		f.fleet.Put(url, fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role,
			Transfer: fleet.Transfer{Connector: "sglang", LegsOnly: true, Host: "10.0.0.1", Port: 8998}})
	}
}

// Clients do not wait for workers that do not answer an abort.
func TestNobodyWaitsForAnAbort(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.policy = "kv_aware" })
	release := make(chan struct{})
	var aborts atomic.Int64
	sent := make(chan struct{}) // the decode leg: if the prefill leg fails before, there is nothing to abort
	fails := func(begin func()) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/abort_request" {
				aborts.Add(1)
				<-release
				return
			}
			begin()
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	sglangPair(t, f, fails(func() { <-sent }), fails(sync.OnceFunc(func() { close(sent) })))
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if m := f.metrics(t); resp.StatusCode < 500 || !strings.Contains(m, `warmpath_leases_aborted_total{outcome="sent"} 0`) || !strings.Contains(m, `warmpath_leases_aborted_total{outcome="not_sent"} 0`) {
		t.Errorf("status %d after some aborts have ended", resp.StatusCode)
	}
	testenv.Until(t, "the workers are asked to abort", func() bool { return aborts.Load() >= 2 })
	close(release)
}

// A prefill worker that never ends its legs does not delay each answer: the transfers count as failed.
func TestAPrefillLegThatOutlivesItsAnswerIsAFailedTransfer(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.policy = "kv_aware" })
	sglangPair(t, f, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	})
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !bytes.Contains(got, []byte(`"a"`)) {
		t.Errorf("status %d: %s", resp.StatusCode, got)
	}
	if m := f.metrics(t); !strings.Contains(m, `warmpath_leg_failures_total{leg="prefill",phase="prefill"} 1`) {
		t.Error("the prefill leg has not failed")
	}
}

// The prefill worker has no load of a request any more while the decode worker generates.
func TestAPrefillLegThatHasEndedIsNoLoad(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.policy = "kv_aware" })
	release := make(chan struct{})
	sglangPair(t, f, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, `data: {"model":"m","choices":[{"index":0,"text":"b","finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	testenv.Until(t, "only the decode worker has load", func() bool {
		loads := map[fleet.Role]int64{}
		for _, w := range f.fleet.Snapshot().Workers() {
			load := f.fleet.Snapshot().Load(w.Holders[0])
			loads[w.Facts.Role] = load.Requests
		}
		return loads[fleet.RolePrefill] == 0 && loads[fleet.RoleDecode] == 1
	})
	close(release)
	if got, _ := io.ReadAll(resp.Body); !bytes.HasSuffix(got, []byte("data: [DONE]\n\n")) {
		t.Errorf("%s", got)
	}
}

// Held requests look for workers again while run reads when the next one may: the race detector sees if both use a
// field at once.
func TestHeldRequestsOfLegsWaitForADecodeWorker(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.gateway.Hold.MaxWait = time.Minute })
	plain := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}
	facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: fleet.RolePrefill, Transfer: fleet.Transfer{Connector: "nixl"}}
	prefill := worker(t, plain)
	f.fleet.Put(prefill, facts)
	testenv.Until(t, "the gateway holds requests", func() bool { return gateway.Holds(f.Gateway) })
	const requests = 20
	statuses := make(chan int, requests)
	for range requests {
		go func() {
			resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err != nil {
				statuses <- 0
				return
			}
			_ = resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	testenv.Until(t, "requests are held", func() bool { return !strings.Contains(f.metrics(t), "warmpath_held_requests 0\n") })
	for i := range 200 { // each gives all of them a turn, in vain
		facts.Version = strconv.Itoa(i)
		f.fleet.Put(prefill, facts)
		_ = f.metrics(t)
	}
	facts.Role, facts.Transfer = fleet.RoleBoth, fleet.Transfer{}
	f.fleet.Put(worker(t, plain), facts)
	for range requests {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
}

// A prefill worker whose queue is longer than the router knows ends legs one after the other. Its legs are not given
// up.
func TestASlowPrefillWorkerThatEndsLegsKeepsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const legs, each, limit = 6, 150 * time.Millisecond, 300 * time.Millisecond
		const prefill, decode = "http://10.0.0.1:80", "http://10.0.0.2:80"
		turn := make(chan struct{}, 1)
		how := rig{gateway: gateway.DefaultConfig(), answer: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if "http://"+r.Host == decode {
				_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"b","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":2}}`)
				return
			}
			turn <- struct{}{}
			defer func() { <-turn }()
			if takes(r, each); r.Context().Err() != nil {
				return
			}
			_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"a","finish_reason":"length"}],`+
				`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1},`+
				`"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
		}}
		how.gateway.TransferTimeout = limit
		x := askEnginesAs(t, how, 2, time.Hour, time.Millisecond)
		if err := x.Router.ChangePolicies(warmpath.PolicyChange{Standard: "kv_aware", Legs: warmpath.Legs{Mode: policy.ModeAlways}}); err != nil {
			t.Fatal(err)
		}
		for url, role := range map[string]fleet.Role{prefill: fleet.RolePrefill, decode: fleet.RoleDecode} {
			x.fleet.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, Role: role, Transfer: fleet.Transfer{Connector: "nixl"}})
		}
		began := time.Now()
		var all sync.WaitGroup
		for range legs {
			all.Go(func() { x.complete("[1,2]") })
		}
		all.Wait()
		if took := time.Since(began); took < legs*each || took > legs*each+each {
			t.Errorf("the last leg waited for its %d turns of %v: %v", legs, each, took)
		}
		for _, r := range x.Telemetry.Last(legs) {
			if r.Attempts != 1 || r.PrefillWorker == "" {
				t.Errorf("%d attempts, %s", r.Attempts, r.Failed)
			}
		}
	})
}

// The client never sees the parameters of the transfer, also if an engine sends them in a stream.
func TestAStreamHasNoParametersOfTheTransfer(t *testing.T) {
	f := serveLegs(t, func(s *settings) { s.policy = "kv_aware" })
	sglangPair(t, f, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n")
		_, _ = io.WriteString(w, `data: {"model":"m","choices":[{"index":0,"text":"b","finish_reason":"stop"}],"kv_transfer_params":{"remote_host":"10.9.9.9"}}`+"\n\ndata: [DONE]\n\n")
	})
	resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	want := `data: {"model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n" +
		`data: {"model":"m","choices":[{"index":0,"text":"b","finish_reason":"stop"}],"kv_transfer_params":null}` + "\n\ndata: [DONE]\n\n"
	if got, _ := io.ReadAll(resp.Body); string(got) != want {
		t.Errorf("%s", got)
	}
}
