package main

import (
	"fmt"

	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/block"
)

// hash measures how long it takes to hash 8,192 tokens to keys. It measures the two steps (local hashes, then keys)
// together and alone, like the program for the peers.
func hash() error {
	tokens := make([]block.Token, 8192)
	for i := range tokens {
		tokens[i] = uint32(i) * 2654435761 % 150_000
	}
	keys := make([]block.Key, 0, len(tokens))
	for _, size := range []int{16, 64} {
		hasher, err := block.NewHasher(block.XXH3, size)
		if err != nil {
			return err
		}
		root := hasher.Root(block.Scope{Model: "m"})
		locals := hasher.Locals(nil, tokens)
		timeLoop(fmt.Sprintf("warmpath block.Hasher.Append 8192 tok bs=%d", size), func() { keys = hasher.Append(keys[:0], root, 0, tokens, nil) })
		timeLoop(fmt.Sprintf("warmpath block.Hasher.Locals 8192 tok bs=%d", size), func() { locals = hasher.Locals(locals[:0], tokens) })
		timeLoop(fmt.Sprintf("warmpath block.Hasher.Chain (%d blocks, bs=%d)", len(locals), size), func() { keys = hasher.Chain(keys[:0], root, 0, locals) })
	}
	return nil
}

// runFor is the duration of each measurement, in ns.
const runFor = 1_500_000_000

func timeLoop(name string, f func()) {
	for range 200 {
		f()
	}
	clock := latency.NewClock()
	var all latency.Samples
	for end := clock.Now() + runFor; clock.Now() < end; {
		start := clock.Now()
		f()
		all.Add(clock.Now() - start)
	}
	fmt.Printf("hash %s: %v\n", name, all)
}
