package kvfeed_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
)

// An engine stored a prompt before the router started. The feed reads the history, and the next request with that
// prompt is routed to the engine.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	// This publisher takes the place of an engine. It publishes an event of vLLM: one block of 16 tokens is stored.
	prompt := make([]block.Token, 20)
	for i := range prompt {
		prompt[i] = block.Token(1000 + i)
	}
	engine := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*"})
	if err := engine.Listen(); err != nil {
		panic(err)
	}
	running.Go(func() { _ = engine.Run(ctx) })
	format, err := kvevent.ParseWire("vllm-0.32")
	if err != nil {
		panic(err)
	}
	engine.Publish(format.Append(nil, &kvevent.Batch{HasRank: true, Events: []kvevent.Event{{
		Kind: kvevent.Stored, Medium: "GPU", Group: -1, Hashes: []kvevent.Hash{0xa1}, Tokens: prompt[:16], BlockSize: 16,
	}}}))

	// The router has two workers. The second worker publishes events.
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: workers})
	if err != nil {
		panic(err)
	}
	facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16}
	workers.Put("http://10.0.0.7:8000", facts)
	facts.Events = []fleet.EventSource{{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()}}
	workers.Put("http://10.0.0.8:8000", facts)

	feed := kvfeed.New(router, kvfeed.Config{}, nil)
	running.Go(func() { _ = feed.Run(ctx) })

	// A program need not wait: matches appear while the feed reads the history. This example waits so that its output is
	// the same each time.
	if err := feed.Ready(ctx); err != nil {
		panic(err)
	}
	d, err := router.Route(ctx, &warmpath.Request{Model: "llama", Tokens: prompt, Now: time.Now().UnixNano(), Random: 42})
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Worker.URL, "has", d.MatchTokens, "of", d.PromptTokens, "tokens; trust", d.Trust)
	d.Done(fleet.OutcomeServed, time.Now().UnixNano())
	d.Recycle()
	// Output:
	// http://10.0.0.8:8000 has 16 of 20 tokens; trust exact
}
