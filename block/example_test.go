package block_test

import (
	"fmt"

	"github.com/warmpath/warmpath/block"
)

func Example() {
	hasher, err := block.NewHasher(block.XXH3, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	root := hasher.Root(block.Scope{Model: "tiny"})
	first := hasher.Append(nil, root, 0, []block.Token{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil)
	second := hasher.Append(nil, root, 0, []block.Token{1, 2, 3, 4, 5, 6, 7, 99, 9}, nil)
	fmt.Println(len(first), "full blocks")
	fmt.Println("first block shared:", first[0] == second[0])
	fmt.Println("second block shared:", first[1] == second[1])
	// Output:
	// 2 full blocks
	// first block shared: true
	// second block shared: false
}

func ExampleIdentifyEngine() {
	engine, err := block.NewEngineHasher(block.EngineChain{Algorithm: block.VLLMSHA256CBOR, Size: 4, Seed: "42"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tokens := []block.Token{1, 2, 3, 4, 5, 6, 7, 8}
	var announced []uint64
	for _, d := range engine.Append(nil, engine.Root("", ""), tokens, nil) {
		announced = append(announced, engine.Normal(d))
	}
	chain, ok := block.IdentifyEngine(block.EngineSample{Size: 4, Tokens: tokens, Hashes: announced}, "0", "42")
	fmt.Println(ok, chain.Algorithm, chain.Seed)
	// Output:
	// true sha256_cbor 42
}
