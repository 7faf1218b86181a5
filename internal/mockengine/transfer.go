package mockengine

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
)

// Connector is a way in which engines move KV between a prefill worker and a decode worker.
type Connector string

// The connectors that the mock engine imitates.
const (
	NIXL     Connector = "nixl"      // vLLM's NixlConnector, with which the decode worker pulls
	NIXLPush Connector = "nixl_push" // vLLM's NixlPushConnector: both legs at once, the prefill worker writes
	Mooncake Connector = "mooncake"  // vLLM's MooncakeConnector: both legs at once, in a transfer with an id
	P2P      Connector = "p2p"       // the tier p2p of vLLM's OffloadingConnector: also fetches what another worker has
	Shared   Connector = "shared"    // a store that all engines share, as LMCache's; requests carry nothing
	TRTLLM   Connector = "trtllm"    // TensorRT-LLM's disaggregation, context first, behind the API of a vLLM
	Rooms    Connector = "sglang"    // SGLang's disaggregation, in which both workers meet in a room
)

// connectors has the kind of engine that a connector belongs to.
var connectors = map[Connector]Kind{NIXL: VLLM, NIXLPush: VLLM, Mooncake: VLLM, P2P: VLLM, Shared: VLLM, TRTLLM: VLLM, Rooms: SGLang}

// Connectors returns the names of the connectors, sorted.
func Connectors() []string {
	var names []string
	for c := range connectors {
		names = append(names, string(c))
	}
	slices.Sort(names)
	return names
}

// Role is the part of a worker in serving a request: prefill, decode, or both.
type Role string

// The roles. An engine reports its role where the real engine does; vLLM with NIXL obeys no role.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "both"
)

// Transfer describes how an engine moves KV to and from other engines. The zero value moves none. Engines reach each
// other over HTTP, at an address that stands for the real engines' side channel (ZMQ and RDMA).
type Transfer struct {
	Connector Connector // "": the engine moves no KV
	Role      Role      // "": both

	Listen string // address of the side channel, host:port; "": a free port of the host of Config.Listen
	// GBs is the bandwidth of the engine's link, in GB/s (1e9 bytes). Transfers follow one another on the link.
	// Config.Speed shortens them. 0: transfers take no time.
	GBs float64
	// KVBytes is the size of a token's KV in bytes; 0: that of the default profile.
	KVBytes float64

	// Lease is how long a prefill worker keeps the blocks of a request that it prefilled for another engine (vLLM:
	// kv_lease_duration); 0: the connector's default, 30 s for NIXL. The engine that is to read the blocks renews the
	// lease while the request waits there.
	Lease time.Duration
	// Recompute means that an engine computes what it could not read (vLLM: kv_load_failure_policy=recompute).
	// Otherwise the request fails with status 500, as by default in vLLM.
	Recompute bool
	// Bidirectional means that a decode worker keeps the blocks of its requests, too, so that the prefill worker of the
	// conversation's next turn can read them (vLLM: bidirectional_kv_xfer).
	Bidirectional bool
	// Kept is how long a decode worker with Bidirectional keeps the blocks (vLLM: decoder_kv_blocks_ttl); 0: 480 s.
	Kept time.Duration
	// RecomputeThreshold is the number of tokens below which a prefill worker with Bidirectional computes the tokens
	// and reads nothing (vLLM: kv_recompute_threshold); 0: 64, below 0: none.
	RecomputeThreshold int

	// MeetTimeout is how long one leg waits for the other (SGLANG_DISAGGREGATION_WAITING_TIMEOUT and
	// SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT); 0: 300 s.
	MeetTimeout time.Duration
	// RetryEvery is the time between attempts to reach a bootstrap server; 0: 1 s.
	RetryEvery time.Duration
	// FreeRanks means that the ranks of a prefill worker do not follow from the room, as with another
	// --load-balance-method than follow_bootstrap_room. Decode workers then ask the bootstrap server.
	FreeRanks bool
	// DecodeCache lets an SGLang decode worker reuse blocks (--disaggregation-decode-enable-radix-cache). Without it,
	// it publishes no events.
	DecodeCache bool
	// Store is the side channel, host:port, of the engine that has the shared store; "": this engine has it.
	Store       string
	SwitchRoles bool // /pd_role_switch works (--enable-pd-role-switch)
}

// validate returns the problem of t, and sets the fields whose zero value means a default.
func (t *Transfer) validate(c *Config) error {
	if t.Connector == "" {
		if *t != (Transfer{}) {
			return fmt.Errorf("transfer has settings, but no connector")
		}
		return nil
	}
	kind, known := connectors[t.Connector]
	switch {
	case !known:
		return fmt.Errorf("connector %q is none of %s", t.Connector, strings.Join(Connectors(), ", "))
	case kind != c.Kind:
		return fmt.Errorf("connector %q belongs to kind %q", t.Connector, kind)
	case t.Role != "" && t.Role != Prefill && t.Role != Decode && t.Role != Both:
		return fmt.Errorf("role %q is none of prefill, decode, both", t.Role)
	case t.Store != "" && !hostPort(t.Store):
		return fmt.Errorf("store %q is not HOST:PORT, the side channel of the engine with the store", t.Store)
	case !(t.GBs >= 0):
		return fmt.Errorf("link of %g GB/s is negative", t.GBs)
	case !(t.KVBytes >= 0):
		return fmt.Errorf("KV of %g bytes for each token is negative", t.KVBytes)
	case min(t.Lease, t.Kept, t.MeetTimeout, t.RetryEvery) < 0:
		return fmt.Errorf("a time of the transfer is negative: %v, %v, %v, %v", t.Lease, t.Kept, t.MeetTimeout, t.RetryEvery)
	}
	if t.Connector == Rooms && t.Role != Prefill && t.Role != Decode {
		return fmt.Errorf("role %q: an SGLang that moves KV is either prefill or decode", t.Role)
	}
	if t.Connector == Rooms && t.Role == Decode && !t.DecodeCache {
		c.NoPrefixCaching = true
	}
	if t.MeetTimeout == 0 {
		t.MeetTimeout = 300 * time.Second
	}
	if t.RetryEvery == 0 {
		t.RetryEvery = time.Second
	}
	if t.Bidirectional && t.Connector != NIXL {
		return fmt.Errorf("connector %q moves KV in one direction only", t.Connector)
	}
	if t.Role == "" {
		t.Role = Both
	}
	if t.Listen == "" {
		host, _, err := net.SplitHostPort(c.Listen)
		if err != nil {
			return fmt.Errorf("listen address: %w", err)
		}
		t.Listen = net.JoinHostPort(host, "0")
	}
	if t.KVBytes == 0 {
		t.KVBytes = engine.Profiles()[0].KVBytes
	}
	if t.Lease == 0 {
		t.Lease = map[Connector]time.Duration{NIXL: 30 * time.Second, NIXLPush: 30 * time.Second, P2P: 60 * time.Second, TRTLLM: 60 * time.Second,
			Mooncake: 480 * time.Second}[t.Connector] // Mooncake: VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
	}
	if t.Kept == 0 {
		t.Kept = 480 * time.Second
	}
	if t.RecomputeThreshold == 0 {
		t.RecomputeThreshold = 64
	}
	return nil
}

// hostPort reports whether an address has a host and a port.
func hostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}
