package peers

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/policy"
)

// hashKey returns the hash of the request's session. If the request names no session, and fallback is "prompt", it
// returns the hash of the prompt. source says which of the two was hashed; "" means that neither was.
func hashKey(q *policy.Query, fallback string) (key uint64, source policy.Branch) {
	switch {
	case q.Session.Key != "":
		return policy.HashText(q.Session.Source, q.Session.Key), policy.BranchSession
	case fallback != "prompt":
	case len(q.Prompt.Text) > 0:
		return hashPrompt(q.Prompt.Text), policy.BranchNoKey
	case len(q.Prompt.Keys) > 0:
		return block.Mix64(uint64(q.Prompt.Keys[len(q.Prompt.Keys)-1])), policy.BranchNoKey
	}
	return 0, ""
}

func hashPrompt[T ~byte | ~uint32](prompt []T) uint64 {
	return block.Mix64(block.FNV(block.FNVBasis, prompt))
}

// keyless has the names of the rules for a request that names no session.
var keyless = []string{"prompt", "least_load", "random"}

// unkeyed chooses for a request that names no session.
func unkeyed(q *policy.Query, c []policy.Candidate, fallback string) policy.Pick {
	if fallback == "random" {
		return policy.Pick{Index: policy.Any(q, c), Branch: policy.BranchNoKey}
	}
	return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoKey, Ranked: true, Tie: policy.TieWork}
}
