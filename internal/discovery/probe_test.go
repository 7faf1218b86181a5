package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// answers are the answers of a fake engine by method and path. All other requests get status 404. If a body begins with
// a number from 300 to 999 and a space, the number is the status.
type answers map[string]string

const (
	vllmModels = `{"object":"list","data":[{"id":"tiny","object":"model","created":1763700000,"owned_by":"vllm","root":"/models/tiny-llama","parent":null,"max_model_len":32768,"permission":[]},` +
		`{"id":"sql","object":"model","owned_by":"vllm","root":"/models/sql","parent":"tiny","max_model_len":null}]}`
	vllmSources = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}}`
	vllmMetrics = "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n" +
		`vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="131072",num_gpu_blocks="4096",odd="a\"b,c}\\",sliding_window="None"} 1.0` + "\n"
)

func vllm032() answers {
	return answers{
		"GET /health":                      "",
		"GET /version":                     `{"version":"0.32.0"}`,
		"GET /v1/models":                   vllmModels,
		"GET /kv_event_sources":            vllmSources,
		"GET /metrics":                     vllmMetrics,
		"GET /server_info":                 "500 Internal Server Error",
		"POST /tokenize":                   `{"count":1,"max_model_len":32768,"tokens":[64],"token_strs":null}`,
		"POST /v1/chat/completions/render": `403 {"error":{"message":"Start the server with --enable-scale-out"}}`,
	}
}

func sglang0523() answers {
	return answers{
		"GET /health":    "",
		"GET /v1/models": `{"object":"list","data":[{"id":"tiny","object":"model","created":1763700000,"owned_by":"sglang","root":"tiny","parent":null,"max_model_len":32768}]}`,
		"GET /server_info": `{"model_path":"/models/tiny","tokenizer_path":"/models/tiny-words","page_size":32,"dp_size":1,"version":"0.5.23","enable_cache_report":true,"max_total_num_tokens":65536,` +
			`"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":15677,"topic":"kv-events","block_size":32,"dp_size":1,"replay_endpoint_port_base":15777},"internal_states":[{}]}`,
		"POST /tokenize": `{"tokens":[64],"count":1,"max_model_len":32768}`,
	}
}

func (a answers) with(path, body string) answers {
	b := answers{}
	for k, v := range a {
		b[k] = v
	}
	if body == "404" {
		delete(b, path)
	} else {
		b[path] = body
	}
	return b
}

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := a[r.Method+" "+r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if code, rest, ok := strings.Cut(body, " "); ok && len(code) == 3 {
		if status, err := strconv.Atoi(code); err == nil && status >= 300 {
			w.WriteHeader(status)
			body = rest
		}
	}
	fmt.Fprint(w, body)
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func probeOf(t *testing.T, target Target) *Report {
	t.Helper()
	client := NewClient(nil, nil)
	t.Cleanup(client.CloseIdleConnections)
	r, err := Probe(t.Context(), client, target)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAProbeReadsEnginesAnswers(t *testing.T) {
	vllmFacts := fleet.Facts{
		Engine: fleet.EngineVLLM, Version: "0.32.0",
		Models:    []fleet.Model{{ID: "tiny", Root: "/models/tiny-llama", MaxModelLen: 32768}, {ID: "sql", Root: "/models/sql", Parent: "tiny"}},
		BlockSize: 32, BlocksPerRank: 4096, Ranks: 1,
		Events:      []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657", Topic: "kv-events"}},
		CanTokenize: true,
	}
	sglangFacts := fleet.Facts{
		Engine: fleet.EngineSGLang, Version: "0.5.23", Models: []fleet.Model{{ID: "tiny", Root: "tiny", MaxModelLen: 32768}},
		BlockSize: 32, BlocksPerRank: 2048, Ranks: 1,
		Events:      []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:15677", Replay: "tcp://127.0.0.1:15777", Topic: "kv-events"}},
		Origins:     []string{"/models/tiny-words", "/models/tiny"},
		CanTokenize: true, ReportsCachedTokens: true,
	}
	twoRankMetrics := strings.Repeat(`vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="%",kv_cache_size_tokens="65536",num_gpu_blocks="4096"} 1.0`+"\n", 2)
	twoRankMetrics = strings.Replace(strings.Replace(twoRankMetrics, "%", "1", 1), "%", "0", 1)
	for _, test := range []struct {
		name    string
		engine  answers
		options string // options that follow the URL
		change  func(*fleet.Facts)
		base    fleet.Facts
		guessed bool
		note    string // part of a note that the report must have
	}{
		{name: "vLLM 0.32", engine: vllm032(), base: vllmFacts},
		{name: "vLLM that renders", engine: vllm032().with("POST /v1/chat/completions/render", `{"request_id":"r","token_ids":[1,2],"features":null}`), base: vllmFacts,
			change: func(f *fleet.Facts) { f.CanRender = true }},
		{name: "vLLM without a chat template renders completions", engine: vllm032().with("POST /v1/chat/completions/render", `400 {"error":{"message":"no chat template"}}`), base: vllmFacts,
			change: func(f *fleet.Facts) { f.CanRender = true }},
		{name: "two ranks", base: vllmFacts,
			engine: vllm032().with("GET /metrics", twoRankMetrics).with("GET /kv_event_sources",
				`{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5658","topic":""},"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":""}}`),
			change: func(f *fleet.Facts) {
				f.Ranks, f.BlocksPerRank = 2, 2048
				f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657"}, {Rank: 1, Endpoint: "tcp://127.0.0.1:5558", Replay: "tcp://127.0.0.1:5658"}}
			}},
		{name: "two ranks, capacity only as the sum", base: vllmFacts,
			engine: vllm032().with("GET /metrics", strings.ReplaceAll(twoRankMetrics, `kv_cache_size_tokens="65536",`, "")),
			change: func(f *fleet.Facts) { f.Ranks, f.BlocksPerRank = 2, 2048 }},
		{name: "one rank of an externally balanced group", base: vllmFacts,
			engine: vllm032().with("GET /kv_event_sources", `{"3":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5560","replay_endpoint":null,"topic":""}}`).
				with("GET /metrics", strings.ReplaceAll(vllmMetrics, `engine="0"`, `engine="3"`)),
			change: func(f *fleet.Facts) {
				f.FirstRank = 3
				f.Events = []fleet.EventSource{{Rank: 3, Endpoint: "tcp://127.0.0.1:5560"}}
			}},
		{name: "older vLLM does not report its endpoint", engine: vllm032().with("GET /kv_event_sources", "404"), base: vllmFacts, guessed: true,
			change: func(f *fleet.Facts) { f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:5557"}} },
			note:   "trying port 5557"},
		{name: "older vLLM, two ranks", engine: vllm032().with("GET /kv_event_sources", "404").with("GET /metrics", twoRankMetrics), base: vllmFacts, guessed: true,
			change: func(f *fleet.Facts) {
				f.Ranks, f.BlocksPerRank = 2, 2048
				f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:5557"}, {Rank: 1, Endpoint: "tcp://127.0.0.1:5558"}}
			}},
		{name: "older vLLM whose endpoints the operator gives", engine: vllm032().with("GET /kv_event_sources", "404"), base: vllmFacts,
			options: ",events=tcp://*:6000,replay=tcp://10.0.0.9:6001,topic=kv",
			change: func(f *fleet.Facts) {
				f.Events = []fleet.EventSource{{Endpoint: "tcp://127.0.0.1:6000", Replay: "tcp://10.0.0.9:6001", Topic: "kv"}}
			}},
		{name: "the operator says that there are no events", engine: vllm032(), base: vllmFacts, options: ",events=none", change: func(f *fleet.Facts) { f.Events = nil }},
		{name: "the operator says that there is no replay", engine: vllm032(), base: vllmFacts, options: ",replay=none", change: func(f *fleet.Facts) { f.Events[0].Replay = "" }},
		{name: "older vLLM without prefix caching", base: vllmFacts, note: "prefix caching is off",
			engine: vllm032().with("GET /kv_event_sources", "404").with("GET /metrics", strings.ReplaceAll(vllmMetrics, `enable_prefix_caching="True"`, `enable_prefix_caching="False"`)),
			change: func(f *fleet.Facts) { f.Events = nil }},
		{name: "vLLM without events", engine: vllm032().with("GET /kv_event_sources", `{}`), base: vllmFacts, note: "--kv-events-config",
			change: func(f *fleet.Facts) { f.Events = nil }},
		{name: "vLLM that dials the router", base: vllmFacts, note: "connects to tcp://router:5557 for KV events instead of listening: write tcp://*:PORT",
			engine: vllm032().with("GET /kv_event_sources", strings.ReplaceAll(vllmSources, "tcp://*:5557", "tcp://router:5557")),
			change: func(f *fleet.Facts) { f.Events = nil }},
		{name: "vLLM that binds an address of its own", engine: vllm032().with("GET /kv_event_sources", strings.ReplaceAll(vllmSources, "tcp://*:", "tcp://localhost:")), base: vllmFacts,
			change: func(f *fleet.Facts) {
				f.Events[0].Endpoint, f.Events[0].Replay = "tcp://localhost:5557", "tcp://localhost:5657"
			}},
		{name: "vLLM without metrics", engine: vllm032().with("GET /metrics", "404"), base: vllmFacts, note: "block size and capacity are unknown",
			change: func(f *fleet.Facts) { f.BlockSize, f.BlocksPerRank = 0, 0 }},
		{name: "the operator gives the model", engine: vllm032(), base: vllmFacts, options: ",model=alias", note: `"alias" is not in the worker's list`,
			change: func(f *fleet.Facts) { f.Models[0].ID, f.Models[1].Parent = "alias", "alias" }},
		{name: "SGLang 0.5.23", engine: sglang0523(), base: sglangFacts},
		{name: "SGLang behind another owner", engine: sglang0523().with("GET /v1/models", `{"data":[{"id":"tiny","root":"tiny","max_model_len":32768,"owned_by":"me"}]}`), base: sglangFacts},
		{name: "SGLang, two ranks", base: sglangFacts,
			engine: sglang0523().with("GET /server_info", strings.ReplaceAll(sglang0523()["GET /server_info"], `"dp_size":1`, `"dp_size":2`)),
			change: func(f *fleet.Facts) {
				f.Ranks = 2
				f.Events = append(f.Events, fleet.EventSource{Rank: 1, Endpoint: "tcp://127.0.0.1:15678", Replay: "tcp://127.0.0.1:15778", Topic: "kv-events"})
			}},
		{name: "SGLang without events", note: "--kv-events-config", base: sglangFacts,
			engine: sglang0523().with("GET /server_info", `{"model_path":"/models/tiny","page_size":32,"dp_size":1,"version":"0.5.23","enable_cache_report":true,"max_total_num_tokens":65536,"kv_events":null}`),
			change: func(f *fleet.Facts) { f.Events, f.Origins = nil, []string{"/models/tiny"} }},
		{name: "SGLang that does not report its events", note: "give events=ENDPOINT", base: sglangFacts,
			engine: sglang0523().with("GET /server_info", `{"model_path":"/models/tiny","page_size":32,"dp_size":1,"version":"0.5.23","enable_cache_report":true,"max_total_num_tokens":65536}`),
			change: func(f *fleet.Facts) { f.Events, f.Origins = nil, []string{"/models/tiny"} }},
		{name: "TensorRT-LLM", note: "events=ENDPOINT",
			engine: answers{"GET /v1/models": `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`, "GET /version": `{"version":"1.3.0rc1"}`},
			base:   fleet.Facts{Engine: fleet.EngineTRTLLM, Version: "1.3.0rc1", Models: []fleet.Model{{ID: "m"}}, Ranks: 1}},
		{name: "labels", options: ",label.zone=b", engine: answers{"GET /v1/models": `{"data":[{"id":"m"}]}`},
			base: fleet.Facts{Engine: fleet.EngineOther, Models: []fleet.Model{{ID: "m"}}, Ranks: 1, Labels: map[string]string{"zone": "b"}}},
		{name: "anything else", engine: answers{"GET /v1/models": `{"data":[{"id":"m"}]}`}, base: fleet.Facts{Engine: fleet.EngineOther, Models: []fleet.Model{{ID: "m"}}, Ranks: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			target, err := ParseTarget(serve(t, test.engine) + "/v1" + test.options)
			if err != nil {
				t.Fatal(err)
			}
			r := probeOf(t, target)
			want := test.base
			want.Models = append([]fleet.Model(nil), want.Models...)
			want.Events = append([]fleet.EventSource(nil), want.Events...)
			if test.change != nil {
				test.change(&want)
			}
			if len(want.Events) == 0 {
				want.Events = nil
			}
			if diff := cmp.Diff(want, r.Facts); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
			if r.Guessed != test.guessed {
				t.Errorf("guessed %v, want %v", r.Guessed, test.guessed)
			}
			if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, test.note) {
				t.Errorf("no note says %q:\n%s", test.note, notes)
			}
		})
	}
}

// A publisher of events= has said where its events are. The note about /tokenize says what to do.
func TestTheNotesOfAnotherEngineFitItsTarget(t *testing.T) {
	url := serve(t, answers{"GET /v1/models": `{"data":[{"id":"m"}]}`})
	for options, asks := range map[string]bool{"": true, ",events=tcp://*:5557,replay=tcp://*:5657": false, ",events=none": false} {
		target, err := ParseTarget(url + options)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(probeOf(t, target).Notes, "\n")
		if strings.Contains(notes, "give events=ENDPOINT") != asks || !strings.Contains(notes, "--model-path DIR") {
			t.Errorf("with the options %q:\n%s", options, notes)
		}
	}
}

// A worker behind a Unix socket has no host, and is on this machine: so is a publisher at a loopback address.
func TestALoopbackAddressIsThatOfAWorkerBehindASocket(t *testing.T) {
	p := &probe{asker: asker{target: Target{URL: "unix:///run/vllm.sock"}}}
	for endpoint, want := range map[string]bool{"tcp://127.0.0.1:5557": false, "tcp://localhost:5557": false, "tcp://router:5557": true, "tcp://0.0.0.0:5557": true} {
		if got := p.dials(endpoint); got != want {
			t.Errorf("%s: the worker connects: %t", endpoint, got)
		}
	}
}

func TestProbeSaysWhyAWorkerIsUnusable(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	tests := []struct{ name, url, want string }{
		{"nothing listens", closed.URL, "GET /v1/models: dial tcp"},
		{"no model", serve(t, answers{"GET /v1/models": `{"data":[]}`}), "GET /v1/models lists no model"},
		{"a gateway, perhaps ourselves", serve(t, answers{"GET /v1/models": `{"data":[{"id":"m","owned_by":"warmpath"}]}`}), "list its workers instead"},
		{"not an engine", serve(t, answers{}), "GET /v1/models answered 404 Not Found: 404 page not found; is the worker's URL right?"},
		{"not JSON", serve(t, answers{"GET /v1/models": "<html>"}), "GET /v1/models: read JSON"},
		{"key needed", serve(t, answers{"GET /v1/models": "401 {}"}), "refuses the router's questions without a key; write its key into the file"},
		{"redirect", serve(t, http.RedirectHandler("http://example.invalid/", http.StatusFound)), "answered 302"},
	}
	closed.Close() // not before the other servers listen: one of them could get its port
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client := NewClient(nil, nil)
			defer client.CloseIdleConnections()
			_, err := Probe(t.Context(), client, Target{URL: test.url})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.url) {
				t.Errorf("error %v, want one with %q and the URL", err, test.want)
			}
		})
	}
}

// In virtual time, since a busy machine may take longer to read the answer than a probe waits.
func TestAProbeReadsNoEndlessAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := network.NewMemory()
		l, err := memory.Host("10.0.0.1").Listen("tcp", "10.0.0.1:8000")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"data":[{"id":"`)
			for range maxJSON / 1000 {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 1010)); err != nil {
					return
				}
			}
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		defer func() { _ = server.Close(); <-done }()
		client := NewClient(memory.Host("10.0.0.2"), nil)
		defer client.CloseIdleConnections()
		const url, want = "http://10.0.0.1:8000", "longer than 4194304 bytes"
		if _, err := Probe(t.Context(), client, Target{URL: url}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), url) {
			t.Errorf("error %v, want one with %q and the URL", err, want)
		}
	})
}

func TestProbeSendsTheKey(t *testing.T) {
	engine := vllm032()
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") && r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		engine.ServeHTTP(w, r)
	})
	base := serve(t, guarded)
	if r := probeOf(t, Target{URL: base, APIKey: "secret"}); len(r.Facts.Models) != 2 {
		t.Errorf("models %v", r.Facts.Models)
	}
	client := NewClient(nil, nil)
	defer client.CloseIdleConnections()
	_, err := Probe(t.Context(), client, Target{URL: base, APIKey: "wrong"})
	if err == nil || !strings.Contains(err.Error(), "refuses the api_key that the settings give") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("error %v", err)
	}
}

func TestTargetsAreRead(t *testing.T) {
	for _, test := range []struct {
		in   string
		want Target
		err  string
	}{
		{in: "http://a:8000", want: Target{URL: "http://a:8000"}},
		{in: "http://a:8000/", want: Target{URL: "http://a:8000"}},
		{in: "https://a/base/v1/", want: Target{URL: "https://a/base"}},
		{in: "http://[fd00::1]:8000,events=tcp://[fd00::1]:5557,replay=none,topic=t,model=org/m", want: Target{URL: "http://[fd00::1]:8000", Events: "tcp://[fd00::1]:5557", Replay: None, Topic: "t", Model: "org/m"}},
		{in: "http://a,label.zone=b,label.node=n7", want: Target{URL: "http://a", Labels: map[string]string{"zone": "b", "node": "n7"}}},
		{in: "http://a,label.=b", err: "label.NAME"},
		{in: "http://a,ranks=16", want: Target{URL: "http://a", Ranks: 16}},
		{in: "http://a,ranks=0", err: "within 1..256"},
		{in: "http://a,ranks=s3cret", err: "within 1..256"},
		{in: "http://a,ranks=257", err: "257 is outside 1..256"},
		{in: "http://a,events=ipc:///tmp/x", want: Target{URL: "http://a", Events: "ipc:///tmp/x"}},
		{in: "a:8000", err: "write http://a:8000"},
		{in: "127.0.0.1:8000", err: "write http://127.0.0.1:8000"},
		{in: "gpu-1", err: "write http://gpu-1"},
		{in: "127.0.0.1:80000", err: "read URL"},
		{in: "a?key=s3cret", err: "does not begin with http://"},
		{in: "grpc://a:30001", err: "the engine's HTTP API"},
		{in: "http://", err: "names no host"},
		{in: "http://u:p@a", err: "must not contain a user or password"},
		{in: "http://a?key=s3cret", err: "scheme, host, port and path only"},
		{in: "http://u:s3cret with space@a:1:2", err: "must not contain a user or password"},
		{in: "u:s3cret@a", err: "must not contain a user or password"},
		{in: "http://a,api_key=s3cret,with,commas", err: "write its key into the file"},
		{in: "http://u:s3cret@a,event=s3cret", err: "none of events"},
		{in: "http://a,s3cret", err: "not NAME=VALUE"},
		{in: "unix:///run/./vllm.sock,events=tcp://h:5557", want: Target{URL: "unix:///run/vllm.sock", Events: "tcp://h:5557"}},
		{in: "unix:///run/vllm.sock,events=tcp://*:5557", err: "tcp://*:5557 needs a host"},
		{in: "unix://run/vllm.sock", err: "the absolute path of the socket"},
		{in: "unix:///" + strings.Repeat("x", 107), err: "at most 107 bytes"},
		{in: "https://a/vllm-a,api_key_file=/k,api_key_use=always,tls.ca_file=/c,tls.server_name=s", want: Target{URL: "https://a/vllm-a",
			APIKeyFile: "/k", APIKeyUse: "always", TLS: network.PeerTLS{CAFile: "/c", ServerName: "s"}}},
		{in: "http://a,tls.ca_file=/c", err: "write https://"},
		{in: "http://a,protocol=http2", want: Target{URL: "http://a", Protocol: "http2"}},
		{in: "http://a,protocol=h2", err: "none of auto, http1, http2"},
		{in: "http://a,api_key_use=always", err: "needs a key"},
		{in: "http://a,api_key_use=s3cret,api_key_env=K", err: "none of questions, missing, always"},
		{in: "http://a?x=1", err: "scheme, host, port and path only"},
		{in: "http://a,events", err: "not NAME=VALUE"},
		{in: "http://a,events=", err: "has no value"},
		{in: "http://a,event=tcp://a:1", err: "none of events"},
		{in: "http://a,hardware=s3cret", err: "label.NAME; did you mean label.hardware?"},
		{in: "http://a,events=a:5557", err: "tcp:// or ipc://"},
		{in: "http://a,events=tcp://a", err: "names no port"},
		{in: "http://a,replay=tcp://a:70000", err: "0..65535"},
		{in: "http://a,events=tcp://:5557", err: "names no host"},
		{in: "http://a,events=ipc://", err: "names no path"},
	} {
		got, err := ParseTarget(test.in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, want one with %q", test.in, err, test.err)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: the error shows it: %v", test.in, err)
			}
			continue
		}
		if err != nil || !cmp.Equal(got, test.want) {
			t.Errorf("%s: %+v, %v", test.in, got, err)
		}
	}
}

func TestAWorkerOfTooManyRanksIsFollowedInPart(t *testing.T) {
	const numbered = 4000
	sources := map[string]any{}
	for i := range numbered {
		sources[strconv.Itoa(32+i)] = map[string]any{"publisher": "zmq", "endpoint": fmt.Sprintf("tcp://*:%d", 5557+i)}
	}
	list, err := json.Marshal(sources)
	if err != nil {
		t.Fatal(err)
	}
	for name, worker := range map[string]answers{
		"vLLM":   vllm032().with("GET /kv_event_sources", string(list)),
		"SGLang": sglang0523().with("GET /server_info", strings.ReplaceAll(sglang0523()["GET /server_info"], `"dp_size":1`, `"dp_size":4000`)),
	} {
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			worker.ServeHTTP(w, r)
			return w.Result(), nil
		})
		for _, declared := range []int{0, 16, fleet.MaxRanks} {
			want := max(declared, fleet.DefaultRanks)
			r, err := Probe(t.Context(), &http.Client{Transport: transport}, Target{URL: "http://w", Ranks: declared})
			if err != nil {
				t.Fatal(err)
			}
			f := &r.Facts
			if f.UsedRanks() != want || len(f.Events) != want {
				t.Errorf("%s: %d ranks, %d event sources, want %d", name, f.UsedRanks(), len(f.Events), want)
			}
			if first := map[string]int{"vLLM": 32}[name]; f.Events[0].Rank != first || f.Events[want-1].Rank != first+want-1 {
				t.Errorf("%s: ranks %d to %d are followed", name, f.Events[0].Rank, f.Events[want-1].Rank)
			}
			note := fmt.Sprintf("the worker numbers 4000 data-parallel ranks: the first %d get requests", want)
			if notes := strings.Join(r.Notes, "\n"); strings.Count(notes, note) != 1 {
				t.Errorf("%s: notes %s", name, notes)
			}
		}
	}
}

func TestEndpointsOfRanksAreReached(t *testing.T) {
	for _, test := range []struct {
		raw, host string
		offset    int
		want      string
	}{
		{"tcp://*:5557", "10.0.0.7", 0, "tcp://10.0.0.7:5557"},
		{"tcp://*:5557", "fd00::1", 1, "tcp://[fd00::1]:5558"},
		{"tcp://[::]:5557", "w", 2, "tcp://w:5559"},
		{"tcp://0.0.0.0:5557", "w", 0, "tcp://w:5557"},
		{"tcp://other:5557", "w", 1, "tcp://other:5558"},
		{"ipc:///tmp/kv", "w", 0, "ipc:///tmp/kv"},
		{"ipc:///tmp/kv", "w", 1, ""},
		{"tcp://*:65535", "w", 1, ""},
	} {
		e, err := parseEndpoint(test.raw)
		if err != nil {
			t.Fatal(err)
		}
		at, err := endpointAt(e, test.host, test.offset)
		got := at.String()
		if err == nil && got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%s + %d at %s: %q, %v", test.raw, test.offset, test.host, got, err)
		}
	}
}

func TestAWorkersErrorDoesNotShowItsKey(t *testing.T) {
	const key = "secret0123456789"
	for pad := range maxQuoted + 1 {
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "%s %s%s", r.Header.Get("Authorization"), strings.Repeat("x", pad), key)
			return w.Result(), nil
		})
		_, err := Probe(context.Background(), &http.Client{Transport: transport}, Target{URL: "http://w", APIKey: key})
		if err == nil || strings.Contains(err.Error(), "xsecr") { // three bytes may stay: they occur by chance
			t.Fatalf("%v", err)
		}
	}
}

func TestAWorkersErrorKeepsItsEnd(t *testing.T) {
	transport := roundTrip(func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, "the model is not loaded")
		return w.Result(), nil
	})
	_, err := Probe(context.Background(), &http.Client{Transport: transport}, Target{URL: "http://w", APIKey: "dragon"})
	if err == nil || !strings.Contains(err.Error(), "the model is not loaded") {
		t.Fatalf("%v", err)
	}
}

func FuzzProbeTakesAnyAnswer(f *testing.F) {
	f.Add(vllmModels, vllmSources, vllmMetrics, `{"version":"0.32.0"}`, sglang0523()["GET /server_info"])
	f.Add(`{"data":[{"id":"a","owned_by":"sglang"}]}`, `{"a":{},"-1":null}`, "vllm:cache_config_info{engine=\"0\",block_size=\"-1", `[]`, `{"page_size":-5,"dp_size":99999999,"kv_events":{"endpoint_port_base":-1}}`)
	f.Add(`{"data":[{"id":"a","owned_by":"sglang","max_model_len":-9223372036854775808}]}`, ``, ``, ``, `{"page_size":1,"kv_events":{"endpoint_host":"[[","endpoint_port_base":5,"block_size":9223372036854775807}}`)
	f.Add(`{"data":[{"id":"a","owned_by":"vllm"}]}`, ``, "vllm:cache_config_info{engine=\"1\",block_size=\"65537\"} 1\nvllm:cache_config_info{engine=\"-5\"} 1\n", `{"version":"1"}`, ``)
	f.Fuzz(func(t *testing.T, models, sources, metrics, version, info string) {
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			answers{"GET /v1/models": models, "GET /kv_event_sources": sources, "GET /metrics": metrics, "GET /version": version, "GET /server_info": info}.ServeHTTP(w, r)
			return w.Result(), nil
		})
		r, err := Probe(context.Background(), &http.Client{Transport: transport}, Target{URL: "http://w"})
		if err != nil {
			return
		}
		if f := r.Facts; f.BlockSize < 0 || f.BlockSize > block.MaxSize || f.BlocksPerRank < 0 || f.Ranks < 1 || f.FirstRank < 0 || len(f.Models) == 0 {
			t.Errorf("facts %+v", f)
		}
		for _, m := range r.Facts.Models {
			if m.ID == "" || m.MaxModelLen < 0 {
				t.Errorf("model %+v", m)
			}
		}
		if len(r.Facts.Events) > fleet.MaxRanks {
			t.Errorf("%d event sources", len(r.Facts.Events))
		}
		for _, e := range r.Facts.Events {
			if _, err := parseEndpoint(e.Endpoint); err != nil {
				t.Errorf("event source %+v: %v", e, err)
			}
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
