package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
)

// lines collects the printed lines. It calls complete when a line says that the history is complete.
type lines struct {
	strings.Builder
	complete func()
}

func (l *lines) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), "the history is complete") {
		defer l.complete()
	}
	return l.Builder.Write(p)
}

func TestTheBlocksOfAnEngineArePrinted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer cancel()
	engine := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*"})
	if err := engine.Listen(); err != nil {
		t.Fatal(err)
	}
	publishing.Go(func() { _ = engine.Run(ctx) })
	format, err := kvevent.ParseWire("vllm-0.32")
	if err != nil {
		t.Fatal(err)
	}
	publish := func(e kvevent.Event) {
		e.Medium = "GPU"
		engine.Publish(format.Append(nil, &kvevent.Batch{HasRank: true, Events: []kvevent.Event{e}}))
	}
	tokens := make([]block.Token, 8)
	publish(kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{0xa1, 0xa2}, Tokens: tokens, BlockSize: 4})
	publish(kvevent.Event{Kind: kvevent.Stored, HasParent: true, Parent: 0xa2, Hashes: []kvevent.Hash{0xa3}, Tokens: tokens[:4], BlockSize: 4})
	publish(kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Hash{0xa3}})
	publish(kvevent.Event{Kind: kvevent.Cleared})

	following, stop := context.WithCancel(ctx)
	out := &lines{complete: stop}
	if err := follow(following, fleet.EventSource{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint()}, out); err != nil {
		t.Fatal(err)
	}
	want := `connected
0 stored on gpu: 2 blocks of 4 tokens at the beginning of a prompt: [00000000000000a1 00000000000000a2]; 2 blocks now
1 stored on gpu: 1 blocks of 4 tokens after 00000000000000a2: [00000000000000a3]; 3 blocks now
2 removed from gpu: 1 blocks: [00000000000000a3]; 2 blocks now
3 cleared gpu; 0 blocks now
the history is complete
`
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
