package peers_test

import (
	"fmt"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// This example uses Dynamo's cost function with a higher weight for blocks to prefill. The request goes to the worker
// with a match, although this worker has more load.
func Example() {
	spec, err := peers.Kinds().Parse("kv:prefill_load_scale=16")
	if err != nil {
		panic(err)
	}
	p, err := policy.Build(spec)
	if err != nil {
		panic(err)
	}
	candidates := []policy.Candidate{
		{Worker: &fleet.Worker{URL: "http://a"}, Holder: 0, Available: true, BlockSize: 16},
		{Worker: &fleet.Worker{URL: "http://b"}, Holder: 1, Available: true, BlockSize: 16, Match: 64, Predicted: 64,
			Tier: [4]int{64}, Load: fleet.Load{Requests: 1, ContextBlocks: 20}},
	}
	query := policy.Query{PromptTokens: 160, Known: true, Rank: -1}
	choice := p.Choose(&query, candidates)
	fmt.Println(candidates[choice.Index].Worker.URL, choice.Branch)
	// Output: http://b affinity
}
