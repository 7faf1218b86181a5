package mockengine

import "net/http"

// kvRoles are vLLM's names of the roles.
var kvRoles = map[Role]string{Prefill: "kv_producer", Decode: "kv_consumer", Both: "kv_both"}

// kvConnectors are vLLM's names of the connectors.
var kvConnectors = map[Connector]string{NIXL: "NixlConnector", NIXLPush: "NixlPushConnector", Mooncake: "MooncakeConnector",
	P2P: "OffloadingConnector", Shared: "LMCacheConnectorV1"}

// vllmServerInfo answers as vLLM's /server_info?config_format=json, which only an engine in development mode has
// (entrypoints/serve/dev/server_info/api_router.py, vLLM 0.32). It has the parts that tell how the engine moves KV.
func (l *life) vllmServerInfo(w http.ResponseWriter, _ *http.Request) {
	t := &l.cfg.Transfer
	var transfer any
	env := map[string]any{}
	if l.exchange != nil && kvConnectors[t.Connector] != "" {
		extra := map[string]any{}
		switch t.Connector {
		case NIXL:
			extra["bidirectional_kv_xfer"], extra["kv_lease_duration"] = t.Bidirectional, int(t.Lease.Seconds())
			fallthrough
		case NIXLPush:
			env["VLLM_NIXL_SIDE_CHANNEL_HOST"], env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = l.exchange.host, l.exchange.port
		case Mooncake:
			env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = l.exchange.port
		case P2P:
			extra["secondary_tiers"] = []any{map[string]any{"type": "p2p"}}
			env["VLLM_P2P_SIDE_CHANNEL_HOST"], env["VLLM_P2P_SIDE_CHANNEL_PORT"] = l.exchange.host, l.exchange.port
		}
		policy := "fail"
		if t.Recompute {
			policy = "recompute"
		}
		transfer = map[string]any{"kv_connector": kvConnectors[t.Connector], "kv_role": kvRoles[t.Role],
			"engine_id": l.exchange.name, "kv_connector_extra_config": extra, "kv_load_failure_policy": policy}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"vllm_config": map[string]any{"kv_transfer_config": transfer, "parallel_config": map[string]any{
			"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": l.cfg.Ranks}},
		"vllm_env": env, "system_env": map[string]any{},
	})
}
