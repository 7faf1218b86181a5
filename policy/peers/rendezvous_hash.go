package peers

import (
	"math"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/policy"
)

// RendezvousHash computes a hash of the session and each worker, and sends the session to the worker with the highest
// hash. If a worker leaves, only its sessions move. If a worker joins, only the sessions move that the new worker gets
// [Thaler and Ravishankar, Using name-based mappings to increase hit rates, 1998; bet0x/vllm-router 0.12]. The hash has
// 64 bits; vllm-router's hash has 23 bits.
type RendezvousHash struct {
	// Fallback decides for requests that name no session: prompt (a hash of the whole prompt, as vllm-router does),
	// least_load or random.
	Fallback string `yaml:"fallback"`
	// Weighted gives each worker sessions in proportion to the size of its KV cache in blocks. It has an effect only if
	// all workers report this size.
	Weighted bool `yaml:"weighted"`
}

// DefaultRendezvousHash returns vllm-router's defaults.
func DefaultRendezvousHash() RendezvousHash { return RendezvousHash{Fallback: "prompt"} }

// Validate returns all problems.
func (p RendezvousHash) Validate() error {
	var wrong policy.Problems
	wrong.OneOf("fallback", p.Fallback, keyless...)
	return wrong.Join()
}

// Spec returns the policy.
func (p RendezvousHash) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, Chooser: func() policy.Chooser { return &rendezvous{RendezvousHash: p} }, NeedsText: p.Fallback == "prompt", Terms: []string{"draw"}}
}

type rendezvous struct {
	policy.Stateless
	RendezvousHash
}

// Choose gives each candidate the score weight / −ln u, where u is a uniform number that follows from the key and the
// holder, and takes the highest score. So the probability of a candidate is in proportion to its weight [Schindelhauer
// and Schomaker, Weighted Distributed Hash Tables, 2005].
func (p *rendezvous) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	key, source := hashKey(q, p.Fallback)
	if source == "" {
		return unkeyed(q, c, p.Fallback)
	}
	weighted := p.Weighted
	for i := range c {
		weighted = weighted && c[i].Worker.Facts.BlocksPerRank > 0
	}
	b := 0
	for i := range c {
		x := &c[i]
		u := (float64(block.Mix64(x.Hash^key)>>11) + 0.5) / (1 << 53)
		weight := 1.0
		if weighted {
			weight = float64(x.Worker.Facts.BlocksPerRank)
		}
		x.Terms[0] = u
		x.Score = weight / -math.Log(u)
		if x.Score > c[b].Score || (x.Score == c[b].Score && x.Hash > c[b].Hash) {
			b = i
		}
	}
	return policy.Pick{Index: b, Branch: source, Ranked: true}
}
