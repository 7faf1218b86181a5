package connector

import (
	"net"
	"net/url"
	"strconv"
	"strings"
)

// value is one value of a request: a text, a number, or JSON.
type value struct {
	text   string
	number uint64
	raw    []byte
	kind   valueKind
}

type valueKind uint8

const (
	textValue valueKind = iota
	numberValue
	rawValue
)

// append appends v as JSON.
func (v *value) append(dst []byte) []byte {
	switch v.kind {
	case numberValue:
		return strconv.AppendUint(dst, v.number, 10)
	case rawValue:
		return append(dst, v.raw...)
	}
	return appendString(dst, v.text)
}

// appendText appends v as a part of a JSON string.
func (v *value) appendText(dst []byte) []byte {
	if v.kind != textValue {
		return v.append(dst)
	}
	quoted := appendString(nil, v.text)
	return append(dst, quoted[1:len(quoted)-1]...)
}

func text(s string) (value, bool)   { return value{text: s}, s != "" }
func number(n int) (value, bool)    { return value{number: uint64(max(n, 0)), kind: numberValue}, n > 0 }
func raw(text []byte) (value, bool) { return value{raw: text, kind: rawValue}, len(text) > 0 }
func rank(e *End) (value, bool) {
	return value{number: uint64(max(e.Rank, 0)), kind: numberValue}, e.Ranks > 1
}

// request is what a template is filled from.
type request struct {
	*Pair
	prompt    int    // which prompt of the body a list has a value for
	carried   []byte // the object that is carried from the answer of the other leg
	promptIDs []byte
	kept      []byte
}

func (r *request) value(name string) (value, bool) { return values[name](r) }

// values are the values of a request that a template can have. docs/connectors.md has a row for each.
var values = map[string]func(r *request) (value, bool){
	"request_id":      func(r *request) (value, bool) { return text(r.RequestID) },
	"vllm_request_id": func(r *request) (value, bool) { return text(vllmRequestID(r.Pair)) },
	"room":            func(r *request) (value, bool) { return value{number: room(r.Pair, r.prompt), kind: numberValue}, true },
	"number":          func(r *request) (value, bool) { return value{number: r.Room>>1 | 1<<62, kind: numberValue}, true },

	"prefill.host":      func(r *request) (value, bool) { return text(host(&r.Prefill)) },
	"prefill.port":      func(r *request) (value, bool) { return number(r.Prefill.Transfer.Port) },
	"prefill.rank_port": func(r *request) (value, bool) { return number(rankPort(&r.Prefill)) },
	"prefill.address":   func(r *request) (value, bool) { return text(address(&r.Prefill)) },
	"prefill.engine_id": func(r *request) (value, bool) { return text(engineID(&r.Prefill)) },
	"prefill.rank":      func(r *request) (value, bool) { return rank(&r.Prefill) },
	"prefill.tp_size":   func(r *request) (value, bool) { return number(r.Prefill.Transfer.TensorParallel) },
	"prefill.pp_size":   func(r *request) (value, bool) { return number(r.Prefill.Transfer.PipelineParallel) },

	"carried":               func(r *request) (value, bool) { return raw(r.carried) },
	"carried.host":          func(r *request) (value, bool) { return saidHost(&r.Prefill, r.carried) },
	"kept":                  func(r *request) (value, bool) { return raw(r.kept) },
	"whole":                 func(r *request) (value, bool) { v, _ := raw([]byte("true")); return v, !r.Stream },
	"kept.host":             func(r *request) (value, bool) { return saidHost(&r.Prefill, r.kept) },
	"chat_prompt_ids":       func(r *request) (value, bool) { v, ok := raw(r.promptIDs); return v, ok && r.Chat },
	"completion_prompt_ids": func(r *request) (value, bool) { v, ok := raw(r.promptIDs); return v, ok && !r.Chat },
}

// needs says how an operator gives a value that a connector needs.
var needs = map[string]string{
	"prefill.host": "the prefill worker has no host that other engines reach. Give its URL as http://HOST:PORT, or set " +
		"transfer_host of the worker; a worker behind a Unix socket has no host",
	"prefill.port": "the port where other engines find the prefill worker is not known. Start SGLang with " +
		"--disaggregation-bootstrap-port, or set transfer_port of the worker to that port",
	"prefill.rank_port": "the port where other engines find the prefill worker is not known. Set transfer_port of the " +
		"worker to the port of its side channel (VLLM_NIXL_SIDE_CHANNEL_PORT, or VLLM_P2P_SIDE_CHANNEL_PORT)",
	"prefill.address": "the host and the port where other engines find the prefill worker are not known. Give its URL as " +
		"http://HOST:PORT, or set transfer_host; and set transfer_port to the port of its bootstrap server",
	"prefill.engine_id": "the engine id of the prefill worker's rank is not known. Set engine_id in the engine's " +
		"--kv-transfer-config and engine_id of the worker; with Mooncake, look whether its bootstrap server answers",
	"prefill.tp_size": "the tensor parallel size of the prefill worker is not known. Set tensor_parallel of " +
		"the worker",
}

// room returns the number of the room in which the engines of SGLang meet for the i-th prompt of a body. A prefill
// engine of several ranks sends a request without a rank to the rank that the room names, and the decode engine asks
// that rank, so the room must name the rank of the prefill leg (managers/data_parallel_controller.py,
// follow_bootstrap_room).
func room(p *Pair, i int) uint64 {
	ranks := uint64(max(p.Prefill.Ranks, 1))
	index := uint64(max(p.Prefill.Rank-p.Prefill.FirstRank, 0)) % ranks
	n := p.Room & (1<<62 - 1) // an engine takes 63 bits; the last one is for the rooms of further prompts
	return n - n%ranks + index + uint64(i)*ranks
}

// host returns the host at which other engines find the worker.
func host(e *End) string {
	if e.Transfer.Host != "" {
		return e.Transfer.Host
	}
	if u, err := url.Parse(e.URL); err == nil && !strings.HasPrefix(u.Scheme, "unix") {
		return u.Hostname()
	}
	return ""
}

// rankPort returns the port of the worker's rank: engines of vLLM listen at the given port plus their rank
// (distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py, v1/kv_offload/tiering/p2p/manager.py).
func rankPort(e *End) int {
	if e.Transfer.Port <= 0 {
		return 0
	}
	return e.Transfer.Port + max(e.Rank, 0)
}

// address returns host and port, as a URL has them.
func address(e *End) string {
	h := host(e)
	if h == "" || e.Transfer.Port <= 0 {
		return ""
	}
	return net.JoinHostPort(h, strconv.Itoa(e.Transfer.Port))
}

// vllmRequestID returns the id under which vLLM's engine knows the request, without the random end that it adds
// (entrypoints/openai/chat_completion/serving.py, completion/serving.py; get_base_request_id in
// distributed/kv_transfer/kv_connector/v1/nixl/utils.py).
func vllmRequestID(p *Pair) string {
	switch {
	case p.RequestID == "":
		return ""
	case p.Chat:
		return "chatcmpl-" + p.RequestID
	}
	return "cmpl-" + p.RequestID + "-0"
}

func engineID(e *End) string {
	if i := e.Rank - e.FirstRank; i >= 0 && i < len(e.Transfer.EngineIDs) {
		return e.Transfer.EngineIDs[i]
	}
	return ""
}

// saidHost returns the host of a worker in place of the one that its engine said, if only the machine of the engine
// reaches that one. vLLM says "localhost" unless VLLM_NIXL_SIDE_CHANNEL_HOST is set (vllm/envs.py). Otherwise there is
// no value, and what the engine said stays: it may have a network of its own for KV blocks.
func saidHost(e *End, object []byte) (value, bool) {
	said, isText := textOf(lastMember(object, "remote_host"))
	known := host(e)
	if !isText || known == "" || !onlyLocal(said) || onlyLocal(known) {
		return value{}, false
	}
	return text(known)
}

// onlyLocal reports whether a host means the machine itself.
func onlyLocal(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}
