package warmpath_test

import (
	"context"
	"fmt"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// One of two workers announces that it has cached a conversation. The conversation's next turn goes to this worker.
func Example() {
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: workers})
	if err != nil {
		panic(err)
	}

	// A probe of a worker would find these facts. SetTrust says that the router knows the holder's whole history of
	// events.
	facts := fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16}
	workers.Put("http://10.0.0.7:8000", facts)
	workers.Put("http://10.0.0.8:8000", facts)
	for _, w := range workers.Snapshot().Workers() {
		workers.SetTrust(w.Holders[0], fleet.TrustExact, "replayed from 0")
	}

	// The second worker announces two cached blocks; 0xa1 and 0xa2 are the engine's hashes of these blocks. In a program,
	// package kvfeed receives the events and sets the trust.
	conversation := make([]block.Token, 40) // in a program, these come from the tokenizer
	for i := range conversation {
		conversation[i] = block.Token(1000 + i)
	}
	second := workers.Snapshot().Workers()[1].Holders[0]
	router.Store(second, &kvindex.Stored{
		Tokens:    conversation[:32],
		BlockSize: 16,
		Hashes:    []uint64{0xa1, 0xa2},
	})

	// The caller of Route gives the time and a random number. A program passes time.Now().UnixNano() and rand.Uint64().
	const routed = int64(1_000_000_000)
	d, err := router.Route(context.Background(), &warmpath.Request{
		Model:  "llama",
		Tokens: conversation,
		Now:    routed,
		Random: 42,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Worker.URL)
	fmt.Println(d)

	// Each call has the time of what it reports: the first token came after 20 ms, and the answer ended after 500 ms.
	d.FirstToken(routed + 20_000_000)
	d.Done(fleet.OutcomeServed, routed+500_000_000)
	d.Recycle()
	// Output:
	// http://10.0.0.8:8000
	// marginal: http://10.0.0.8:8000 rank 0 of 2 candidates, affinity (the lowest predicted cost, and no worker has a longer match); 32 of 40 prompt tokens matched, 32 on gpu; trust exact
}

// A request that waits in a queue is decided twice: first to estimate how many tokens must be computed, and later when
// its turn comes. Both decisions use the same block keys of the prompt, which the first decision computes.
func ExampleRouter_Prepare() {
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: workers, MaxRequests: 1})
	if err != nil {
		panic(err)
	}
	facts := fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16}
	workers.Put("http://10.0.0.7:8000", facts)

	request := warmpath.Request{Model: "llama", Tokens: make([]block.Token, 4000), Now: 1_000_000_000, Random: 42}
	prepared := router.Prepare(&request)
	defer prepared.Recycle()

	estimate, err := prepared.Explain(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(estimate.UncachedTokens(), "tokens to compute")
	estimate.Recycle()

	request.Now = 3_000_000_000 // the turn of the request comes two seconds later
	d, err := prepared.Route(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Worker.URL)
	d.FirstToken(3_100_000_000)
	d.Done(fleet.OutcomeServed, 3_500_000_000)
	d.Recycle()
	// Output:
	// 4000 tokens to compute
	// http://10.0.0.7:8000
}
