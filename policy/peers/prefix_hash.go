package peers

import (
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// PrefixHash hashes the beginning of a prompt to a place on a ring, and takes the next worker on the ring. It passes
// over workers with more than their share of the load [SMG 1.9.0, model_gateway/src/policies/prefix_hash.rs; Mirrokni
// and others, Consistent Hashing with Bounded Loads, 2018].
//
// If the first worker has too much load, this port takes the next worker on the ring, as SMG's documentation says.
// SMG's code takes the worker with the least load instead. With the ring, all prompts with the same beginning go to the
// same second worker.
type PrefixHash struct {
	// PrefixTokenCount is how many tokens of the prompt are hashed. Without tokens, four bytes of text stand for a
	// token.
	PrefixTokenCount int `yaml:"prefix_token_count"`
	// LoadFactor is how many times the mean number of requests a worker may have before the next worker is taken.
	LoadFactor float64 `yaml:"load_factor"`
	// VirtualNodes is how many places on the ring a worker has.
	VirtualNodes int `yaml:"virtual_nodes"`
}

// DefaultPrefixHash returns SMG's defaults.
func DefaultPrefixHash() PrefixHash {
	return PrefixHash{PrefixTokenCount: 256, LoadFactor: 1.25, VirtualNodes: 150}
}

// Validate returns all problems.
func (p PrefixHash) Validate() error {
	var wrong policy.Problems
	wrong.Within("prefix_token_count", float64(p.PrefixTokenCount), 1, 1<<20)
	wrong.AtLeast("load_factor", p.LoadFactor, 1)
	wrong.Within("virtual_nodes", float64(p.VirtualNodes), 1, 1000)
	return wrong.Join()
}

// Spec returns the policy.
func (p PrefixHash) Spec(name string) policy.Spec {
	return policy.Spec{
		Name: name, NeedsMatches: true, NeedsText: true, Reach: policy.ReachAll, Terms: []string{"step"},
		Chooser: func() policy.Chooser { return &prefixHash{PrefixHash: p, ring: newRing(p.VirtualNodes)} },
	}
}

type prefixHash struct {
	PrefixHash
	ring *ring
}

func (p *prefixHash) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	var key uint64
	switch tokens, text := q.Prompt.Tokens, q.Prompt.Text; {
	case len(tokens) > 0:
		key = hashPrompt(tokens[:min(len(tokens), p.PrefixTokenCount)])
	case len(text) > 0:
		key = hashPrompt(text[:min(len(text), 4*p.PrefixTokenCount)])
	default:
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoTokens, Ranked: true, Tie: policy.TieWork}
	}
	total := int64(0)
	for i := range c {
		total += c[i].Load.Requests
	}
	most := float64(total+1) / float64(len(c)) * p.LoadFactor
	at, steps := p.ring.walk(key, c, func(x *policy.Candidate) bool { return total == 0 || float64(x.Load.Requests) <= most })
	c[at].Terms[0] = float64(steps)
	if steps > 1 {
		return policy.Pick{Index: at, Branch: policy.BranchOverflow}
	}
	return policy.Pick{Index: at, Branch: policy.BranchPrefix}
}

func (p *prefixHash) Routed(*policy.Query, *policy.Candidate) {}
func (p *prefixHash) Finished(*policy.Finished)               {}
func (p *prefixHash) Forget(h fleet.Holder)                   { p.ring.remove(h) }
