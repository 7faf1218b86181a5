package publish_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/warmpath/warmpath/publish"
)

// An engine publishes each block that it stores or removes.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	p := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*", BlockSize: 4})
	if err := p.Listen(); err != nil {
		panic(err)
	}
	running.Go(func() { _ = p.Run(ctx) })

	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	hashes, err := publish.HashBlocks(prompt, 4, nil, "", "") // or the engine's own hashes
	if err != nil {
		panic(err)
	}
	seq, err := p.PublishStored(publish.Stored{TokenIDs: prompt[:8], BlockDigests: hashes})
	fmt.Println(seq, err)
	seq, err = p.PublishRemoved(publish.Removed{BlockDigests: hashes[1:]})
	fmt.Println(seq, err)
	_, err = p.PublishStored(publish.Stored{TokenIDs: prompt, BlockDigests: hashes})
	fmt.Println(err)
	// Output:
	// 0 <nil>
	// 1 <nil>
	// publish: event 0: invalid event: 9 token_ids for 2 blocks of 4 tokens: only full blocks can be announced
}
