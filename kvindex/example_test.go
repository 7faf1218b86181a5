package kvindex_test

import (
	"fmt"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

func Example() {
	hasher, err := block.NewHasher(block.XXH3, 4)
	if err != nil {
		panic(err)
	}
	index := kvindex.New(hasher, kvindex.Config{Bytes: 256 << 20})

	// Holder 0 has cached three blocks of a prompt; 71, 72 and 73 are its engine's hashes.
	prompt := []block.Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	index.Store(0, &kvindex.Stored{Hashes: []uint64{71, 72, 73}, Tokens: prompt, BlockSize: 4})
	// Holder 1 has the first two blocks. Its second block is in host memory only.
	index.Store(1, &kvindex.Stored{Hashes: []uint64{7}, Tokens: prompt[:4], BlockSize: 4})
	index.Store(1, &kvindex.Stored{Tier: block.TierCPU, Hashes: []uint64{8}, Parent: 7, HasParent: true, Tokens: prompt[4:8], BlockSize: 4})

	keys := hasher.Append(nil, hasher.Root(block.Scope{}), 0, prompt, nil)
	for _, m := range index.Match(keys, nil) {
		fmt.Printf("holder %d has %d blocks, %d on %v and %d on %v\n",
			m.Holder, m.Blocks, m.Tier[block.TierGPU], block.TierGPU, m.Tier[block.TierCPU], block.TierCPU)
	}

	index.Remove(0, block.TierGPU, 0, []uint64{72})
	fmt.Println("after an eviction:", index.Match(keys, nil)[0].Blocks)
	// Output:
	// holder 0 has 3 blocks, 3 on gpu and 0 on cpu
	// holder 1 has 2 blocks, 1 on gpu and 1 on cpu
	// after an eviction: 1
}
