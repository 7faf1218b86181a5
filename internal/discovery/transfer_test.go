package discovery

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/connector"
)

func TestAWorkersRoleAndTransfersAreOptionsOfItsURL(t *testing.T) {
	got, err := ParseTarget("http://p:8000,role=prefill,connector=nixl_push,transfer_host=10.0.0.7,transfer_port=5600,engine_id=p0,tensor_parallel=2,kv_bytes_per_token=131072,label.nvlink=r1")
	want := Target{URL: "http://p:8000", Role: "prefill", Connector: "nixl_push", TransferHost: "10.0.0.7", TransferPort: 5600, EngineID: "p0", TensorParallel: 2, KVBytesPerToken: 131072,
		Labels: map[string]string{"nvlink": "r1"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, other := range []string{"role=decode", "connector=nixl", "transfer_host=h", "transfer_port=1", "engine_id=e", "tensor_parallel=1", "kv_bytes_per_token=1"} {
		with, err := ParseTarget("http://p:8000," + other)
		if err != nil || with.Equal(Target{URL: "http://p:8000"}) {
			t.Errorf("%s: %v, or no change of the worker", other, err)
		}
	}
}

func TestARoleOrTransferThatCannotBeIsRefusedWithWhatToDo(t *testing.T) {
	for option, want := range map[string]string{
		"http://p,role=prefil":               `role "prefil" is none of prefill, decode, both`,
		"http://p,role=kv_producer":          "none of prefill, decode, both",
		"http://p,connector=nixxl":           `connector "nixxl" is none of ` + strings.Join(connector.Names(), ", ") + ", none",
		"http://p,transfer_host=h:5600":      "the port goes into transfer_port",
		"http://p,transfer_port=0":           "transfer_port is not a number within 1..65535",
		"http://p,transfer_port=65536":       "transfer_port is not a number within 1..65535",
		"http://p,tensor_parallel=x":         "tensor_parallel is not a number above 0",
		"http://p,kv_bytes_per_token=-1":     "kv_bytes_per_token is not a number of bytes above 0",
		"http://p,nvlink=r1":                 "did you mean label.nvlink?",
		"unix:///run/v.sock,role=prefill":    "role prefill: the worker is behind a Unix socket, but KV blocks go over the network: write the address of the engine, http://HOST:PORT",
		"unix:///run/v.sock,role=decode":     "role decode: the worker is behind a Unix socket",
		"unix:///run/v.sock,connector=p2p":   "connector p2p: the worker is behind a Unix socket",
		"http://p,role=prefill,role=decode":  `option "role" is given twice`,
		"http://p,label.a=1,label.a=2":       `option "label.a" is given twice`,
		"http://p,role=prefill,role_=decode": "role, connector, transfer_host",
	} {
		if _, err := ParseTarget(option); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", option, err, want)
		}
	}
	for _, valid := range []string{"unix:///run/v.sock,role=both", "unix:///run/v.sock,connector=shared", "unix:///run/v.sock,connector=none", "http://p,transfer_host=[fd00::7]"} {
		if _, err := ParseTarget(valid); err != nil {
			t.Errorf("%s: %v", valid, err)
		}
	}
	if err := (Target{URL: "http://p", TransferPort: 70000, KVBytesPerToken: -1}).Validate(); err == nil || len(strings.Split(err.Error(), "\n")) != 2 {
		t.Errorf("%v", err)
	}
}

const (
	nixlMetrics = `vllm:nixl_xfer_time_seconds_count{engine="0",model_name="tiny"} 0.0` + "\n" + `vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 0.0` + "\n"
	fetchGauge  = `vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="tiny",stage="in_progress"} 0.0` + "\n"
)

// vllmWith returns a vLLM in its development mode with a kv_transfer_config.
func vllmWith(transfer string) answers {
	return vllm032().with("GET /server_info", `{"vllm_config":{"kv_transfer_config":`+transfer+`,"parallel_config":{"tensor_parallel_size":2,"pipeline_parallel_size":1,"data_parallel_size":1}},`+
		`"vllm_env":{"VLLM_NIXL_SIDE_CHANNEL_HOST":"localhost","VLLM_NIXL_SIDE_CHANNEL_PORT":5601,"VLLM_P2P_SIDE_CHANNEL_HOST":"10.1.1.1","VLLM_P2P_SIDE_CHANNEL_PORT":5710,"VLLM_MOONCAKE_BOOTSTRAP_PORT":1}}`)
}

func sglangIn(mode string) answers {
	a := sglang0523()
	return a.with("GET /server_info", strings.Replace(a["GET /server_info"], `{`, `{"disaggregation_mode":"`+mode+`","disaggregation_bootstrap_port":8997,"tp_size":4,"pp_size":1,`, 1))
}

// A role and a connector come from the settings, or else from what the engine reports; a contradiction is noted.
func TestARoleIsTheOperatorsOrTheEnginesNeverGuessed(t *testing.T) {
	nixl := vllm032().with("GET /metrics", vllmMetrics+nixlMetrics+fetchGauge)
	producer := vllm032().with("GET /metrics", vllmMetrics+nixlMetrics)
	trtllm := answers{"GET /v1/models": `{"data":[{"id":"tiny","owned_by":"tensorrt_llm"}]}`}
	type transfer = fleet.Transfer
	for name, test := range map[string]struct {
		engine answers
		target Target
		role   fleet.Role
		want   transfer
		note   string // a part of a note; "": no note about roles, connectors or transfers
	}{
		"a plain engine":                      {engine: vllm032()},
		"NIXL without the gauge is a prefill": {producer, Target{}, fleet.RolePrefill, transfer{Connector: "nixl"}, ""},
		"NIXL with the gauge may be either":   {nixl, Target{}, fleet.RoleBoth, transfer{Connector: "nixl"}, ""},
		"an older vLLM has no gauge at all":   {producer.with("GET /version", `{"version":"0.31.2"}`), Target{}, fleet.RoleBoth, transfer{Connector: "nixl"}, ""},
		"the settings narrow the role":        {nixl, Target{Role: "decode"}, fleet.RoleDecode, transfer{Connector: "nixl"}, ""},
		"the settings name the kind of NIXL":  {nixl, Target{Role: "decode", Connector: "nixl_push"}, fleet.RoleDecode, transfer{Connector: "nixl_push"}, ""},
		"push without an engine id": {nixl, Target{Role: "prefill", Connector: "nixl_push", TransferPort: 5600}, fleet.RolePrefill, transfer{Connector: "nixl_push", Port: 5600},
			"so no request is divided with its prefill: connector nixl_push: the engine id of the prefill worker's rank is not known. Set engine_id"},
		"push without an engine id, at a decode worker": {nixl, Target{Role: "decode", Connector: "nixl_push"}, fleet.RoleDecode, transfer{Connector: "nixl_push"}, ""},
		"a prefill worker without transfers": {nixl, Target{Role: "prefill", Connector: None}, fleet.RolePrefill, transfer{},
			"connector=none, so the worker with the role prefill gets no requests: remove connector=none"},
		"the settings contradict the role": {producer, Target{Role: "decode"}, fleet.RoleDecode, transfer{Connector: "nixl"},
			"reports the role prefill (GET /metrics), and the settings say decode: the settings count"},
		"the settings contradict the connector": {nixl, Target{Connector: "sglang"}, fleet.RoleBoth, transfer{Connector: "sglang"}, "reports the connector nixl (GET /metrics)"},
		"the settings turn transfers off":       {producer, Target{Role: "both", Connector: None}, fleet.RoleBoth, transfer{}, "reports the role prefill"},
		"a role alone has the usual connector":  {vllm032(), Target{Role: "prefill", TransferHost: "10.0.0.9", TransferPort: 5600, KVBytesPerToken: 7}, fleet.RolePrefill, transfer{Connector: "nixl", Host: "10.0.0.9", Port: 5600, TokenBytes: 7}, ""},
		"the role both, too":                    {vllm032(), Target{Role: "both", TensorParallel: 4}, fleet.RoleBoth, transfer{Connector: "nixl", TensorParallel: 4}, ""},
		"TensorRT-LLM reports nothing":          {trtllm, Target{}, fleet.RoleBoth, transfer{}, ""},
		"TensorRT-LLM with a role":              {trtllm, Target{Role: "decode"}, fleet.RoleDecode, transfer{Connector: "trtllm"}, ""},
		"another engine": {answers{"GET /v1/models": `{"data":[{"id":"tiny","owned_by":"me"}]}`}, Target{Role: "prefill"}, fleet.RolePrefill, transfer{},
			"engine other has no usual KV connector"},
		"development mode": {vllmWith(`{"kv_connector":"NixlConnector","kv_role":"kv_consumer","engine_id":"d0","kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`).with("GET /metrics", vllmMetrics+nixlMetrics+fetchGauge),
			Target{}, fleet.RoleDecode, transfer{Connector: "nixl_two_way", Port: 5601, EngineIDs: []string{"d0"}, TensorParallel: 2, PipelineParallel: 1}, ""},
		"development mode, push": {vllmWith(`{"kv_connector":"NixlPushConnector","kv_role":"kv_both","engine_id":"d0"}`), Target{Role: "prefill", EngineID: "mine"}, fleet.RolePrefill,
			transfer{Connector: "nixl_push", Port: 5601, EngineIDs: []string{"mine"}, TensorParallel: 2, PipelineParallel: 1}, ""},
		"development mode, peer to peer": {vllmWith(`{"kv_connector":"MultiConnector","kv_role":"kv_both","engine_id":"d0","kv_connector_extra_config":{"connectors":[{"kv_connector":"ExampleConnector"},{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"secondary_tiers":[{"type":"fs"},{"type":"p2p"}]}}]}}`),
			Target{Role: "both"}, fleet.RoleBoth, transfer{Connector: "p2p", Host: "10.1.1.1", Port: 5710, EngineIDs: []string{"d0"}, TensorParallel: 2, PipelineParallel: 1, Fetches: true}, ""},
		"development mode without transfers": {vllmWith(`null`), Target{Role: "both"}, fleet.RoleBoth, transfer{Connector: "nixl"}, ""},
		"SGLang prefill":                     {sglangIn("prefill"), Target{}, fleet.RolePrefill, transfer{Connector: "sglang", Port: 8997, TensorParallel: 4, PipelineParallel: 1, LegsOnly: true}, ""},
		"SGLang decode":                      {sglangIn("decode"), Target{}, fleet.RoleDecode, transfer{Connector: "sglang", TensorParallel: 4, PipelineParallel: 1, LegsOnly: true}, ""},
		"SGLang without roles":               {engine: sglangIn("null")},
		"SGLang without roles, given one": {sglangIn("null"), Target{Role: "prefill"}, fleet.RolePrefill, transfer{Connector: "sglang", TensorParallel: 4, PipelineParallel: 1},
			"start it with --disaggregation-mode prefill"},
	} {
		t.Run(name, func(t *testing.T) {
			test.target.URL = serve(t, test.engine)
			r := probeOf(t, test.target)
			if test.want.Connector != "" && test.want.Host == "" {
				test.want.Host = "127.0.0.1"
			}
			if diff := cmp.Diff(test.want, r.Facts.Transfer); diff != "" || r.Facts.Role != test.role {
				t.Errorf("role %v, transfer %s", r.Facts.Role, diff)
			}
			var about []string
			for _, n := range r.Notes {
				if strings.Contains(n, "role") || strings.Contains(n, "connector") || strings.Contains(n, "KV blocks") {
					about = append(about, n)
				}
			}
			if notes := strings.Join(about, "\n"); test.note == "" && notes != "" || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
		})
	}
}

// The ids of the ranks of an engine are learned from Mooncake's bootstrap server, and made from the engine's id for the
// other connectors.
func TestTheEngineIDsOfRanks(t *testing.T) {
	twoRanks := vllm032().with("GET /metrics", vllmMetrics+strings.ReplaceAll(vllmMetrics, `engine="0"`, `engine="1"`))
	r := probeOf(t, Target{URL: serve(t, twoRanks), Role: "prefill", EngineID: "p0"})
	if diff := cmp.Diff([]string{"p0_dp0", "p0_dp1"}, r.Facts.Transfer.EngineIDs); diff != "" {
		t.Error(diff)
	}
	bootstrap := func(answer string) int {
		u, _ := url.Parse(serve(t, answers{"GET /query": answer}))
		port, _ := strconv.Atoi(u.Port())
		return port
	}
	both := bootstrap(`{"1":{"engine_id":"b","worker_addr":{"0":{"0":"tcp://10.0.0.1:1"}}},"0":{"engine_id":"a","worker_addr":{}}}`)
	one := bootstrap(`{"0":{"engine_id":"a"}}`)
	hostile := bootstrap(`[` + strings.Repeat("[", 10000))
	for port, want := range map[int][]string{both: {"a", "b"}, one: nil, hostile: nil} {
		r := probeOf(t, Target{URL: serve(t, twoRanks), Role: "prefill", Connector: "mooncake", TransferPort: port})
		x := r.Facts.Transfer
		if diff := cmp.Diff(want, x.EngineIDs); diff != "" || x.Port != port || port == both && (x.TensorParallel != 1 || x.PipelineParallel != 1) {
			t.Errorf("%+v: %s", x, diff)
		}
		if noted := strings.Contains(strings.Join(r.Notes, "\n"), "it gets no prefill legs: ask its bootstrap server at "+fmt.Sprintf("http://127.0.0.1:%d", port)); noted != (want == nil) {
			t.Errorf("notes %q", r.Notes)
		}
	}
	if r := probeOf(t, Target{URL: serve(t, vllm032()), Connector: "mooncake"}); r.Facts.Transfer.Connector != "" || !strings.Contains(strings.Join(r.Notes, "\n"), "give role=prefill, role=decode or role=both") {
		t.Errorf("Mooncake without a role: %+v, notes %q", r.Facts.Transfer, r.Notes)
	}
	asked := false
	silent := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	u, _ := url.Parse(silent)
	port, _ := strconv.Atoi(u.Port())
	probeOf(t, Target{URL: serve(t, vllm032()), Role: "decode", Connector: "mooncake", TransferPort: port})
	if asked {
		t.Error("a decode worker has no bootstrap server, and was asked for it")
	}
}

// A development server's answer is foreign bytes: a port or a host that cannot be is not taken.
func TestAnEnginesImpossibleHostAndPortAreNotTaken(t *testing.T) {
	engine := vllmWith(`{"kv_connector":"OffloadingConnector","kv_role":"kv_x","engine_id":"","kv_connector_extra_config":{"secondary_tiers":[{"type":"p2p"}]}}`)
	engine["GET /server_info"] = strings.NewReplacer("10.1.1.1", "a b/c", "5710", "-5").Replace(engine["GET /server_info"])
	r := probeOf(t, Target{URL: serve(t, engine), Role: "both"})
	if x := r.Facts.Transfer; x.Host != "127.0.0.1" || x.Port != 0 || x.EngineIDs != nil || r.Facts.Role != fleet.RoleBoth {
		t.Errorf("%+v, role %v", x, r.Facts.Role)
	}
}
