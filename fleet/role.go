package fleet

import "fmt"

// Role says which legs of a request a worker serves. A request has two legs if its prompt is computed at one worker
// (prefill), and its answer is generated at another worker (decode) that receives the KV blocks of the prompt.
type Role uint8

// The roles. A worker whose role is not known has RoleBoth: it serves whole requests.
const (
	RoleBoth    Role = iota // serves whole requests; with a connector it also serves either leg
	RolePrefill             // serves only prefill legs
	RoleDecode              // serves decode legs, and whole requests unless Transfer.LegsOnly
)

var roleNames = [...]string{RoleBoth: "both", RolePrefill: "prefill", RoleDecode: "decode"}

// String returns the name of the role as configuration, metrics and the admin API write it.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return "unknown"
}

// ParseRole returns the role of that name. The empty name is RoleBoth.
func ParseRole(name string) (Role, error) {
	for r, known := range roleNames {
		if name == known {
			return Role(r), nil
		}
	}
	if name == "" {
		return RoleBoth, nil
	}
	return RoleBoth, fmt.Errorf("role %.40q is none of prefill, decode, both", name)
}

// Leg is the part of a request that one worker serves.
type Leg uint8

// The legs.
const (
	LegWhole   Leg = iota // the whole request
	LegPrefill            // the prompt is computed, and its KV blocks are sent to the worker of the other leg
	LegDecode             // the KV blocks of the prompt come from another worker, and the answer is generated
	legs
)

var legNames = [...]string{LegWhole: "whole", LegPrefill: "prefill", LegDecode: "decode"}

// String returns the name of the leg as metrics and the admin API write it.
func (l Leg) String() string { return legNames[l] }

// Transfer says how a worker sends KV blocks to other workers and receives them. The zero value means that the worker
// does neither.
type Transfer struct {
	// Connector is the name of the engine's KV connector, see package internal/connector. Two workers exchange blocks
	// only if their connectors are the same.
	Connector string
	// Host and Port are where other engines find the worker: NIXL's side channel, or the bootstrap server of SGLang and
	// Mooncake. "" and 0 mean that the connector needs none, or that it is not known yet.
	Host string
	Port int
	// EngineIDs are the engine ids of the ranks, from the first rank on, as NIXL and Mooncake know them. nil is
	// unknown.
	EngineIDs []string
	// TensorParallel and PipelineParallel are the sizes of the engine's groups; 0 is unknown.
	TensorParallel, PipelineParallel int
	// Fetches says that the worker can read a part of a prompt's blocks from another worker before it computes the
	// rest.
	Fetches bool
	// LegsOnly says that the engine refuses whole requests, whatever its role: SGLang with --disaggregation-mode answers
	// them with 400 [SGLang 0.5.23, srt/managers/scheduler.py].
	LegsOnly bool
	// TokenBytes is the size of the KV of one token in all layers, in bytes; 0 is unknown.
	TokenBytes int
}

// Pairs reports whether a prefill leg at a worker with t can hand over its blocks to a worker with o.
func (t *Transfer) Pairs(o *Transfer) bool { return t.Connector != "" && t.Connector == o.Connector }

// Prefills reports whether the worker serves prefill legs.
func (f *Facts) Prefills() bool { return f.Transfer.Connector != "" && f.Role != RoleDecode }

// Decodes reports whether the worker serves decode legs.
func (f *Facts) Decodes() bool { return f.Transfer.Connector != "" && f.Role != RolePrefill }

// Answers reports whether the worker serves whole requests.
func (f *Facts) Answers() bool { return f.Role != RolePrefill && !f.Transfer.LegsOnly }
