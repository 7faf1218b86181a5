package peers

import (
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// ConsistentHash hashes each session to a place on a ring and sends it to the next worker on the ring [Karger and
// others, Consistent Hashing and Random Trees, 1997; vllm-project/router and bet0x/vllm-router 0.11]. If this worker
// cannot be used, the worker after it takes the session. So the sessions of a failed worker spread over the other
// workers.
type ConsistentHash struct {
	// VirtualNodes is how many places on the ring a worker has.
	VirtualNodes int `yaml:"virtual_nodes"`
	// Fallback decides for requests that name no session: prompt (a hash of the whole prompt, as vllm-router does),
	// least_load or random.
	Fallback string `yaml:"fallback"`
}

// DefaultConsistentHash returns vllm-router's defaults.
func DefaultConsistentHash() ConsistentHash {
	return ConsistentHash{VirtualNodes: 160, Fallback: "prompt"}
}

// Validate returns all problems.
func (p ConsistentHash) Validate() error {
	var wrong policy.Problems
	wrong.Within("virtual_nodes", float64(p.VirtualNodes), 1, 1000)
	wrong.OneOf("fallback", p.Fallback, keyless...)
	return wrong.Join()
}

// Spec returns the policy.
func (p ConsistentHash) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, NeedsText: p.Fallback == "prompt", Terms: []string{"step"},
		Chooser: func() policy.Chooser { return &consistent{ring: newRing(p.VirtualNodes), fallback: p.Fallback} },
	}
}

type consistent struct {
	ring     *ring
	fallback string
}

func (p *consistent) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	key, source := hashKey(q, p.fallback)
	if source == "" {
		return unkeyed(q, c, p.fallback)
	}
	at, steps := p.ring.walk(key, c, func(*policy.Candidate) bool { return true })
	c[at].Terms[0] = float64(steps)
	if steps > 1 && source == policy.BranchSession {
		source = policy.BranchMoved
	}
	return policy.Pick{Index: at, Branch: source}
}

func (p *consistent) Routed(*policy.Query, *policy.Candidate) {}
func (p *consistent) Finished(*policy.Finished)               {}
func (p *consistent) Forget(h fleet.Holder)                   { p.ring.remove(h) }
