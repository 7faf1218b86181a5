package learned_test

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex/learned"
)

func Example() {
	hasher, err := block.NewHasher(block.XXH3, 4)
	if err != nil {
		panic(err)
	}
	index := learned.New(hasher, learned.ApproximateConfig())
	prompt := []block.Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	keys := hasher.Append(nil, hasher.Root(block.Scope{Model: "m"}), 0, prompt, nil)
	now := int64(0)
	index.Learn(3, keys, now)

	for _, m := range index.Match(keys[:2], now, nil) {
		fmt.Println("holder", m.Holder, "has", m.Blocks, "blocks")
	}
	fmt.Println(index.Evict(now+int64(2*time.Minute)), "expired")
	// Output:
	// holder 3 has 2 blocks
	// 3 expired
}
