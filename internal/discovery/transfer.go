package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/connector"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// Workers with these connectors find each other without a host.
var hostless = []string{"", None, "shared"}

// checkTransfer returns the problems of the settings about roles and transfers.
func (t *Target) checkTransfer() (errs []error) {
	role, err := fleet.ParseRole(t.Role)
	if err != nil {
		errs = append(errs, err)
	}
	if t.Connector != "" && t.Connector != None && !slices.Contains(connector.Names(), t.Connector) {
		errs = append(errs, fmt.Errorf("connector %.40q is none of %s, none", t.Connector, strings.Join(connector.Names(), ", ")))
	}
	if host := strings.Trim(t.TransferHost, "[]"); host != "" && (!zmtp.HostName(host) || strings.Contains(host, ":") && net.ParseIP(host) == nil) {
		errs = append(errs, errors.New("transfer_host is neither an address nor a host name; the port goes into transfer_port"))
	}
	if t.TransferPort < 0 || t.TransferPort > 65535 {
		errs = append(errs, fmt.Errorf("transfer_port: %d is outside 1..65535", t.TransferPort))
	}
	if t.TensorParallel < 0 {
		errs = append(errs, fmt.Errorf("tensor_parallel: %d is negative", t.TensorParallel))
	}
	if t.KVBytesPerToken < 0 {
		errs = append(errs, fmt.Errorf("kv_bytes_per_token: %d is negative", t.KVBytesPerToken))
	}
	switch {
	case !t.overUnix():
	case role != fleet.RoleBoth:
		errs = append(errs, fmt.Errorf("role %s: the worker is behind a Unix socket, but KV blocks go over the network: write the address of the engine, http://HOST:PORT", role))
	case !slices.Contains(hostless, t.Connector):
		errs = append(errs, fmt.Errorf("connector %s: the worker is behind a Unix socket, but KV blocks go over the network: write the address of the engine, http://HOST:PORT", t.Connector))
	}
	return errs
}

// TransferFault is a fault of the role or the connector of a worker: its settings contradict what its engine reports,
// or the worker exchanges no KV blocks although it should.
type TransferFault struct {
	Role      bool // the fault is the role's; otherwise the connector's
	Seen, Fix string
}

// fault records a fault as such and as a note.
func (r *Report) fault(f TransferFault) {
	r.Transfers = append(r.Transfers, f)
	r.note("%s: %s", f.Seen, f.Fix)
}

// reportedTransfer is what a worker reports about its role and its transfers.
type reportedTransfer struct {
	role  string // the name of the role, "" if the worker does not report it
	where string // the answer that names role or connector, for notes
	// family says that only the first part of the connector's name is known: nixl stands for nixl_push, too.
	family bool
	// engineID is the engine's id; ranked says that its ranks have ids of their own.
	engineID string
	ranked   bool
	fleet.Transfer
}

// transfer sets the role and the transfers of the worker: the operator's settings, or else what the worker reported.
func (p *probe) transfer(ctx context.Context) {
	r, t, f := &p.reported, &p.target, &p.Facts
	f.Role, _ = fleet.ParseRole(cmp.Or(t.Role, r.role)) // normalize and the engine's reader have checked it
	if t.Role != "" && r.role != "" && t.Role != r.role && r.role != fleet.RoleBoth.String() {
		// An engine that reports the role both serves either part.
		p.fault(TransferFault{true, fmt.Sprintf("the worker reports the role %s (%s), and the settings say %s", r.role, r.where, t.Role),
			"the settings count; correct them, or start the engine with that role"})
	}
	if t.Connector != "" && r.Connector != "" && t.Connector != r.Connector && !(r.family && strings.HasPrefix(t.Connector, r.Connector)) {
		p.fault(TransferFault{false, fmt.Sprintf("the worker reports the connector %s (%s), and the settings say %s", r.Connector, r.where, t.Connector),
			"the settings count; correct them, or start the engine with that connector"})
	}
	name := cmp.Or(t.Connector, r.Connector)
	if name == "" && (t.Role != "" || r.role != "") {
		name = connector.Default(f.Engine)
		if name == "" && f.Role != fleet.RoleBoth {
			p.fault(TransferFault{false, fmt.Sprintf("engine %s has no usual KV connector, so the worker with the role %s exchanges no KV blocks", f.Engine, f.Role), "give connector=NAME"})
		}
	}
	switch {
	case name == None && f.Role == fleet.RolePrefill:
		p.fault(TransferFault{false, "the settings say connector=none, so the worker with the role prefill gets no requests", "remove connector=none, or set role=both"})
		return
	case name == "" || name == None:
		return
	case p.target.overUnix() && !slices.Contains(hostless, name):
		p.fault(TransferFault{false, "the worker is behind a Unix socket, so it exchanges no KV blocks", "list it as http://HOST:PORT"})
		return
	case name == "mooncake" && t.Role == "" && r.role == "":
		p.fault(TransferFault{false, "a vLLM with Mooncake ends if it gets a leg against its kv_role, which it does not report, so it exchanges no KV blocks",
			"give role=prefill, role=decode or role=both"})
		return
	}
	x := r.Transfer
	x.Connector = name
	if c, known := connector.Find(name); known {
		x.Fetches = c.Fetches()
	}
	x.Host, x.Port = cmp.Or(strings.Trim(t.TransferHost, "[]"), remoteHost(r.Host), t.host()), cmp.Or(t.TransferPort, r.Port)
	x.TensorParallel = cmp.Or(t.TensorParallel, r.TensorParallel)
	x.TokenBytes = cmp.Or(t.KVBytesPerToken, r.TokenBytes)
	if id := cmp.Or(t.EngineID, r.engineID); id != "" {
		x.EngineIDs = p.engineIDs(id)
	}
	if name == "mooncake" && f.Role != fleet.RoleDecode { // a decode worker has no bootstrap server
		x.Port = cmp.Or(x.Port, mooncakePort)
		p.mooncake(ctx, &x)
	}
	f.Transfer = x
	if p.Transfers == nil { // the other faults may be why a value is missing
		p.checkReady()
	}
}

// checkReady records a fault if the connector lacks a value of the worker for prefill legs.
func (p *probe) checkReady() {
	f := &p.Facts
	c, known := connector.Find(f.Transfer.Connector)
	if !known || !f.Prefills() {
		return
	}
	end := connector.End{URL: p.target.URL, Rank: f.FirstRank, FirstRank: f.FirstRank, Ranks: f.UsedRanks(), Transfer: f.Transfer}
	if err := c.Ready(&connector.Pair{Prefill: end}); err != nil {
		p.fault(TransferFault{false, "a value of the worker is missing, so no request is divided with its prefill", err.Error()})
	}
}

// remoteHost returns host if other machines can reach it, else "". Engines report the host on which they listen, which
// may be a wildcard or the machine itself.
func remoteHost(host string) string {
	ip := net.ParseIP(host)
	if network.LoopbackHost(host) || host == "*" || ip != nil && ip.IsUnspecified() {
		return ""
	}
	return host
}

// engineIDs returns the ids of the ranks that are used. vLLM adds the number of the rank to the id of an engine that is
// one of several ranks [vLLM 0.32, vllm/v1/engine/core.py].
func (p *probe) engineIDs(id string) []string {
	f := &p.Facts
	if f.Ranks <= 1 && f.FirstRank == 0 && !p.reported.ranked {
		return []string{id}
	}
	var ids []string
	for i := range f.UsedRanks() {
		rank := "_dp" + strconv.Itoa(f.FirstRank+i)
		ids = append(ids, strings.TrimSuffix(id, rank)+rank)
	}
	return ids
}

// Families of vLLM's metrics exist from the engine's start, with the value 0, or not at all: those with nixlPrefix only
// with the connector NIXL [vLLM 0.32, vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py], and fetchFamily only
// in an engine that can receive blocks, so not with the role kv_producer [vllm/v1/metrics/loggers.py].
const (
	nixlPrefix  = "vllm:nixl_"
	fetchFamily = "vllm:num_requests_kv_fetch_by_stage"
)

// nixlFamilies says which of the families the metrics of a vLLM have.
type nixlFamilies struct{ present, fetches bool }

// vllmInfo are the parts that the router uses of /server_info, which vLLM has only in its development mode
// [vllm/entrypoints/serve/dev/server_info/api_router.py].
type vllmInfo struct {
	Config struct {
		Transfer *vllmConnector `json:"kv_transfer_config"`
		Parallel struct {
			Tensor   int `json:"tensor_parallel_size"`
			Pipeline int `json:"pipeline_parallel_size"`
			Data     int `json:"data_parallel_size"`
		} `json:"parallel_config"`
	} `json:"vllm_config"`
	Environment struct {
		Host     string `json:"VLLM_NIXL_SIDE_CHANNEL_HOST"`
		Port     int    `json:"VLLM_NIXL_SIDE_CHANNEL_PORT"`
		PeerHost string `json:"VLLM_P2P_SIDE_CHANNEL_HOST"`
		PeerPort int    `json:"VLLM_P2P_SIDE_CHANNEL_PORT"`
		Mooncake int    `json:"VLLM_MOONCAKE_BOOTSTRAP_PORT"`
	} `json:"vllm_env"`
}

// vllmConnector is vLLM's kv_transfer_config [vllm/config/kv_transfer.py].
type vllmConnector struct {
	Connector string `json:"kv_connector"`
	Role      string `json:"kv_role"`
	EngineID  string `json:"engine_id"`
	Extra     struct {
		TwoWay   bool            `json:"bidirectional_kv_xfer"`
		Children []vllmConnector `json:"connectors"` // of a MultiConnector
		Tiers    []struct {
			Type string `json:"type"`
		} `json:"secondary_tiers"` // of an OffloadingConnector
	} `json:"kv_connector_extra_config"`
}

var vllmRoles = map[string]string{"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}

// name returns the name of the connector; "" if it exchanges no blocks, or is not known.
func (c *vllmConnector) name() string {
	switch c.Connector {
	case "NixlConnector", "NixlPullConnector":
		if c.Extra.TwoWay {
			return "nixl_two_way"
		}
		return "nixl"
	case "NixlPushConnector":
		return "nixl_push"
	case "MooncakeConnector":
		return "mooncake"
	case "LMCacheConnectorV1", "LMCacheMPConnector", "MooncakeStoreConnector", "HF3FSKVConnector":
		return "shared"
	case "OffloadingConnector":
		for _, tier := range c.Extra.Tiers {
			if tier.Type == "p2p" {
				return "p2p"
			}
		}
	case "MultiConnector":
		for i := range c.Extra.Children {
			if name := c.Extra.Children[i].name(); name != "" {
				return name
			}
		}
	}
	return ""
}

// vllmTransfer finds out the role and the connector. In its usual mode a vLLM shows NIXL by its metrics, and no other
// connector. Only engines that exchange blocks are asked for more, because that answer can cost an engine a second.
func (p *probe) vllmTransfer(ctx context.Context, nixl nixlFamilies) {
	r, t := &p.reported, &p.target
	if nixl.present {
		r.Connector, r.family, r.where = "nixl", true, "GET /metrics"
		if !nixl.fetches && since(p.Facts.Version, 0, 32) {
			r.role = "prefill"
		}
	}
	if !nixl.present && t.Role == "" && (t.Connector == "" || t.Connector == None) {
		return
	}
	var info vllmInfo
	err := p.getJSON(ctx, "/server_info?config_format=json", &info)
	if err != nil || info.Config.Transfer == nil {
		return // most engines do not run in the development mode
	}
	c, env := info.Config.Transfer, &info.Environment
	name := c.name()
	r.where, r.family = "GET /server_info", false
	r.role = cmp.Or(vllmRoles[c.Role], r.role)
	r.Connector = cmp.Or(name, r.Connector)
	r.TensorParallel, r.PipelineParallel = max(info.Config.Parallel.Tensor, 0), max(info.Config.Parallel.Pipeline, 0)
	r.engineID, r.ranked = c.EngineID, info.Config.Parallel.Data > 1
	host, port := env.Host, env.Port
	switch name {
	case "mooncake":
		host, port = "", env.Mooncake
	case "p2p":
		host, port = env.PeerHost, env.PeerPort
	case "shared":
		host, port = "", 0
	}
	if port >= 1 && port <= 65535 {
		r.Port = port
	}
	if zmtp.HostName(host) {
		r.Host = host
	}
}

// since reports whether a version is major.minor or later. Versions of development builds have further parts.
func since(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	have, err := strconv.Atoi(parts[0])
	next, err2 := strconv.Atoi(parts[1])
	return err == nil && err2 == nil && (have > major || have == major && next >= minor)
}

// sglangDisaggregation are the fields of SGLang's /server_info about disaggregation [SGLang srt/server_args.py].
type sglangDisaggregation struct {
	Mode          string `json:"disaggregation_mode"` // null, prefill or decode
	BootstrapPort int    `json:"disaggregation_bootstrap_port"`
	Tensor        int    `json:"tp_size"`
	Pipeline      int    `json:"pp_size"`
}

func (p *probe) sglangTransfer(d *sglangDisaggregation) {
	r := &p.reported
	switch d.Mode {
	case "prefill", "decode":
		r.role, r.Connector, r.where, r.LegsOnly = d.Mode, "sglang", "GET /server_info", true
	case "null":
		// Such an engine has no part of the protocol. It reports no connector, so this is a contradiction only if the
		// settings give it a role.
		r.role, r.where = "", "GET /server_info"
		if role := p.target.Role; role == "prefill" || role == "decode" {
			p.fault(TransferFault{true, fmt.Sprintf("the settings say role %s, but the engine runs without --disaggregation-mode", role), "start it with --disaggregation-mode " + role})
		}
	}
	r.TensorParallel, r.PipelineParallel = max(d.Tensor, 0), max(d.Pipeline, 0)
	if d.Mode == "prefill" && d.BootstrapPort >= 1 && d.BootstrapPort <= 65535 {
		r.Port = d.BootstrapPort // a decode engine has the default of the argument, and no bootstrap server
	}
}

// mooncakePort is the default port of the bootstrap server (VLLM_MOONCAKE_BOOTSTRAP_PORT).
const mooncakePort = 8998

// mooncakeRank is a rank in the answer of Mooncake's bootstrap server [vLLM 0.32,
// vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py].
type mooncakeRank struct {
	EngineID string `json:"engine_id"`
	// Addresses are by the number of the process in the tensor group, then in the pipeline group.
	Addresses map[string]map[string]string `json:"worker_addr"`
}

// mooncake asks the bootstrap server of a prefill worker for the engine ids of its ranks, and the sizes of its groups.
func (p *probe) mooncake(ctx context.Context, x *fleet.Transfer) {
	a := p.asker
	// Another server than the engine's API: it gets no key.
	a.target = Target{URL: "http://" + net.JoinHostPort(x.Host, strconv.Itoa(x.Port))}
	var ranks map[string]mooncakeRank
	err := a.getJSON(ctx, "/query", &ranks)
	var ids []string
	tensor, pipeline := 0, 0
	for i := range p.Facts.UsedRanks() {
		rank := ranks[strconv.Itoa(p.Facts.FirstRank+i)]
		ids, tensor = append(ids, rank.EngineID), max(tensor, len(rank.Addresses))
		for _, stages := range rank.Addresses {
			pipeline = max(pipeline, len(stages))
		}
	}
	if err == nil && slices.Contains(ids, "") {
		err = errors.New("not all ranks of the worker have registered there yet")
	}
	if err != nil {
		p.fault(TransferFault{false, fmt.Sprintf("the engine ids of the worker are not known, so it gets no prefill legs: ask its bootstrap server at %s: %v", a.target.URL, err),
			"give transfer_host and transfer_port if it is elsewhere"})
		return
	}
	x.EngineIDs, x.TensorParallel, x.PipelineParallel = ids, cmp.Or(x.TensorParallel, tensor), cmp.Or(x.PipelineParallel, pipeline)
}
